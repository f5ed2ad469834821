//! The machine on which a report was measured.

use std::fmt;
use std::fs;
use std::thread;

use serde::Serialize;

use crate::harness::procfs;

#[derive(Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    /// Number of CPUs that this process may use.
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
    /// The GPUs and their driver, if GPUs were measured.
    pub(crate) gpus: Option<String>,
    /// Load average over one minute before the first measurement. If it is not near zero, other
    /// programs have affected the results.
    pub(crate) load: Option<f64>,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let uname = rustix::system::uname();
        Self {
            cpu: cpu_model().unwrap_or_else(|| "unknown CPU".to_owned()),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            kernel: format!(
                "{} {} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy(),
                uname.machine().to_string_lossy()
            ),
            gpus: None,
            load: procfs::load_average().ok(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cpu,
            cpus,
            kernel,
            gpus,
            load,
        } = self;
        if let Some(gpus) = gpus {
            write!(f, "{gpus}; ")?;
        }
        write!(f, "{cpu}, {cpus} CPUs, {kernel}")?;
        match load {
            Some(load) => write!(f, ", load {load:.2} at the start"),
            None => Ok(()),
        }
    }
}

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
