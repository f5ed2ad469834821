//! Facts about a process from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// The resources that a process may leak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Number of open file descriptors.
    pub descriptors: usize,
    /// Number of mappings.
    pub mappings: usize,
    /// Resident memory in KiB.
    pub resident: usize,
}

impl Usage {
    /// Returns the resources of a process.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub fn of(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        // Reading its own directory costs this process one more descriptor.
        let own = usize::from(pid == std::process::id());
        Ok(Self {
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() - own,
            mappings: maps(pid)?.len(),
            resident: resident.unwrap_or(0),
        })
    }

    /// Returns the resources of this process.
    ///
    /// # Errors
    /// Fails if there is no `/proc`.
    pub fn of_self() -> io::Result<Self> {
        Self::of(std::process::id())
    }
}

/// Returns the private memory of a process plus its share of shared memory, in KiB. Pages of files
/// are not included. The kernel counts these pages one by one, but updates `VmRSS` late.
pub(crate) fn proportional(pid: u32) -> io::Result<usize> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let fields = ["Pss_Anon:", "Pss_Shmem:"].into_iter().filter_map(|field| {
        let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
        rest.split_whitespace().next()?.parse::<usize>().ok()
    });
    Ok(fields.sum())
}

/// A line of `/proc/PID/maps`.
pub(crate) struct MapsLine {
    start: usize,
    end: usize,
    /// Protection, such as `r--s`.
    pub(crate) protection: String,
    pub(crate) name: String,
}

pub(crate) fn maps(pid: u32) -> io::Result<Vec<MapsLine>> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let protection = words.next()?.to_owned();
        Some(MapsLine {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            protection,
            name: words.skip(3).collect::<Vec<_>>().join(" "),
        })
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Returns the number of a process's mappings by name and protection.
pub(crate) fn mappings(pid: u32) -> io::Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for line in maps(pid)? {
        let name = format!("{} {}", line.protection, line.name);
        *counts.entry(name).or_default() += 1;
    }
    Ok(counts)
}

/// Returns the mappings whose number has grown, and by how much.
pub(crate) fn more_than(
    before: &BTreeMap<String, usize>,
    now: &BTreeMap<String, usize>,
) -> Vec<(String, usize)> {
    let more = |name: &str, count: usize| count.saturating_sub(*before.get(name).unwrap_or(&0));
    now.iter()
        .map(|(name, count)| (name.clone(), more(name, *count)))
        .filter(|(_, more)| *more > 0)
        .collect()
}

/// Returns the protection of the mapping at an address in a process.
pub(crate) fn protection(pid: u32, address: usize) -> io::Result<Option<String>> {
    let found = maps(pid)?
        .into_iter()
        .find(|line| (line.start..line.end).contains(&address));
    Ok(found.map(|line| line.protection))
}

/// Returns the number of a process's mappings whose name contains `name`.
pub(crate) fn mappings_named(pid: u32, name: &str) -> io::Result<usize> {
    let lines = maps(pid)?;
    Ok(lines.iter().filter(|line| line.name.contains(name)).count())
}

/// Returns whether a thread sleeps in the kernel.
pub(crate) fn is_asleep(pid: u32, thread: u32) -> io::Result<bool> {
    Ok(state(&format!("/proc/{pid}/task/{thread}/stat"))? == Some(b'S'))
}

/// Returns the number of a process's threads.
pub(crate) fn threads(pid: u32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))?.count())
}

/// Returns the IDs of a process's threads with this name.
pub(crate) fn threads_named(pid: u32, name: &str) -> io::Result<Vec<u32>> {
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        // A thread that has just ended has no name.
        let found = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if found.trim_end() == name {
            threads.extend(
                task.file_name()
                    .to_str()
                    .and_then(|id| id.parse::<u32>().ok()),
            );
        }
    }
    Ok(threads)
}

/// Returns how many of a process's descriptors have a number below `limit`. `RLIMIT_NOFILE` limits
/// the numbers, and a driver may have descriptors with higher ones.
pub(crate) fn descriptors_below(pid: u32, limit: usize) -> io::Result<usize> {
    let numbers = fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<usize>().ok()
    });
    Ok(numbers.filter(|number| *number < limit).count())
}

/// Returns the number of a process's descriptors of files whose name contains `part`.
pub(crate) fn descriptors_named(pid: u32, part: &str) -> io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // The descriptor of the directory itself is closed by now.
        let target = fs::read_link(entry?.path()).unwrap_or_default();
        count += usize::from(target.to_string_lossy().contains(part));
    }
    Ok(count)
}

/// Returns whether all threads of a process are stopped.
pub(crate) fn is_stopped(pid: u32) -> io::Result<bool> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = task?.path().join("stat");
        if state(&stat.to_string_lossy())? != Some(b'T') {
            return Ok(false);
        }
    }
    Ok(true)
}

fn state(stat: &str) -> io::Result<Option<u8>> {
    let text = fs::read_to_string(stat)?;
    // The thread's name comes before the state. It is in parentheses and may contain any
    // characters.
    let state = text.rsplit_once(") ");
    Ok(state.and_then(|(_, rest)| rest.bytes().next()))
}
