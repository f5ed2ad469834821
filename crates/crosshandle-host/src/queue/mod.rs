//! Queues of the host device. Each queue has one worker thread, which is started when a command
//! first needs it.
//!
//! A short command without earlier unfinished commands runs immediately on the thread that submits
//! it. A launch that follows only other launches is passed immediately to the OpenCL runtime, which
//! runs launches in order. Such a launch is *in flight* until a thread notices its completion. All
//! other commands are kept in the queue's list, from which the worker runs them in order. In an
//! out-of-order queue, it runs each command as soon as the command's waits are over.

mod in_flight;
mod work;

use super::program::{Launcher, StartedLaunch, Units};
use crosshandle_events::{Outcome, Ticket, WaitError, WaitMode};
use crosshandle_hal::common::user_code;
use crosshandle_hal::{BackendQueue, Submission, WaitList, WaitPoint, Work};
use crosshandle_ipc::platform::{self, AtomicU64, Interrupt, Ordering, Target};
use crosshandle_ipc::{EventCore, Profile, wait_any};
use crosshandle_os::fork::Birth;
use crosshandle_os::threads::ThreadKind;
use crosshandle_types::QueueOrder;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Condvar, Deadline, Mutex, MutexGuard};
use in_flight::{InFlight, Spent};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of bytes of a command that may run on the submitting thread, whose call then
/// takes up to 2 µs longer. Waking the queue's thread takes longer than such a copy.
const INLINE_COMMAND_BYTES: usize = 64 << 10;

/// Time for which a queue's thread leaves finished launches uncollected if no event waits for them
/// and more may follow. Waking the thread for each launch takes longer than a small kernel. The
/// objects that the kernels used are kept that much longer.
const COLLECT_INTERVAL: Duration = Duration::from_millis(1);

pub(super) struct HostQueue(Arc<QueueCore>);

struct QueueCore {
    order: QueueOrder,
    pending: Mutex<PendingCommands>,
    /// Notified when a command is added or the queue is dropped.
    added: Condvar,
    /// Notified when a command has ended and a thread waits in `finish`.
    finished: Condvar,
    /// Counts submissions in its upper 32 bits. A submission thereby interrupts the worker's wait
    /// for events.
    submissions: AtomicU64,
    launcher: Launcher,
    birth: Birth,
}

/// The submitted commands that have not ended.
#[derive(Default)]
struct PendingCommands {
    commands: VecDeque<Command>,
    /// The number of the command that the worker runs. This command is no longer in `commands`.
    running: Option<u64>,
    /// Launches that were passed to the runtime. They precede `commands`, or need not wait for
    /// them.
    in_flight: VecDeque<InFlight>,
    /// The number of commands that were ever submitted to the list or to the runtime.
    count: u64,
    has_worker: bool,
    /// Whether the queue was dropped. The worker then ends when it has run all commands.
    is_closed: bool,
    /// Whether the worker waits for commands and has not been notified yet.
    is_worker_waiting: bool,
    /// Whether the worker waits only for [`COLLECT_INTERVAL`]. Launches for which no event
    /// waits do not wake it then.
    is_worker_dozing: bool,
    /// The number of calls of `finish` in progress.
    finishers: usize,
    /// The first error of a command without an event.
    error: Option<Error>,
}

/// A submission whose signal has its number.
struct Command {
    /// The number of commands that were added before this one.
    number: u64,
    work: Work,
    after_earlier: bool,
    before_later: bool,
    waits: WaitList,
    signal: Option<(Arc<EventCore>, Ticket)>,
}

impl HostQueue {
    pub(super) fn new(order: QueueOrder, units: &Units) -> Self {
        Self(Arc::new(QueueCore {
            order,
            pending: Mutex::default(),
            added: Condvar::new(),
            finished: Condvar::new(),
            submissions: AtomicU64::new(0),
            launcher: Launcher::new(units),
            birth: Birth::here(),
        }))
    }
}

impl QueueCore {
    /// Returns an error for a queue that a forked child has inherited. The child has no worker, and
    /// the lock may be held forever.
    fn check_birth(&self) -> Result<()> {
        match self.birth.is_inherited() {
            true => Err(Error::forked()),
            false => Ok(()),
        }
    }
}

impl BackendQueue for HostQueue {
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        self.0.check_birth()?;
        let mut pending = self.0.pending.lock();
        if let Some(profile) = profile_of(&submission.signal) {
            Profile::stamp(&profile.submitted);
        }
        // Between launches, collecting is left to the worker, because the worker delays the
        // launches less.
        let spent = match in_flight::suits(&submission.work, profile_of(&submission.signal)) {
            true => Spent::default(),
            false => pending.collect(),
        };
        let result = self.0.place(&mut pending, submission);
        drop(pending);
        drop(spent);
        result
    }

    fn flush(&self) -> Result<()> {
        // The worker runs all commands without a flush.
        Ok(())
    }

    fn finish(&self, deadline: Deadline) -> Result<()> {
        self.0.check_birth()?;
        let mut pending = self.0.pending.lock();
        // This call does not wait for commands that other threads submit meanwhile.
        let count = pending.count;
        if deadline == Deadline::NEVER {
            pending = self.0.help(pending, count);
        }
        if !pending.is_done(count) {
            pending = self.0.wait_for(pending, count, deadline);
        }
        if !pending.is_done(count) {
            return Err(Error::TimedOut("waiting for a queue"));
        }
        pending.error.take().map_or(Ok(()), Err)
    }

    fn is_idle(&self) -> bool {
        if self.0.birth.is_inherited() {
            return true;
        }
        let mut pending = self.0.pending.lock();
        let spent = pending.collect();
        let is_idle = pending.is_idle();
        drop(pending);
        drop(spent);
        is_idle
    }
}

impl Drop for HostQueue {
    fn drop(&mut self) {
        if self.0.birth.is_inherited() {
            return;
        }
        // The worker still runs the submitted commands.
        self.0.pending.lock().is_closed = true;
        self.0.added.notify_one();
    }
}

/// Runs a short command on the calling thread. No unfinished command precedes it, and the caller
/// holds the queue's lock.
fn run_at_once(submission: &mut Submission, launcher: &Launcher) -> Result<()> {
    let profile = profile_of(&submission.signal);
    if let Some(profile) = profile {
        Profile::stamp(&profile.started);
    }
    work::run(&mut submission.work, launcher)?;
    if let Some(profile) = profile {
        Profile::stamp(&profile.ended);
    }
    if let Some(event) = &submission.signal {
        let number = event.signal()?;
        event.note_issued(number);
    }
    Ok(())
}

fn profile_of(signal: &Option<Arc<EventCore>>) -> Option<&Profile> {
    signal.as_ref()?.profile()
}

impl PendingCommands {
    fn is_idle(&self) -> bool {
        self.has_launches_alone() && self.in_flight.is_empty()
    }

    /// Returns whether all commands that have not ended are in flight.
    fn has_launches_alone(&self) -> bool {
        self.commands.is_empty() && self.running.is_none()
    }

    /// Takes a submission, and creates the command with the next number.
    fn number(&mut self, submission: &mut Submission, ticket: Option<Ticket>) -> Command {
        // Taken only when it is certain to run, so that a refused submission is not dropped under
        // the lock.
        let submission = submission.take();
        let number = self.count;
        self.count += 1;
        Command {
            number,
            work: submission.work,
            after_earlier: submission.after_earlier,
            before_later: submission.before_later,
            waits: submission.waits,
            signal: submission.signal.zip(ticket),
        }
    }

    /// Returns whether the first `count` commands have ended.
    fn is_done(&self, count: u64) -> bool {
        let first = self.commands.front().map(|command| command.number);
        let launched = self.in_flight.front().map(|launch| launch.number);
        let all = [first, self.running, launched];
        all.into_iter().flatten().all(|number| number >= count)
    }
}

impl QueueCore {
    /// Runs a command, passes it to the runtime, or adds it to the list.
    fn place(
        self: &Arc<Self>,
        pending: &mut PendingCommands,
        submission: &mut Submission,
    ) -> Result<()> {
        let may_run = pending.is_idle()
            && work::is_short(&submission.work, INLINE_COMMAND_BYTES)
            && submission.waits.iter().all(|wait| {
                // The worker handles failed waits.
                wait.event.outcome(wait.number) == Outcome::Complete
            });
        if may_run {
            return run_at_once(submission, &self.launcher);
        }
        let may_launch = pending.has_launches_alone()
            && in_flight::suits(&submission.work, profile_of(&submission.signal))
            && pending.are_met(&submission.waits);
        if may_launch {
            return self.launch(pending, submission);
        }
        self.enqueue(pending, submission)
    }

    fn enqueue(
        self: &Arc<Self>,
        pending: &mut PendingCommands,
        submission: &mut Submission,
    ) -> Result<()> {
        self.ensure_worker(pending)?;
        // Issued under the lock, so that signal numbers follow the order of the queue.
        let ticket = submission.signal.as_ref().map(|event| event.issue());
        let ticket = ticket.transpose()?;
        let command = pending.number(submission, ticket);
        pending.commands.push_back(command);
        self.submissions.fetch_add(1 << 32, Ordering::Release);
        if self.order == QueueOrder::OutOfOrder {
            platform::wake_all(&self.submissions);
        }
        self.wake_worker(pending);
        Ok(())
    }

    fn ensure_worker(self: &Arc<Self>, pending: &mut PendingCommands) -> Result<()> {
        if !pending.has_worker {
            let inner = Arc::clone(self);
            ThreadKind::HostQueue.start(move || inner.run_worker())?;
            pending.has_worker = true;
        }
        Ok(())
    }

    fn wake_worker(&self, pending: &mut PendingCommands) {
        // A notification is a system call, even if no thread waits or one has already been
        // notified.
        if mem::take(&mut pending.is_worker_waiting) {
            self.added.notify_one();
        }
    }

    /// Runs commands on the worker, until the queue is dropped and all its commands have ended.
    fn run_worker(&self) {
        let mut known = 0;
        loop {
            // Read before the commands, so that a later submission interrupts the wait below.
            let seen = (self.submissions.load(Ordering::Acquire) >> 32) as u32;
            let mut pending = self.pending.lock();
            pending.running = None;
            let spent = pending.collect();
            if pending.finishers > 0 {
                self.finished.notify_all();
            }
            if !spent.is_empty() {
                drop(pending);
                drop(spent);
                continue;
            }
            if let Some(ready) = self.find_ready(&pending) {
                let command = pending.commands.remove(ready).expect("just found");
                pending.running = Some(command.number);
                let may_launch = command.suits_runtime() && pending.are_met(&command.waits);
                drop(pending);
                let result = match may_launch {
                    true => self.launch_pending(command),
                    false => execute(command, &self.launcher),
                };
                if let Err(error) = result {
                    self.pending.lock().error.get_or_insert(error);
                }
                continue;
            }
            let is_closed = pending.is_closed;
            if pending.has_launches_alone() && !is_closed && pending.may_collect_later(known) {
                known = pending.count;
                self.doze(pending);
                continue;
            }
            // The worker waits here even if commands wait for events, because commands behind
            // launches must wait for these anyway.
            if let Some(awaited) = pending.awaited() {
                drop(pending);
                // A failure belongs to the command and is reported when the launch is collected.
                let _ = awaited.wait();
                continue;
            }
            if pending.commands.is_empty() {
                if is_closed {
                    return;
                }
                pending.is_worker_waiting = true;
                pending = self.added.wait(pending);
                pending.is_worker_waiting = false;
                continue;
            }
            let mut blockers = Vec::new();
            let mut has_become_ready = false;
            for (_, command) in self.candidates(&pending) {
                let before = blockers.len();
                let unfinished = command.waits.iter().filter(|wait| !is_over(wait));
                blockers.extend(unfinished.map(|wait| (Arc::clone(&wait.event), wait.number)));
                has_become_ready |= blockers.len() == before;
            }
            drop(pending);
            // The command's last signal came after the search above, and it may unblock other
            // commands.
            if has_become_ready {
                continue;
            }
            self.wait_for_change(&blockers, seen);
        }
    }

    /// Waits until the first `count` commands have ended, or until the deadline.
    fn wait_for<'a>(
        &'a self,
        mut pending: MutexGuard<'a, PendingCommands>,
        count: u64,
        deadline: Deadline,
    ) -> MutexGuard<'a, PendingCommands> {
        pending.finishers += 1;
        self.wake_worker(&mut pending);
        let is_busy = |pending: &mut PendingCommands| !pending.is_done(count);
        let (mut pending, _) = self.finished.wait_until_while(pending, deadline, is_busy);
        pending.finishers -= 1;
        pending
    }

    /// Waits briefly for commands. Launches without an event do not wake the worker during this
    /// time.
    fn doze(&self, mut pending: MutexGuard<'_, PendingCommands>) {
        pending.is_worker_waiting = true;
        pending.is_worker_dozing = true;
        let (mut pending, _) = self.added.wait_timeout(pending, COLLECT_INTERVAL);
        pending.is_worker_waiting = false;
        pending.is_worker_dozing = false;
    }

    /// Waits until one of the events is signalled. In an out-of-order queue, a new command also
    /// ends the wait.
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
            // No signal will ever end this wait, so the commands that wait for it fail.
            let (event, number) = &blockers[index];
            for command in &mut self.pending.lock().commands {
                for wait in command.waits.iter_mut() {
                    wait.is_abandoned |= Arc::ptr_eq(&wait.event, event) && wait.number == *number;
                }
            }
        }
    }

    /// Returns the commands that may run next if their waits allow it, in order.
    fn candidates<'a>(
        &self,
        pending: &'a PendingCommands,
    ) -> impl Iterator<Item = (usize, &'a Command)> + use<'a> {
        let limit = match self.order {
            QueueOrder::InOrder => 1,
            QueueOrder::OutOfOrder => usize::MAX,
        };
        let mut is_behind_barrier = false;
        let commands = pending.commands.iter().enumerate().take(limit);
        commands
            .take_while(move |(_, command)| {
                let was_behind_barrier = is_behind_barrier;
                is_behind_barrier |= command.before_later;
                !was_behind_barrier
            })
            .filter(|(index, command)| *index == 0 || !command.after_earlier)
    }

    fn find_ready(&self, pending: &PendingCommands) -> Option<usize> {
        let is_in_order = self.order == QueueOrder::InOrder;
        self.candidates(pending)
            .find(|(_, command)| {
                if command.suits_runtime() && pending.are_met(&command.waits) {
                    return true;
                }
                let is_behind_launches = pending
                    .in_flight
                    .iter()
                    .any(|launch| is_in_order || command.after_earlier || launch.before_later);
                !is_behind_launches && command.waits.iter().all(is_over)
            })
            .map(|(index, _)| index)
    }
}

impl Command {
    /// Returns whether the OpenCL runtime may order the command among launches.
    fn suits_runtime(&self) -> bool {
        let signal = self.signal.as_ref();
        in_flight::suits(&self.work, signal.and_then(|(event, _)| event.profile()))
    }
}

fn is_over(wait: &WaitPoint) -> bool {
    wait.is_abandoned || wait.event.outcome(wait.number) != Outcome::Pending
}

/// Runs a command whose waits are all over. Returns the command's error if no event takes it.
fn execute(command: Command, launcher: &Launcher) -> Result<()> {
    let failed = command
        .waits
        .iter()
        .find_map(|wait| match wait.event.result(wait.number) {
            None => Some(wait.event.abandoned(wait.number)),
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
        None => work::run(&mut work, launcher),
    };
    if let Some(profile) = profile {
        Profile::stamp(&profile.ended);
    }
    user_code::drop_contained(work);
    match command.signal {
        Some((event, ticket)) => {
            event.complete(ticket, result.map_err(user_code::failure_text));
            Ok(())
        }
        None => result,
    }
}
