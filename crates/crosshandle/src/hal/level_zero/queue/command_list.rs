//! A command list of our own, its commands, and the submitters' side of it.
//!
//! # States of a command
//! - **Pending**: it waits for the host, or is behind a command that does. It is in
//!   [`ListState::pending`], not in the driver's list.
//! - **In flight**: the driver's list has it. It is in [`InFlight`], with the fences behind it.
//! - **Ended**: what it used is dropped and its event is signalled. [`CompletionCount`] counts it.
//!
//! A submitter appends a command at once if none is pending and it waits for nothing but the list
//! itself or the driver's events (native mirrors). Otherwise the command is pending, and the list's
//! thread does what the host has to do for the first pending command once nothing is in flight: it
//! waits for signals, then appends the command and those behind it, or calls the program's function,
//! which ends that command. Submitters and the thread append further pending commands as soon as
//! none needs the host.
//!
//! The thread waits for the first fence in flight, and ends its command with all before it. It does
//! so at once for *urgent* commands, for which a thread may wait; for others after
//! [`UNAWAITED_DELAY`](crate::hal::level_zero::tuning::UNAWAITED_DELAY), so that most submissions
//! wake no thread. If urgent commands have no fence behind them, the thread appends one.
//!
//! # States of the list
//! - **Running**: as above.
//! - **Given up**: the list waits for a signal that will never reach it, since a process died. It is
//!   leaked with all that its commands use, their mirrors' promises are revoked, and the commands
//!   are pending again, for a new list. So a command in flight may become pending.
//! - **Unsure**: the driver refused a fence or a part of a command, so that no thread knows when
//!   the list is done. Commands fail, and what they use is leaked. A later fence that is signalled
//!   ends this state; a list that is dropped in it is leaked.
//! - **Closed**: its queue was dropped. The thread ends what is left, destroys the list, and exits.
//!
//! # Locks
//! `state` before `in_flight`; the thread and submitters take both in this order. Under `state`
//! submitters and the thread append to the driver's list, since the order of appending is the order
//! of the queue. Appending is asynchronous in the driver: it takes microseconds and waits for no
//! other command. Whatever may take longer (lists, pools of events, staging memory) is allocated
//! before `state` is locked. Under `in_flight` nothing is called that takes time. No lock is held
//! while the thread waits or code of the program runs.

use super::QueueCommon;
use super::command::{Command, Extras, is_decided};
use super::completion::{CompletionCount, CompletionFlag};
use super::drain;
use super::fences::Position;
use super::in_flight::InFlight;
use super::work::Staging;
use crate::error::{Error, Result};
use crate::hal::level_zero::driver::{EventHandle, List};
use crate::hal::level_zero::tuning::{MAX_UNAWAITED_COMMANDS, QUEUE_DROP_TIMEOUT};
use crate::hal::{Submission, Work};
use crate::ipc::{EventCore, Profile};
use crate::os::process;
use crate::sync::{Condvar, Deadline, Mutex, MutexGuard};
use crate::threads::ThreadKind;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// A command list, until its queue is dropped. Its thread goes on until all commands have ended.
pub(super) struct CommandList(Arc<Inner>);

pub(super) struct Inner {
    pub(super) queue: Arc<QueueCommon>,
    pub(super) state: Mutex<ListState>,
    /// Notified when the thread has something to do.
    pub(super) work_added: Condvar,
    /// Number of commands that were submitted. Written under `state`.
    submitted: AtomicU64,
    /// Number of commands, counted from the first ever, that are to end as soon as they can. Written
    /// under `state`.
    urgent: AtomicU64,
    /// The queue was dropped.
    is_closed: AtomicBool,
    pub(super) in_flight: Mutex<InFlight>,
    pub(super) completed: CompletionCount,
}

/// The state of the thread, as submitters need to know it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Rest {
    /// The thread looks at submitted commands, or waits for the device and looks after that.
    #[default]
    Awake,
    /// The thread looks again after
    /// [`UNAWAITED_DELAY`](crate::hal::level_zero::tuning::UNAWAITED_DELAY).
    Dozing,
    /// The thread looks when it is notified.
    Asleep,
}

#[derive(Default)]
pub(super) struct ListState {
    pub(super) end: ListEnd,
    /// Commands that are not in the driver's list yet.
    pub(super) pending: VecDeque<Command>,
    pub(super) rest: Rest,
    /// The list takes no more commands: they go to a shared list.
    is_shut: bool,
    thread: Option<JoinHandle<()>>,
}

/// The driver's list, with the facts about its end that appending needs.
#[derive(Default)]
pub(super) struct ListEnd {
    /// Created with the first command, destroyed by the thread.
    pub(super) list: Option<List>,
    /// Number of commands that are in flight or ended.
    pub(super) appended: u64,
    /// Fences that the list has and `in_flight` has not: it gets them with the command that they
    /// were appended with.
    new_fences: Vec<(EventHandle, Position)>,
    /// The last fence, and the one before that.
    pub(super) last_fence: Option<Position>,
    pub(super) fence_before: Option<Position>,
    /// Number of commands behind the last fence.
    pub(super) unfenced: u32,
    /// A thread may wait for one of the commands behind the last fence.
    pub(super) is_awaited: bool,
    /// One of the commands behind the last fence waits for the driver's events.
    pub(super) has_waits: bool,
}

impl ListEnd {
    /// Notes a fence that was appended behind all that the list has.
    pub(super) fn add_fence(&mut self, fence: EventHandle, position: Position) {
        debug_assert!(self.last_fence.is_none_or(|last| last < position));
        self.new_fences.push((fence, position));
        let last = self.last_fence;
        self.set_all_fenced(Some(position));
        self.fence_before = last;
    }

    /// Notes that all that the list has has ended, or has this fence behind it.
    pub(super) fn set_all_fenced(&mut self, last: Option<Position>) {
        (self.last_fence, self.fence_before) = (last, None);
        (self.unfenced, self.is_awaited, self.has_waits) = (0, false, false);
    }

    /// Returns whether an error says that the device has stopped and executes nothing of the list
    /// any more.
    pub(super) fn is_lost(&self, error: &Error) -> bool {
        self.list.as_ref().is_some_and(|list| list.is_lost(error))
    }

    pub(super) fn list(&self) -> Result<&List> {
        let missing = || Error::CommandFailed("there is no command list".into());
        self.list.as_ref().ok_or_else(missing)
    }

    /// Returns the last fence, if it belongs to the command that is being appended.
    pub(super) fn fence_of_next(&self) -> Option<Position> {
        let next = self.appended;
        self.last_fence.filter(|last| last.command() == next)
    }

    /// Takes back the new fences of command number `command` and later ones.
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
        Self(Arc::new(Inner {
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

    /// Returns whether all commands have ended, as far as is known.
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    /// Makes the thread find out soon whether commands have ended.
    pub(super) fn look(&self) {
        self.0.make_all_urgent(self.0.state.lock());
    }

    /// Returns whether a command waits for the host, so that another one would come late.
    pub(super) fn is_blocked(&self) -> bool {
        !self.0.state.lock().pending.is_empty()
    }

    /// Returns the number of commands that were submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.0.submitted()
    }

    /// Waits until `count` commands have ended; returns `false` at the deadline.
    pub(super) fn finish(&self, count: u64, deadline: Deadline) -> bool {
        if self.0.completed.get() >= count {
            return true;
        }
        self.look();
        self.0.completed.wait(count, deadline)
    }

    /// Takes a command of a queue that has no other list; returns `false` if this one is shut. The
    /// caller drops a refused command without locks, since its objects may be the program's.
    #[inline]
    pub(super) fn submit(&self, submission: &mut Submission) -> Result<bool> {
        let is_marker = matches!(submission.work, Work::Marker) && submission.waits.is_empty();
        if is_marker && submission.signal.is_none() {
            return Ok(true);
        }
        // A marker needs a fence only behind other commands, which were prepared.
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
                // With nothing before it, it has ended.
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

    /// Takes a command, prepared by [`QueueCommon::prepare`], that comes after some of other lists.
    /// Returns the flag that it raises at its end.
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

    /// Takes no more commands. Returns the flag that is raised when the list's commands have ended;
    /// `None` if they have.
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

    /// Takes commands again.
    pub(super) fn reopen(&self) {
        self.0.state.lock().is_shut = false;
    }
}

/// Signals the event of a command that ends as it is submitted.
fn signal_now(event: &Arc<EventCore>) -> Result<()> {
    if let Some(profile) = event.profile() {
        profile.restart();
        Profile::stamp(&profile.started);
        Profile::stamp(&profile.ended);
    }
    event.signal().map(drop)
}

impl Drop for CommandList {
    fn drop(&mut self) {
        if process::is_forked() {
            // Its locks may be held by a thread that is not in the child.
            mem::forget(Arc::clone(&self.0));
            return;
        }
        let inner = &self.0;
        let mut state = inner.state.lock();
        inner.is_closed.store(true, Ordering::Release);
        let thread = state.thread.take();
        inner.make_all_urgent(state);
        // The driver's list may be done with all of it, and the thread has not looked.
        let is_own = thread.as_ref().is_some_and(drain::is_own);
        let is_idle = !is_own && inner.become_idle(Deadline::after(QUEUE_DROP_TIMEOUT));
        // What was submitted still runs. If all has ended, all of the driver's is gone after this.
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

impl Inner {
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

    /// Waits until all commands have ended, unless one of them waits for the host or another process;
    /// returns whether they have.
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

    /// Lets the thread end all commands as soon as it can.
    fn make_all_urgent(&self, mut state: MutexGuard<'_, ListState>) {
        state.end.is_awaited |= state.end.unfenced > 0;
        self.urgent.store(self.submitted(), Ordering::Release);
        self.wake(state, true);
    }

    /// Wakes the thread if it is asleep; for something urgent also while it dozes.
    #[inline]
    fn wake(&self, mut state: MutexGuard<'_, ListState>, is_urgent: bool) {
        // Notifying costs as much as a call of the driver, even if no thread waits.
        if state.rest == Rest::Asleep || is_urgent && state.rest == Rest::Dozing {
            state.rest = Rest::Awake;
            // Otherwise the thread would find the lock taken.
            drop(state);
            self.work_added.notify_one();
        }
    }

    /// Takes a command. The thread has been started.
    #[inline]
    fn add(
        &self,
        mut state: MutexGuard<'_, ListState>,
        submission: &mut Submission,
        extras: Option<Box<Extras>>,
    ) -> Result<()> {
        // Under the lock, so that the numbers of signals follow the order of the queue.
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
            // What those wait for may have come by now.
            self.append_pending(&mut state);
        }
        let command = Command::new(submission, number, extras);
        // The thread sleeps best in the driver, where it waits for the fence of a long command.
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

    /// Creates the driver's list, and starts the thread.
    #[cold]
    fn start(self: &Arc<Self>) -> Result<()> {
        let list = self.create_list()?;
        // If no fence can be had, the first submission is to say so.
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
