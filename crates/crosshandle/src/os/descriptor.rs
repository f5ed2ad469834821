//! What a descriptor is.

use rustix::fs::{self, FileType};
use rustix::io::{self, Errno, FdFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// What is behind a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    /// A file, on disk or in memory.
    Regular,
    /// A device of the driver with this number.
    CharacterDevice {
        /// The driver's number.
        major: u32,
    },
    /// A pipe or a socket.
    Stream,
    /// Anything else.
    Other,
}

/// What is behind a stranger's descriptor. Does nothing to it.
pub(crate) fn kind(file: impl AsFd) -> Result<FileKind, Errno> {
    let status = fs::fstat(file)?;
    Ok(match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => FileKind::Regular,
        FileType::CharacterDevice => FileKind::CharacterDevice {
            major: fs::major(status.st_rdev),
        },
        FileType::Fifo | FileType::Socket => FileKind::Stream,
        _ => FileKind::Other,
    })
}

/// Keeps a descriptor that a driver made from programs that this process starts.
pub(crate) fn close_on_exec(file: impl AsFd) -> Result<(), Errno> {
    io::fcntl_setfd(file, FdFlags::CLOEXEC)
}

/// Whether this process has no descriptor left, for drivers that don't say why they fail.
pub(crate) fn are_exhausted() -> bool {
    io::dup(std::io::stderr()).is_err_and(|errno| errno == Errno::MFILE)
}

/// Whether this process may fetch a descriptor of another one, and finds the same file there as
/// behind its own.
pub(crate) fn can_fetch(pid: u32, number: RawFd, file: impl AsFd) -> bool {
    let fetch = || -> Result<bool, Errno> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
        let theirs = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
        let (theirs, ours) = (fs::fstat(theirs)?, fs::fstat(file)?);
        Ok((theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino))
    };
    fetch().unwrap_or(false)
}

/// Another descriptor, of our own, for what a driver's leads to.
pub(crate) fn duplicate(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: for the length of one system call, which fails if the number is no descriptor.
    let theirs = unsafe { BorrowedFd::borrow_raw(number) };
    io::fcntl_dupfd_cloexec(theirs, 3)
}
