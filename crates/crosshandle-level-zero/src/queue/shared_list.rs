//! A list that the program appends to as well. The program created the list, or asked this library
//! for its handle.
//!
//! # States of a command
//! A command is appended as soon as it is submitted, so that it has its place among the program's
//! commands. It is therefore **in flight** immediately, and **ended** when the list has signalled
//! its fence.
//!
//! If the host must first wait or call a function, the list waits for a *host fence*. The list's
//! thread signals the host fence when it has done this part, and the list continues regardless of
//! the result. Only the command's own event reports a failure. The thread handles one command after
//! the other, in the order of the list.
//!
//! # Locks
//! `appending` is locked before `state`. Submitters append under `appending`, so the order of
//! submission is the order of the list. The function of a native command also runs under this lock,
//! because its commands must not mix with others. `state` is never held during a call of the driver
//! or of the program's code.

use super::QueueCommon;
use super::command::{copy_of, is_decided};
use super::completion::{CompletionCount, CompletionFlag};
use super::drain;
use super::work::{self, Staging, Target};
use crate::driver::{List, PooledEvent, Signaller};
use crosshandle_events::Ticket;
use crosshandle_hal::common::user_code::{self, drop_contained, failure_text};
use crosshandle_hal::{Submission, WaitPoint, Work};
use crosshandle_ipc::{EventCore, Profile};
use crosshandle_os::process;
use crosshandle_os::threads::ThreadKind;
use crosshandle_types::error::Result;
use crosshandle_types::sync::{Condvar, Deadline, Mutex};
use std::any::Any;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A shared list until its queue is dropped. The list's thread continues until all commands have
/// ended.
pub(super) struct SharedList(Arc<SharedListCore>);

struct SharedListCore {
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
    /// Objects of refused commands that the list may use in part. Each entry has the number of the
    /// next command. When that command or a later one ends, the list no longer uses the objects.
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
    /// Commands of other lists that must end before this command starts.
    after: Vec<Arc<CompletionFlag>>,
    signal: Option<(Arc<EventCore>, Ticket)>,
    completion: Arc<CompletionFlag>,
    host_fence: Option<Arc<HostFence>>,
    /// The fence that the list signals after the command.
    fence: Arc<PooledEvent>,
}

/// A position at which the list waits for the host.
struct HostFence {
    /// The event that the list signals when it reaches this position, if the host then calls a
    /// function.
    reached: Option<PooledEvent>,
    /// The event that the host signals so that the list continues.
    open: PooledEvent,
}

/// A position in a shared list that a thread can wait for.
pub(super) struct SharedPosition {
    list: Arc<SharedListCore>,
    count: u64,
}

impl SharedPosition {
    /// Waits until the list has passed the position and all earlier commands have ended. Returns
    /// `false` at the deadline.
    pub(super) fn wait(&self, deadline: Deadline) -> bool {
        self.list.completed.wait(self.count, deadline)
    }
}

impl SharedList {
    pub(super) fn new(queue: &Arc<QueueCommon>, list: List) -> Self {
        Self(Arc::new(SharedListCore {
            queue: Arc::clone(queue),
            list,
            appending: Mutex::default(),
            state: Mutex::default(),
            work_added: Condvar::new(),
            completed: CompletionCount::default(),
        }))
    }

    /// Creates a list that the program may append to as well.
    pub(super) fn create(queue: &Arc<QueueCommon>) -> Result<Self> {
        let list = List::create(&queue.context, queue.gpu.handle(), queue.gpu.group())?;
        Ok(Self::new(queue, list))
    }

    /// Returns the driver's handle of the list.
    pub(super) fn handle(&self) -> usize {
        self.0.list.handle().0.expose_provenance()
    }

    /// Returns whether all commands of this library have ended.
    pub(super) fn is_idle(&self) -> bool {
        let submitted = self.0.state.lock().submitted;
        self.0.completed.get() >= submitted
    }

    /// Appends a fence after all commands of the program. The program's commands cannot be counted,
    /// but they have ended when the fence is signalled.
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

    /// Makes later commands run after a command of another list.
    pub(super) fn come_after(&self, before: Arc<CompletionFlag>) -> Result<()> {
        let mut marker = Submission::new(Work::Marker);
        self.submit(&mut marker, Ok(Staging::None), vec![before])
            .map(drop)
    }

    /// Appends a command that runs after the commands of other lists in `after`.
    /// [`QueueCommon::prepare`] has prepared it. Returns the flag that is raised when the command
    /// ends. A refused command signals no event.
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
            // When this marker ends, the list has passed the refused command.
            if let Ok(marker) = inner.append_marker() {
                inner.push(marker);
            }
            return Err(error);
        }
        // Issued under the lock, so that signal numbers follow the order of the queue.
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
        // A refused command may still run, but no signal reports its end.
        refused.map_or(Ok(completion), Err)
    }
}

impl Drop for SharedList {
    fn drop(&mut self) {
        if process::is_forked() {
            // In the child, the locks may be held by a thread that exists only in the parent.
            mem::forget(Arc::clone(&self.0));
            return;
        }
        let mut state = self.0.state.lock();
        state.is_closed = true;
        let thread = state.thread.take();
        let is_idle = state.in_flight.is_empty();
        drop(state);
        self.0.work_added.notify_one();
        // Submitted commands still run. If all commands have ended, the list is not used after
        // this.
        match thread {
            Some(thread) if is_idle => drain::join(thread),
            Some(thread) => {
                let list = Arc::downgrade(&self.0);
                let is_idle = |list: Arc<SharedListCore>| list.state.lock().in_flight.is_empty();
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

impl SharedListCore {
    fn start(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state.lock();
        if state.thread.is_none() {
            let inner = Arc::clone(self);
            state.thread = Some(ThreadKind::LevelZeroList.start(move || inner.run())?);
        }
        Ok(())
    }

    /// Adds an appended command for the thread. Returns the number of commands submitted so far,
    /// including this one.
    fn push(&self, command: SharedCommand) -> u64 {
        let mut state = self.state.lock();
        state.submitted += 1;
        state.in_flight.push_back(command);
        let submitted = state.submitted;
        drop(state);
        self.work_added.notify_one();
        submitted
    }

    /// Appends a fence as a command without work.
    fn append_marker(&self) -> Result<SharedCommand> {
        let fence = PooledEvent::take(&self.queue.context, Signaller::List)?;
        // SAFETY: the command keeps the fence until it is signalled.
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
        // SAFETY: the callers keep all objects that the command uses until the list has signalled
        // `fence`. If it is not known whether the list has, they keep the objects longer.
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
                    // It is unknown how far the list has run the refused commands.
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
                // All signals had completed or failed when the command was submitted.
                None => wait_for_signals(&waits),
            };
            let ended = self.queue.wait_for_fence(fence.handle());
            drop(fence);
            self.end_first(result, ended);
        }
    }

    /// Does the host's part of the first command, and then lets the list continue.
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
            // If a wait of the command has failed, its function is dropped instead of called.
            match result {
                Ok(()) => result = user_code::call(function),
                Err(_) => drop_contained(function),
            }
        }
        host_fence.open();
        result
    }

    /// Ends the first command. Either the list has passed it, or `ended` holds the reason why that
    /// is not known.
    fn end_first(&self, result: Result<()>, ended: Result<()>) {
        let number = self.completed.get();
        // A lost device no longer executes any command of the list.
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

    /// Completes the command's signal and raises its completion flag.
    fn end(self, queue: &QueueCommon, result: Result<()>) {
        if let Some(profile) = self.profile() {
            Profile::stamp(&profile.ended);
        }
        // The fence must be free for another command before a waiter continues.
        drop(self.fence);
        match (self.signal, result) {
            (Some((event, ticket)), result) => event.complete(ticket, result.map_err(failure_text)),
            (None, Err(error)) => queue.keep_error(error),
            (None, Ok(())) => {}
        }
        self.completion.raise();
    }
}
