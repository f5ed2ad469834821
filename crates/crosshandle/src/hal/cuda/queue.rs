//! Queues: one stream, or several if order is free.

use super::call::Worker;
use super::caretaker;
use super::device::Gpu;
use super::driver::{Stream, StreamHandle};
use super::gate::await_thread;
use super::lane::Lane;
use super::lanes::{Abandoned, Lanes};
use super::leftovers::{self, discard};
use crate::error::{Error, Result};
use crate::hal::{BackendQueue, NativeQueue, Submission};
use crate::os::process;
use crate::types::QueueOrder;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long `finish` spins before it sleeps: about what the shortest sleep takes. Then how long it
/// sleeps at a time: this part of the time so far, within bounds.
const SPIN: Duration = Duration::from_micros(100);
/// How often it asks the driver meanwhile, which alone knows of errors.
const ASKING: Duration = Duration::from_micros(25);
const STEPS: u32 = 8;
const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_millis(1);

/// A new queue on a device.
pub(super) fn create(gpu: &Arc<Gpu>, order: QueueOrder) -> Result<Box<dyn BackendQueue>> {
    check(gpu)?;
    let _current = gpu.enter()?;
    let inner = Inner::new(gpu, order, Lane::new(gpu, gpu.stock().take(gpu)?)?);
    inner.worker.serve(&inner);
    Ok(Box::new(CudaQueue(inner)))
}

/// A queue on a stream of somebody else's, which is destroyed only if it was given to us.
pub(super) fn adopt(
    gpu: &Arc<Gpu>,
    stream: StreamHandle,
    given: Option<Stream>,
) -> Result<Box<dyn BackendQueue>> {
    check(gpu)?;
    let _current = gpu.enter()?;
    let inner = Inner::new(gpu, QueueOrder::InOrder, Lane::on(gpu, stream, given)?);
    inner.worker.serve(&inner);
    inner.state().lanes.share();
    Ok(Box::new(CudaQueue(inner)))
}

fn check(gpu: &Gpu) -> Result<()> {
    check_fork()?;
    if gpu.info().capabilities.event_sharing {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "{} has no stream memory operations, which queues need for events",
        gpu.info().name
    )))
}

/// Refuses a forked child, where locks may be held for ever and the driver must not be called.
fn check_fork() -> Result<()> {
    if process::is_forked() {
        return Err(Error::forked());
    }
    Ok(())
}

struct CudaQueue(Arc<Inner>);

/// A queue, as long as it has something to do.
pub(super) struct Inner {
    gpu: Arc<Gpu>,
    worker: Arc<Worker>,
    /// Whether commands are kept back, for who only wants to know.
    is_holding: AtomicBool,
    state: Mutex<State>,
}

struct State {
    lanes: Lanes,
    /// Why the device runs nothing any more.
    broken: Option<Error>,
    /// Whether the caretaker knows of this queue.
    is_watched: bool,
}

/// The state, locked until drop. Only after that goes what commands used that turned out to be
/// done: it may be the user's, and use this queue.
struct Locked<'a>(Option<MutexGuard<'a, State>>);

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("locked until drop")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("locked until drop")
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.lanes.has_left() {
            self.drop_left();
        }
    }
}

impl Locked<'_> {
    #[cold]
    fn drop_left(&mut self) {
        let left = self.lanes.take_left();
        drop(self.0.take());
        discard(left);
    }
}

impl Inner {
    fn new(gpu: &Arc<Gpu>, order: QueueOrder, lane: Lane) -> Arc<Self> {
        let worker = Arc::default();
        let lanes = Lanes::new(gpu, order, &worker, lane);
        Arc::new(Self {
            gpu: Arc::clone(gpu),
            worker,
            is_holding: AtomicBool::new(false),
            state: Mutex::new(State {
                lanes,
                broken: None,
                is_watched: false,
            }),
        })
    }

    fn state(&self) -> Locked<'_> {
        Locked(Some(
            self.state.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }

    /// Locked, unless somebody else has it, who does what there is to do.
    fn try_state(&self) -> Option<Locked<'_>> {
        match self.state.try_lock() {
            Ok(state) => Some(Locked(Some(state))),
            Err(TryLockError::Poisoned(error)) => Some(Locked(Some(error.into_inner()))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether nothing is left to do. What comes with it is to be dropped without a lock: it may
    /// be the user's.
    fn finish(&self, state: &mut State) -> (bool, Abandoned) {
        let done = state.lanes.finish();
        done.map_or_else(
            |error| (true, self.break_down(state, error)),
            |is_done| (is_done, Abandoned::default()),
        )
    }

    /// Whether nothing is left to do, as the device says itself.
    fn is_done(&self) -> bool {
        let Ok(_current) = self.gpu.enter() else {
            return false;
        };
        let mut state = self.state();
        let is_done = state.lanes.is_done();
        self.show(&state);
        is_done
    }

    /// Lets others know whether commands are kept back, and somebody look after those.
    fn show(&self, state: &State) {
        let is_holding = state.lanes.is_holding();
        if is_holding != self.is_holding.load(Ordering::Relaxed) {
            self.is_holding.store(is_holding, Ordering::Relaxed);
            if is_holding {
                caretaker::hurry();
            }
        }
    }

    /// The device has stopped, for this process and for good: nobody must wait for it.
    #[cold]
    fn break_down(&self, state: &mut State, error: Error) -> Abandoned {
        tracing::error!(%error, device = self.gpu.info().name, "the device has stopped");
        let left = state.lanes.abandon(&error);
        self.worker.note(error.clone());
        state.broken = Some(error);
        left
    }

    /// The program has dropped it.
    fn leave(&self) {
        let Ok(_current) = self.gpu.enter() else {
            return;
        };
        // Who has it locked for longer is dropping this just now.
        for _ in 0..100 {
            if let Some(mut state) = self.try_state() {
                return state.lanes.leave();
            }
            std::thread::sleep(SHORTEST_NAP);
        }
    }

    /// What the caretaker does for it now and then. Whether it was done, since nobody else has it.
    pub(super) fn tend(self: &Arc<Self>) -> bool {
        let Some(mut state) = self.try_state() else {
            return false;
        };
        let Ok(_current) = self.gpu.enter() else {
            return true;
        };
        let (is_done, left) = self.finish(&mut state);
        state.lanes.feed();
        self.show(&state);
        if is_done && std::mem::replace(&mut state.is_watched, false) {
            caretaker::forget(self);
        }
        let blockers = state.lanes.blockers();
        drop(state);
        if !left.is_empty() {
            discard([left]);
        }
        for (event, number) in blockers {
            event.help_device_wait(number);
        }
        true
    }

    /// Whether something is left to do, so that the caretaker keeps it, as far as can be told.
    fn is_watched(&self) -> bool {
        self.try_state().is_some_and(|state| state.is_watched)
    }

    /// Finds out which of its streams are done, if there are too many in its context.
    pub(super) fn settle(&self) {
        if self.gpu.traffic().is_crowded()
            && let Some(mut state) = self.try_state()
            && let Ok(_current) = self.gpu.enter()
            && let Err(error) = state.lanes.finish()
        {
            // Who looks after it will find out.
            tracing::debug!(%error, "a queue cannot be settled");
        }
    }

    /// Gives the streams what was kept back from them and they can take now. Whether that was
    /// anything, and whether something is left.
    pub(super) fn feed(&self) -> (bool, bool) {
        if !self.is_holding.load(Ordering::Relaxed) {
            return (false, false);
        }
        let Some(mut state) = self.try_state() else {
            return (false, true);
        };
        let Ok(_current) = self.gpu.enter() else {
            return (false, false);
        };
        let has_fed = state.lanes.feed();
        self.show(&state);
        (has_fed, state.lanes.is_holding())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.worker.close();
    }
}

impl BackendQueue for CudaQueue {
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        check_fork()?;
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
        let submitted = match state.lanes.submit_bare(submission) {
            Ok(true) => Ok(()),
            Ok(false) => state.lanes.submit(submission.take()),
            Err(error) => Err(error),
        };
        inner.show(&state);
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
        check_fork()?;
        let start = Instant::now();
        let mut asked = start;
        while !self.0.is_done() {
            let now = Instant::now();
            if now - asked >= ASKING {
                if self.is_idle() {
                    break;
                }
                asked = now;
            }
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
        let inner = &self.0;
        let mut state = inner.state();
        // Where the device's context can't be current nothing runs any more.
        let _current = inner.gpu.enter();
        let stream = state.lanes.share();
        inner.show(&state);
        stream.0 as usize
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
        self.0.leave();
        if self.0.gpu.is_lasting() {
            self.0.tend();
            return;
        }
        // If nothing is left to do the context may end now. Perhaps the caretaker looks at this queue
        // just now, or something that it used is being dropped.
        let is_alone = || Arc::strong_count(&self.0) == 1;
        await_thread(|| self.0.tend());
        await_thread(|| is_alone() || self.0.is_watched());
        if is_alone() {
            leftovers::await_drops();
        }
    }
}
