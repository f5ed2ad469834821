//! Safe, thin wrappers of the operating system, with one topic per module.

pub(crate) mod cgroup;
pub(crate) mod descriptor;
pub(crate) mod descriptor_table;
#[cfg(feature = "fault-steps")]
pub(crate) mod fault_steps;
pub(crate) mod fork;
pub(crate) mod futex;
pub(crate) mod lock;
pub(crate) mod mapping;
pub(crate) mod memfd;
pub(crate) mod process;
pub(crate) mod sleepers;
pub(crate) mod socket;
pub(crate) mod tuning;

/// Returns whether the environment asks for this planted bug. Only builds with the feature
/// `planted-bugs` have such bugs.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: &str) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<String> = OnceLock::new();
    let planted =
        PLANTED.get_or_init(|| std::env::var("CROSSHANDLE_PLANTED_BUG").unwrap_or_default());
    planted == bug
}

/// Returns whether this planted bug is active, which it never is without the feature
/// `planted-bugs`.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn is_planted(_: &str) -> bool {
    false
}
