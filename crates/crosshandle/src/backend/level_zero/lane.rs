//! One list of a queue, its commands, and the thread that looks after them.
//!
//! What waits for nothing but the list itself, or for what the driver's own events tell, is appended
//! when it is submitted. What waits for the host is *held*, and all behind it: the thread waits,
//! and then appends as much as it can, or calls the function. The thread also waits for each
//! command's end, to signal its event and to let go of what it used.
//!
//! A list that waits for a signal of a process that died never goes on. It is given up, with what
//! its commands use, and they are appended to a new one.

use super::device::Gpu;
use super::driver::{Core, List};
use super::entry::{Awaited, Entry, Marks, Over, call};
use super::queue::Notes;
use crate::backend::{Point, Submission, Work};
use crate::error::{Error, Result};
use crate::sharing::Profile;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// After so many looks, a list that waits for what has failed will never go on. Until then it may: a
/// device outlives its process for some milliseconds.
const OVERDUE: u32 = 2;

/// How long to wait for the device before having a look at the rest of the world.
const SLICE: Duration = Duration::from_millis(40);

/// A lane, until its queue is dropped; its thread goes on until it has nothing to do.
pub(super) struct Lane(Arc<Inner>);

pub(super) struct Inner {
    pub(super) gpu: Arc<Gpu>,
    pub(super) core: Arc<Core>,
    notes: Arc<Notes>,
    state: Mutex<State>,
    added: Condvar,
}

#[derive(Default)]
pub(super) struct State {
    /// Made with the first command, ended by the thread.
    pub(super) list: Option<List>,
    pub(super) entries: VecDeque<Entry>,
    /// So many of the first entries are in the list.
    pub(super) appended: usize,
    /// Nobody knows when the list is past what it has.
    is_unsure: bool,
    thread: Option<JoinHandle<()>>,
    is_waiting: bool,
    is_closed: bool,
}

impl Lane {
    pub(super) fn new(gpu: &Arc<Gpu>, core: &Arc<Core>, notes: &Arc<Notes>) -> Self {
        Self(Arc::new(Inner {
            gpu: Arc::clone(gpu),
            core: Arc::clone(core),
            notes: Arc::clone(notes),
            state: Mutex::default(),
            added: Condvar::new(),
        }))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.state().entries.is_empty()
    }

    /// Whether something waits for the host, so that more would come late.
    pub(super) fn is_held(&self) -> bool {
        let state = self.0.state();
        state.appended < state.entries.len()
    }

    /// Takes a command, to be run after those of other lanes. One that is refused stays where it
    /// was: what it holds may be the user's, which is dropped without locks.
    pub(super) fn submit(
        &self,
        number: u64,
        place: &mut Option<Submission>,
        after: Vec<Arc<Over>>,
    ) -> Result<Arc<Over>> {
        let inner = &self.0;
        let mut state = inner.state();
        inner.start(&mut state)?;
        // Under the lock, so that numbers follow the order of the queue.
        let signal = match place.as_ref().and_then(|given| given.signal.as_ref()) {
            Some(event) => {
                if let Some(profile) = event.profile() {
                    profile.restart();
                }
                Some((Arc::clone(event), event.issue()?))
            }
            None => None,
        };
        let missing = || Error::invalid("a command is submitted once");
        let submission = place.take().ok_or_else(missing)?;
        let over = Arc::new(Over::default());
        state.entries.push_back(Entry {
            number,
            work: submission.work,
            extra: None,
            waits: submission.waits.into_vec(),
            after,
            signal,
            over: Arc::clone(&over),
            is_taken: false,
            marks: None,
            failed: None,
            is_left: false,
        });
        inner.append_more(&mut state);
        // Notifying nobody is a system call too.
        if state.is_waiting {
            inner.added.notify_one();
        }
        Ok(over)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if crate::os::process::is_forked() {
            // Its lock may be held by a thread that is not in the child.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        let mut state = self.0.state();
        state.is_closed = true;
        let thread = state.thread.take();
        let is_idle = state.entries.is_empty();
        drop(state);
        self.0.added.notify_one();
        // What was submitted still runs. If nothing is left, all of the driver's is gone after this.
        if let Some(thread) = thread
            && is_idle
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that there are a list and a thread.
    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.list.is_none() {
            let (device, group) = (self.gpu.handle(), self.gpu.group());
            state.list = Some(List::create(&self.core, device, group)?);
        }
        if state.thread.is_none() {
            let inner = Arc::clone(self);
            let thread = std::thread::Builder::new()
                .name("crosshandle-lane".into())
                .spawn(move || inner.run())
                .map_err(|error| Error::LimitReached {
                    what: format!("a queue's thread cannot be started: {error}"),
                    remedy: "raise RLIMIT_NPROC (ulimit -u)".into(),
                })?;
            state.thread = Some(thread);
        }
        Ok(())
    }

    /// Appends commands to the list until one needs the host.
    fn append_more(&self, state: &mut State) {
        while let Some(entry) = state.entries.get(state.appended) {
            if entry.needs_host() {
                return;
            }
            match self.append(state, state.appended) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    // The thread tries again when it is the first, and then it fails.
                    tracing::debug!(%error, "a command could not be appended");
                    return;
                }
            }
        }
    }

    /// The thread. It ends when the queue is dropped and all its commands are done.
    fn run(&self) {
        loop {
            let mut state = self.state();
            while state.entries.is_empty() {
                if state.is_closed {
                    let list = state.list.take();
                    let is_unsure = state.is_unsure;
                    drop(state);
                    match is_unsure {
                        true => std::mem::forget(list),
                        false => drop(list),
                    }
                    return;
                }
                state.is_waiting = true;
                state = self
                    .added
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.is_waiting = false;
            }
            let front = &mut state.entries[0];
            let result = match front.marks.clone() {
                Some(marks) => {
                    drop(state);
                    match self.wait_done(&marks) {
                        Ok(true) => Ok(()),
                        Ok(false) => {
                            drop(marks);
                            self.give_up_list();
                            continue;
                        }
                        Err(error) => {
                            drop(marks);
                            self.give_up_first(&error);
                            Err(error)
                        }
                    }
                }
                None if front.failed.is_some() => {
                    drop(state);
                    Ok(())
                }
                None => {
                    front.is_taken = true;
                    let waits = std::mem::take(&mut front.waits);
                    let after = std::mem::take(&mut front.after);
                    drop(state);
                    match self.release(waits, after) {
                        None => continue,
                        Some(result) => result,
                    }
                }
            };
            self.end_first(result);
        }
    }

    /// Waits for a command in the list; `false` if that will never go on.
    fn wait_done(&self, marks: &Marks) -> Result<bool> {
        let mut overdue = 0;
        while !marks.done.wait(SLICE)? {
            let Some(started) = &marks.started else {
                continue;
            };
            if started.event.wait(Duration::ZERO)? {
                continue;
            }
            // All of them, since each is looked after here.
            let pending = started
                .waits
                .iter()
                .filter(|wait| !wait.is_settled())
                .count();
            if pending == 0 && started.waits.iter().any(Awaited::is_broken) {
                overdue += 1;
            }
            if overdue == OVERDUE {
                return Ok(false);
            }
        }
        for wait in marks.started.iter().flat_map(|started| &started.waits) {
            if !wait.event.is_revoked(wait.promise) {
                wait.event.witness(wait.number);
            }
        }
        Ok(true)
    }

    /// The driver can't tell of the first command any more, which is in the list.
    fn give_up_first(&self, error: &Error) {
        let mut state = self.state();
        if let Some(front) = state.entries.front_mut() {
            front.give_up(error);
            state.appended -= 1;
        }
    }

    /// Leaves a list that waits for ever, and appends its commands to a new one. What they use
    /// stays with the old list: the driver may look at it for as long as that exists.
    fn give_up_list(&self) {
        let mut state = self.state();
        let state = &mut *state;
        tracing::warn!(
            device = self.gpu.info().name,
            commands = state.appended,
            "a command list waits for a process that is gone; it is given up"
        );
        std::mem::forget(state.list.take());
        for entry in state.entries.iter_mut().take(state.appended) {
            entry.leave();
            entry.is_taken = false;
            // Others may wait for what the old list would have signalled.
            if let Some((event, _)) = entry.signal.as_ref()
                && event.wants_companion()
            {
                event.revoke_companion();
            }
        }
        (state.appended, state.is_unsure) = (0, false);
        let (device, group) = (self.gpu.handle(), self.gpu.group());
        match List::create(&self.core, device, group) {
            Ok(list) => state.list = Some(list),
            Err(error) => tracing::error!(%error, "there is no new command list"),
        }
        self.append_more(state);
    }

    /// Does what the host has to for the first command; its result, if it is over with that.
    fn release(&self, waits: Vec<Point>, after: Vec<Arc<Over>>) -> Option<Result<()>> {
        for over in after {
            over.wait();
        }
        let failed = waits
            .iter()
            .find_map(|wait| wait.event.wait(wait.number, None).err());
        if let Some(error) = failed {
            return Some(Err(error));
        }
        let mut state = self.state();
        let front = &mut state.entries[0];
        if let Work::Call(_) = front.work {
            if let Some(profile) = front.profile() {
                Profile::stamp(&profile.started);
            }
            let work = std::mem::replace(&mut front.work, Work::Nothing);
            drop(state);
            return match work {
                Work::Call(function) => Some(call(function)),
                _ => None,
            };
        }
        // All that it waits for is there, and was taken out.
        match self.append(&mut state, 0) {
            Ok(true) => self.append_more(&mut state),
            // It keeps what it has failed with.
            Ok(false) => return Some(Ok(())),
            Err(error) => return Some(Err(error)),
        }
        None
    }

    /// Ends the first command.
    fn end_first(&self, result: Result<()>) {
        let mut state = self.state();
        let Some(entry) = state.entries.pop_front() else {
            return;
        };
        if entry.marks.is_some() {
            state.appended -= 1;
            // It is past everything before, too.
            state.is_unsure = false;
        }
        state.is_unsure |= entry.is_left;
        drop(state);
        entry.end(&self.notes, result);
    }
}
