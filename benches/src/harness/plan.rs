//! How much to measure, and on which CPUs.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::cpu;

/// Everything a measuring process is told before it starts; the same for all of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Shorter runs, whose figures are not to be quoted.
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

    /// How often ours and the raw technique take turns.
    pub(crate) fn rounds(&self) -> usize {
        self.pick(11, 5)
    }

    /// The first value in a full run, the second in a quick one.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Pins the calling thread, and the threads it starts from now on, to the `index`-th CPU of
    /// the plan; to the last one where the machine has fewer.
    pub(crate) fn pin(&self, index: usize) -> Result<()> {
        cpu::pin(self.cpus[index.min(self.cpus.len() - 1)])
    }
}
