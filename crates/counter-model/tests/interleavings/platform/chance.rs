//! Random choices that are part of a schedule, so that replaying the schedule repeats them.

use shuttle::rand::{Rng, thread_rng};

/// Returns a random number below `bound`.
pub(crate) fn pick(bound: u64) -> u64 {
    thread_rng().gen_range(0..bound)
}

/// Returns true once in `n` times.
pub(crate) fn one_in(n: u64) -> bool {
    pick(n) == 0
}
