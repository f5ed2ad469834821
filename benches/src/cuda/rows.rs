//! Rows that this machine cannot measure.

use anyhow::Result;

use crate::harness::outcome::{Outcome, Recorder};
use crate::raw::cuda::Gpu;
use crate::report::row::RowSpec;

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
