//! Calls of other threads that no stream may get in the way of.

use super::super::chore::Doing;
use super::{LONGEST, ROOM, SHORTEST_NAP, STEPS, Traffic};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

impl Traffic {
    /// Keeps streams from waiting until the result is dropped, for a call of this thread that returns
    /// only when none waits, and may take so long. Waits a while until none does.
    pub(in super::super::super) fn keep_quiet(&self, longest: Duration) -> Quiet<'_> {
        let start = Instant::now();
        let mut state = self.state();
        state.calling += 1;
        let is_quiet = loop {
            if state.doing.is_none() {
                // Before the streams are looked at.
                state.doing = Some(Doing::elsewhere(longest));
                self.show(&state);
                if state.blocked() == 0 {
                    break true;
                }
                state.doing = None;
                self.show(&state);
            }
            if start.elapsed() > ROOM {
                // It may be that one of them waits for what this thread does after that.
                break false;
            }
            let nap = (start.elapsed() / STEPS).clamp(SHORTEST_NAP, LONGEST);
            let waited = self.done.wait_timeout(state, nap);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.calling -= 1;
        self.show(&state);
        Quiet(is_quiet.then_some(self))
    }
}

/// No stream begins to wait while this lives, unless one did before.
#[must_use = "it is quiet only as long as this lives"]
pub(in super::super::super) struct Quiet<'a>(Option<&'a Traffic>);

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if let Some(traffic) = self.0 {
            let mut state = traffic.state();
            state.doing = None;
            traffic.show(&state);
            traffic.done.notify_all();
            traffic.prompted.notify_one();
        }
    }
}
