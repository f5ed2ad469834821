//! Yields of a thread to other threads of its CPU, as long as they are worthwhile.
//!
//! A thread that yields runs again when the other threads of its CPU have had their turn. If one of
//! them computes without a pause, that takes milliseconds, and a sleep would have been shorter. A
//! thread therefore yields more rarely after yields that did not help.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

/// Longest yield that is worthwhile. A sleep and a wake-up take a few microseconds, and the
/// signaller may work for a while before it signals.
const LONGEST_YIELD: Duration = Duration::from_micros(200);

/// Maximum number of requests to yield that are declined after yields that did not help. Even a
/// thread that competes with others for its CPU then loses little time.
const MAX_DECLINED: u32 = 1024;

#[derive(Clone, Copy, Default)]
struct State {
    /// Number of requests to decline before the next yield.
    to_decline: u32,
    /// Number of requests that were declined after the latest yield without a benefit.
    declined: u32,
    /// Whether a yield since the last [`note`] took too long.
    is_late: bool,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State { to_decline: 0, declined: 0, is_late: false }) };
}

/// Lets other threads of the CPU run. Returns `false` without doing so if earlier yields of this
/// thread did not help.
#[inline]
pub fn yield_cpu() -> bool {
    let mut state = STATE.get();
    if state.to_decline > 0 {
        state.to_decline -= 1;
        STATE.set(state);
        return false;
    }
    let began = Instant::now();
    thread::yield_now();
    if began.elapsed() > LONGEST_YIELD {
        state.is_late = true;
        STATE.set(state);
    }
    true
}

/// Notes whether the thread's latest yields were followed by the awaited signal.
#[inline]
pub fn note(is_signalled: bool) {
    let state = STATE.get();
    let is_useful = is_signalled && !state.is_late;
    if is_useful && state.declined == 0 {
        return;
    }
    let declined = match is_useful {
        true => 0,
        false => (2 * state.declined + 1).min(MAX_DECLINED),
    };
    STATE.set(State {
        to_decline: declined,
        declined,
        is_late: false,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many requests are declined before the next yield.
    fn declined() -> u32 {
        let mut count = 0;
        while !yield_cpu() {
            count += 1;
        }
        count
    }

    #[test]
    fn yields_without_benefit_become_rare() {
        assert_eq!(declined(), 0);
        note(false);
        for expected in [1, 3, 7] {
            assert_eq!(declined(), expected);
            note(false);
        }
        assert_eq!(declined(), 15);
        STATE.set(State {
            is_late: false,
            ..STATE.get()
        });
        note(true);
        assert_eq!(declined(), 0, "a benefit makes the thread yield again");
        for _ in 0..20 {
            note(false);
        }
        assert_eq!(declined(), MAX_DECLINED);
        STATE.set(State {
            is_late: true,
            ..State::default()
        });
        note(true);
        assert_eq!(declined(), 1, "a late yield has no benefit");
    }
}
