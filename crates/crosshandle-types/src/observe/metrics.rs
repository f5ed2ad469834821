//! Counters and gauges. Without the Cargo feature `metrics`, these functions do nothing and cost
//! nothing.

use super::reason::{Outcome, Reason, Side};
use crosshandle_handle::HandleKind;

/// A value that only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counter {
    Opens(HandleKind),
    Signals,
    Waits(Outcome),
    /// Peers in this role that have died.
    Deaths(Side),
    /// Refusals by this process in this role.
    Refusals(Side, Reason),
}

/// A value that grows and shrinks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gauge {
    ExportedBytes,
    ImportedBytes,
    ExportedObjects(HandleKind),
    OpenedObjects(HandleKind),
}

/// Adds one to a counter.
#[inline]
pub(super) fn count(counter: Counter) {
    #[cfg(feature = "metrics")]
    super::facade::count(counter);
    #[cfg(not(feature = "metrics"))]
    let _ = counter;
}

/// Adds `by` to a gauge.
#[inline]
pub(super) fn change(gauge: Gauge, by: i64) {
    #[cfg(feature = "metrics")]
    super::facade::change(gauge, by);
    #[cfg(not(feature = "metrics"))]
    let _ = (gauge, by);
}
