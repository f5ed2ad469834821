//! Rows of the Level Zero scenarios.

use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

/// Target of a call that may take 100 ns longer than the driver's.
pub(super) const CLOSE: Target = Target::AtMostOverRaw(100.0);

/// Describes a row that compares the median of times.
pub(super) const fn row(
    id: &'static str,
    what: &'static str,
    raw: &'static str,
    target: Target,
) -> RowSpec {
    RowSpec {
        id,
        what,
        raw,
        unit: Unit::Nanoseconds,
        statistic: Statistic::P50,
        target,
    }
}
