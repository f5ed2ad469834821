//! A list that the program appends to as well: its own, or one of ours that it knows.
//!
//! # States of a command
//! A command is appended when it is submitted, so that it has its place among the program's: it is
//! **in flight** at once, and **ended** when the list has signalled its fence. Where the host has
//! something to do first (to wait, or to call a function), the list waits for a *host fence*. The
//! list's thread signals that when it has done so, and the list goes on whatever came of it; only the
//! command's own event tells of a failure. The thread does this for one command after the other, in
//! the order of the list.
//!
//! # Locks
//! `appending` before `state`. Submitters append under `appending`, which makes their order the
//! list's; a native command's function runs under it, since what it appends must not mix with other
//! commands. `state` is never held during a call of the driver or of the program's code.

use super::QueueCommon;
use super::command::{copy_of, is_decided};
use super::completion::{CompletionCount, CompletionFlag};
use super::drain;
use super::work::{self, Staging, Target};
use crate::error::Result;
use crate::event_protocol::Ticket;
use crate::hal::common::user_code::{self, drop_contained, failure_text};
use crate::hal::level_zero::driver::{List, PooledEvent, Signaller};
use crate::hal::{Submission, WaitPoint, Work};
use crate::ipc::{EventCore, Profile};
use crate::os::process;
use crate::sync::{Condvar, Deadline, Mutex};
use crate::threads::ThreadKind;
use std::any::Any;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A shared list, until its queue is dropped. Its thread goes on until all commands have ended.
pub(super) struct SharedList(Arc<Inner>);

struct Inner {
    queue: Arc<QueueCommon>,
    list: List,
    appending: Mutex<()>,
    state: Mutex<SharedState>,
    /// Notified of each new command, and when the queue is dropped.
    work_added: Condvar,
    completed: CompletionCount,
}

#[derive(Default)]
struct SharedState {
    submitted: u64,
    in_flight: VecDeque<SharedCommand>,
    /// Objects of refused commands of which the list may have a part, with the number of the next
    /// command: the end of that, or of a later one, tells that the list is past it.
    unsure: Vec<(u64, Used)>,
    thread: Option<JoinHandle<()>>,
    is_closed: bool,
}

type Used = Box<dyn Any + Send>;

/// A command of a shared list.
struct SharedCommand {
    work: Work,
    staging: Staging,
    waits: Vec<WaitPoint>,
    /// Commands of other lists that it comes after.
    after: Vec<Arc<CompletionFlag>>,
    signal: Option<(Arc<EventCore>, Ticket)>,
    completion: Arc<CompletionFlag>,
    host_fence: Option<Arc<HostFence>>,
    /// Signalled by the list after the command.
    fence: Arc<PooledEvent>,
}

/// A place where the list waits for the host.
struct HostFence {
    /// Signalled by the list when it is there, if the host calls a function then.
    reached: Option<PooledEvent>,
    /// Signalled by the host.
    open: PooledEvent,
}

/// A place in a shared list that a thread can wait for.
pub(super) struct SharedPosition {
    list: Arc<Inner>,
    count: u64,
}

impl SharedPosition {
    /// Waits until the list is past the place, and all commands before have ended; returns `false`
    /// at the deadline.
    pub(super) fn wait(&self, deadline: Deadline) -> bool {
        self.list.completed.wait(self.count, deadline)
    }
}

impl SharedList {
    pub(super) fn new(queue: &Arc<QueueCommon>, list: List) -> Self {
        Self(Arc::new(Inner {
            queue: Arc::clone(queue),
            list,
            appending: Mutex::default(),
            state: Mutex::default(),
            work_added: Condvar::new(),
            completed: CompletionCount::default(),
        }))
    }

    /// Creates a list of our own that the program may know.
    pub(super) fn create(queue: &Arc<QueueCommon>) -> Result<Self> {
        let list = List::create(&queue.context, queue.gpu.handle(), queue.gpu.group())?;
        Ok(Self::new(queue, list))
    }

    /// Returns the driver's list.
    pub(super) fn handle(&self) -> usize {
        self.0.list.handle().0.expose_provenance()
    }

    /// Returns whether all of our commands have ended.
    pub(super) fn is_idle(&self) -> bool {
        let submitted = self.0.state.lock().submitted;
        self.0.completed.get() >= submitted
    }

    /// Appends a fence behind all that the program has appended. The program's commands can't be
    /// counted, but have ended when the fence is signalled.
    pub(super) fn position(&self) -> Result<SharedPosition> {
        let inner = &self.0;
        let _appending = inner.appending.lock();
        inner.start()?;
        let count = inner.push(inner.append_marker()?);
        Ok(SharedPosition {
            list: Arc::clone(inner),
            count,
        })
    }

    /// Lets what is appended from now on come after a command of another list.
    pub(super) fn come_after(&self, before: Arc<CompletionFlag>) -> Result<()> {
        let mut marker = Submission::new(Work::Marker);
        self.submit(&mut marker, Ok(Staging::None), vec![before])
            .map(drop)
    }

    /// Appends a command, prepared by [`QueueCommon::prepare`], to run after those of other lists.
    /// Returns the flag that it raises at its end. A command that is refused signals no event.
    pub(super) fn submit(
        &self,
        submission: &mut Submission,
        staging: Result<Staging>,
        after: Vec<Arc<CompletionFlag>>,
    ) -> Result<Arc<CompletionFlag>> {
        let inner = &self.0;
        let context = &inner.queue.context;
        let is_call = matches!(submission.work, Work::Call(_));
        let needs_host = is_call
            || !after.iter().all(|flag| flag.is_raised())
            || !submission.waits.iter().all(is_decided);
        let take_fence = || PooledEvent::take(context, Signaller::List);
        let host_fence = match needs_host {
            true => Some(Arc::new(HostFence {
                reached: is_call.then(take_fence).transpose()?,
                open: PooledEvent::take(context, Signaller::Host)?,
            })),
            false => None,
        };
        let fence = Arc::new(take_fence()?);
        let staging = staging?;
        let _appending = inner.appending.lock();
        inner.start()?;
        if let Some(profile) = submission.signal.as_ref().and_then(|event| event.profile()) {
            profile.restart();
            Profile::stamp(&profile.started);
        }
        let appended = inner.append(&submission.work, &staging, host_fence.as_deref(), &fence);
        let submission = submission.take();
        if let Err(error) = appended {
            if let Some(host_fence) = &host_fence {
                host_fence.open();
            }
            let used: Used = Box::new((submission, staging, host_fence, fence));
            let mut state = inner.state.lock();
            let next = state.submitted;
            state.unsure.push((next, used));
            drop(state);
            // The end of what comes behind it tells when the list is past it.
            if let Ok(marker) = inner.append_marker() {
                inner.push(marker);
            }
            return Err(error);
        }
        // Under the lock, so that the numbers of signals follow the order of the queue.
        let issued = match submission.signal {
            Some(event) => event.issue().map(|ticket| Some((event, ticket))),
            None => Ok(None),
        };
        let (signal, refused) = match issued {
            Ok(signal) => (signal, None),
            Err(error) => (None, Some(error)),
        };
        let completion = Arc::new(CompletionFlag::default());
        inner.push(SharedCommand {
            work: submission.work,
            staging,
            waits: submission.waits.into_vec(),
            after,
            signal,
            completion: Arc::clone(&completion),
            host_fence,
            fence,
        });
        // A refused command may still run, but no signal will tell of it.
        refused.map_or(Ok(completion), Err)
    }
}

impl Drop for SharedList {
    fn drop(&mut self) {
        if process::is_forked() {
            // Its locks may be held by a thread that is not in the child.
            mem::forget(Arc::clone(&self.0));
            return;
        }
        let mut state = self.0.state.lock();
        state.is_closed = true;
        let thread = state.thread.take();
        let is_idle = state.in_flight.is_empty();
        drop(state);
        self.0.work_added.notify_one();
        // What was submitted still runs. If all has ended, the list is not used after this.
        match thread {
            Some(thread) if is_idle => drain::join(thread),
            Some(thread) => {
                let list = Arc::downgrade(&self.0);
                let is_idle = |list: Arc<Inner>| list.state.lock().in_flight.is_empty();
                let drain = &self.0.queue.drain;
                drain.add(thread, move |_| list.upgrade().is_none_or(is_idle));
            }
            None => {}
        }
    }
}

impl HostFence {
    fn open(&self) {
        if let Err(error) = self.open.signal() {
            tracing::error!(%error, "a command list cannot be let go on");
        }
    }
}

impl Inner {
    fn start(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state.lock();
        if state.thread.is_none() {
            let inner = Arc::clone(self);
            state.thread = Some(ThreadKind::LevelZeroList.start(move || inner.run())?);
        }
        Ok(())
    }

    /// Gives the thread a command that the list has. Returns how many were submitted with it.
    fn push(&self, command: SharedCommand) -> u64 {
        let mut state = self.state.lock();
        state.submitted += 1;
        state.in_flight.push_back(command);
        let submitted = state.submitted;
        drop(state);
        self.work_added.notify_one();
        submitted
    }

    /// Appends a fence, as a command that does nothing.
    fn append_marker(&self) -> Result<SharedCommand> {
        let fence = PooledEvent::take(&self.queue.context, Signaller::List)?;
        // SAFETY: the command keeps it until it is signalled.
        unsafe { self.list.signal(fence.handle())? };
        Ok(SharedCommand {
            work: Work::Marker,
            staging: Staging::None,
            waits: Vec::new(),
            after: Vec::new(),
            signal: None,
            completion: Arc::default(),
            host_fence: None,
            fence: Arc::new(fence),
        })
    }

    fn append(
        &self,
        work: &Work,
        staging: &Staging,
        host_fence: Option<&HostFence>,
        fence: &PooledEvent,
    ) -> Result<()> {
        // SAFETY: the callers keep all that the command uses until the list has signalled `fence`, or
        // for as long as it is not known to have done so.
        unsafe {
            if let Some(host_fence) = host_fence {
                if let Some(reached) = &host_fence.reached {
                    self.list.signal(reached.handle())?;
                }
                self.list.wait(&[host_fence.open.handle()], None)?;
            }
            match work {
                Work::Native(function) => function(self.list.handle().0.expose_provenance())?,
                work if work::bytes(work) > 0 => {
                    let mut target = Target::new(&self.queue.gpu, &self.list);
                    return target.append(work, staging, Some(fence.handle()));
                }
                _ => {}
            }
            self.list.signal(fence.handle())
        }
    }

    /// Runs the thread until the queue is dropped and all commands have ended.
    fn run(self: Arc<Self>) {
        drain::begin_own_thread();
        loop {
            let is_waiting =
                |state: &mut SharedState| state.in_flight.is_empty() && !state.is_closed;
            let state = self.state.lock();
            let mut state = self.work_added.wait_while(state, is_waiting);
            let Some(first) = state.in_flight.front_mut() else {
                if !state.unsure.is_empty() {
                    // It is unknown how far the list is with that.
                    mem::forget(Arc::clone(&self));
                }
                return;
            };
            let waits: Vec<_> = first.waits.iter().map(copy_of).collect();
            let after = mem::take(&mut first.after);
            let (host_fence, fence) = (first.host_fence.clone(), Arc::clone(&first.fence));
            let work = match &first.work {
                Work::Call(_) => mem::take(&mut first.work),
                _ => Work::Marker,
            };
            drop(state);
            let result = match host_fence {
                Some(host_fence) => self.run_host_part(&host_fence, &waits, after, work),
                // All signals had come, or failed, when it was submitted.
                None => wait_for_signals(&waits),
            };
            let ended = self.queue.wait_for_fence(fence.handle());
            drop(fence);
            self.end_first(result, ended);
        }
    }

    /// Does the host's part of the first command, and lets the list go on.
    fn run_host_part(
        &self,
        host_fence: &HostFence,
        waits: &[WaitPoint],
        after: Vec<Arc<CompletionFlag>>,
        work: Work,
    ) -> Result<()> {
        let reached = match &host_fence.reached {
            Some(reached) => self.queue.wait_for_fence(reached.handle()),
            None => Ok(()),
        };
        after.iter().for_each(|flag| flag.wait());
        let mut result = reached.and(wait_for_signals(waits));
        if let Some(profile) = self.state.lock().in_flight[0].profile() {
            Profile::stamp(&profile.started);
        }
        if let Work::Call(function) = work {
            // A function that waits for something that failed is not called, but dropped.
            match result {
                Ok(()) => result = user_code::call(function),
                Err(_) => drop_contained(function),
            }
        }
        host_fence.open();
        result
    }

    /// Ends the first command. The list is past it, or `ended` says why that is not known.
    fn end_first(&self, result: Result<()>, ended: Result<()>) {
        let number = self.completed.get();
        // A device that is lost executes nothing of the list any more.
        let past_number = match &ended {
            Ok(()) => Some(number),
            Err(error) => self.list.is_lost(error).then_some(u64::MAX),
        };
        let mut state = self.state.lock();
        let Some(mut command) = state.in_flight.pop_front() else {
            return;
        };
        state.unsure.push((number, command.take_used()));
        let is_past = |(next, _): &mut (u64, Used)| past_number.is_some_and(|past| *next <= past);
        let past: Vec<_> = state.unsure.extract_if(.., is_past).collect();
        drop(state);
        past.into_iter().for_each(drop_contained);
        command.end(&self.queue, result.and(ended));
        self.completed.add(1);
    }
}

/// Waits for all signals, and returns the first failure.
fn wait_for_signals(waits: &[WaitPoint]) -> Result<()> {
    let wait_for = |wait: &WaitPoint| wait.event.wait(wait.number, Deadline::NEVER);
    waits.iter().map(wait_for).fold(Ok(()), Result::and)
}

impl SharedCommand {
    fn profile(&self) -> Option<&Profile> {
        self.signal.as_ref()?.0.profile()
    }

    /// Takes the objects that the list uses.
    fn take_used(&mut self) -> Used {
        let work = mem::take(&mut self.work);
        let waits = mem::take(&mut self.waits);
        let fence = Arc::clone(&self.fence);
        Box::new((
            work,
            mem::take(&mut self.staging),
            waits,
            self.host_fence.take(),
            fence,
        ))
    }

    /// Signals the command's event.
    fn end(self, queue: &QueueCommon, result: Result<()>) {
        if let Some(profile) = self.profile() {
            Profile::stamp(&profile.ended);
        }
        // The fence is free for another command before a waiter goes on.
        drop(self.fence);
        match (self.signal, result) {
            (Some((event, ticket)), result) => event.complete(ticket, result.map_err(failure_text)),
            (None, Err(error)) => queue.keep_error(error),
            (None, Ok(())) => {}
        }
        self.completion.raise();
    }
}
