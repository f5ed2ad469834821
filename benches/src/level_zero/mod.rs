//! The Level Zero backend, compared with the driver's own calls.
//!
//! `cargo xtask bench level-zero` makes the stock loader load the simulated driver, which executes
//! short commands within the call that appends them. Then the differences are the library's.

mod enqueue;
mod handles;
mod ours;
mod recycle;
mod waits;

use crosshandle::BackendStatus;
use crosshandle::handle::BackendKind;

use crate::harness::scenario::Scenario;
use crate::raw::level_zero::Gpu;
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

/// The scenarios, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[
    &enqueue::SCENARIO,
    &waits::SCENARIO,
    &handles::SCENARIO,
    &recycle::SCENARIO,
];

/// Target for calls: time in nanoseconds beyond the driver's.
const CLOSE: Target = Target::AtMostOverRaw(100.0);

/// Returns the reason why this machine cannot measure these scenarios; `None` if it can.
pub(crate) fn unavailable() -> Option<String> {
    let all = BackendStatus::all();
    let ours = all
        .into_iter()
        .find(|status| status.backend == BackendKind::LevelZero);
    match ours {
        Some(status) => status.driver.err(),
        None => Some("this build has no Level Zero backend".to_owned()),
    }
}

/// Returns the device and its driver, for the foot of the table.
pub(crate) fn machine() -> Option<String> {
    let gpu = Gpu::first().ok()?;
    let (name, version) = (gpu.name().ok()?, gpu.api_version().ok()?);
    Some(format!("{name}, driver for Level Zero {version}"))
}

const fn row(id: &'static str, what: &'static str, raw: &'static str, target: Target) -> RowSpec {
    RowSpec {
        id,
        what,
        raw,
        unit: Unit::Nanoseconds,
        statistic: Statistic::P50,
        target,
    }
}
