//! The plan of a run: the amount of work, and the CPUs.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::cpu;

/// Number of rounds in a full run, in which the library and the raw technique alternate.
///
/// An odd number has a middle value. With fewer rounds, one disturbance of the machine could move a
/// median.
const FULL_ROUNDS: usize = 11;

/// Number of rounds in a quick run, whose results must not be quoted.
const QUICK_ROUNDS: usize = 5;

/// Settings that the parent process gives to every child process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Whether this is a short run, whose results must not be quoted.
    pub(crate) quick: bool,
    /// CPUs for pinning, one of each physical core, in ascending order.
    pub(crate) cpus: Vec<usize>,
}

impl Plan {
    pub(crate) fn new(quick: bool) -> Result<Self> {
        Ok(Self {
            quick,
            cpus: cpu::one_per_core()?,
        })
    }

    /// Returns the number of rounds in which the library and the raw technique alternate.
    pub(crate) fn rounds(&self) -> usize {
        self.pick(FULL_ROUNDS, QUICK_ROUNDS)
    }

    /// Returns `full` in a full run and `quick` in a quick one.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Pins the calling thread to the plan's CPU `index`, or to the last CPU if there are fewer.
    /// Threads that the calling thread starts later inherit the CPU.
    pub(crate) fn pin(&self, index: usize) -> Result<()> {
        cpu::pin(self.cpus[index.min(self.cpus.len() - 1)])
    }
}
