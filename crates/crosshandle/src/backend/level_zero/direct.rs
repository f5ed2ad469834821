//! A list that programs append to as well: theirs, or one of ours that they know.
//!
//! Everything is appended when it is submitted, so that it has its place among the program's
//! commands. What has to wait for the host gets a *gate*: the list waits for an event that the host
//! signals, once all is there that the command waits for, or its function was called. The list
//! then goes on whatever came of that; only the command's own event tells of a failure.

use super::device::Gpu;
use super::driver::{Core, List};
use super::entry::{Over, call, copy_of, discard, text_of};
use super::pooled::Pooled;
use super::queue::Notes;
use super::work::{Extra, Target};
use crate::backend::{Point, Submission, Work};
use crate::counter::Ticket;
use crate::error::{Error, Result};
use crate::os::process;
use crate::sharing::{EventCore, Profile};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long to wait for the device at a time.
const SLICE: Duration = Duration::from_secs(1);

/// Such a list, until its queue is dropped; its thread goes on until it has nothing to do.
pub(super) struct Direct(Arc<Inner>);

struct Inner {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    notes: Arc<Notes>,
    list: List,
    state: Mutex<State>,
    added: Condvar,
}

#[derive(Default)]
struct State {
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
    /// In its queue.
    number: u64,
    work: Work,
    extra: Extra,
    waits: Vec<Point>,
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
        }))
    }

    /// The driver's list.
    pub(super) fn handle(&self) -> usize {
        self.0.list.handle().0 as usize
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.state().commands.is_empty()
    }

    /// Appends a command, to be run after those of other lists. What is refused is no command: its
    /// event is not signalled.
    pub(super) fn submit(
        &self,
        number: u64,
        place: &mut Option<Submission>,
        after: Vec<Arc<Over>>,
    ) -> Result<Arc<Over>> {
        let inner = &self.0;
        let mut state = inner.state();
        inner.start(&mut state)?;
        let missing = || Error::invalid("a command is submitted once");
        let given = place.as_ref().ok_or_else(missing)?;
        let is_settled = |wait: &Point| wait.event.result(wait.number).is_some();
        let is_call = matches!(given.work, Work::Call(_));
        let needs_host = is_call
            || !after.iter().all(|over| over.is_over())
            || !given.waits.iter().all(is_settled);
        let take = || Pooled::take(&inner.core);
        let gate = match needs_host {
            true => Some(Arc::new(Gate {
                reached: is_call.then(take).transpose()?,
                open: take()?,
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
        let submission = place.take().ok_or_else(missing)?;
        if let Err(error) = appended {
            if let Some(gate) = &gate {
                gate.open();
            }
            state.left.push(Box::new((submission, extra, gate, done)));
            // What comes to its end behind it says when that is the list's no more.
            if let Ok(mark) = inner.mark(number) {
                state.commands.push_back(mark);
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
        state.commands.push_back(Appended {
            number,
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
        if let Some(thread) = thread
            && is_idle
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
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
    fn mark(&self, number: u64) -> Result<Appended> {
        let done = Pooled::take(&self.core)?;
        // SAFETY: the command keeps it until it is signalled.
        unsafe { self.list.signal(done.handle())? };
        Ok(Appended {
            number,
            work: Work::Nothing,
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
        let target = Target {
            gpu: &self.gpu,
            core: &self.core,
            list: &self.list,
        };
        // SAFETY: whoever calls this keeps all that the command uses until the list has signalled
        // `done`, or for as long as it is not known to have done so.
        unsafe {
            if let Some(gate) = gate {
                if let Some(reached) = &gate.reached {
                    self.list.signal(reached.handle())?;
                }
                self.list.wait(&[gate.open.handle()])?;
            }
            match work {
                Work::Native(function) => function(self.list.handle().0 as usize)?,
                work => target.append(work, extra)?,
            }
            self.list.signal(done.handle())
        }
    }

    /// The thread. It ends when the queue is dropped and all its commands are done.
    fn run(self: Arc<Self>) {
        loop {
            let mut state = self.state();
            while state.commands.is_empty() {
                if state.is_closed {
                    if !state.left.is_empty() {
                        // Nobody knows how far the list is with that.
                        std::mem::forget(Arc::clone(&self));
                    }
                    return;
                }
                state = self
                    .added
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let front = &mut state.commands[0];
            let waits: Vec<_> = front.waits.iter().map(copy_of).collect();
            let after = std::mem::take(&mut front.after);
            let (gate, done) = (front.gate.clone(), Arc::clone(&front.done));
            let work = match &front.work {
                Work::Call(_) => std::mem::replace(&mut front.work, Work::Nothing),
                _ => Work::Nothing,
            };
            drop(state);
            let mut result = gate.map_or(Ok(()), |gate| self.let_on(&gate, &waits, after, work));
            for wait in &waits {
                result = result.and(wait.event.wait(wait.number, None));
            }
            let ended = wait_for(&done);
            drop(done);
            self.end_first(result, ended);
        }
    }

    /// Does what the host has to for a command, and lets the list go on.
    fn let_on(
        &self,
        gate: &Gate,
        waits: &[Point],
        after: Vec<Arc<Over>>,
        work: Work,
    ) -> Result<()> {
        let mut result = gate.reached.as_ref().map_or(Ok(()), wait_for);
        for over in after {
            over.wait();
        }
        for wait in waits {
            result = result.and(wait.event.wait(wait.number, None));
        }
        if let Some(profile) = self.state().commands[0].profile() {
            Profile::stamp(&profile.started);
        }
        if let Work::Call(function) = work {
            // What waits for something that failed is not called, but dropped.
            match result {
                Ok(()) => result = call(function),
                Err(_) => discard(function),
            }
        }
        gate.open();
        result
    }

    /// Ends the first command, whose list has come to its end or will never do so.
    fn end_first(&self, result: Result<()>, ended: Result<()>) {
        let mut state = self.state();
        let Some(mut command) = state.commands.pop_front() else {
            return;
        };
        let used = command.take_used();
        // The list is past this, and so past all before, or nobody knows where it is.
        state.left.push(used);
        let past = match &ended {
            Ok(()) => std::mem::take(&mut state.left),
            Err(_) => Vec::new(),
        };
        drop(state);
        past.into_iter().for_each(discard);
        command.end(&self.notes, result.and(ended));
    }
}

impl Appended {
    fn profile(&self) -> Option<&Profile> {
        self.signal.as_ref()?.0.profile()
    }

    /// What the list uses.
    fn take_used(&mut self) -> Left {
        let work = std::mem::replace(&mut self.work, Work::Nothing);
        let waits = std::mem::take(&mut self.waits);
        let done = Arc::clone(&self.done);
        Box::new((work, self.extra.take(), waits, self.gate.take(), done))
    }

    /// Signals.
    fn end(self, notes: &Notes, result: Result<()>) {
        if let Some(profile) = self.profile() {
            Profile::stamp(&profile.ended);
        }
        // Ready for another one before anybody goes on.
        drop(self.done);
        match (self.signal, result) {
            (Some((event, ticket)), result) => event.complete(ticket, result.map_err(text_of)),
            (None, Err(error)) => notes.add(error),
            (None, Ok(())) => {}
        }
        self.over.set();
        notes.end(self.number);
    }
}

fn wait_for(event: &Pooled) -> Result<()> {
    while !event.wait(SLICE)? {}
    Ok(())
}
