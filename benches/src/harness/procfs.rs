//! Facts about processes and the machine, read from `/proc`.

use std::fs;

use anyhow::{Context, Result};

/// Resources that a process holds at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holdings {
    pub(crate) descriptors: u64,
    /// The number of lines in `/proc/self/maps`.
    pub(crate) mappings: u64,
    /// Private memory in RAM, in bytes.
    pub(crate) anonymous: u64,
    /// Shared memory in RAM that this process has mapped, in bytes. A page that several processes
    /// have mapped is divided equally among them.
    pub(crate) shared: u64,
}

impl Holdings {
    /// Returns the resources of the calling process.
    pub(crate) fn now() -> Result<Self> {
        Ok(Self {
            descriptors: descriptors()?,
            mappings: mappings()?,
            // The kernel counts these values page by page. Those in `/proc/self/status` are delayed
            // by up to hundreds of pages.
            anonymous: field("/proc/self/smaps_rollup", "Pss_Anon:")?,
            shared: field("/proc/self/smaps_rollup", "Pss_Shmem:")?,
        })
    }

    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let numbers = [self.descriptors, self.mappings, self.anonymous, self.shared];
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        let (numbers, _) = bytes.as_chunks();
        let number = |index: usize| u64::from_le_bytes(numbers[index]);
        Self {
            descriptors: number(0),
            mappings: number(1),
            anonymous: number(2),
            shared: number(3),
        }
    }
}

/// Counts the threads of the calling process that have this name.
pub(crate) fn threads_named(name: &str) -> Result<usize> {
    let mut count = 0;
    for task in fs::read_dir("/proc/self/task").context("cannot list this process's threads")? {
        // A thread that has just ended has no name.
        let own = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        count += usize::from(own.trim_end() == name);
    }
    Ok(count)
}

/// Counts the descriptors that the calling process has open.
pub(crate) fn descriptors() -> Result<u64> {
    let entries = fs::read_dir("/proc/self/fd").context("cannot list /proc/self/fd")?;
    // The listing itself holds one descriptor.
    Ok((entries.count() as u64).saturating_sub(1))
}

/// Counts the mappings of the calling process.
pub(crate) fn mappings() -> Result<u64> {
    let maps = fs::read_to_string("/proc/self/maps").context("cannot read /proc/self/maps")?;
    Ok(maps.lines().count() as u64)
}

/// Returns the shared memory in RAM of the whole machine in bytes: all memfds and tmpfs files.
pub(crate) fn machine_shared_memory() -> Result<u64> {
    field("/proc/meminfo", "Shmem:")
}

/// Returns the memory that the machine can still allocate, in bytes.
pub(crate) fn machine_available_memory() -> Result<u64> {
    field("/proc/meminfo", "MemAvailable:")
}

/// Returns the number of threads that ran or waited for a CPU, averaged over the last minute.
pub(crate) fn load_average() -> Result<f64> {
    let text = fs::read_to_string("/proc/loadavg").context("cannot read /proc/loadavg")?;
    text.split(' ')
        .next()
        .and_then(|first| first.parse().ok())
        .context("/proc/loadavg has an unknown form")
}

/// Returns whether the first thread of process `pid` is blocked: state S in `/proc/PID/stat`.
pub(crate) fn is_asleep(pid: u64) -> Result<bool> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // The second field is the command's name in brackets, which may contain any characters.
    let (_, rest) = stat
        .rsplit_once(") ")
        .with_context(|| format!("{path} has an unknown form"))?;
    Ok(rest.starts_with('S'))
}


/// Returns the bytes of huge pages in the mapping that contains `address`.
pub(crate) fn huge_bytes(address: usize) -> Result<u64> {
    let smaps = fs::read_to_string("/proc/self/smaps").context("cannot read /proc/self/smaps")?;
    let mut inside = false;
    let mut bytes = 0;
    for line in smaps.lines() {
        if let Some(range) = line.split(' ').next().and_then(parse_range) {
            inside = range.contains(&address);
        } else if inside {
            for key in ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"] {
                bytes += line.strip_prefix(key).and_then(kibibytes).unwrap_or(0);
            }
        }
    }
    Ok(bytes)
}

/// Parses the start of a line of `maps` or `smaps`: `55d0c0000000-55d0c0021000`.
fn parse_range(text: &str) -> Option<std::ops::Range<usize>> {
    let (start, end) = text.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

/// Returns field `key`, in bytes, of a file with lines like `Shmem:   123 kB`.
fn field(path: &str, key: &str) -> Result<u64> {
    fs::read_to_string(path)
        .with_context(|| format!("cannot read {path}"))?
        .lines()
        .find_map(|line| kibibytes(line.strip_prefix(key)?))
        .with_context(|| format!("{path} has no field {key}"))
}

fn kibibytes(text: &str) -> Option<u64> {
    Some(text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holdings_cross_the_process_boundary() {
        let held = Holdings {
            descriptors: 3,
            mappings: 1 << 20,
            anonymous: 1 << 40,
            shared: u64::MAX,
        };
        let back = Holdings::from_bytes(held.to_bytes());
        assert_eq!(format!("{held:?}"), format!("{back:?}"));
    }

    #[test]
    fn own_process() {
        let held = Holdings::now().unwrap();
        assert!(held.descriptors >= 3 && held.mappings > 5 && held.anonymous > 0);
    }

    #[test]
    fn ranges_and_sizes() {
        assert_eq!(parse_range("1000-2000"), Some(0x1000..0x2000));
        assert_eq!(parse_range("Shmem:"), None);
        assert_eq!(kibibytes("   12 kB"), Some(12 * 1024));
    }
}
