//! What the system says of a process.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// What a process holds: the things that leak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Mappings.
    pub mappings: usize,
    /// Resident memory in KiB.
    pub resident: usize,
}

impl Usage {
    /// Of a process.
    ///
    /// # Errors
    /// If it is gone.
    pub fn of(pid: u32) -> io::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        // Reading one's own directory takes a descriptor that is not there otherwise.
        let own = usize::from(pid == std::process::id());
        Ok(Self {
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count() - own,
            mappings: maps(pid)?.len(),
            resident: resident.unwrap_or(0),
        })
    }

    /// Of this process.
    ///
    /// # Errors
    /// If there is no `/proc`.
    pub fn of_self() -> io::Result<Self> {
        Self::of(std::process::id())
    }
}

/// A line of `/proc/PID/maps`.
pub(crate) struct MapsLine {
    start: usize,
    end: usize,
    /// Such as `r--s`.
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

/// How many mappings of each name and protection a process has.
pub(crate) fn mappings(pid: u32) -> io::Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for line in maps(pid)? {
        let name = format!("{} {}", line.protection, line.name);
        *counts.entry(name).or_default() += 1;
    }
    Ok(counts)
}

/// Those of which there are more than before, and how many.
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

/// The protection of what is mapped at an address of a process.
pub(crate) fn protection(pid: u32, address: usize) -> io::Result<Option<String>> {
    let found = maps(pid)?
        .into_iter()
        .find(|line| (line.start..line.end).contains(&address));
    Ok(found.map(|line| line.protection))
}

/// Mappings of a process whose name contains `name`.
pub(crate) fn mappings_named(pid: u32, name: &str) -> io::Result<usize> {
    let lines = maps(pid)?;
    Ok(lines.iter().filter(|line| line.name.contains(name)).count())
}

/// Whether a thread is asleep in the kernel.
pub(crate) fn is_asleep(pid: u32, thread: u32) -> io::Result<bool> {
    Ok(state(&format!("/proc/{pid}/task/{thread}/stat"))? == Some(b'S'))
}

/// Whether all threads of a process are stopped.
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
    // The name before the state is in parentheses and may contain anything.
    let state = text.rsplit_once(") ");
    Ok(state.and_then(|(_, rest)| rest.bytes().next()))
}
