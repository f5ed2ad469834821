//! Record locks of single bytes by fcntl(2).
//!
//! The kernel drops a process's record locks when the process ends for any reason. Any process that
//! has the file can ask whether a lock is held. It needs no permission, pid or connection, and PID
//! namespaces do not matter. A child of `fork` does not inherit the locks.
//!
//! POSIX also drops *all* of a process's locks on a file when the process closes *any* descriptor
//! of that file, and hides the locks from the process itself. On Linux, a "process" in this sense
//! is all threads that share a descriptor table; see `ipc::liveness`.

use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The kind of a lock, which decides which other locks the same byte may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Excludes all other locks. Needs a writable descriptor.
    Exclusive,
    /// Allows other shared locks. Needs a readable descriptor, which may be a directory's.
    Shared,
}

/// Locks byte `index` for the caller's descriptor table. Fails with [`Errno::AGAIN`] or
/// [`Errno::ACCESS`] if another table's lock conflicts.
pub fn hold(file: BorrowedFd<'_>, index: u64, kind: LockKind) -> Result<(), Errno> {
    let kind = match kind {
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Shared => libc::F_RDLCK,
    };
    control(file, libc::F_SETLK, kind, index).map(drop)
}

/// Releases the lock of the caller's descriptor table on byte `index`.
pub fn release(file: BorrowedFd<'_>, index: u64) -> Result<(), Errno> {
    control(file, libc::F_SETLK, libc::F_UNLCK, index).map(drop)
}

/// Returns whether another descriptor table than the caller's holds a lock on byte `index`.
pub fn is_held(file: BorrowedFd<'_>, index: u64) -> Result<bool, Errno> {
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

/// Returns the error of the latest system call of this thread that failed.
pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
