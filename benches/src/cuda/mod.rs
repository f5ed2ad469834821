//! The CUDA backend: memory and events of GPUs, compared with the driver's own calls.

mod calls;
mod churn;
mod copy;
mod enqueue;
mod events;
mod first_event;
mod opens;
mod ours;
mod peers;
mod recycle;
mod trip;

use std::fs;

use anyhow::Result;
use crosshandle::BackendStatus;
use crosshandle::handle::BackendKind;

use crate::harness::outcome::{Outcome, Recorder};
use crate::harness::scenario::Scenario;
use crate::raw::cuda::Gpu;
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

/// The scenarios, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[
    &trip::ONE_GPU,
    &trip::ONE_GPU_BATCHES,
    &trip::ONE_GPU_NATIVE,
    &trip::TWO_GPUS,
    &trip::TWO_GPUS_NATIVE,
    &trip::TWO_GPUS_DEVICE_WORDS,
    &enqueue::SCENARIO,
    &events::SCENARIO,
    &first_event::SCENARIO,
    &opens::ONE_GPU,
    &opens::TWO_GPUS,
    &recycle::SCENARIO,
    &copy::ONE_GPU,
    &copy::TWO_GPUS,
    &churn::SCENARIO,
    &peers::TORCH,
    &peers::CORE,
    &calls::SCENARIO,
];

/// Returns the reason why this machine cannot measure these scenarios; `None` if it can.
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

/// Returns the GPUs and their driver, for the foot of the table.
pub(crate) fn machine() -> Option<String> {
    let count = Gpu::count().ok()?;
    let name = Gpu::open(0).and_then(|gpu| gpu.name()).ok()?;
    let driver = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    let driver = driver.split_whitespace().find(version).unwrap_or("unknown");
    Some(format!("{count} × {name}, driver {driver}"))
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

/// Returns the outcome of a process whose scenario needs more GPUs than there are; `None` if there
/// are enough.
fn too_few_gpus(needed: usize, rows: &'static [RowSpec]) -> Result<Option<Outcome>> {
    let count = Gpu::count()?;
    if count >= needed {
        return Ok(None);
    }
    let mut recorder = Recorder::default();
    for row in rows {
        recorder.absent(row.id, format!("needs {needed} GPUs, and there is {count}"));
    }
    Ok(Some(recorder.finish()))
}
