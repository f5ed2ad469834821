//! The Unified Runtime adapter through the stock loader, compared with the library's own calls.

mod calls;
mod loader;
mod opens;

use crate::harness::scenario::Scenario;
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

/// The scenarios, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[&calls::SCENARIO, &opens::SCENARIO];

/// Time that loader and adapter may add to a call of the library, in nanoseconds.
const ADDED: f64 = 30.0;

const fn row(id: &'static str, what: &'static str, raw: &'static str) -> RowSpec {
    RowSpec {
        id,
        what,
        raw,
        unit: Unit::Nanoseconds,
        statistic: Statistic::P50,
        target: Target::AtMostOverRaw(ADDED),
    }
}
