//! Times and counts of the event protocol that are not part of the layout of a slot.

use std::time::Duration;

/// Longest sleep of a waiter after the exporter has ended, because deaths are no longer reported.
/// A waiter then uses about 1 % of a core.
pub(super) const ORPHAN_INTERVAL: Duration = Duration::from_millis(1);

/// Ratio of the time waited so far to the next sleep, for a waiter whose event is signaled by
/// devices. The waiter notices a signal late by at most 1/8 of its waiting time.
pub(super) const STEPS: u32 = 8;

/// Shortest sleep of a waiter whose event is signaled by devices. The kernel cannot sleep for much
/// less.
pub(super) const SHORTEST_STEP: Duration = Duration::from_micros(20);

/// Longest sleep of a waiter whose event is signaled by devices. A waiter then uses less than 1 %
/// of a core.
pub(super) const LONGEST_STEP: Duration = Duration::from_millis(1);
