//! Times and counts of the Level Zero backend. The values for lists were measured with the
//! simulated driver, whose calls take about 200 ns, so only their orders of magnitude matter.

use std::time::Duration;

/// Length of one wait for a fence, after which the thread checks whether the wait can still
/// succeed. The death of a process that a list waits for is noticed up to this much later.
pub(super) const FENCE_WAIT_SLICE: Duration = Duration::from_millis(40);
