//! Announcements of stores to the fault harness. Only builds for the fault harness contain this
//! file.

/// Marker that distinguishes this system call from the system calls of other programs.
const STORE_MARK: libc::c_ulong = 0x7848_5354;

/// Makes a system call without effect before a store to shared memory, so that a supervisor can see
/// the store.
pub fn announce_store() {
    // SAFETY: `getppid` ignores its arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_getppid, STORE_MARK) };
}
