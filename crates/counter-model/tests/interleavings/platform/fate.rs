//! Deaths of processes between any two atomic operations. Shared memory keeps its contents.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The fate of the calling thread's process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The process is not killed.
    Immortal,
    /// The process is killed after this many more steps.
    Mortal(u32),
    /// The process was killed and its thread unwinds. Destructors that run now must have no effect.
    Dead,
}

/// The payload that unwinds the thread of a killed process.
struct Killed;

shuttle::thread_local! {
    static FATE: Cell<Fate> = Cell::new(Fate::Immortal);
}

/// Counts a step. Called before each operation on shared memory and each system call. Returns
/// `false` if the caller is dead, and then the operation must have no effect.
pub(super) fn step() -> bool {
    match FATE.with(Cell::get) {
        Fate::Immortal => true,
        Fate::Mortal(0) => {
            FATE.with(|fate| fate.set(Fate::Dead));
            // A panic would run the hook and look like a failure to the checker.
            resume_unwind(Box::new(Killed))
        }
        Fate::Mortal(steps) => {
            FATE.with(|fate| fate.set(Fate::Mortal(steps - 1)));
            true
        }
        Fate::Dead => false,
    }
}

/// Runs `life`, and kills the calling thread's process after this many steps. Returns `None` if the
/// process was killed.
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
