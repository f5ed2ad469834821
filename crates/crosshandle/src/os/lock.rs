//! fcntl(2) record locks, byte by byte.
//!
//! The kernel drops a process's record locks when the process ends, however it ends, and any
//! process that has the file can ask whether a lock is held: no permission, no pid and no
//! connection is needed, and PID namespaces don't matter. `fork` does not pass the locks on.
//!
//! POSIX also drops *all* of a process's locks on a file when it closes *any* descriptor of that
//! file, and hides them from the process itself. To Linux, a "process" in this is all threads that
//! share a table of descriptors: see `ipc::liveness`.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The kind of a lock, by the other locks that the same byte may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockKind {
    /// No other lock. Needs a descriptor for writing.
    Exclusive,
    /// Other shared locks. A descriptor for reading will do, even a directory's.
    Shared,
}

/// Locks byte `index` for the caller's descriptor table, unless another table's lock forbids it
/// ([`Errno::AGAIN`] or [`Errno::ACCESS`]).
pub(crate) fn hold(file: BorrowedFd<'_>, index: u64, kind: LockKind) -> Result<(), Errno> {
    let kind = match kind {
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Shared => libc::F_RDLCK,
    };
    control(file, libc::F_SETLK, kind, index).map(drop)
}

/// Ends the lock of the caller's descriptor table on byte `index`.
pub(crate) fn release(file: BorrowedFd<'_>, index: u64) -> Result<(), Errno> {
    control(file, libc::F_SETLK, libc::F_UNLCK, index).map(drop)
}

/// Returns whether another descriptor table than the caller's has a lock on byte `index`.
pub(crate) fn is_held(file: BorrowedFd<'_>, index: u64) -> Result<bool, Errno> {
    let lock = control(file, libc::F_GETLK, libc::F_WRLCK, index)?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

fn control(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    index: u64,
) -> Result<libc::flock, Errno> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::try_from(index).map_err(|_| Errno::INVAL)?,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open for the call, and `lock` is a valid flock that fcntl may
    // write to.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) };
    if result == -1 {
        return Err(last_error());
    }
    Ok(lock)
}

/// Returns why the latest system call of this thread failed.
pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
