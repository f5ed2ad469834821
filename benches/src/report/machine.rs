//! The machine on which a report was measured.

use std::fs;
use std::thread;

use bench_report::Machine;

use crate::harness::procfs;

/// Describes this machine.
pub(crate) fn here() -> Machine {
    let uname = rustix::system::uname();
    Machine {
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

fn cpu_model() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
