//! System resources of a worker, counted by kind, which show resources that the worker has not
//! released.

use std::collections::BTreeMap;
use std::fs;

/// Threads that end by themselves after some idle time.
const IDLE_THREADS: &str = "thread xh-background";

/// Counts of descriptors, named mappings and threads.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Holdings(BTreeMap<String, usize>);

impl Holdings {
    /// Counts the resources of a process. The counts are empty if the process has ended.
    pub(super) fn of(pid: i32) -> Self {
        let mut counts = BTreeMap::new();
        let mut count = |name: String| *counts.entry(name).or_default() += 1;
        for entry in list(&format!("/proc/{pid}/fd")) {
            if let Ok(target) = fs::read_link(format!("/proc/{pid}/fd/{entry}")) {
                count(format!("descriptor {}", kind(&target.to_string_lossy())));
            }
        }
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        for line in maps.lines() {
            let name = line
                .split_whitespace()
                .skip(5)
                .collect::<Vec<_>>()
                .join(" ");
            if name.contains("memfd:") || name.contains("/dev/") {
                count(format!("mapping {}", kind(&name)));
            }
        }
        for thread in list(&format!("/proc/{pid}/task")) {
            let comm = fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm"));
            count(format!("thread {}", comm.unwrap_or_default().trim_end()));
        }
        Self(counts)
    }

    /// Lists the resources of which this process has more than `reference`.
    pub(super) fn beyond(&self, reference: &Self) -> Vec<String> {
        let more = self.0.iter().filter_map(|(name, count)| {
            let before = reference.0.get(name).copied().unwrap_or(0);
            (*count > before && name != IDLE_THREADS)
                .then(|| format!("{count} instead of {before} × {name}"))
        });
        more.collect()
    }
}

fn list(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Removes the digits from a name, because they differ between processes.
fn kind(name: &str) -> String {
    name.chars().filter(|c| !c.is_ascii_digit()).collect()
}
