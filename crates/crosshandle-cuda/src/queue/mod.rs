//! Queues: one stream, or several if the queue is out of order.
//!
//! # States of a command
//! - *Prepared*: before the queue is locked, the submitter creates everything whose creation may
//!   wait for streams or for memory. These are words that devices can access, staging memory, and a
//!   hold-off of quiet calls.
//! - *Pending*: the driver does not have the command, because its stream is full or must not wait
//!   now. Its signal has a number. The scheduler's thread, the end of a host function and every
//!   later call offer the command to a stream again. In an in-order queue, all later commands are
//!   pending too.
//! - *In flight*: the driver has the command. The queue keeps what the command uses until the
//!   stream has passed it. The queue learns this from a *fence*, which the device writes after
//!   every few commands, or from the driver.
//! - *Finished*: what the command used is dropped without a lock, on the submitter's thread or in
//!   the background.
//! - *Skipped*, if a signal that it waits for has failed, or *refused*, if the driver refuses it.
//!   The command's signal fails, and the rest is dropped as above.
//!
//! A command that calls the host is in flight in three steps. The driver *announces* it in the
//! order of the stream, a background thread runs it, and a word that the stream waits for lets the
//! stream continue.
//!
//! # States of a queue
//! - *Idle* → (submit) → *watched*: the scheduler keeps the queue and tends it → (nothing is left)
//!   → *idle*.
//! - *Broken*: the device has stopped. All signals have failed, and every later call fails too.
//! - *Shared*: the program submits to the first stream too, so no command is pending any more.
//!
//! The module [`graph`] contains the driver's graphs. A run of a graph is in flight like any other
//! command.
//!
//! The module [`scheduler`](super::scheduler) describes the states of a stream and the order of the
//! locks.

pub(super) mod graph;
mod host_function;
mod in_flight;
mod own_signals;
mod stream;
mod stream_set;
mod work;

use super::device::{Gpu, await_condition};
use super::driver::{self, Stream, StreamHandle};
use super::memory;
use super::program;
use super::scheduler::admission::HoldOff;
use super::scheduler::deferred_drop::drop_or_defer;
use super::scheduler::{Fed, Tended};
use super::tuning::{CONTEXT_END_WAIT, FINISH_SLEEP_LONGEST, FINISH_SLEEP_SHORTEST};
use crate::memory::WordPinner;
use crosshandle_hal::common::user_code;
use crosshandle_hal::{BackendQueue, Launch, NativeQueue, Submission, Work};
use crosshandle_os::process;
use crosshandle_os::threads::backoff::Backoff;
use crosshandle_os::threads::{background, driver_jobs};
use crosshandle_types::QueueOrder;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Deadline, Mutex, MutexGuard};
use host_function::HostFunctions;
use in_flight::Pending;
use std::collections::HashSet;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use stream::{QueueStream, profile_of};
use stream_set::{Failed, StreamSet};
use work::Extra;

/// Time that a thread in `finish` spins before it sleeps, which is about the length of the shortest
/// sleep. A shorter spin notices the end of short commands one sleep late.
const FINISH_SPIN: Duration = Duration::from_micros(100);

/// Interval at which a thread in `finish` queries the driver, because only the driver reports
/// errors. A query takes up to 1.3 µs.
const FINISH_QUERY_INTERVAL: Duration = Duration::from_micros(25);

/// Maximum time that the drop of a queue waits for a thread that has locked the queue. If the lock
/// is not free by then, this library may still query a stream of the program after the drop.
const QUEUE_LOCK_WAIT: Duration = Duration::from_millis(2);

/// Returns a new queue on a device.
pub(super) fn create(gpu: &Arc<Gpu>, order: QueueOrder) -> Result<Box<dyn BackendQueue>> {
    check(gpu)?;
    let _current = gpu.enter()?;
    let stream = QueueStream::new(gpu, gpu.pool().take(gpu)?)?;
    Ok(Box::new(CudaQueue(QueueInner::new(gpu, order, stream))))
}

/// Returns a queue on a stream of the program. The queue destroys the stream only if `given` owns
/// it.
pub(super) fn adopt(
    gpu: &Arc<Gpu>,
    stream: StreamHandle,
    given: Option<Stream>,
) -> Result<Box<dyn BackendQueue>> {
    check(gpu)?;
    let _current = gpu.enter()?;
    let stream = QueueStream::on(gpu, stream, given)?;
    let inner = QueueInner::new(gpu, QueueOrder::InOrder, stream);
    inner.lock().streams.share();
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

/// Returns an error in a forked child, where locks may be held forever and driver calls are not
/// allowed.
fn check_fork() -> Result<()> {
    if process::is_forked() {
        return Err(Error::forked());
    }
    Ok(())
}

struct CudaQueue(Arc<QueueInner>);

/// The part of a queue that stays alive as long as the queue has work.
struct QueueInner {
    gpu: Arc<Gpu>,
    order: QueueOrder,
    functions: Arc<HostFunctions>,
    /// Whether commands are pending. Threads can read this without locking the state.
    has_pending: AtomicBool,
    state: Mutex<QueueState>,
    /// A reference to the queue itself, for the scheduler.
    this: Weak<Self>,
}

struct QueueState {
    streams: StreamSet,
    /// The error with which the device stopped permanently, or `None` while the device runs
    /// commands.
    broken: Option<Error>,
    /// Whether the scheduler keeps and tends this queue.
    is_watched: bool,
}

/// The locked state of a queue. On drop, it first unlocks the state and then drops the objects of
/// finished commands. These objects may belong to the program, and their drop may use this queue.
struct Locked<'a>(Option<MutexGuard<'a, QueueState>>);

impl Deref for Locked<'_> {
    type Target = QueueState;

    fn deref(&self) -> &QueueState {
        self.0.as_ref().expect("locked until drop")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut QueueState {
        self.0.as_mut().expect("locked until drop")
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.streams.has_finished() {
            self.drop_finished();
        }
    }
}

impl Locked<'_> {
    #[cold]
    fn drop_finished(&mut self) {
        let finished = self.streams.take_finished();
        drop(self.0.take());
        drop_or_defer(finished);
    }
}

impl QueueInner {
    fn new(gpu: &Arc<Gpu>, order: QueueOrder, stream: QueueStream) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| {
            let functions = HostFunctions::new(this.clone());
            Self {
                gpu: Arc::clone(gpu),
                order,
                has_pending: AtomicBool::new(false),
                state: Mutex::new(QueueState {
                    streams: StreamSet::new(gpu, order, &functions, stream),
                    broken: None,
                    is_watched: false,
                }),
                functions,
                this: this.clone(),
            }
        })
    }

    fn lock(&self) -> Locked<'_> {
        Locked(Some(self.state.lock()))
    }

    /// Locks the state if it is free. A thread that holds the lock does the pending work itself.
    fn try_lock(&self) -> Option<Locked<'_>> {
        self.state.try_lock().map(|state| Locked(Some(state)))
    }

    /// Creates everything that the command needs and whose creation may wait for streams or for
    /// memory. The caller holds no lock.
    fn prepare(&self, submission: &Submission) -> Result<Extra> {
        for wait in submission.waits.iter() {
            if !wait.event.is_finished(wait.number) {
                wait.event.pin(&WordPinner(&self.gpu))?;
            }
        }
        if let Some(event) = &submission.signal
            && !matches!(submission.work, Work::Call(_))
        {
            event.pin(&WordPinner(&self.gpu))?;
        }
        if profile_of(&submission.signal).is_some() {
            self.gpu.refresh_clock()?;
        }
        // A host function needs a word, and so does an additional stream.
        if matches!(submission.work, Work::Call(_)) || self.order == QueueOrder::OutOfOrder {
            memory::reserve_words(&self.gpu)?;
        }
        work::prepare(&self.gpu, &submission.work)
    }

    /// Locks the state for a command. If the command must not stay pending, also returns a hold-off
    /// of quiet calls, and waits without the lock for a running quiet call.
    fn lock_to_submit(&self, work: &Work) -> (Locked<'_>, Option<HoldOff>) {
        let scheduler = self.gpu.scheduler();
        let mut hold_off = matches!(work, Work::Native(_)).then(|| scheduler.hold_off());
        loop {
            let state = self.lock();
            if !state.streams.is_shared() || hold_off.is_some() {
                return (state, hold_off);
            }
            drop(state);
            hold_off = Some(scheduler.hold_off());
        }
    }

    /// Asks the driver whether all work is finished. The caller drops the returned commands without
    /// a lock, because their objects may belong to the program.
    fn finish(&self, state: &mut QueueState) -> (bool, Option<Failed>) {
        match state.streams.finish() {
            Ok(is_done) => (is_done, None),
            Err(error) => (true, Some(self.break_down(state, error))),
        }
    }

    /// Returns whether the device has reported that all work is finished. Does not ask the driver.
    fn is_done(&self) -> bool {
        let Ok(_current) = self.gpu.enter() else {
            return false;
        };
        let mut state = self.lock();
        let is_done = state.streams.is_done();
        self.publish(&state);
        is_done
    }

    /// Publishes whether commands are pending. If some are, makes the scheduler feed them.
    fn publish(&self, state: &QueueState) {
        let has_pending = state.streams.has_pending();
        if has_pending != self.has_pending.load(Ordering::Relaxed) {
            self.has_pending.store(has_pending, Ordering::Relaxed);
            if has_pending {
                self.gpu.scheduler().hurry();
            }
        }
    }

    /// Fails all commands because the device has stopped permanently for this process. No thread
    /// may wait for the device after this.
    #[cold]
    fn break_down(&self, state: &mut QueueState, error: Error) -> Failed {
        tracing::error!(%error, device = self.gpu.info().name, "the device has stopped");
        let failed = state.streams.fail_all(&error);
        self.functions.note_error(error.clone());
        state.broken = Some(error);
        failed
    }

    /// Stops all use of a borrowed stream, because the program has dropped the queue.
    fn abandon(&self) {
        let Ok(_current) = self.gpu.enter() else {
            return;
        };
        // Has no effect if another thread holds the lock for longer than this.
        await_condition(QUEUE_LOCK_WAIT, || {
            let state = self.try_lock();
            state.is_some_and(|mut state| {
                state.streams.abandon_if_borrowed();
                true
            })
        });
    }

    /// Returns whether the scheduler keeps the queue. Returns `false` if another thread has the
    /// queue locked.
    fn is_watched(&self) -> bool {
        self.try_lock().is_some_and(|state| state.is_watched)
    }
}

impl Tended for QueueInner {
    fn tend(&self) -> bool {
        let Some(mut state) = self.try_lock() else {
            return false;
        };
        let Ok(_current) = self.gpu.enter() else {
            return true;
        };
        let (is_done, failed) = self.finish(&mut state);
        state.streams.feed();
        self.publish(&state);
        if is_done && std::mem::replace(&mut state.is_watched, false) {
            self.gpu.scheduler().forget(self);
        }
        let blockers = state.streams.blockers();
        drop(state);
        drop_or_defer(failed);
        // Starts threads for functions and drops that have none, because the system may have had no
        // threads left.
        background::start_missing_threads();
        for (event, number) in blockers {
            event.help_device_wait(number);
        }
        true
    }

    fn feed(&self) -> Fed {
        if !self.has_pending.load(Ordering::Relaxed) {
            return Fed::default();
        }
        let Some(mut state) = self.try_lock() else {
            return Fed {
                has_fed: false,
                is_left: true,
            };
        };
        let Ok(_current) = self.gpu.enter() else {
            return Fed::default();
        };
        let has_fed = state.streams.feed();
        self.publish(&state);
        Fed {
            has_fed,
            is_left: state.streams.has_pending(),
        }
    }

    fn describe(&self) -> String {
        match (self.try_lock(), self.gpu.enter()) {
            (Some(state), Ok(_current)) => format!("a queue{}", state.streams.describe()),
            _ => "a locked queue".into(),
        }
    }

    fn find_finished_streams(&self) {
        if self.gpu.scheduler().is_crowded()
            && let Some(mut state) = self.try_lock()
            && let Ok(_current) = self.gpu.enter()
            && let Err(error) = state.streams.finish()
        {
            // The next `tend` reports the error.
            tracing::debug!(%error, "finished streams of a queue cannot be found");
        }
    }
}

impl BackendQueue for CudaQueue {
    fn submit(&self, submission: &mut Submission) -> Result<()> {
        check_fork()?;
        let inner = &self.0;
        let _current = inner.gpu.enter()?;
        let extra = inner.prepare(submission)?;
        let (mut state, _hold_off) = inner.lock_to_submit(&submission.work);
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        if !state.is_watched
            && let Some(this) = inner.this.upgrade()
        {
            state.is_watched = true;
            inner.gpu.scheduler().watch(this);
        }
        let had_pending = state.streams.has_pending();
        let mut pending = Pending {
            submission: submission.take(),
            extra,
            ticket: None,
            turn: None,
            passed: None,
        };
        let submitted = state.streams.submit(&mut pending);
        inner.publish(&state);
        let is_first_pending = state.streams.has_pending() && !had_pending;
        if let Err(Error::Driver { .. }) = submitted {
            // The error may concern this call alone, or the device may have stopped.
            let (_, failed) = inner.finish(&mut state);
            drop(state);
            drop(failed);
        } else if is_first_pending && inner.gpu.scheduler().is_crowded() {
            // The command may be pending only because no thread has noticed which streams are done.
            drop(state);
            inner.gpu.scheduler().find_finished_streams();
            inner.feed();
        }
        submitted
    }

    fn flush(&self) -> Result<()> {
        // The driver starts submitted work without a flush.
        Ok(())
    }

    fn finish(&self, deadline: Deadline) -> Result<()> {
        check_fork()?;
        let start = Instant::now();
        let backoff = Backoff::new(FINISH_SLEEP_SHORTEST, FINISH_SLEEP_LONGEST);
        let mut asked = start;
        while !self.0.is_done() {
            let now = Instant::now();
            if now - asked >= FINISH_QUERY_INTERVAL {
                if self.is_idle() {
                    break;
                }
                asked = now;
            }
            if deadline.is_over() {
                return Err(Error::TimedOut("waiting for a queue"));
            }
            if now - start < FINISH_SPIN {
                std::hint::spin_loop();
                continue;
            }
            let delay = backoff.delay();
            deadline.sleep(delay);
        }
        self.0.functions.take_error().map_or(Ok(()), Err)
    }

    fn is_idle(&self) -> bool {
        let inner = &self.0;
        let Ok(_current) = inner.gpu.enter() else {
            // The device's context cannot become current, so nothing runs any more.
            return true;
        };
        let (is_done, failed) = inner.finish(&mut inner.lock());
        drop(failed);
        is_done
    }

    fn native(&self) -> Option<&dyn NativeQueue> {
        Some(self)
    }
}

impl NativeQueue for CudaQueue {
    fn share(&self) -> usize {
        let inner = &self.0;
        let _hold_off = inner.gpu.scheduler().hold_off();
        // If the device's context cannot become current, nothing runs any more.
        let _current = inner.gpu.enter();
        let mut state = inner.lock();
        let stream = state.streams.share();
        inner.publish(&state);
        stream.number()
    }

    fn capture(&self) -> Result<Option<u64>> {
        check_fork()?;
        let inner = &self.0;
        let _current = inner.gpu.enter()?;
        let state = inner.lock();
        match state.streams.is_recording()? {
            true => {
                let capture = inner.gpu.driver().capture(state.streams.first())?;
                Ok(Some(capture.number))
            }
            false => Ok(None),
        }
    }

    fn recorded_before(&self, is_known: &dyn Fn(usize) -> bool) -> Result<Option<Vec<usize>>> {
        check_fork()?;
        let inner = &self.0;
        let (_current, driver) = (inner.gpu.enter()?, inner.gpu.driver());
        let stream = inner.lock().streams.first();
        let Ok(mut ahead) = driver.captured_before(stream) else {
            return Ok(None);
        };
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        while let Some(node) = ahead.pop() {
            if !seen.insert(node.number()) {
                continue;
            }
            if is_known(node.number()) {
                found.push(node.number());
                continue;
            }
            // SAFETY: the stream is being captured, so the graph and its nodes exist.
            match unsafe { driver.nodes_before(node) } {
                Ok(nodes) => ahead.extend(nodes),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(found))
    }

    fn record(&self, launch: Box<Launch>) -> Result<usize> {
        check_fork()?;
        let inner = &self.0;
        let (gpu, driver) = (&inner.gpu, inner.gpu.driver());
        let _current = gpu.enter()?;
        let stream = inner.lock().streams.first();
        let graph = driver.capture(stream)?.graph;
        let kept = Box::into_raw(launch);
        // SAFETY: the graph is being captured. The launch is released once, by the driver or by
        // this call, and `release_launch` does not unwind.
        unsafe { driver.keep_in_graph(graph, kept.cast(), release_launch)? };
        // SAFETY: the graph keeps the launch, and this call is part of its capture. The launch is
        // sound, as its creator promised.
        unsafe { program::launch(gpu, stream, &*kept)? };
        // The stream's next command follows the launch alone.
        let node = driver.captured_before(stream)?;
        Ok(node.first().map_or(0, |node| node.number()))
    }
}

/// Drops a launch that a graph has kept. The driver calls this on a thread that must not call the
/// driver, so another thread drops the launch.
///
/// # Safety
/// `launch` is the pointer of a `Box<Launch>`, and is passed to one call only.
unsafe extern "C" fn release_launch(launch: *mut c_void) {
    // SAFETY: promised by the caller.
    let launch = unsafe { Box::from_raw(launch.cast::<Launch>()) };
    driver_jobs::run(move || {
        driver::ignore_captures();
        user_code::drop_contained(launch);
    });
}

impl Drop for CudaQueue {
    fn drop(&mut self) {
        if process::is_forked() {
            // Threads that do not exist in the child may hold the queue's locks.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        // An idle queue is dropped at once. The scheduler would drop it later, and could not keep
        // up with a program that creates many queues. It would also release a context of the
        // program too late. The scheduler keeps a queue that is not idle.
        let inner = &self.0;
        inner.abandon();
        if inner.gpu.is_primary() {
            inner.tend();
            return;
        }
        // The program may end its context as soon as all work is finished. At this moment, the
        // scheduler may still be using this queue, or an object that the queue used may still be
        // dropped in the background.
        let is_alone = || Arc::strong_count(inner) == 1;
        await_condition(CONTEXT_END_WAIT, || inner.tend());
        await_condition(CONTEXT_END_WAIT, || is_alone() || inner.is_watched());
        if is_alone() {
            driver_jobs::wait();
        }
    }
}
