//! The CUDA backend's memory and events, compared with the driver's own calls.

mod enqueue;
mod events;
mod first_event;
mod graphs;
mod kernels;
mod newcomer;
mod opens;
mod ours;
mod recycle;
mod rows;
mod trip;

use std::fs;

use crosshandle::device::BackendStatus;
use crosshandle::handle::BackendKind;

use crate::harness::scenario::Scenario;
use crate::raw::cuda::Gpu;

/// The CUDA scenarios, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[
    &trip::ONE_GPU,
    &trip::ONE_GPU_NATIVE,
    &trip::TWO_GPUS,
    &trip::TWO_GPUS_NATIVE,
    &enqueue::SCENARIO,
    &events::SCENARIO,
    &first_event::SCENARIO,
    &graphs::SCENARIO,
    &kernels::SCENARIO,
    &opens::ONE_GPU,
    &opens::TWO_GPUS,
    &newcomer::SCENARIO,
    &recycle::SCENARIO,
];

/// Returns the reason why this machine cannot measure the CUDA backend, if there is one.
pub(crate) fn unavailable() -> Option<String> {
    let all = BackendStatus::all();
    let cuda = all
        .into_iter()
        .find(|status| status.backend == BackendKind::Cuda);
    match cuda {
        Some(status) => status.driver.err(),
        None => Some("this build has no CUDA backend".to_owned()),
    }
}

/// Returns the names of the GPUs and the driver's version, which are printed below the table.
pub(crate) fn machine() -> Option<String> {
    let count = Gpu::count().ok()?;
    let name = Gpu::open(0).and_then(|gpu| gpu.name()).ok()?;
    let driver = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    let driver = driver.split_whitespace().find(version).unwrap_or("unknown");
    Some(format!("{count} × {name}, driver {driver}"))
}
