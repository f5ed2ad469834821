//! CPU affinity.

use std::fs;

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the CPUs that this process may run on, one of each physical core.
///
/// Two hardware threads of one core would share its resources and so distort the results.
pub(crate) fn one_per_core() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None).context("cannot read this process's CPU affinity")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu) && first_allowed_thread(cpu, &allowed) == cpu)
        .collect();
    ensure!(!cpus.is_empty(), "this process may run on no CPU at all");
    Ok(cpus)
}

/// Returns the lowest allowed CPU that shares a core with `cpu`. Returns `cpu` if the kernel does
/// not report it.
fn first_allowed_thread(cpu: usize, allowed: &CpuSet) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(path)
        .ok()
        .and_then(|list| {
            parse_list(&list)
                .into_iter()
                .find(|&sibling| allowed.is_set(sibling))
        })
        .unwrap_or(cpu)
}

/// Parses a list in the kernel's format, for example `0-3,8`.
fn parse_list(list: &str) -> Vec<usize> {
    list.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .filter(|&cpu: &usize| cpu < CpuSet::MAX_CPU)
        .collect()
}

/// Pins the calling thread to one CPU.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("cannot pin to CPU {cpu}"))
}

#[cfg(test)]
mod tests {
    use super::parse_list;

    #[test]
    fn kernel_lists() {
        assert_eq!(parse_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("5"), [5]);
        assert_eq!(parse_list(""), [] as [usize; 0]);
        assert_eq!(parse_list("x,2"), [2]);
    }
}
