//! What a build for the fault harness does more: it tells of stores to shared memory, and has bugs on
//! demand. No other build contains this file.

/// The marker by which the harness knows this call from other programs'.
const STORE_MARK: libc::c_ulong = 0x7848_5354;

/// Makes a system call that does nothing, before a store to shared memory. A supervisor sees it.
pub(crate) fn announce_store() {
    // SAFETY: `getppid` ignores its arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_getppid, STORE_MARK) };
}

/// Returns whether the environment asks for this bug.
#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: &str) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<String> = OnceLock::new();
    let planted =
        PLANTED.get_or_init(|| std::env::var("CROSSHANDLE_PLANTED_BUG").unwrap_or_default());
    planted == bug
}
