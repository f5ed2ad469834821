//! Checks of the limits of the process and of the system.

use super::check::Check;
use crate::units::bytes;
use rustix::process::{Resource, getrlimit};
use std::fs;

/// The kernel's default for the number of mappings of one process.
const DEFAULT_MAX_MAPPINGS: u64 = 65_530;
/// The usual soft limit for the number of descriptors of one process.
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
