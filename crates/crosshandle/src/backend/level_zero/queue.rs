//! Queues: one list, or several if order is free.

use super::device::Gpu;
use super::direct::Direct;
use super::driver::{Core, List};
use super::entry::Over;
use super::lane::Lane;
use crate::backend::{BackendQueue, NativeQueue, Points, QueueOrder, Submission, Work};
use crate::error::{Error, Result};
use crate::os::process;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Lists of a queue whose order is free, as long as none of them is held up.
const LANES: usize = 4;
/// The same if some are. With more commands that wait at the same time, some come after others.
const MOST_LANES: usize = 32;
/// How long a list that has nothing to do may take to say so.
const MOMENT: Duration = Duration::from_millis(100);

/// A new queue on a device.
pub(super) fn create(gpu: &Arc<Gpu>, core: &Arc<Core>, order: QueueOrder) -> Box<dyn BackendQueue> {
    let queue = LevelZeroQueue::new(gpu, core, order);
    let first = Lane::new(gpu, core, &queue.notes);
    queue.state().lanes.push(first);
    Box::new(queue)
}

/// A queue on a list of the program's.
pub(super) fn adopt(gpu: &Arc<Gpu>, core: &Arc<Core>, list: List) -> Box<dyn BackendQueue> {
    let queue = LevelZeroQueue::new(gpu, core, QueueOrder::InOrder);
    let direct = Direct::new(gpu, core, &queue.notes, list);
    queue.state().direct = Some(direct);
    Box::new(queue)
}

/// What a queue's threads tell whoever finishes it.
#[derive(Default)]
pub(super) struct Notes {
    state: Mutex<Told>,
    changed: Condvar,
}

#[derive(Default)]
struct Told {
    /// Commands that were submitted.
    submitted: u64,
    /// The numbers of those that are not over.
    pending: BTreeSet<u64>,
    /// The first error of a command that signals no event.
    error: Option<Error>,
}

impl Notes {
    fn state(&self) -> MutexGuard<'_, Told> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an error, if it is the first.
    pub(super) fn add(&self, error: Error) {
        self.state().error.get_or_insert(error);
    }

    /// The number of a new command.
    fn begin(&self) -> u64 {
        let mut told = self.state();
        let number = told.submitted;
        told.submitted += 1;
        told.pending.insert(number);
        number
    }

    /// Waits until what was submitted by now is done; `None` if that takes too long.
    fn wait(&self, deadline: Option<Instant>) -> Option<MutexGuard<'_, Told>> {
        let told = self.state();
        // What others submit meanwhile is not waited for.
        let count = told.submitted;
        let is_busy = |told: &mut Told| told.pending.first().is_some_and(|first| *first < count);
        let changed = &self.changed;
        let mut told = match deadline {
            None => changed
                .wait_while(told, is_busy)
                .unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                let waited = changed.wait_timeout_while(told, left, is_busy);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        (!is_busy(&mut told)).then_some(told)
    }

    /// A command is over.
    pub(super) fn end(&self, number: u64) {
        self.state().pending.remove(&number);
        self.changed.notify_all();
    }
}

struct LevelZeroQueue {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    order: QueueOrder,
    notes: Arc<Notes>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The first one is the only one, if the queue is in order.
    lanes: Vec<Lane>,
    /// What the program appends to as well, once it may: all later commands go there if the queue is
    /// in order, else the barriers.
    direct: Option<Direct>,
    /// For commands of the program's own in a queue whose order is free.
    natives: Vec<Direct>,
    /// The latest command of each lane, if order is free.
    latest: Vec<Arc<Over>>,
    /// The latest barrier, if order is free: what all later commands come after.
    barrier: Option<Arc<Over>>,
    /// Where the search for a lane begins.
    next: usize,
}

impl LevelZeroQueue {
    fn new(gpu: &Arc<Gpu>, core: &Arc<Core>, order: QueueOrder) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            core: Arc::clone(core),
            order,
            notes: Arc::default(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit_free(
        &self,
        state: &mut State,
        number: u64,
        submission: &mut Option<Submission>,
    ) -> Result<()> {
        let (after_earlier, before_later) = submission.as_ref().map_or((false, false), |given| {
            (given.after_earlier, given.before_later)
        });
        let index = self.choose(state);
        state.latest.retain(|over| !over.is_over());
        let mut after: Vec<_> = match after_earlier {
            true => state.latest.clone(),
            false => Vec::new(),
        };
        after.extend(state.barrier.clone().filter(|barrier| !barrier.is_over()));
        let over = state.lanes[index].submit(number, submission, after)?;
        if before_later {
            state.barrier = Some(Arc::clone(&over));
        }
        state.latest.push(over);
        Ok(())
    }

    /// Whether a command goes where the program appends as well, or is one of the program's.
    fn is_for_program(&self, state: &State, submission: Option<&Submission>) -> bool {
        submission.is_some_and(|given| {
            let is_placed =
                self.order == QueueOrder::InOrder || given.after_earlier || given.before_later;
            state.direct.is_some() && is_placed || matches!(given.work, Work::Native(_))
        })
    }

    fn submit_direct(
        &self,
        state: &mut State,
        number: u64,
        submission: &mut Option<Submission>,
    ) -> Result<()> {
        let (after_earlier, before_later) = submission.as_ref().map_or((false, false), |given| {
            (given.after_earlier, given.before_later)
        });
        let is_placed = self.order == QueueOrder::InOrder || after_earlier || before_later;
        let mut after = Vec::new();
        if self.order == QueueOrder::OutOfOrder {
            state.latest.retain(|over| !over.is_over());
            if after_earlier {
                after.clone_from(&state.latest);
            }
            after.extend(state.barrier.clone().filter(|barrier| !barrier.is_over()));
        }
        let direct = match is_placed {
            true => self.direct(state)?,
            false => self.choose_native(state)?,
        };
        let over = direct.submit(number, submission, after)?;
        if self.order == QueueOrder::OutOfOrder {
            if before_later {
                state.barrier = Some(Arc::clone(&over));
            }
            state.latest.push(over);
        }
        Ok(())
    }

    /// The list that the program may append to. What was submitted before comes before what is
    /// appended to it.
    fn direct<'a>(&self, state: &'a mut State) -> Result<&'a Direct> {
        if state.direct.is_none() {
            let direct = self.new_direct()?;
            let before = match self.order {
                QueueOrder::InOrder if state.lanes[0].is_idle() => None,
                QueueOrder::InOrder => Some(self.submit_mark(|number, place| {
                    state.lanes[0].submit(number, place, Vec::new())
                })?),
                QueueOrder::OutOfOrder => state.barrier.clone(),
            };
            if let Some(before) = before.filter(|before| !before.is_over()) {
                let after = vec![before];
                self.submit_mark(|number, place| direct.submit(number, place, after))?;
            }
            state.direct = Some(direct);
        }
        Ok(state.direct.as_ref().expect("made above"))
    }

    /// Puts something that can be waited for behind what the program has appended.
    fn mark_end(&self) -> Result<()> {
        let state = self.state();
        let Some(direct) = &state.direct else {
            return Ok(());
        };
        self.submit_mark(|number, place| direct.submit(number, place, Vec::new()))?;
        Ok(())
    }

    /// A command that does nothing.
    fn submit_mark(
        &self,
        submit: impl FnOnce(u64, &mut Option<Submission>) -> Result<Arc<Over>>,
    ) -> Result<Arc<Over>> {
        let number = self.notes.begin();
        submit(number, &mut Some(nothing())).inspect_err(|_| self.notes.end(number))
    }

    /// A list where nothing holds up a command of the program's, if possible: what that waits for
    /// may be behind others.
    fn choose_native<'a>(&self, state: &'a mut State) -> Result<&'a Direct> {
        let natives = &mut state.natives;
        let index = match natives.iter().position(Direct::is_idle) {
            Some(idle) => idle,
            None if natives.len() >= MOST_LANES => {
                state.next = (state.next + 1) % natives.len();
                state.next
            }
            None => {
                natives.push(self.new_direct()?);
                natives.len() - 1
            }
        };
        Ok(&natives[index])
    }

    fn new_direct(&self) -> Result<Direct> {
        let (device, group) = (self.gpu.handle(), self.gpu.group());
        let list = List::create(&self.core, device, group)?;
        Ok(Direct::new(&self.gpu, &self.core, &self.notes, list))
    }

    /// The lane for a command in free order: one where nothing holds it up, if possible.
    fn choose(&self, state: &mut State) -> usize {
        let count = state.lanes.len();
        if let Some(idle) = state.lanes.iter().position(Lane::is_idle) {
            return idle;
        }
        let mut order = (1..=count).map(|step| (state.next + step) % count);
        let free = order.find(|index| !state.lanes[*index].is_held());
        state.next = match free {
            Some(free) if count >= LANES => free,
            None if count >= MOST_LANES => (state.next + 1) % count,
            _ => {
                let lane = Lane::new(&self.gpu, &self.core, &self.notes);
                state.lanes.push(lane);
                count
            }
        };
        state.next
    }
}

/// A command that marks a place.
fn nothing() -> Submission {
    Submission {
        work: Work::Nothing,
        after_earlier: false,
        before_later: false,
        waits: Points::new(),
        may_fail: false,
        signal: None,
    }
}

/// Refuses a forked child, where the threads are missing and locks may be held for ever.
fn check_fork() -> Result<()> {
    if process::is_forked() {
        return Err(Error::forked());
    }
    Ok(())
}

impl BackendQueue for LevelZeroQueue {
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        check_fork()?;
        // Dropped after the lock, if it is refused.
        let mut submission = Some(submission.take());
        let mut state = self.state();
        let number = self.notes.begin();
        let submitted = match self.order {
            _ if self.is_for_program(&state, submission.as_ref()) => {
                self.submit_direct(&mut state, number, &mut submission)
            }
            QueueOrder::InOrder => state.lanes[0]
                .submit(number, &mut submission, Vec::new())
                .map(drop),
            QueueOrder::OutOfOrder => self.submit_free(&mut state, number, &mut submission),
        };
        if submitted.is_err() {
            self.notes.end(number);
        }
        submitted
    }

    fn flush(&self) -> Result<()> {
        // Immediate lists run whatever there is.
        Ok(())
    }

    fn finish(&self, deadline: Option<Instant>) -> Result<()> {
        check_fork()?;
        self.mark_end()?;
        let Some(mut told) = self.notes.wait(deadline) else {
            return Err(Error::TimedOut("waiting for a queue"));
        };
        told.error.take().map_or(Ok(()), Err)
    }

    fn is_idle(&self) -> bool {
        if process::is_forked() {
            return true;
        }
        if !self.notes.state().pending.is_empty() {
            return false;
        }
        // The program's commands can't be counted: they are done when what comes after them is.
        self.mark_end().is_ok() && self.notes.wait(Some(Instant::now() + MOMENT)).is_some()
    }

    fn native(&self) -> Option<&dyn NativeQueue> {
        Some(self)
    }
}

impl NativeQueue for LevelZeroQueue {
    fn share(&self) -> usize {
        let mut state = self.state();
        match self.direct(&mut state) {
            Ok(direct) => direct.handle(),
            Err(error) => {
                tracing::error!(%error, "there is no command list to show");
                0
            }
        }
    }
}
