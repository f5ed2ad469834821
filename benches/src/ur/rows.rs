//! Rows of the Unified Runtime scenarios.

use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

/// Maximum time that the loader and the adapter may add to a call of the library, in nanoseconds.
const MAX_ADDED_NS: f64 = 30.0;

/// Describes a row that compares the median of times.
pub(super) const fn row(id: &'static str, what: &'static str, raw: &'static str) -> RowSpec {
    RowSpec {
        id,
        what,
        raw,
        unit: Unit::Nanoseconds,
        statistic: Statistic::P50,
        target: Target::AtMostOverRaw(MAX_ADDED_NS),
    }
}
