//! Facts about processes and the machine, read from `/proc`.

use std::fs;

use anyhow::{Context, Result};

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
    use super::kibibytes;

    #[test]
    fn sizes() {
        assert_eq!(kibibytes("Shmem:"), None);
        assert_eq!(kibibytes("   12 kB"), Some(12 * 1024));
    }
}
