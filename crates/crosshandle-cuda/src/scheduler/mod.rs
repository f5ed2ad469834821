//! The scheduler of one driver context. It knows what every stream of the context waits for, and
//! has one thread that tends queues with commands in flight.
//!
//! # What it decides
//! A stream that waits delays other streams of its context, by the driver's rules (measured, see
//! `docs/cuda.md`). It occupies one of a few connections to the device. When all connections are
//! taken, streams that could run queue behind streams that wait. Also, some driver calls return
//! only when no stream waits. The scheduler therefore limits the number of streams that wait.
//! Further commands stay *pending* in their queues ([`admission`]), and such driver calls are
//! *deferred* ([`deferred_call`]).
//!
//! # States of a stream, as the scheduler sees it
//! - *Idle*: nothing is in flight. `StreamWaits::begin` makes the stream busy, or refuses if the
//!   connections are taken and a stream waits.
//! - *Busy*: commands are in flight, and none of them waits for something that has not happened.
//!   `StreamWaits::end` makes the stream idle, and an admitted wait makes it waiting.
//! - *Waiting*: the driver was given a wait that is not over. The stream is busy again once all its
//!   waits are over. There is no notification: a thread that checks the list detects it.
//!
//! # States of the deferred calls
//! - *None*, or *due*: a stream waits, or a submitter holds off quiet calls. The scheduler's thread
//!   checks again after 1 to 50 ms.
//! - *Requested*: a background thread was requested.
//! - *Running, quiet*: no stream waited when the call began, so no stream begins to wait until it
//!   returns.
//! - *Running, next to streams*: the call is urgent, and streams may begin to wait.
//! - *Stuck*: the call takes longer than its size explains. Streams may begin to wait again,
//!   because the call may wait for a stream of the program that waits for a stream of this library.
//!
//! If too many bytes are due, or if a thread waits for room, the calls *press*. In this state, too,
//! no stream begins to wait.
//!
//! # States of the thread
//! *None* → (a queue becomes busy, or a call is deferred) → *idle* ⇄ *tending* ⇄ *feeding*.
//! - *Idle*: the thread ends after 2 s.
//! - *Tending*: the thread checks all busy queues every 50 ms. It checks them every 4 ms after the
//!   program has dropped memory that a command used.
//! - *Feeding*: commands are pending, and the thread offers them to their streams every 10 µs to 1
//!   ms.
//!
//! # Which thread does what
//! - Submitters hand commands to the driver, or leave them pending.
//! - The scheduler's thread, `xh-cuda-sched`, tends and feeds. It makes no driver call that waits
//!   for a stream, and drops no object of the program ([`deferred_drop`]).
//! - Background threads make deferred calls, drop the program's objects, and run host functions.
//!   They run the host functions of each queue one after the other.
//! - A thread of the driver announces host functions, and completes the signals of commands that
//!   may fail.
//!
//! # Order of locks
//! 1. a queue's state: a thread never holds two of them, except with `try_lock`
//! 2. the scheduler's state
//! 3. a stream's list of waits, the list of all schedulers, and the unused words and streams
//! 4. a queue's host functions, a host function's task, and the service of background threads
//!
//! No lock is held across an allocation of memory or a call that may wait for streams, because
//! submitters do both before they lock the queue. The exception is a stream that the program
//! submits to as well. Nothing is kept pending there, so a driver call may block as it does for the
//! program.

pub(super) mod admission;
mod deferred_call;
pub(super) mod deferred_drop;
#[cfg(test)]
mod tests;

pub(super) use deferred_call::Urgency;

use super::driver::{self, ContextHandle};
use super::tuning::{DEFERRED_SLEEP_SHORTEST, TEND_INTERVAL};
use admission::StreamWaits;
use crosshandle_os::process;
use crosshandle_os::threads::backoff::Backoff;
use crosshandle_os::threads::{ThreadKind, background};
use crosshandle_types::error::Error;
use crosshandle_types::observe::Limit;
use crosshandle_types::sync::{Condvar, Mutex, MutexGuard};
use deferred_call::DeferredCalls;
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Interval at which the scheduler tends queues after the program has dropped memory that a command
/// may have used, and the time for which it keeps to this interval. Memory of other processes stays
/// open for up to this interval after its last command. A process that drops such memory all the
/// time wakes up this often.
const TEND_SOON_INTERVAL: Duration = Duration::from_millis(4);

const TEND_SOON_TIME: Duration = Duration::from_millis(20);

/// Time that an idle scheduler thread waits for work before it ends.
const SCHEDULER_IDLE: Duration = Duration::from_secs(2);

/// Shortest and longest sleep of the scheduler while commands are pending. With these bounds, a
/// pending command begins about 40 µs late.
const PENDING_SLEEP_SHORTEST: Duration = Duration::from_micros(10);

const PENDING_SLEEP_LONGEST: Duration = Duration::from_millis(1);

/// The environment variable that makes the scheduler describe its busy queues on standard error, to
/// find the cause of a hang.
const DESCRIBE_VARIABLE: &str = "CROSSHANDLE_CUDA_DESCRIBE";

/// Timer slack of the scheduler thread, in nanoseconds. The system's default of 50 µs is longer
/// than the shortest sleep.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

const DEFERRED_SLEEP_LONGEST: Duration = Duration::from_millis(50);

/// A queue that its scheduler tends. No method waits for a thread that has the queue locked.
pub(super) trait Tended: Send + Sync {
    /// Releases finished commands, detects a device that has stopped, and helps the signals that
    /// streams wait for. Returns `false` if another thread has the queue locked.
    fn tend(&self) -> bool;

    /// Offers pending commands to their streams.
    fn feed(&self) -> Fed;

    /// Describes what the queue waits for.
    fn describe(&self) -> String {
        String::new()
    }

    /// Detects which of the queue's streams have finished.
    fn find_finished_streams(&self);
}

/// The result of offering pending commands to their streams.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Fed {
    /// Whether a stream has taken a command.
    pub(super) has_fed: bool,
    /// Whether commands are still pending.
    pub(super) is_left: bool,
}

/// The scheduler of one of the driver's contexts.
pub(super) struct Scheduler {
    state: Mutex<SchedulerState>,
    /// Notified when the thread has something to do.
    prompted: Condvar,
    /// Notified when a deferred call has returned, or when no more calls are made for now.
    call_returned: Condvar,
    /// Whether no stream may begin to wait. Written under the lock, and read without it.
    is_halted: AtomicBool,
    /// The number of streams with commands in flight.
    busy: AtomicUsize,
}

#[derive(Default)]
struct SchedulerState {
    /// Queues with commands in flight, which are kept alive here.
    queues: Vec<Arc<dyn Tended>>,
    streams: Vec<Arc<StreamWaits>>,
    calls: DeferredCalls,
    has_thread: bool,
    is_prompted: bool,
    /// Whether commands have become pending since the thread last checked.
    is_hurried: bool,
    /// The time until which queues are tended more often, after the program has dropped memory that
    /// their commands may have finished with.
    tended_soon_until: Option<Instant>,
    /// The error of starting a thread, until it is logged without the lock.
    untold: Option<Error>,
    #[cfg(test)]
    cannot_start: bool,
}

impl SchedulerState {
    /// Returns the number of streams that wait.
    fn blocked(&self) -> usize {
        let streams = self.streams.iter();
        streams.filter(|stream| stream.is_blocked()).count()
    }

    /// Returns whether queues are tended more often.
    fn tends_soon(&self, now: Instant) -> bool {
        self.tended_soon_until.is_some_and(|until| now < until)
    }

    /// Returns the interval at which queues are tended.
    fn tend_interval(&self, now: Instant) -> Duration {
        match self.tends_soon(now) {
            true => TEND_SOON_INTERVAL,
            false => TEND_INTERVAL,
        }
    }

    fn has_nothing(&self) -> bool {
        self.queues.is_empty() && self.calls.is_empty() && !self.is_hurried
    }

    /// Returns whether a background thread exists or can be started. If not, the caller passes the
    /// error to [`tell`].
    fn can_start_threads(&mut self) -> bool {
        #[cfg(test)]
        if self.cannot_start {
            return false;
        }
        self.untold = background::ensure_thread().err();
        self.untold.is_none()
    }
}

/// Logs that no thread could be started. The caller does not hold the scheduler's lock, because a
/// subscriber of the log may call this library.
fn tell(untold: Option<Error>) {
    if let Some(error) = untold {
        // Logged at a limited rate, because every call fails like this while the system has no
        // thread left.
        static LIMIT: Limit = Limit::new();
        if let Some(suppressed) = LIMIT.admit() {
            tracing::warn!(%error, suppressed, "memory and programs are released later");
        }
    }
}

/// All schedulers. Each has the context that it belongs to, if a program created that context.
static ALL: Mutex<Vec<(Option<ContextHandle>, Weak<Scheduler>)>> = Mutex::new(Vec::new());

/// Tends all queues of the process now, which releases the objects of finished commands. The caller
/// holds no lock.
pub(super) fn tend_every_queue() {
    let all: Vec<_> = ALL
        .lock()
        .iter()
        .filter_map(|(_, one)| one.upgrade())
        .collect();
    for scheduler in all {
        scheduler.queues().iter().for_each(|queue| {
            queue.tend();
        });
    }
}

/// Makes the schedulers tend all queues of the process soon, and more often for a while. Called
/// after the program has dropped memory that a command used. Does not call the driver.
pub(super) fn tend_every_queue_soon() {
    let all: Vec<_> = ALL
        .lock()
        .iter()
        .filter_map(|(_, one)| one.upgrade())
        .collect();
    all.iter().for_each(|scheduler| scheduler.tend_soon());
}

impl Scheduler {
    /// Returns a new scheduler for the context that all users of a device share.
    pub(super) fn new() -> Arc<Self> {
        Self::add(&mut ALL.lock(), None)
    }

    /// Returns the scheduler of a context of the program. All adoptions of the context get the same
    /// one.
    pub(super) fn of(context: ContextHandle) -> Arc<Self> {
        let mut all = ALL.lock();
        let mut known = all.iter().filter(|(other, _)| *other == Some(context));
        match known.find_map(|(_, scheduler)| scheduler.upgrade()) {
            Some(scheduler) => scheduler,
            None => Self::add(&mut all, Some(context)),
        }
    }

    fn add(
        all: &mut Vec<(Option<ContextHandle>, Weak<Self>)>,
        context: Option<ContextHandle>,
    ) -> Arc<Self> {
        let scheduler = Arc::new(Self {
            state: Mutex::default(),
            prompted: Condvar::new(),
            call_returned: Condvar::new(),
            is_halted: AtomicBool::new(false),
            busy: AtomicUsize::new(0),
        });
        all.retain(|(_, scheduler)| scheduler.strong_count() > 0);
        all.push((context, Arc::downgrade(&scheduler)));
        scheduler
    }

    fn state(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock()
    }

    fn queues(&self) -> Vec<Arc<dyn Tended>> {
        self.state().queues.clone()
    }

    /// Keeps and tends a queue until [`forget`](Self::forget). The caller has the queue locked, and
    /// the scheduler does not tend it yet.
    #[cold]
    pub(super) fn watch(self: &Arc<Self>, queue: Arc<dyn Tended>) {
        let mut state = self.state();
        let is_first = state.has_nothing();
        state.queues.push(queue);
        self.start_thread(&mut state);
        if is_first {
            self.prompted.notify_one();
        }
    }

    /// Stops tending a queue that has nothing in flight. The caller has the queue locked and keeps
    /// it alive.
    pub(super) fn forget(&self, queue: &dyn Tended) {
        let is_other = |other: &Arc<dyn Tended>| !std::ptr::addr_eq(Arc::as_ptr(other), queue);
        self.state().queues.retain(is_other);
    }

    /// Makes the thread feed queues, because commands are pending. Also starts the thread if no
    /// thread exists.
    pub(super) fn hurry(self: &Arc<Self>) {
        let mut state = self.state();
        state.is_hurried = true;
        self.start_thread(&mut state);
        self.prompted.notify_one();
    }

    /// Detects which streams have finished, in all queues that no thread has locked. The caller
    /// holds no lock.
    #[cold]
    pub(super) fn find_finished_streams(&self) {
        self.queues()
            .iter()
            .for_each(|queue| queue.find_finished_streams());
    }

    fn tend_soon(&self) {
        let mut state = self.state();
        // Only busy queues keep objects.
        if state.queues.is_empty() {
            return;
        }
        let was_soon = state.tends_soon(Instant::now());
        state.tended_soon_until = Some(Instant::now() + TEND_SOON_TIME);
        if !was_soon {
            self.prompt_thread(&mut state);
        }
    }

    fn prompt_thread(&self, state: &mut SchedulerState) {
        state.is_prompted = true;
        self.prompted.notify_one();
    }

    /// Starts the thread if it does not exist. Returns whether it exists now. Without a thread,
    /// queues are tended only when they are called, and deferred calls are made only when another
    /// call is deferred.
    fn start_thread(self: &Arc<Self>, state: &mut SchedulerState) -> bool {
        #[cfg(test)]
        if state.cannot_start {
            return false;
        }
        if !state.has_thread && !process::is_forked() {
            let scheduler = Arc::clone(self);
            match ThreadKind::CudaScheduler.start(move || scheduler.run()) {
                Ok(_) => state.has_thread = true,
                Err(error) => {
                    tracing::warn!(%error, "queues are looked after when they are called")
                }
            }
        }
        state.has_thread
    }

    /// Runs the thread until it has been idle for a while.
    fn run(self: Arc<Self>) {
        driver::ignore_captures();
        if let Err(error) = set_current_timer_slack(Some(TIMER_SLACK_NS)) {
            tracing::debug!(%error, "sleeps are longer than they should be");
        }
        deferred_drop::handing_over(|| self.look_after_all());
    }

    fn look_after_all(self: &Arc<Self>) {
        let mut pending = Backoff::new(PENDING_SLEEP_SHORTEST, PENDING_SLEEP_LONGEST);
        let mut deferred = Backoff::new(DEFERRED_SLEEP_SHORTEST, DEFERRED_SLEEP_LONGEST);
        let (mut tended, mut looked) = (Instant::now(), Instant::now());
        let mut described = Instant::now();
        let mut is_feeding = false;
        let mut state = self.state();
        loop {
            if state.has_nothing() && !is_feeding {
                let is_idle = |state: &mut SchedulerState| state.has_nothing();
                let waited = self
                    .prompted
                    .wait_timeout_while(state, SCHEDULER_IDLE, is_idle);
                state = waited.0;
                if waited.1 {
                    state.has_thread = false;
                    return;
                }
            }
            let mut delay = state.tend_interval(Instant::now());
            if !state.calls.is_empty() {
                delay = delay.min(deferred.delay());
            }
            if is_feeding {
                delay = delay.min(pending.delay());
            }
            let is_calm = |state: &mut SchedulerState| !state.is_prompted && !state.is_hurried;
            state = self.prompted.wait_timeout_while(state, delay, is_calm).0;
            let now = Instant::now();
            if std::mem::take(&mut state.is_hurried) {
                is_feeding = true;
                pending.progress();
            }
            let is_prompted = std::mem::take(&mut state.is_prompted);
            if is_prompted {
                deferred.progress();
            }
            if is_prompted || now - looked >= deferred.delay() {
                looked = now;
                if self.request_runner(&mut state) {
                    deferred.progress();
                }
                self.publish(&mut state);
            }
            if let Some(untold) = state.untold.take() {
                drop(state);
                tell(Some(untold));
                state = self.state();
            }
            let is_due = now - tended >= state.tend_interval(now);
            if !is_feeding && !is_due {
                continue;
            }
            let queues = state.queues.clone();
            drop(state);
            if is_feeding {
                let fed = feed(&queues);
                is_feeding = fed.is_left;
                if fed.has_fed {
                    pending.progress();
                } else if fed.is_left {
                    queues
                        .iter()
                        .for_each(|queue| queue.find_finished_streams());
                }
            }
            if is_due && wants_description(&mut described) {
                for queue in &queues {
                    eprintln!("crosshandle: {}", queue.describe());
                }
            }
            if is_due {
                tended = now;
                queues.iter().for_each(|queue| {
                    queue.tend();
                });
            }
            // The lock is not held here, because this may drop the last reference to a queue.
            drop(queues);
            state = self.state();
        }
    }
}

/// Returns whether it is time to describe the busy queues again. Only if the environment variable
/// [`DESCRIBE_VARIABLE`] gives an interval in seconds.
fn wants_description(described: &mut Instant) -> bool {
    static INTERVAL: OnceLock<Option<Duration>> = OnceLock::new();
    let interval = INTERVAL.get_or_init(|| {
        let seconds = std::env::var(DESCRIBE_VARIABLE).ok()?;
        Some(Duration::from_secs(seconds.parse().ok()?))
    });
    let is_time = interval.is_some_and(|interval| described.elapsed() >= interval);
    if is_time {
        *described = Instant::now();
    }
    is_time
}

fn feed(queues: &[Arc<dyn Tended>]) -> Fed {
    let mut all = Fed::default();
    for queue in queues {
        let fed = queue.feed();
        all.has_fed |= fed.has_fed;
        all.is_left |= fed.is_left;
    }
    all
}
