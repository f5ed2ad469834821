//! Queues: one list, or several if order is free.

use super::device::Gpu;
use super::driver::Core;
use super::entry::Over;
use super::lane::Lane;
use crate::backend::{BackendQueue, QueueOrder, Submission};
use crate::error::{Error, Result};
use crate::os::process;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Lists of a queue whose order is free, as long as none of them is held up.
const LANES: usize = 4;
/// The same if some are. With more commands that wait at the same time, some come after others.
const MOST_LANES: usize = 32;

/// A new queue on a device.
pub(super) fn create(gpu: &Arc<Gpu>, core: &Arc<Core>, order: QueueOrder) -> Box<dyn BackendQueue> {
    let notes = Arc::default();
    let first = Lane::new(gpu, core, &notes);
    Box::new(LevelZeroQueue {
        gpu: Arc::clone(gpu),
        core: Arc::clone(core),
        order,
        notes,
        state: Mutex::new(State {
            lanes: vec![first],
            latest: Vec::new(),
            barrier: None,
            next: 0,
        }),
    })
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

struct State {
    /// The first one is the only one, if the queue is in order.
    lanes: Vec<Lane>,
    /// The latest command of each lane, if order is free.
    latest: Vec<Arc<Over>>,
    /// The latest barrier, if order is free: what all later commands come after.
    barrier: Option<Arc<Over>>,
    /// Where the search for a lane begins.
    next: usize,
}

impl LevelZeroQueue {
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
        let told = self.notes.state();
        // What others submit meanwhile is not waited for.
        let count = told.submitted;
        let is_busy = |told: &mut Told| told.pending.first().is_some_and(|first| *first < count);
        let changed = &self.notes.changed;
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
        if is_busy(&mut told) {
            return Err(Error::TimedOut("waiting for a queue"));
        }
        told.error.take().map_or(Ok(()), Err)
    }

    fn is_idle(&self) -> bool {
        if process::is_forked() {
            return true;
        }
        self.notes.state().pending.is_empty()
    }
}
