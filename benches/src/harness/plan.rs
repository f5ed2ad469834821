//! The amount of measurement, and the CPUs for it.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::cpu;

/// The settings of a run, equal for all measuring processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Whether runs are shorter, so that their figures are not to be quoted.
    pub(crate) quick: bool,
    /// CPUs to pin to: one of each physical core, in the order of their numbers.
    pub(crate) cpus: Vec<usize>,
}

impl Plan {
    pub(crate) fn new(quick: bool) -> Result<Self> {
        Ok(Self {
            quick,
            cpus: cpu::one_per_core()?,
        })
    }

    /// Returns how often the library and the raw technique take turns.
    pub(crate) fn rounds(&self) -> usize {
        self.pick(11, 5)
    }

    /// Returns the first value in a full run, and the second in a quick one.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Pins the calling thread, and the threads it starts from now on, to the `index`-th CPU of the
    /// plan, or to the last one where the machine has fewer.
    pub(crate) fn pin(&self, index: usize) -> Result<()> {
        cpu::pin(self.cpus[index.min(self.cpus.len() - 1)])
    }
}
