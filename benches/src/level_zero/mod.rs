//! The Level Zero backend beside the driver's own calls.
//!
//! `cargo xtask bench level-zero` has the stock loader load the simulated driver, which executes
//! short commands within the call that appends them: then the differences are ours.

mod enqueue;
mod handles;
mod ours;
mod recycle;
mod rows;
mod waits;

use crosshandle::BackendStatus;
use crosshandle::handle::BackendKind;

use crate::harness::scenario::Scenario;
use crate::raw::level_zero::Gpu;

/// In the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[
    &enqueue::SCENARIO,
    &waits::SCENARIO,
    &handles::SCENARIO,
    &recycle::SCENARIO,
];

/// Why nothing of this can be measured on this machine, if so.
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

/// The device and its driver, for the foot of the table.
pub(crate) fn machine() -> Option<String> {
    let gpu = Gpu::first().ok()?;
    let (name, version) = (gpu.name().ok()?, gpu.api_version().ok()?);
    Some(format!("{name}, driver for Level Zero {version}"))
}
