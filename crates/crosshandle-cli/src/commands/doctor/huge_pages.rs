//! A check of huge pages. It allocates memory, and reads from the kernel whether the memory is in
//! huge pages.

use super::check::Check;
use crate::failure::{Failure, Result};
use crate::units::bytes;
use DOCTOR_HUGE_PAGES_BYTES as LEN;
use crosshandle::{Context, Device};
use std::fs;

/// Size in bytes of the memory in which `doctor` looks for huge pages: two pages of the usual size.
const DOCTOR_HUGE_PAGES_BYTES: usize = 4 << 20;

const CHECK: &str = "huge pages";

pub(super) fn check() -> Check {
    match huge_bytes() {
        Ok(huge) if huge >= LEN as u64 => Check::ok(
            CHECK,
            format!("all of {} got huge pages", bytes(LEN as u64)),
        ),
        Ok(huge) => Check::note(
            CHECK,
            format!(
                "{} of {} got huge pages; shmem_enabled: {}",
                bytes(huge),
                bytes(LEN as u64),
                policy()
            ),
            "everything works, but the first access to large memory is several times slower; huge pages need \
             Linux 6.1 or later and unfragmented free memory",
        ),
        Err(failure) => Check::note(
            CHECK,
            format!("unknown: {}", failure.message()),
            "everything works, but the first access to memory may be slower",
        ),
    }
}

/// Allocates memory, and returns how many of its bytes are in huge pages.
fn huge_bytes() -> Result<u64> {
    let context = Context::new(&Device::find("host")?)?;
    let memory = context.allocate(LEN)?;
    let contents = vec![1; LEN];
    memory.write(0, &contents)?;
    let address = memory.as_ptr().addr();
    let smaps = fs::read_to_string("/proc/self/smaps")
        .map_err(|error| Failure::error(format!("reading /proc/self/smaps: {error}")))?;
    mapped_huge(&smaps, address, LEN)
        .ok_or_else(|| Failure::error("the kernel does not report huge pages in /proc/self/smaps"))
}

/// Returns the number of bytes in huge pages in the mappings between `start` and `start + len`.
/// `None` if `smaps` does not report it.
fn mapped_huge(smaps: &str, start: usize, len: usize) -> Option<u64> {
    let mut is_inside = false;
    let mut total = None;
    for line in smaps.lines() {
        if let Some((from, to)) = address_range(line) {
            is_inside = from < start + len && start < to;
        } else if is_inside && let Some(size) = huge_page_bytes(line) {
            total = Some(total.unwrap_or(0) + size);
        }
    }
    total
}

/// Parses the addresses in the first line of a mapping, such as `7f00-7f80 rw-s …`.
fn address_range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    let number = |digits| usize::from_str_radix(digits, 16).ok();
    Some((number(from)?, number(to)?))
}

/// Parses the number of bytes in a line such as `ShmemPmdMapped:  2048 kB`.
fn huge_page_bytes(line: &str) -> Option<u64> {
    let (name, value) = line.split_once(':')?;
    if !matches!(name, "ShmemPmdMapped" | "FilePmdMapped") {
        return None;
    }
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Returns the kernel's setting for huge pages in shared memory.
fn policy() -> String {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-s 00000000 00:01 5 /memfd:x (deleted)
Size:               4096 kB
ShmemPmdMapped:     2048 kB
FilePmdMapped:      2048 kB
VmFlags: rd wr sh mr mw me ms
7f0000400000-7f0000800000 rw-s 00000000 00:01 6 /memfd:y (deleted)
ShmemPmdMapped:        0 kB
";

    #[test]
    fn smaps_are_understood() {
        let at = |start| mapped_huge(SMAPS, start, 1 << 20);
        assert_eq!(at(0x7f00_0000_0000), Some(4 << 20));
        assert_eq!(at(0x7f00_0040_0000), Some(0));
        assert_eq!(at(0x7f00_0080_0000), None);
    }
}
