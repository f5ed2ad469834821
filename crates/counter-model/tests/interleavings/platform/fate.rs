//! Deaths of processes: between any two atomic operations, leaving shared memory as it is.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The future of the calling thread's process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is not killed.
    Immortal,
    /// It is killed after so many more steps.
    Mortal(u32),
    /// It was killed and its thread unwinds. What destructors do now must have no effect.
    Dead,
}

/// The payload that unwinds the thread of a killed process.
struct Killed;

shuttle::thread_local! {
    static FATE: Cell<Fate> = Cell::new(Fate::Immortal);
}

/// Counts a step. Called before each operation on shared memory and each system call. `false`: the
/// caller is dead, and the operation must not take effect.
pub(super) fn step() -> bool {
    match FATE.with(Cell::get) {
        Fate::Immortal => true,
        Fate::Mortal(0) => {
            FATE.with(|fate| fate.set(Fate::Dead));
            // Not a panic: neither the hook nor the checker must take it for a failure.
            resume_unwind(Box::new(Killed))
        }
        Fate::Mortal(steps) => {
            FATE.with(|fate| fate.set(Fate::Mortal(steps - 1)));
            true
        }
        Fate::Dead => false,
    }
}

/// Runs `life`, and kills the calling thread's process after so many steps. `None`: it was killed.
pub(crate) fn live_for<T>(steps: u32, life: impl FnOnce() -> T) -> Option<T> {
    FATE.with(|fate| fate.set(Fate::Mortal(steps)));
    let end = catch_unwind(AssertUnwindSafe(life));
    FATE.with(|fate| fate.set(Fate::Immortal));
    match end {
        Ok(value) => Some(value),
        Err(reason) if reason.is::<Killed>() => None,
        Err(reason) => resume_unwind(reason),
    }
}
