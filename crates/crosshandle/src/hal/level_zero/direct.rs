//! A list that programs append to as well: theirs, or one of ours that they know.
//!
//! Everything is appended when it is submitted, so that it has its place among the program's
//! commands. What has to wait for the host gets a *gate*: the list waits for an event that the host
//! signals, once all is there that the command waits for, or its function was called. The list
//! then goes on whatever came of that; only the command's own event tells of a failure.

mod thread;

use super::device::Gpu;
use super::driver::{Core, List};
use super::entry::{Over, is_settled};
use super::leaving;
use super::pooled::Pooled;
use super::queue::Notes;
use super::work::{self, Extra, Target};
use crate::error::{Error, Result};
use crate::event_protocol::Ticket;
use crate::hal::{Submission, WaitPoint, Work};
use crate::ipc::{EventCore, Profile};
use crate::os::process;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Such a list, until its queue is dropped; its thread goes on until it has nothing to do.
pub(super) struct Direct(Arc<Inner>);

struct Inner {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    notes: Arc<Notes>,
    list: List,
    state: Mutex<State>,
    added: Condvar,
    /// Notified with each command that is over.
    finished: Condvar,
}

#[derive(Default)]
struct State {
    submitted: u64,
    /// So many are over.
    ended: u64,
    /// All of them are in the list.
    commands: VecDeque<Appended>,
    /// What commands used that were refused half way: the list may have a part of them. The end of
    /// a later command is the end of these.
    left: Vec<Left>,
    thread: Option<JoinHandle<()>>,
    is_closed: bool,
}

type Left = Box<dyn Any + Send>;

/// A command of such a list.
struct Appended {
    work: Work,
    extra: Extra,
    waits: Vec<WaitPoint>,
    /// Commands of other lists.
    after: Vec<Arc<Over>>,
    signal: Option<(Arc<EventCore>, Ticket)>,
    over: Arc<Over>,
    gate: Option<Arc<Gate>>,
    /// Signalled after it.
    done: Arc<Pooled>,
}

/// Where the list waits for the host.
struct Gate {
    /// The list signals it when it is there, if the host calls a function then.
    reached: Option<Pooled>,
    /// The host signals it.
    open: Pooled,
}

impl Direct {
    pub(super) fn new(gpu: &Arc<Gpu>, core: &Arc<Core>, notes: &Arc<Notes>, list: List) -> Self {
        Self(Arc::new(Inner {
            gpu: Arc::clone(gpu),
            core: Arc::clone(core),
            notes: Arc::clone(notes),
            list,
            state: Mutex::default(),
            added: Condvar::new(),
            finished: Condvar::new(),
        }))
    }

    /// The driver's list.
    pub(super) fn handle(&self) -> usize {
        self.0.list.handle().0 as usize
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = self.0.state();
        state.ended == state.submitted
    }

    /// Marks where the list is now, behind all that the program has appended: that can't be counted,
    /// but is over when what comes after it is.
    pub(super) fn mark(&self) -> Result<Mark> {
        let inner = &self.0;
        let mut state = inner.state();
        inner.start(&mut state)?;
        let mark = inner.mark()?;
        state.push(mark);
        inner.added.notify_one();
        Ok(Mark {
            list: Arc::clone(inner),
            count: state.submitted,
        })
    }

    /// Lets what is appended from now on come after a command of another list.
    pub(super) fn come_after(&self, before: Arc<Over>) -> Result<()> {
        let mut nothing = Submission::new(Work::Marker);
        self.submit(&mut nothing, vec![before]).map(drop)
    }

    /// Appends a command, to be run after those of other lists. What is refused is no command: its
    /// event is not signalled.
    pub(super) fn submit(
        &self,
        given: &mut Submission,
        after: Vec<Arc<Over>>,
    ) -> Result<Arc<Over>> {
        let inner = &self.0;
        let mut state = inner.state();
        inner.start(&mut state)?;
        let is_call = matches!(given.work, Work::Call(_));
        let needs_host = is_call
            || !after.iter().all(|over| over.is_over())
            || !given.waits.iter().all(is_settled);
        let take = || Pooled::take(&inner.core);
        let gate = match needs_host {
            true => Some(Arc::new(Gate {
                reached: is_call.then(take).transpose()?,
                open: Pooled::take_gate(&inner.core)?,
            })),
            false => None,
        };
        let done = Arc::new(take()?);
        let profile = given.signal.as_ref().and_then(|event| event.profile());
        if let Some(profile) = profile {
            profile.restart();
            Profile::stamp(&profile.started);
        }
        let mut extra = None;
        let appended = inner.append(&given.work, &mut extra, gate.as_deref(), &done);
        let submission = given.take();
        if let Err(error) = appended {
            if let Some(gate) = &gate {
                gate.open();
            }
            state.left.push(Box::new((submission, extra, gate, done)));
            // What comes to its end behind it says when that is the list's no more.
            if let Ok(mark) = inner.mark() {
                state.push(mark);
                inner.added.notify_one();
            }
            return Err(error);
        }
        // Under the lock, so that numbers follow the order of the queue.
        let issue =
            |event: &Arc<EventCore>| -> Result<_> { Ok((Arc::clone(event), event.issue()?)) };
        let signal = submission.signal.as_ref().map(issue).transpose();
        let over = Arc::new(Over::default());
        let (signal, refused) = match signal {
            Ok(signal) => (signal, None),
            Err(error) => (None, Some(error)),
        };
        state.push(Appended {
            work: submission.work,
            extra,
            waits: submission.waits.into_vec(),
            after,
            signal,
            over: Arc::clone(&over),
            gate,
            done,
        });
        inner.added.notify_one();
        match refused {
            None => Ok(over),
            // It runs, but nobody will hear of it.
            Some(error) => Err(error),
        }
    }
}

/// A place in a list.
pub(super) struct Mark {
    list: Arc<Inner>,
    count: u64,
}

impl Mark {
    /// Waits until the list is past it, and all before it is over; `false` at the deadline.
    pub(super) fn wait(&self, deadline: Option<Instant>) -> bool {
        let finished = &self.list.finished;
        let state = self.list.state();
        let is_busy = |state: &mut State| state.ended < self.count;
        let state = match deadline {
            None => finished
                .wait_while(state, is_busy)
                .unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let waited = finished.wait_timeout_while(state, left, is_busy);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.ended >= self.count
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        if process::is_forked() {
            // Its lock may be held by a thread that is not in the child.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        let mut state = self.0.state();
        state.is_closed = true;
        let thread = state.thread.take();
        let is_idle = state.commands.is_empty();
        drop(state);
        self.0.added.notify_one();
        // What was submitted still runs. If nothing is left, the list is in nobody's use after this.
        match thread {
            Some(thread) if is_idle => leaving::join(thread),
            Some(thread) => {
                let list = Arc::downgrade(&self.0);
                let is_idle = |list: Arc<Inner>| list.state().commands.is_empty();
                let leaving = &self.0.notes.leaving;
                leaving.add(thread, move |_| list.upgrade().is_none_or(is_idle));
            }
            None => {}
        }
    }
}

impl State {
    fn push(&mut self, command: Appended) {
        self.submitted += 1;
        self.commands.push_back(command);
    }
}

impl Gate {
    fn open(&self) {
        if let Err(error) = self.open.signal() {
            tracing::error!(%error, "a command list cannot be let go on");
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.thread.is_none() {
            let inner = Arc::clone(self);
            let thread = std::thread::Builder::new()
                .name("crosshandle-list".into())
                .spawn(move || inner.run())
                .map_err(|error| Error::LimitReached {
                    what: format!("a queue's thread cannot be started: {error}"),
                    remedy: "raise RLIMIT_NPROC (ulimit -u)".into(),
                })?;
            state.thread = Some(thread);
        }
        Ok(())
    }

    /// A command that does nothing, in the list.
    fn mark(&self) -> Result<Appended> {
        let done = Pooled::take(&self.core)?;
        // SAFETY: the command keeps it until it is signalled.
        unsafe { self.list.signal(done.handle())? };
        Ok(Appended {
            work: Work::Marker,
            extra: None,
            waits: Vec::new(),
            after: Vec::new(),
            signal: None,
            over: Arc::default(),
            gate: None,
            done: Arc::new(done),
        })
    }

    fn append(
        &self,
        work: &Work,
        extra: &mut Extra,
        gate: Option<&Gate>,
        done: &Pooled,
    ) -> Result<()> {
        let mut target = Target {
            gpu: &self.gpu,
            core: &self.core,
            list: &self.list,
            has_begun: false,
        };
        // SAFETY: whoever calls this keeps all that the command uses until the list has signalled
        // `done`, or for as long as it is not known to have done so.
        unsafe {
            if let Some(gate) = gate {
                if let Some(reached) = &gate.reached {
                    self.list.signal(reached.handle())?;
                }
                self.list.wait(&[gate.open.handle()], None)?;
            }
            match work {
                Work::Native(function) => function(self.list.handle().0.expose_provenance())?,
                work if work::bytes(work) > 0 => {
                    return target.append(work, extra, Some(done.handle()));
                }
                _ => {}
            }
            self.list.signal(done.handle())
        }
    }
}
