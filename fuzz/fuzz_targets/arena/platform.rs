//! The platform on which the protocol runs here. It has one thread and a clock that advances with
//! each step. Between any two steps the hostile process may write and a process may be killed, as
//! the input says.
//!
//! Steps are operations on shared words and system calls. Each takes [`STEP`] on the clock, so an
//! endless loop also misses its deadline. An operation that takes too many steps panics.

use crosshandle_events::impl_atomic;
use crosshandle_events::platform::{Awaited, Moment, Platform};
use std::cell::{Cell, RefCell};
use std::ops::Add;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic as real;
use std::time::Duration;

pub(crate) use std::sync::atomic::Ordering;

/// Duration of one step on the clock.
const STEP: Duration = Duration::from_nanos(50);
/// Duration of one round of a spin loop on the clock.
const SPIN_ROUND: Duration = Duration::from_micros(5);

/// Writes to a slot between two steps. Returns the number of steps until the next write, or `None`
/// to stop.
type Hostile = Box<dyn FnMut() -> Option<u32>>;

thread_local! {
    static NANOSECONDS: Cell<u64> = const { Cell::new(0) };
    /// Number of steps that the operation may still take.
    static BUDGET: Cell<u32> = const { Cell::new(u32::MAX) };
    /// Number of steps until the hostile process writes.
    static QUIET: Cell<u32> = const { Cell::new(u32::MAX) };
    /// Number of steps until the process is killed.
    static LIFE: Cell<u32> = const { Cell::new(u32::MAX) };
    static HOSTILE: RefCell<Option<Hostile>> = const { RefCell::new(None) };
}

/// The panic payload that unwinds a killed process.
struct Killed;

/// Resets the clock and ends the attack.
pub(crate) fn restart() {
    NANOSECONDS.set(0);
    QUIET.set(u32::MAX);
    HOSTILE.set(None);
    BUDGET.set(u32::MAX);
}

/// Starts an attack: `write` is first called after this many steps.
pub(crate) fn attack(after: u32, write: Hostile) {
    HOSTILE.set(Some(write));
    QUIET.set(after.max(1));
}

pub(crate) fn end_attack() {
    HOSTILE.set(None);
    QUIET.set(u32::MAX);
}

/// Runs an operation that may take `budget` steps, in a process that is killed after `life` steps.
/// Returns `None` if the process was killed.
pub(crate) fn within<R>(
    budget: u32,
    life: Option<u32>,
    operation: impl FnOnce() -> R,
) -> Option<R> {
    BUDGET.set(budget);
    let Some(life) = life else {
        let result = operation();
        BUDGET.set(u32::MAX);
        return Some(result);
    };
    LIFE.set(life);
    let end = catch_unwind(AssertUnwindSafe(operation));
    LIFE.set(u32::MAX);
    BUDGET.set(u32::MAX);
    match end {
        Ok(result) => Some(result),
        Err(reason) if reason.is::<Killed>() => None,
        Err(reason) => resume_unwind(reason),
    }
}

fn step() {
    NANOSECONDS.set(NANOSECONDS.get() + STEP.as_nanos() as u64);
    let budget = BUDGET.get();
    assert!(budget > 0, "an operation that does not end");
    BUDGET.set(budget - 1);
    let quiet = QUIET.get().wrapping_sub(1);
    QUIET.set(quiet);
    if quiet == 0 {
        write();
    }
    let life = LIFE.get();
    if life == 0 {
        LIFE.set(u32::MAX);
        // This unwinds without a panic, because the fuzzer's panic hook would report a failure.
        resume_unwind(Box::new(Killed));
    }
    if life != u32::MAX {
        LIFE.set(life - 1);
    }
}

#[cold]
fn write() {
    // The hostile process's accesses are not steps of the victim.
    let (budget, life, clock) = (BUDGET.get(), LIFE.get(), NANOSECONDS.get());
    BUDGET.set(u32::MAX);
    LIFE.set(u32::MAX);
    QUIET.set(u32::MAX);
    let next = HOSTILE.with_borrow_mut(|hostile| hostile.as_mut().and_then(|write| write()));
    BUDGET.set(budget);
    LIFE.set(life);
    NANOSECONDS.set(clock);
    QUIET.set(next.map_or(u32::MAX, |next| next.max(1)));
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// An atomic word with the standard library's interface, whose operations are steps.
        pub(crate) struct $name(real::$name);

        #[allow(dead_code, reason = "one interface for all words")]
        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(real::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                step();
                self.0.store(value, order);
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                step();
                self.0.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_sub(value, order)
            }

            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_or(value, order)
            }

            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_and(value, order)
            }

            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                step();
                self.0.fetch_max(value, order)
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
impl_atomic!(AtomicU32, u32);
impl_atomic!(AtomicU64, u64);

impl AtomicU64 {
    /// Writes the upper half and leaves the lower half unchanged, as a device does.
    pub(crate) fn write_upper(&self, value: u32) {
        let low = self.0.load(Ordering::SeqCst) & u64::from(u32::MAX);
        self.0.store(u64::from(value) << 32 | low, Ordering::SeqCst);
    }
}

/// A time on the platform's clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Instant(Duration);

impl Moment for Instant {
    fn now() -> Self {
        Self(Duration::from_nanos(NANOSECONDS.get()))
    }

    fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

fn pass(time: Duration) {
    NANOSECONDS.set(NANOSECONDS.get() + time.as_nanos() as u64);
}

/// The machine that counts steps.
#[derive(Clone, Copy)]
pub(crate) enum Steps {}

impl Platform for Steps {
    type AtomicU32 = AtomicU32;
    type AtomicU64 = AtomicU64;
    type Instant = Instant;
    type Entry = ();

    fn may_spin() -> bool {
        true
    }

    fn spin_hint() {
        pass(SPIN_ROUND);
    }

    /// Returns the same CPU for every call. The input supplies the signaller's CPU in the slot.
    fn current_cpu() -> u32 {
        1
    }

    fn sleep(word: &AtomicU64, expected: u32, limit: Duration) {
        Self::sleep_any(&[(word, expected)], limit);
    }

    /// Sleeps for the whole time if the words' upper halves are as expected. This platform has no
    /// wake-ups.
    fn sleep_any(words: &[(&AtomicU64, u32)], limit: Duration) {
        step();
        let as_expected = |(word, expected): &(&AtomicU64, u32)| {
            (word.0.load(Ordering::SeqCst) >> 32) as u32 == *expected
        };
        if words.iter().all(as_expected) {
            pass(limit);
        }
    }

    fn wake_all(_: &AtomicU64) {
        step();
    }

    fn enter(_: impl IntoIterator<Item = Awaited>) {}
}
