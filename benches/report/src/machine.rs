//! The machine on which a report was measured.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The machine, as a table names it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// The model of the CPU.
    pub cpu: String,
    /// Number of CPUs that the benchmark may use.
    pub cpus: usize,
    /// The kernel, its version and its architecture.
    pub kernel: String,
    /// The GPUs and their driver, if GPUs were measured.
    pub gpus: Option<String>,
    /// Load average over one minute before the first measurement. If it is not near zero, other
    /// programs have affected the results.
    pub load: Option<f64>,
}

impl Machine {
    /// Returns the description without the load, which differs from run to run.
    #[must_use]
    pub fn name(&self) -> String {
        let gpus = self.gpus.as_ref().map(|gpus| format!("{gpus}; "));
        let gpus = gpus.unwrap_or_default();
        format!("{gpus}{}, {} CPUs, {}", self.cpu, self.cpus, self.kernel)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match self.load {
            Some(load) => write!(f, ", load {load:.2} at the start"),
            None => Ok(()),
        }
    }
}
