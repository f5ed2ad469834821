//! Queues without a thread. A command runs on the thread that submits it, or on a background thread
//! after its last wait has ended.

use crate::common::user_code;
use crate::{BackendQueue, Submission, WaitPoint, Work};
use crosshandle_events::{Outcome, Ticket};
use crosshandle_ipc::Profile;
use crosshandle_ipc::awaiting::{Await, Waiter};
use crosshandle_os::fork::Birth;
use crosshandle_os::threads::background;
use crosshandle_types::QueueOrder;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Condvar, Deadline, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// A queue of commands that compute nothing.
pub struct NoopQueue(Arc<Inner>);

struct Inner {
    order: QueueOrder,
    commands: Mutex<Commands>,
    /// Notified when a command has ended.
    ended: Condvar,
    birth: Birth,
}

#[derive(Default)]
struct Commands {
    /// The commands that have not ended, in the order of submission.
    unfinished: VecDeque<Command>,
    /// The number of commands that were ever submitted.
    count: u64,
    /// The first error of a command without a signal, for `finish`.
    error: Option<Error>,
}

struct Command {
    number: u64,
    after_earlier: bool,
    before_later: bool,
    /// The rest of the command. `None` while it runs.
    parts: Option<(Submission, Option<Ticket>)>,
}

impl NoopQueue {
    pub fn new(order: QueueOrder) -> Self {
        Self(Arc::new(Inner {
            order,
            commands: Mutex::default(),
            ended: Condvar::default(),
            birth: Birth::here(),
        }))
    }
}

impl BackendQueue for NoopQueue {
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        if self.0.birth.is_inherited() {
            return Err(Error::forked());
        }
        // Nothing has changed yet if this fails. A command that is not in the list yet misses the
        // notification, but `run_ready` below checks its waits.
        for wait in submission.waits.iter().filter(|wait| !is_over(wait)) {
            let waiter = Arc::new(Retry(Arc::clone(&self.0)));
            Await::begin(&wait.event, wait.number, waiter)?.detach();
        }
        let mut commands = self.0.commands.lock();
        if let Some(profile) = profile_of(submission) {
            Profile::stamp(&profile.submitted);
        }
        // Issued under the lock, so that signal numbers follow the order of submission.
        let ticket = submission.signal.as_ref().map(|event| event.issue());
        let ticket = ticket.transpose()?;
        let submission = submission.take();
        let number = commands.count;
        commands.count += 1;
        commands.unfinished.push_back(Command {
            number,
            after_earlier: submission.after_earlier,
            before_later: submission.before_later,
            parts: Some((submission, ticket)),
        });
        drop(commands);
        self.0.run_ready();
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        // The end of a wait runs its command, without further calls.
        Ok(())
    }

    fn finish(&self, deadline: Deadline) -> Result<()> {
        if self.0.birth.is_inherited() {
            return Err(Error::forked());
        }
        let commands = self.0.commands.lock();
        // This call does not wait for commands that other threads submit meanwhile.
        let count = commands.count;
        let is_busy = |commands: &mut Commands| commands.has_unfinished_before(count);
        let (mut commands, _) = self.0.ended.wait_until_while(commands, deadline, is_busy);
        match commands.has_unfinished_before(count) {
            true => Err(Error::TimedOut("waiting for a queue")),
            false => commands.error.take().map_or(Ok(()), Err),
        }
    }

    fn is_idle(&self) -> bool {
        self.0.birth.is_inherited() || self.0.commands.lock().unfinished.is_empty()
    }
}

impl Commands {
    fn has_unfinished_before(&self, count: u64) -> bool {
        let first = self.unfinished.front();
        first.is_some_and(|command| command.number < count)
    }

    /// Returns the first command that may run now.
    fn ready(&mut self, order: QueueOrder) -> Option<&mut Command> {
        let mut is_first = true;
        for command in &mut self.unfinished {
            let may_run = is_first || !command.after_earlier;
            let is_last = order == QueueOrder::InOrder || command.before_later;
            let parts = command.parts.as_ref();
            if may_run && parts.is_some_and(|(submission, _)| submission.waits.iter().all(is_over))
            {
                return Some(command);
            }
            if is_last {
                return None;
            }
            is_first = false;
        }
        None
    }
}

impl Inner {
    /// Runs all commands that may run now.
    fn run_ready(&self) {
        loop {
            let mut commands = self.commands.lock();
            let Some(command) = commands.ready(self.order) else {
                return;
            };
            let number = command.number;
            let (submission, ticket) = command.parts.take().expect("it does not run");
            // The work is the program's code, so it runs without the lock.
            drop(commands);
            let result = run(submission, ticket);
            let mut commands = self.commands.lock();
            commands
                .unfinished
                .retain(|command| command.number != number);
            if let Err(error) = result {
                commands.error.get_or_insert(error);
            }
            drop(commands);
            self.ended.notify_all();
        }
    }
}

/// Runs the commands of a queue that a signal may have released.
struct Retry(Arc<Inner>);

impl Waiter for Retry {
    fn tell(&self, _result: Result<()>) {
        let queue = Arc::clone(&self.0);
        background::run_blocking(move || queue.run_ready());
    }
}

/// Returns whether a command need not wait for a signal any more.
fn is_over(wait: &WaitPoint) -> bool {
    wait.event.outcome(wait.number) != Outcome::Pending || wait.event.is_abandoned(wait.number)
}

/// Runs a command whose waits are over. Returns its error if no event takes the error.
fn run(submission: Submission, ticket: Option<Ticket>) -> Result<()> {
    let failed = submission.waits.iter().find_map(|wait| {
        let result = wait.event.result(wait.number);
        result
            .unwrap_or_else(|| Err(wait.event.abandoned(wait.number)))
            .err()
    });
    if let Some(profile) = profile_of(&submission) {
        Profile::stamp(&profile.started);
    }
    let Submission { work, signal, .. } = submission;
    let result = match (failed, work) {
        (Some(error), work) => {
            user_code::drop_contained(work);
            Err(error)
        }
        // The only work that needs no device.
        (None, Work::Call(function)) => user_code::call(function),
        (None, work) => {
            user_code::drop_contained(work);
            Ok(())
        }
    };
    match signal.zip(ticket) {
        Some((event, ticket)) => {
            if let Some(profile) = event.profile() {
                Profile::stamp(&profile.ended);
            }
            event.complete(ticket, result.map_err(user_code::failure_text));
            Ok(())
        }
        None => result,
    }
}

fn profile_of(submission: &Submission) -> Option<&Profile> {
    submission.signal.as_ref()?.profile()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostFunction, WaitList};
    use crosshandle_ipc::EventCore;
    use crosshandle_ipc::testing::{self, DEADLINE};

    fn command(waits_for: Option<&Arc<EventCore>>, signals: Option<&Arc<EventCore>>) -> Submission {
        let waits = waits_for.map(|event| WaitPoint::new(event, 1));
        Submission {
            waits: waits.into_iter().collect::<WaitList>(),
            signal: signals.map(Arc::clone),
            ..Submission::new(Work::Marker)
        }
    }

    #[test]
    fn commands_run_in_the_order_of_the_queue_once_their_waits_are_over() {
        for order in [QueueOrder::InOrder, QueueOrder::OutOfOrder] {
            let queue = NoopQueue::new(order);
            let [gate, first, second] = [(); 3].map(|()| testing::event());
            queue
                .submit(&mut command(Some(&gate), Some(&first)))
                .unwrap();
            queue.submit(&mut command(None, Some(&second))).unwrap();
            let is_second_done = second.outcome(1) == Outcome::Complete;
            assert_eq!(is_second_done, order == QueueOrder::OutOfOrder);
            assert_eq!(first.outcome(1), Outcome::Pending);
            let timed_out = queue.finish(Deadline::after(std::time::Duration::ZERO));
            assert!(matches!(timed_out, Err(Error::TimedOut(_))));
            gate.signal().unwrap();
            queue.finish(Deadline::after(DEADLINE)).unwrap();
            assert!(queue.is_idle());
            let outcomes = [first.outcome(1), second.outcome(1)];
            assert_eq!(outcomes, [Outcome::Complete; 2]);
        }
    }

    #[test]
    fn a_barrier_and_a_failure_hold_in_an_out_of_order_queue() {
        let queue = NoopQueue::new(QueueOrder::OutOfOrder);
        let [gate, barred, failed] = [(); 3].map(|()| testing::event());
        queue.submit(&mut command(Some(&gate), None)).unwrap();
        queue.submit(&mut Submission::barrier()).unwrap();
        queue.submit(&mut command(None, Some(&barred))).unwrap();
        assert_eq!(barred.outcome(1), Outcome::Pending);
        let ticket = gate.issue().unwrap();
        gate.complete(ticket, Err("it is to fail".into()));
        let error = queue.finish(Deadline::after(DEADLINE));
        assert!(matches!(error, Err(Error::CommandFailed(_))), "{error:?}");
        assert_eq!(barred.outcome(1), Outcome::Complete);
        let fails = Work::Call(HostFunction::Once(Box::new(
            || Err("of the program".into()),
        )));
        let mut call = command(None, Some(&failed));
        call.work = fails;
        queue.submit(&mut call).unwrap();
        assert!(matches!(
            failed.result(1),
            Some(Err(Error::CommandFailed(_)))
        ));
    }
}
