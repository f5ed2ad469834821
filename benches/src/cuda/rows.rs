//! Rows of the CUDA scenarios.

use anyhow::Result;

use crate::harness::outcome::{Outcome, Recorder};
use crate::raw::cuda::Gpu;
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

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

/// Returns the outcome of a scenario that needs more GPUs than the machine has, or `None` if there
/// are enough.
pub(super) fn too_few_gpus(needed: usize, rows: &'static [RowSpec]) -> Result<Option<Outcome>> {
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
