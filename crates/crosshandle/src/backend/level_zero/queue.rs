//! Queues: one list, or several if order is free.

use super::device::Gpu;
use super::driver::Core;
use super::entry::Over;
use super::lane::{Lane, Leaving};
use crate::backend::{BackendQueue, QueueOrder, Submission};
use crate::error::{Error, Result};
use crate::os::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Lists of a queue whose order is free, as long as none of them is held up.
const LANES: usize = 4;
/// The same if some are. With more commands that wait at the same time, some come after others.
const MOST_LANES: usize = 32;

/// A new queue on a device.
pub(super) fn create(
    gpu: &Arc<Gpu>,
    core: &Arc<Core>,
    leaving: &Arc<Leaving>,
    order: QueueOrder,
) -> Box<dyn BackendQueue> {
    let notes = Arc::new(Notes {
        error: Mutex::default(),
        leaving: Arc::clone(leaving),
    });
    let first = Lane::new(gpu, core, &notes);
    match order {
        QueueOrder::InOrder => Box::new(OrderedQueue { lane: first, notes }),
        QueueOrder::OutOfOrder => Box::new(FreeQueue {
            gpu: Arc::clone(gpu),
            core: Arc::clone(core),
            notes,
            state: Mutex::new(State {
                lanes: vec![Arc::new(first)],
                latest: Vec::new(),
                barrier: None,
                next: 0,
            }),
        }),
    }
}

/// What a queue's lanes tell others.
pub(super) struct Notes {
    /// The first error of a command that signals no event, for whoever finishes the queue.
    error: Mutex<Option<Error>>,
    pub(super) leaving: Arc<Leaving>,
}

impl Notes {
    fn error(&self) -> MutexGuard<'_, Option<Error>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an error, if it is the first.
    pub(super) fn add(&self, error: Error) {
        self.error().get_or_insert(error);
    }

    fn take(&self) -> Result<()> {
        self.error().take().map_or(Ok(()), Err)
    }
}

/// Refuses a forked child, where the threads are missing and locks may be held for ever.
fn check_fork() -> Result<()> {
    if process::is_forked() {
        return Err(Error::forked());
    }
    Ok(())
}

fn timed_out() -> Error {
    Error::TimedOut("waiting for a queue")
}

/// A queue that runs commands one after the other.
struct OrderedQueue {
    lane: Lane,
    notes: Arc<Notes>,
}

impl BackendQueue for OrderedQueue {
    #[inline]
    fn submit(&self, mut submission: Submission) -> Result<()> {
        check_fork()?;
        // What is left is dropped after the lane's lock.
        self.lane.submit(&mut submission)
    }

    fn flush(&self) -> Result<()> {
        // Immediate lists run whatever there is.
        Ok(())
    }

    fn finish(&self, deadline: Option<Instant>) -> Result<()> {
        check_fork()?;
        // What others submit meanwhile is not waited for.
        let count = self.lane.submitted();
        if !self.lane.finish(count, deadline) {
            return Err(timed_out());
        }
        self.notes.take()
    }

    fn is_idle(&self) -> bool {
        if process::is_forked() || self.lane.is_idle() {
            return true;
        }
        self.lane.look();
        false
    }
}

/// A queue that runs commands as soon as it can.
struct FreeQueue {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    notes: Arc<Notes>,
    state: Mutex<State>,
}

struct State {
    lanes: Vec<Arc<Lane>>,
    /// The latest commands of the lanes that are not over.
    latest: Vec<Arc<Over>>,
    /// The latest barrier: what all later commands come after.
    barrier: Option<Arc<Over>>,
    /// Where the search for a lane begins.
    next: usize,
}

impl FreeQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane for a command: one where nothing holds it up, if possible.
    fn choose(&self, state: &mut State) -> usize {
        let count = state.lanes.len();
        if let Some(idle) = state.lanes.iter().position(|lane| lane.is_idle()) {
            return idle;
        }
        let mut order = (1..=count).map(|step| (state.next + step) % count);
        let free = order.find(|index| !state.lanes[*index].is_held());
        state.next = match free {
            Some(free) if count >= LANES => free,
            None if count >= MOST_LANES => (state.next + 1) % count,
            _ => {
                let lane = Lane::new(&self.gpu, &self.core, &self.notes);
                state.lanes.push(Arc::new(lane));
                count
            }
        };
        state.next
    }
}

impl BackendQueue for FreeQueue {
    fn submit(&self, mut submission: Submission) -> Result<()> {
        check_fork()?;
        let (after_earlier, before_later) = (submission.after_earlier, submission.before_later);
        // What is left of it is dropped after the locks.
        let mut state = self.state();
        let index = self.choose(&mut state);
        state.latest.retain(|over| !over.is_over());
        let mut after: Vec<_> = match after_earlier {
            true => state.latest.clone(),
            false => Vec::new(),
        };
        after.extend(state.barrier.clone().filter(|barrier| !barrier.is_over()));
        let over = state.lanes[index].submit_after(&mut submission, after)?;
        if before_later {
            state.barrier = Some(Arc::clone(&over));
        }
        state.latest.push(over);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        // Immediate lists run whatever there is.
        Ok(())
    }

    fn finish(&self, deadline: Option<Instant>) -> Result<()> {
        check_fork()?;
        let state = self.state();
        // What others submit meanwhile is not waited for.
        let lanes = state.lanes.iter();
        let counts: Vec<_> = lanes
            .map(|lane| (Arc::clone(lane), lane.submitted()))
            .collect();
        drop(state);
        let is_done = |(lane, count): &(Arc<Lane>, u64)| lane.finish(*count, deadline);
        if !counts.iter().all(is_done) {
            return Err(timed_out());
        }
        self.notes.take()
    }

    fn is_idle(&self) -> bool {
        if process::is_forked() {
            return true;
        }
        let state = self.state();
        let busy = state.lanes.iter().filter(|lane| !lane.is_idle());
        busy.map(|lane| lane.look()).count() == 0
    }
}
