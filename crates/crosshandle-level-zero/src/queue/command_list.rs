//! A command list that only this library appends to, its commands, and the submitters' side of it.
//!
//! # States of a command
//! - **Pending**: the command waits for the host, or is behind a command that does. It is in
//!   [`ListState::pending`] and not in the driver's list.
//! - **In flight**: the command is in the driver's list. It is in [`InFlight`], with the fences
//!   behind it.
//! - **Ended**: the objects that the command used are dropped, and its event is signalled.
//!   [`CompletionCount`] counts it.
//!
//! A submitter appends a command immediately if no command is pending, and if the command waits
//! only for the list itself or for events of the driver (native mirrors). Otherwise the command is
//! pending. Once nothing is in flight, the list's thread handles the first pending command. It
//! waits for the signals that the command needs. Then it appends the command and those behind it,
//! or calls the program's function, which ends the command. Submitters and the thread append more
//! pending commands as soon as these do not need the host.
//!
//! The thread waits for the first fence in flight, and ends the fence's command with all earlier
//! ones. A command is *urgent* if a thread may wait for it. The thread ends urgent commands
//! immediately, and others after
//! [`UNAWAITED_DELAY`](super::list_thread::UNAWAITED_DELAY), so that most submissions
//! wake no thread. If urgent commands have no fence behind them, the thread appends one.
//!
//! # States of the list
//! - **Running**: as described above.
//! - **Abandoned**: the list waits for a signal that will never reach it, because a process died.
//!   The list is leaked with all objects that its commands use, and their mirrors' promises are
//!   revoked. The commands become pending again, for a new list. A command in flight may therefore
//!   become pending.
//! - **Unsure**: the driver refused a fence or a part of a command, so no thread knows when the
//!   list is done. Commands fail, and the objects that they use are leaked. A later fence that is
//!   signalled ends this state. A list that is dropped in this state is leaked.
//! - **Closed**: the list's queue was dropped. The thread ends the remaining commands, destroys the
//!   list, and exits.
//!
//! # Locks
//! `state` is locked before `in_flight`, by the thread and by submitters. Both append to the
//! driver's list under `state`, because the order of appending is the order of the queue. Appending
//! is asynchronous in the driver: it takes microseconds and waits for no other command. Resources
//! that may take longer to allocate (lists, event pools, staging memory) are allocated before
//! `state` is locked. No call that takes time is made under `in_flight`. No lock is held while the
//! thread waits or while code of the program runs.

use super::QueueCommon;
use super::command::{Command, Extras, is_decided};
use super::completion::{CompletionCount, CompletionFlag};
use super::drain;
use super::fences::Position;
use super::in_flight::InFlight;
use super::work::Staging;
use crate::driver::{EventHandle, List};
use crosshandle_hal::{Submission, Work};
use crosshandle_ipc::{EventCore, Profile};
use crosshandle_os::process;
use crosshandle_os::threads::ThreadKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Condvar, Deadline, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of commands that no thread is known to wait for, after which the thread is woken to drop
/// what they used. A wake costs the submitter about 10 µs.
const MAX_UNAWAITED_COMMANDS: u64 = 1024;

/// Time that the drop of a queue waits for commands that wait neither for the host nor for another
/// process. After this time, the drain waits for them.
const QUEUE_DROP_TIMEOUT: Duration = Duration::from_millis(5);

/// A command list until its queue is dropped. The list's thread continues until all commands have
/// ended.
pub(super) struct CommandList(Arc<ListCore>);

pub(super) struct ListCore {
    pub(super) queue: Arc<QueueCommon>,
    pub(super) state: Mutex<ListState>,
    /// Notified when there is work for the thread.
    pub(super) work_added: Condvar,
    /// The number of submitted commands. Written under `state`.
    submitted: AtomicU64,
    /// The number of commands, from the first one on, that must end as soon as possible. Written
    /// under `state`.
    urgent: AtomicU64,
    /// Whether the queue was dropped.
    is_closed: AtomicBool,
    pub(super) in_flight: Mutex<InFlight>,
    pub(super) completed: CompletionCount,
}

/// The state of the thread, for submitters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Rest {
    /// The thread checks for submitted commands, or waits for the device and checks afterwards.
    #[default]
    Awake,
    /// The thread checks again after
    /// [`UNAWAITED_DELAY`](super::list_thread::UNAWAITED_DELAY).
    Dozing,
    /// The thread checks only when it is notified.
    Asleep,
}

#[derive(Default)]
pub(super) struct ListState {
    pub(super) end: ListEnd,
    /// Commands that are not in the driver's list yet.
    pub(super) pending: VecDeque<Command>,
    pub(super) rest: Rest,
    /// Whether the list takes no more commands, because they go to a shared list.
    is_shut: bool,
    thread: Option<JoinHandle<()>>,
}

/// The driver's list, and the state of its end that appending needs.
#[derive(Default)]
pub(super) struct ListEnd {
    /// The driver's list. A submitter creates it with the first command, and the thread destroys
    /// it.
    pub(super) list: Option<List>,
    /// The number of commands that are in flight or ended.
    pub(super) appended: u64,
    /// Fences in the driver's list that are not yet in `in_flight`. They move there together with
    /// the command for which they were appended.
    new_fences: Vec<(EventHandle, Position)>,
    /// The last fence of the list.
    pub(super) last_fence: Option<Position>,
    pub(super) fence_before: Option<Position>,
    /// The number of commands behind the last fence.
    pub(super) unfenced: u32,
    /// Whether a thread may wait for a command behind the last fence.
    pub(super) is_awaited: bool,
    /// Whether a command behind the last fence waits for events of the driver.
    pub(super) has_waits: bool,
}

impl ListEnd {
    /// Records a fence that was appended at the end of the list.
    pub(super) fn add_fence(&mut self, fence: EventHandle, position: Position) {
        debug_assert!(self.last_fence.is_none_or(|last| last < position));
        self.new_fences.push((fence, position));
        let last = self.last_fence;
        self.set_all_fenced(Some(position));
        self.fence_before = last;
    }

    /// Records that all commands of the list have ended, or are followed by the fence `last`.
    pub(super) fn set_all_fenced(&mut self, last: Option<Position>) {
        (self.last_fence, self.fence_before) = (last, None);
        (self.unfenced, self.is_awaited, self.has_waits) = (0, false, false);
    }

    /// Returns whether an error says that the device is lost and no longer executes any command of
    /// the list.
    pub(super) fn is_lost(&self, error: &Error) -> bool {
        self.list.as_ref().is_some_and(|list| list.is_lost(error))
    }

    pub(super) fn list(&self) -> Result<&List> {
        let missing = || Error::CommandFailed("there is no command list".into());
        self.list.as_ref().ok_or_else(missing)
    }

    /// Returns the last fence if it belongs to the command that is being appended.
    pub(super) fn fence_of_next(&self) -> Option<Position> {
        let next = self.appended;
        self.last_fence.filter(|last| last.command() == next)
    }

    /// Takes the new fences of command number `command` and of later commands.
    pub(super) fn take_back_fences(&mut self, command: u64) -> Vec<EventHandle> {
        let is_before = |(_, position): &(EventHandle, Position)| position.command() < command;
        let count = self.new_fences.partition_point(is_before);
        let taken = self.new_fences.drain(count..).map(|(fence, _)| fence);
        let taken = taken.collect();
        let last = self.new_fences.last().map(|(_, last)| *last);
        (self.last_fence, self.fence_before) = (last, None);
        taken
    }

    pub(super) fn has_new_fences(&self) -> bool {
        !self.new_fences.is_empty()
    }

    pub(super) fn give_new_fences(&mut self, in_flight: &mut InFlight) {
        for (fence, position) in self.new_fences.drain(..) {
            in_flight.add_fence(fence, position);
        }
    }
}

impl CommandList {
    pub(super) fn new(queue: &Arc<QueueCommon>) -> Self {
        Self(Arc::new(ListCore {
            queue: Arc::clone(queue),
            state: Mutex::default(),
            work_added: Condvar::new(),
            submitted: AtomicU64::new(0),
            urgent: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            in_flight: Mutex::default(),
            completed: CompletionCount::default(),
        }))
    }

    /// Returns whether all commands are known to have ended.
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    /// Makes the thread check soon whether commands have ended.
    pub(super) fn look(&self) {
        self.0.make_all_urgent(self.0.state.lock());
    }

    /// Returns whether a command waits for the host, so that another command would be delayed.
    pub(super) fn is_blocked(&self) -> bool {
        !self.0.state.lock().pending.is_empty()
    }

    /// Returns the number of submitted commands.
    pub(super) fn submitted(&self) -> u64 {
        self.0.submitted()
    }

    /// Waits until `count` commands have ended. Returns `false` at the deadline.
    pub(super) fn finish(&self, count: u64, deadline: Deadline) -> bool {
        if self.0.completed.get() >= count {
            return true;
        }
        self.look();
        self.0.completed.wait(count, deadline)
    }

    /// Submits a command of a queue that has no other list. Returns `false` if this list is shut.
    /// The caller drops a refused command without holding locks, because its objects may belong to
    /// the program.
    #[inline]
    pub(super) fn submit(&self, submission: &mut Submission) -> Result<bool> {
        let is_marker = matches!(submission.work, Work::Marker) && submission.waits.is_empty();
        if is_marker && submission.signal.is_none() {
            return Ok(true);
        }
        // A marker needs a fence only behind other commands, and those were prepared.
        let staging = match is_marker {
            true => Ok(Staging::None),
            false => self.0.queue.prepare(&submission.work),
        };
        let extras = Extras::with_staging(None, staging);
        loop {
            let state = self.0.state.lock();
            if state.is_shut {
                return Ok(false);
            }
            match &submission.signal {
                // With no command before it, the marker has already ended.
                Some(event) if is_marker && self.0.is_idle() => signal_now(event)?,
                _ if state.thread.is_none() => {
                    drop(state);
                    self.0.start()?;
                    continue;
                }
                _ => self.0.add(state, submission, extras)?,
            }
            return Ok(true);
        }
    }

    /// Submits a command that runs after the commands of other lists in `after`.
    /// [`QueueCommon::prepare`] has prepared it. Returns the flag that is raised when the command
    /// ends.
    pub(super) fn submit_after(
        &self,
        submission: &mut Submission,
        staging: Result<Staging>,
        after: Vec<Arc<CompletionFlag>>,
    ) -> Result<Arc<CompletionFlag>> {
        let (completion, extras) = Extras::after(after);
        let extras = Extras::with_staging(extras, staging);
        let mut state = self.0.state.lock();
        if state.thread.is_none() {
            drop(state);
            self.0.start()?;
            state = self.0.state.lock();
        }
        self.0.add(state, submission, extras)?;
        Ok(completion)
    }

    /// Refuses further commands. Returns the flag that is raised when the list's commands have
    /// ended, or `None` if they already have.
    pub(super) fn shut(&self) -> Result<Option<Arc<CompletionFlag>>> {
        let mut marker = Submission::new(Work::Marker);
        let (completion, extras) = Extras::after(Vec::new());
        let mut state = self.0.state.lock();
        state.is_shut = true;
        if self.0.is_idle() {
            return Ok(None);
        }
        self.0.add(state, &mut marker, extras)?;
        Ok(Some(completion))
    }

    /// Accepts commands again after [`shut`](Self::shut).
    pub(super) fn reopen(&self) {
        self.0.state.lock().is_shut = false;
    }
}

/// Signals the event of a command that ends when it is submitted.
fn signal_now(event: &Arc<EventCore>) -> Result<()> {
    if let Some(profile) = event.profile() {
        profile.restart();
        Profile::stamp(&profile.started);
        Profile::stamp(&profile.ended);
    }
    let number = event.signal()?;
    event.note_issued(number);
    Ok(())
}

impl Drop for CommandList {
    fn drop(&mut self) {
        if process::is_forked() {
            // In the child, the locks may be held by a thread that exists only in the parent.
            mem::forget(Arc::clone(&self.0));
            return;
        }
        let inner = &self.0;
        let mut state = inner.state.lock();
        inner.is_closed.store(true, Ordering::Release);
        let thread = state.thread.take();
        inner.make_all_urgent(state);
        // The driver's list may be done with all commands, although the thread has not noticed yet.
        let is_own = thread.as_ref().is_some_and(drain::is_own);
        let is_idle = !is_own && inner.become_idle(Deadline::after(QUEUE_DROP_TIMEOUT));
        // Submitted commands still run. If all commands have ended, all driver objects are released
        // after this.
        match thread {
            Some(thread) if is_idle => drain::join(thread),
            Some(thread) => {
                let list = Arc::downgrade(inner);
                inner.queue.drain.add(thread, move |deadline| {
                    list.upgrade().is_none_or(|list| list.become_idle(deadline))
                });
            }
            None => {}
        }
    }
}

impl ListCore {
    pub(super) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    pub(super) fn urgent(&self) -> u64 {
        self.urgent.load(Ordering::Acquire)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.completed.get() == self.submitted()
    }

    /// Waits until all commands have ended, unless one of them waits for the host or another
    /// process. Returns whether all have ended.
    fn become_idle(&self, deadline: Deadline) -> bool {
        if self.is_idle() {
            return true;
        }
        let state = self.state.lock();
        let in_flight = self.in_flight.lock();
        let mut waits = in_flight
            .commands
            .iter()
            .flat_map(|entry| entry.waits.iter());
        if !state.pending.is_empty() || !waits.all(is_decided) {
            return false;
        }
        drop((in_flight, state));
        self.completed.wait(self.submitted(), deadline)
    }

    /// Makes the thread end all commands as soon as possible.
    fn make_all_urgent(&self, mut state: MutexGuard<'_, ListState>) {
        state.end.is_awaited |= state.end.unfenced > 0;
        self.urgent.store(self.submitted(), Ordering::Release);
        self.wake(state, true);
    }

    /// Wakes the thread if it is asleep. If `is_urgent` is set, also wakes it from a doze.
    #[inline]
    fn wake(&self, mut state: MutexGuard<'_, ListState>, is_urgent: bool) {
        // A notification costs as much as a call of the driver, even if no thread waits.
        if state.rest == Rest::Asleep || is_urgent && state.rest == Rest::Dozing {
            state.rest = Rest::Awake;
            // Unlock first, so that the thread does not block on the lock.
            drop(state);
            self.work_added.notify_one();
        }
    }

    /// Adds a command. The caller has started the thread.
    #[inline]
    fn add(
        &self,
        mut state: MutexGuard<'_, ListState>,
        submission: &mut Submission,
        extras: Option<Box<Extras>>,
    ) -> Result<()> {
        // Issued under the lock, so that signal numbers follow the order of the queue.
        let number = match &submission.signal {
            Some(event) => {
                if let Some(profile) = event.profile() {
                    profile.restart();
                }
                Some(event.issue()?.number)
            }
            None => None,
        };
        if !state.pending.is_empty() {
            // The signals that pending commands wait for may have completed by now.
            self.append_pending(&mut state);
        }
        let command = Command::new(submission, number, extras);
        // During a long command, the thread sleeps best in the driver, where it waits for the
        // command's fence.
        let mut is_urgent = command.is_awaited() || command.is_long;
        let left = match state.pending.is_empty() && !command.needs_host() {
            true => self.append_next(&mut state.end, command),
            false => Some(command),
        };
        if let Some(command) = left {
            state.pending.push_back(command);
            is_urgent = true;
        }
        let submitted = self.submitted.load(Ordering::Relaxed) + 1;
        self.submitted.store(submitted, Ordering::Release);
        is_urgent |= submitted - self.urgent.load(Ordering::Relaxed) >= MAX_UNAWAITED_COMMANDS;
        if is_urgent {
            self.urgent.store(submitted, Ordering::Release);
        }
        self.wake(state, is_urgent);
        Ok(())
    }

    /// Creates the driver's list and starts the thread.
    #[cold]
    fn start(self: &Arc<Self>) -> Result<()> {
        let list = self.create_list()?;
        // If no fence can be allocated, the first submission must report it.
        let context = &self.queue.context;
        context.return_fence(context.take_fence()?);
        let mut state = self.state.lock();
        // Another submitter may have been faster.
        if state.thread.is_none() {
            let inner = Arc::clone(self);
            state.thread = Some(ThreadKind::LevelZeroList.start(move || inner.run())?);
            state.end.list = Some(list);
        }
        Ok(())
    }

    pub(super) fn create_list(&self) -> Result<List> {
        let gpu = &self.queue.gpu;
        List::create(&self.queue.context, gpu.handle(), gpu.group())
    }

    /// Appends pending commands until one needs the host.
    pub(super) fn append_pending(&self, state: &mut ListState) {
        while let Some(command) = state.pending.pop_front_if(|first| !first.needs_host()) {
            if let Some(command) = self.append_next(&mut state.end, command) {
                state.pending.push_front(command);
                return;
            }
        }
    }
}
