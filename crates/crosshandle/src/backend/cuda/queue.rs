//! Queues: one stream, or several if order is free.

use super::call::Worker;
use super::caretaker;
use super::device::Gpu;
use super::driver::{EventHandle, Stream, StreamHandle};
use super::entry::Entry;
use super::lane::Lane;
use crate::backend::{BackendQueue, NativeQueue, QueueOrder, Submission};
use crate::error::{Error, Result};
use crate::os::process;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Streams of a queue whose order is free, as long as none of them is blocked.
const LANES: usize = 4;
/// The same if some are. With more commands that wait at the same time, some come after others.
const MOST_LANES: usize = 32;

/// How long `finish` spins before it sleeps, then how long it sleeps at a time: this part of the
/// time so far, within bounds.
const SPIN: Duration = Duration::from_micros(50);
const STEPS: u32 = 8;
const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// A new queue on a device.
pub(super) fn create(gpu: &Arc<Gpu>, order: QueueOrder) -> Result<Box<dyn BackendQueue>> {
    check(gpu)?;
    let _current = gpu.enter()?;
    Ok(Box::new(CudaQueue(Inner::new(gpu, order, Lane::new(gpu)?))))
}

/// A queue on a stream of somebody else's, which is destroyed only if it was given to us.
pub(super) fn adopt(
    gpu: &Arc<Gpu>,
    stream: StreamHandle,
    given: Option<Stream>,
) -> Result<Box<dyn BackendQueue>> {
    check(gpu)?;
    let _current = gpu.enter()?;
    let mut lane = Lane::on(gpu, stream, given)?;
    lane.share();
    Ok(Box::new(CudaQueue(Inner::new(
        gpu,
        QueueOrder::InOrder,
        lane,
    ))))
}

fn check(gpu: &Gpu) -> Result<()> {
    if gpu.info().capabilities.event_sharing {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "{} has no stream memory operations, which queues need for events",
        gpu.info().name
    )))
}

struct CudaQueue(Arc<Inner>);

/// A queue, as long as it has something to do.
pub(super) struct Inner {
    gpu: Arc<Gpu>,
    order: QueueOrder,
    worker: Arc<Worker>,
    state: Mutex<State>,
}

struct State {
    /// The first one is the only one, if the queue is in order, and has the barriers.
    lanes: Vec<Lane>,
    /// How many barriers there were, and an event that happens after the latest.
    barriers: u64,
    barrier: Option<EventHandle>,
    /// The lane that took the latest command, if order is free.
    latest: usize,
    /// Why the device runs nothing any more.
    broken: Option<Error>,
    /// Whether the caretaker knows of this queue.
    is_watched: bool,
}

impl Inner {
    fn new(gpu: &Arc<Gpu>, order: QueueOrder, lane: Lane) -> Arc<Self> {
        Arc::new(Self {
            gpu: Arc::clone(gpu),
            order,
            worker: Arc::default(),
            state: Mutex::new(State {
                lanes: vec![lane],
                barriers: 0,
                barrier: None,
                latest: 0,
                broken: None,
                is_watched: false,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, state: &mut State, submission: Submission) -> Result<()> {
        match self.order {
            QueueOrder::InOrder => state.lanes[0].submit(submission, &self.worker),
            QueueOrder::OutOfOrder => state.submit(&self.gpu, submission, &self.worker),
        }
    }

    /// Whether nothing is left to do. What comes with it is to be dropped without a lock: it may
    /// be the user's.
    fn finish(&self, state: &mut State) -> (bool, VecDeque<Entry>) {
        let mut is_done = true;
        for index in 0..state.lanes.len() {
            match state.lanes[index].finish() {
                Ok(done) => is_done &= done,
                Err(error) => return (true, self.break_down(state, error)),
            }
        }
        (is_done, VecDeque::new())
    }

    /// The device has stopped, for this process and for good: nobody must wait for it.
    #[cold]
    fn break_down(&self, state: &mut State, error: Error) -> VecDeque<Entry> {
        tracing::error!(%error, device = self.gpu.info().name, "the device has stopped");
        let lanes = state.lanes.iter_mut();
        let entries = lanes.flat_map(|lane| lane.abandon(&error)).collect();
        self.worker.note(error.clone());
        state.broken = Some(error);
        entries
    }

    /// What the caretaker does for it.
    pub(super) fn tend(self: &Arc<Self>) {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            // Somebody else does it.
            Err(TryLockError::WouldBlock) => return,
        };
        let Ok(_current) = self.gpu.enter() else {
            return;
        };
        let (is_done, left) = self.finish(&mut state);
        if is_done && std::mem::replace(&mut state.is_watched, false) {
            caretaker::forget(self);
        }
        let blockers: Vec<_> = state.lanes.iter_mut().filter_map(Lane::blocker).collect();
        drop(state);
        drop(left);
        for (event, number) in blockers {
            event.assist(number);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.worker.close();
    }
}

impl State {
    /// Submits a command in free order: after all others, if it wants that, and before all later
    /// ones.
    fn submit(
        &mut self,
        gpu: &Arc<Gpu>,
        submission: Submission,
        worker: &Arc<Worker>,
    ) -> Result<()> {
        let before_later = submission.before_later;
        let index = if submission.after_earlier {
            let (first, others) = self.lanes.split_first_mut().expect("there always is one");
            for lane in others {
                lane.join_into(first.stream())?;
            }
            0
        } else {
            self.choose(gpu)?
        };
        let lane = &mut self.lanes[index];
        let submitted = lane.submit(submission, worker);
        if before_later {
            self.barriers += 1;
            lane.barrier = self.barriers;
            self.barrier = Some(lane.note()?);
        }
        submitted
    }

    /// The lane for a command in free order: one where nothing holds it up, if possible.
    fn choose(&mut self, gpu: &Arc<Gpu>) -> Result<usize> {
        for lane in &mut self.lanes {
            lane.prune();
        }
        let count = self.lanes.len();
        let index = match self.lanes.iter().position(Lane::is_idle) {
            Some(idle) => idle,
            None => {
                let mut next = (1..=count).map(|step| (self.latest + step) % count);
                let free = next.find(|index| !self.lanes[*index].is_blocked());
                match free {
                    Some(free) if count >= LANES => free,
                    None if count >= MOST_LANES => (self.latest + 1) % count,
                    _ => {
                        self.lanes.push(Lane::new(gpu)?);
                        count
                    }
                }
            }
        };
        self.latest = index;
        let lane = &mut self.lanes[index];
        if lane.barrier < self.barriers
            && let Some(barrier) = self.barrier
        {
            gpu.driver().wait_for_event(lane.stream(), barrier)?;
            lane.barrier = self.barriers;
        }
        Ok(index)
    }
}

impl BackendQueue for CudaQueue {
    fn submit(&self, submission: Submission) -> Result<()> {
        let inner = &self.0;
        let _current = inner.gpu.enter()?;
        let mut state = inner.state();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        if !state.is_watched {
            state.is_watched = true;
            caretaker::watch(inner);
        }
        let submitted = inner.submit(&mut state, submission);
        if let Err(Error::Driver { .. }) = submitted {
            // Of this call alone, or is it over?
            let (_, left) = inner.finish(&mut state);
            drop(state);
            drop(left);
        }
        submitted
    }

    fn flush(&self) -> Result<()> {
        // The driver runs whatever there is.
        Ok(())
    }

    fn finish(&self, deadline: Option<Instant>) -> Result<()> {
        let start = Instant::now();
        while !self.is_idle() {
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::TimedOut("waiting for a queue"));
            }
            let waited = now - start;
            if waited < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let nap = (waited / STEPS).clamp(SHORTEST_NAP, LONGEST_NAP);
            let left = deadline.map_or(nap, |deadline| deadline - now);
            std::thread::sleep(nap.min(left));
        }
        self.0.worker.take_error().map_or(Ok(()), Err)
    }

    fn is_idle(&self) -> bool {
        let inner = &self.0;
        let Ok(_current) = inner.gpu.enter() else {
            // Nothing is known of it; nothing runs any more.
            return true;
        };
        let (is_done, left) = inner.finish(&mut inner.state());
        drop(left);
        is_done
    }

    fn native(&self) -> Option<&dyn NativeQueue> {
        Some(self)
    }
}

impl NativeQueue for CudaQueue {
    fn share(&self) -> usize {
        // The first one has the barriers.
        self.0.state().lanes[0].share().0 as usize
    }
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        if process::is_forked() {
            // Its locks may be held by threads that are not in the child.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        // If it has nothing to do it goes at once: the caretaker could not keep up with who makes
        // many, and lets go of a context of the program's too late. Otherwise it keeps it.
        self.0.tend();
    }
}
