//! Checks of the limits that the system sets for the process.

use super::check::Check;
use crate::units::bytes;
use crosshandle::report::memory_limit;
use rustix::process::{Resource, getrlimit};
use std::fs;

/// The kernel's default for the maximum number of mappings in a process.
const DEFAULT_MAX_MAPPINGS: u64 = 65_530;
/// File size limit in bytes that suffices for the files that the library creates on its own: shared
/// segments, and the segments for events.
const ENOUGH_FILE_BYTES: u64 = 64 << 20;
/// Amount of free memory in bytes below which the check reports that little memory is left.
const LITTLE_MEMORY_BYTES: u64 = 256 << 20;
/// The usual soft limit for the number of file descriptors in a process.
const USUAL_MAX_DESCRIPTORS: u64 = 1024;

pub(super) fn descriptors() -> Check {
    const CHECK: &str = "descriptors";
    let limit = getrlimit(Resource::Nofile);
    let hard = limit
        .maximum
        .map_or_else(|| "none".to_owned(), |hard| hard.to_string());
    match limit.current {
        None => Check::ok(CHECK, "no limit"),
        Some(soft) if soft >= USUAL_MAX_DESCRIPTORS => Check::ok(
            CHECK,
            format!("{soft} (hard limit {hard}); events and small allocations need none each"),
        ),
        Some(soft) => Check::note(
            CHECK,
            format!("{soft} (hard limit {hard})"),
            "each large allocation and each connected process takes some; raise the limit \
             (ulimit -n 1024)",
        ),
    }
}

pub(super) fn mappings() -> Check {
    const CHECK: &str = "mappings";
    let text = fs::read_to_string("/proc/sys/vm/max_map_count");
    match text.map(|text| text.trim().parse::<u64>()) {
        Ok(Ok(count)) if count >= DEFAULT_MAX_MAPPINGS => {
            Check::ok(CHECK, format!("vm.max_map_count is {count}"))
        }
        Ok(Ok(count)) => Check::note(
            CHECK,
            format!("vm.max_map_count is {count}"),
            format!(
                "each large allocation takes one; raise it to the usual {DEFAULT_MAX_MAPPINGS} \
                 (sysctl vm.max_map_count={DEFAULT_MAX_MAPPINGS})"
            ),
        ),
        _ => Check::note(
            CHECK,
            "vm.max_map_count cannot be read",
            "mount /proc to see it",
        ),
    }
}

pub(super) fn address_space() -> Check {
    const CHECK: &str = "address space";
    match getrlimit(Resource::As).current {
        None => Check::ok(CHECK, "no limit"),
        Some(limit) => Check::note(
            CHECK,
            format!("limited to {}", bytes(limit)),
            "shared memory counts, and so do addresses reserved for growth; lift the limit \
             (ulimit -v unlimited) if allocations fail",
        ),
    }
}

pub(super) fn file_size() -> Check {
    const CHECK: &str = "file size";
    match getrlimit(Resource::Fsize).current {
        None => Check::ok(CHECK, "no limit"),
        Some(limit) if limit >= ENOUGH_FILE_BYTES => Check::note(
            CHECK,
            format!("limited to {}", bytes(limit)),
            "shared memory is a file without a name, so no allocation is larger than that; raise the \
             limit (ulimit -f unlimited) if allocations fail",
        ),
        Some(limit) => Check::note(
            CHECK,
            format!("limited to {}", bytes(limit)),
            "shared memory is a file without a name, so no allocation is larger than that, small ones \
             share smaller segments than usual, and contexts with many events fail; raise the limit \
             (ulimit -f unlimited)",
        ),
    }
}

/// Checks how much memory the control groups and the machine have left.
pub(super) fn memory() -> Check {
    const CHECK: &str = "memory";
    const ADVICE: &str = "the kernel ends processes that touch more than that: allocate with \
                          AllocationOptions::populate to get an error instead";
    let Some(limit) = memory_limit() else {
        return Check::note(CHECK, "unknown", "mount /proc to see it");
    };
    let left = format!("{} of {} left", bytes(limit.headroom), bytes(limit.limit));
    match limit.group {
        Some(group) => Check::note(
            CHECK,
            format!("{left} in the control group {}", group.display()),
            format!("{ADVICE}, or raise the group's limit (memory.max, or the container's)"),
        ),
        None if limit.headroom < LITTLE_MEMORY_BYTES => Check::note(CHECK, left, ADVICE),
        None => Check::ok(
            CHECK,
            format!("{left} on this machine, no tighter control group"),
        ),
    }
}
