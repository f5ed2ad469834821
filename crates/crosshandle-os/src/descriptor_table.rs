//! A private descriptor table for one thread, by close_range(2).

use super::lock::last_error;
use rustix::event::epoll;
use rustix::io::{self, Errno};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// The descriptors of the calling thread's own table after [`unshare`].
pub struct PrivateTable {
    /// A new descriptor of the file that was kept.
    pub kept: OwnedFd,
    /// Descriptors that occupy the numbers of the standard streams.
    _fillers: Vec<OwnedFd>,
}

/// Gives the calling thread a descriptor table of its own, whose only descriptor is a new one for
/// the file behind `kept`.
///
/// The other threads' table does not change. From now on, the calling thread must not use or drop
/// any descriptor of that table, including `kept`.
///
/// # Errors
/// Returns [`Errno::NOSYS`], [`Errno::PERM`] or [`Errno::INVAL`] if the kernel (Linux before 5.9)
/// or a sandbox does not support the call.
pub fn unshare(kept: BorrowedFd<'_>) -> Result<PrivateTable, Errno> {
    let number = kept.as_raw_fd().cast_unsigned();
    close_range(number + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if let Some(last) = number.checked_sub(1) {
        close_range(0, last, 0)?;
    }
    let own = io::fcntl_dupfd_cloexec(kept, libc::STDERR_FILENO + 1)?;
    close_range(number, number, 0)?;
    // Occupies the numbers of the standard streams with epoll instances, which cannot be written
    // to. Otherwise a message to standard error could reach a shared file.
    let mut fillers = Vec::new();
    loop {
        let filler = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        if filler.as_raw_fd() > libc::STDERR_FILENO {
            return Ok(PrivateTable {
                kept: own,
                _fillers: fillers,
            });
        }
        fillers.push(filler);
    }
}

/// Closes the descriptors from `first` to `last`. It makes the system call directly, because not
/// every C library has the function.
fn close_range(first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    // SAFETY: the call touches no memory. It closes descriptors only in a table that the calling
    // thread has to itself: the first call of `unshare` makes one or fails.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    match result {
        -1 => Err(last_error()),
        _ => Ok(()),
    }
}
