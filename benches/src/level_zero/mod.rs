//! The Level Zero backend beside the driver's own calls.
//!
//! `cargo xtask bench level-zero` lets the stock loader load the simulated driver, which executes
//! short commands within the call that appends them. All differences are then the library's.

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

/// The Level Zero scenarios, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[
    &enqueue::SCENARIO,
    &waits::SCENARIO,
    &handles::SCENARIO,
    &recycle::SCENARIO,
];

/// Returns the reason for which this machine cannot measure the Level Zero backend, if there is one.
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

/// Returns the names of the device and its driver's version, for the foot of the table.
pub(crate) fn machine() -> Option<String> {
    let gpu = Gpu::first().ok()?;
    let (name, version) = (gpu.name().ok()?, gpu.api_version().ok()?);
    Some(format!("{name}, driver for Level Zero {version}"))
}
