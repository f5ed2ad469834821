//! Queues of the host device: one thread each, started when it is first needed.
//!
//! A short command whose turn has come runs at once on the thread that submits it.

use super::work;
use crate::error::{Error, Result};
use crate::event_protocol::{Interrupt, Outcome, Target, Ticket, WaitError, WaitMode, wait_any};
use crate::hal::{BackendQueue, Submission, WaitList, WaitPoint, Work};
use crate::ipc::{EventCore, Profile};
use crate::os::process;
use crate::platform;
use crate::types::QueueOrder;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Commands up to this many bytes may run on the submitting thread.
const SHORT: usize = 64 << 10;

pub(super) struct HostQueue(Arc<Inner>);

struct Inner {
    order: QueueOrder,
    state: Mutex<State>,
    /// Notified when there is something to do, or the queue is dropped.
    added: Condvar,
    /// Notified when a command is done that somebody may wait for in `finish`.
    finished: Condvar,
    /// Its upper half counts submissions, so that the thread's wait for events notices them.
    submissions: AtomicU64,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Command>,
    /// The number of the command that the thread is at, which is no longer in `commands`.
    running: Option<u64>,
    /// How many commands there were.
    count: u64,
    has_thread: bool,
    is_closed: bool,
    /// Whether the thread waits for commands.
    is_waiting: bool,
    /// Calls of `finish` under way.
    finishers: usize,
    /// The first error of a command that signals no event.
    error: Option<Error>,
}

/// A submission whose signal has its number.
struct Command {
    /// How many came before it.
    number: u64,
    work: Work,
    after_earlier: bool,
    before_later: bool,
    waits: WaitList,
    signal: Option<(Arc<EventCore>, Ticket)>,
}

impl HostQueue {
    pub(super) fn new(order: QueueOrder) -> Self {
        Self(Arc::new(Inner {
            order,
            state: Mutex::default(),
            added: Condvar::new(),
            finished: Condvar::new(),
            submissions: AtomicU64::new(0),
        }))
    }
}

impl BackendQueue for HostQueue {
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        check_fork()?;
        let mut state = self.0.state();
        if let Some(profile) = profile_of(&submission.signal) {
            Profile::stamp(&profile.submitted);
        }
        let may_run = state.commands.is_empty()
            && state.running.is_none()
            && work::is_short(&submission.work, SHORT)
            && submission.waits.iter().all(|wait| {
                // A failed one is dealt with by the thread.
                wait.event.outcome(wait.number) == Outcome::Complete
            });
        if may_run {
            return run_at_once(submission);
        }
        self.0.enqueue(&mut state, submission)
    }

    fn flush(&self) -> Result<()> {
        // The thread runs whatever there is.
        Ok(())
    }

    fn finish(&self, deadline: Option<Instant>) -> Result<()> {
        check_fork()?;
        let mut state = self.0.state();
        state.finishers += 1;
        // What others submit meanwhile is not waited for.
        let count = state.count;
        let is_busy = |state: &mut State| !state.is_done(count);
        let finished = &self.0.finished;
        let mut state = match deadline {
            None => finished
                .wait_while(state, is_busy)
                .unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let waited = finished.wait_timeout_while(state, left, is_busy);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.finishers -= 1;
        if !state.is_done(count) {
            return Err(Error::TimedOut("waiting for a queue"));
        }
        state.error.take().map_or(Ok(()), Err)
    }

    fn is_idle(&self) -> bool {
        process::is_forked() || self.0.state().is_idle()
    }
}

/// Refuses a forked child, where the thread is missing and the lock may be held for ever.
fn check_fork() -> Result<()> {
    if process::is_forked() {
        return Err(Error::forked());
    }
    Ok(())
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // What was submitted still runs.
        self.0.state().is_closed = true;
        self.0.added.notify_one();
    }
}

/// Runs a short command whose turn has come. The caller holds the queue's lock.
fn run_at_once(submission: &mut Submission) -> Result<()> {
    let profile = profile_of(&submission.signal);
    if let Some(profile) = profile {
        Profile::stamp(&profile.started);
    }
    work::run(&mut submission.work)?;
    if let Some(profile) = profile {
        Profile::stamp(&profile.ended);
    }
    if let Some(event) = &submission.signal {
        event.signal()?;
    }
    Ok(())
}

fn profile_of(signal: &Option<Arc<EventCore>>) -> Option<&Profile> {
    signal.as_ref()?.profile()
}

impl State {
    fn is_idle(&self) -> bool {
        self.commands.is_empty() && self.running.is_none()
    }

    /// Whether the first `count` commands are done.
    fn is_done(&self, count: u64) -> bool {
        let first = self.commands.front().map(|command| command.number);
        first.is_none_or(|number| number >= count)
            && self.running.is_none_or(|number| number >= count)
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(self: &Arc<Self>, state: &mut State, submission: &mut Submission) -> Result<()> {
        if !state.has_thread {
            let inner = Arc::clone(self);
            std::thread::Builder::new()
                .name("crosshandle-queue".into())
                .spawn(move || inner.run())
                .map_err(|error| Error::LimitReached {
                    what: format!("a queue's thread cannot be started: {error}"),
                    remedy: "raise RLIMIT_NPROC (ulimit -u)".into(),
                })?;
            state.has_thread = true;
        }
        // Under the lock, so that numbers follow the order of the queue.
        let ticket = submission.signal.as_ref().map(|event| event.issue());
        let ticket = ticket.transpose()?;
        // Not before it is sure to run: what is refused is not dropped under the lock.
        let submission = submission.take();
        let signal = submission.signal.zip(ticket);
        let number = state.count;
        state.count += 1;
        state.commands.push_back(Command {
            number,
            work: submission.work,
            after_earlier: submission.after_earlier,
            before_later: submission.before_later,
            waits: submission.waits,
            signal,
        });
        self.submissions.fetch_add(1 << 32, Ordering::Release);
        if self.order == QueueOrder::OutOfOrder {
            platform::wake_all(&self.submissions);
        }
        // Notifying nobody is a system call too.
        if state.is_waiting {
            self.added.notify_one();
        }
        Ok(())
    }

    /// The thread. It ends when the queue is dropped and all its commands are done.
    fn run(&self) {
        loop {
            // Read before the commands: what is submitted after that interrupts the wait.
            let seen = (self.submissions.load(Ordering::Acquire) >> 32) as u32;
            let mut state = self.state();
            state.running = None;
            if state.finishers > 0 {
                self.finished.notify_all();
            }
            if state.commands.is_empty() {
                while state.commands.is_empty() {
                    if state.is_closed {
                        return;
                    }
                    state.is_waiting = true;
                    state = self
                        .added
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                    state.is_waiting = false;
                }
                continue;
            }
            if let Some(ready) = self.find_ready(&state) {
                let command = state.commands.remove(ready).expect("just found");
                state.running = Some(command.number);
                drop(state);
                if let Err(error) = execute(command) {
                    self.state().error.get_or_insert(error);
                }
                continue;
            }
            let blockers: Vec<_> = self
                .candidates(&state)
                .flat_map(|(_, command)| command.waits.iter())
                .filter(|wait| !is_settled(wait))
                .map(|wait| (Arc::clone(&wait.event), wait.number))
                .collect();
            drop(state);
            self.wait_for_change(&blockers, seen);
        }
    }

    /// Waits until one of the events is signalled or, if order is free, a command comes in.
    fn wait_for_change(&self, blockers: &[(Arc<EventCore>, u64)], seen: u32) {
        if blockers.is_empty() {
            return;
        }
        let targets: Vec<Target<'_>> = blockers
            .iter()
            .map(|(event, number)| event.target(*number))
            .collect();
        let interrupt = (self.order == QueueOrder::OutOfOrder).then_some(Interrupt {
            word: &self.submissions,
            expected: seen,
        });
        let mode = WaitMode::for_all(blockers.iter().map(|(event, _)| event.mode()));
        if let Some((index, Err(WaitError::Abandoned))) = wait_any(&targets, interrupt, mode, None)
        {
            // No signal will ever settle this one: its commands fail.
            let (event, number) = &blockers[index];
            for command in &mut self.state().commands {
                for wait in command.waits.iter_mut() {
                    wait.is_abandoned |= Arc::ptr_eq(&wait.event, event) && wait.number == *number;
                }
            }
        }
    }

    /// The commands that may run before others, in order.
    fn candidates<'a>(
        &self,
        state: &'a State,
    ) -> impl Iterator<Item = (usize, &'a Command)> + use<'a> {
        let most = match self.order {
            QueueOrder::InOrder => 1,
            QueueOrder::OutOfOrder => usize::MAX,
        };
        let mut is_held = false;
        let commands = state.commands.iter().enumerate().take(most);
        commands
            .take_while(move |(_, command)| {
                let was_held = is_held;
                is_held |= command.before_later;
                !was_held
            })
            .filter(|(index, command)| *index == 0 || !command.after_earlier)
    }

    fn find_ready(&self, state: &State) -> Option<usize> {
        self.candidates(state)
            .find(|(_, command)| command.waits.iter().all(is_settled))
            .map(|(index, _)| index)
    }
}

fn is_settled(wait: &WaitPoint) -> bool {
    wait.is_abandoned || wait.event.outcome(wait.number) != Outcome::Pending
}

/// Runs a command all of whose waits are settled; its error, if no event takes it.
fn execute(command: Command) -> Result<()> {
    let failed = command
        .waits
        .iter()
        .find_map(|wait| match wait.event.result(wait.number) {
            None => Some(Error::PeerDied),
            Some(result) => result.err(),
        });
    let profile = command
        .signal
        .as_ref()
        .and_then(|(event, _)| event.profile());
    if let Some(profile) = profile {
        Profile::stamp(&profile.started);
    }
    let mut work = command.work;
    let result = match failed {
        Some(error) => Err(error),
        None => work::run(&mut work),
    };
    if let Some(profile) = profile {
        Profile::stamp(&profile.ended);
    }
    work::discard(work);
    match command.signal {
        Some((event, ticket)) => {
            let result = result.map_err(|error| match error {
                Error::CommandFailed(message) => message,
                error => error.to_string().into(),
            });
            event.complete(ticket, result);
            Ok(())
        }
        None => result,
    }
}
