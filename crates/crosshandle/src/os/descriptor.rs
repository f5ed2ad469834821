//! Facts about descriptors.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{self, AtFlags, FileType, StatxFlags};
use rustix::io::{self, Errno, FdFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The kind of file behind a descriptor.
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

/// Returns the kind of file behind a peer's descriptor. Changes nothing, and does not ask a file
/// system that another program serves, which might never answer.
pub(crate) fn kind(file: impl AsFd) -> Result<FileKind, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let status = fs::statx(file, "", flags, StatxFlags::TYPE)?;
    Ok(match FileType::from_raw_mode(status.stx_mode.into()) {
        FileType::RegularFile => FileKind::Regular,
        FileType::CharacterDevice => FileKind::CharacterDevice {
            major: status.stx_rdev_major,
        },
        FileType::Fifo | FileType::Socket => FileKind::Stream,
        _ => FileKind::Other,
    })
}

/// Returns whether a peer's file is a dma-buf: a driver's memory, which is in no file system. Asks the
/// kernel alone; `false` where there is no `/proc`.
pub(crate) fn is_dma_buf(file: impl AsFd) -> bool {
    // Its links' texts could be those of a file in a mount of the peer's own; this line could not.
    let number = file.as_fd().as_raw_fd();
    std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))
        .is_ok_and(|info| info.lines().any(|line| line.starts_with("exp_name:")))
}

/// Returns whether a file lies in a file system that no other running kernel has too, as far as is
/// known.
pub(crate) fn is_on_this_machine_alone(file: impl AsFd) -> bool {
    /// The magic numbers of file systems in memory and on disks of one machine.
    const LOCAL: [u64; 9] = [
        0x0102_1994, // tmpfs
        0x8584_58f6, // ramfs
        0xef53,      // ext2, ext3, ext4
        0x5846_5342, // XFS
        0x9123_683e, // Btrfs
        0xf2f5_2010, // F2FS
        0x2fc1_2fc1, // ZFS
        0xca45_1a4e, // bcachefs
        0x794c_7630, // overlayfs
    ];
    fs::fstatfs(file).is_ok_and(|status| LOCAL.contains(&(status.f_type as u64 & 0xffff_ffff)))
}

/// Returns the first descriptor that a service manager has handed to this very process, if it has: as
/// `LISTEN_PID` and `LISTEN_FDS` say. Once; the descriptor is closed in programs that this process starts.
pub(crate) fn handed_by_service_manager() -> Option<OwnedFd> {
    /// The number of the first one, by the protocol.
    const FIRST: RawFd = 3;
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let is_ours = number("LISTEN_PID") == Some(std::process::id()) && number("LISTEN_FDS")? >= 1;
    if !is_ours || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the service manager says that it opened the descriptor for this process, which takes it here
    // once. It is only looked at before it is known to be open.
    let given = unsafe { BorrowedFd::borrow_raw(FIRST) };
    close_on_exec(given).ok()?;
    // SAFETY: it is open, as the call before has shown, and nothing else in this process owns it.
    Some(unsafe { OwnedFd::from_raw_fd(FIRST) })
}

/// Closes a descriptor that a driver made in programs that this process starts.
pub(crate) fn close_on_exec(file: impl AsFd) -> Result<(), Errno> {
    io::fcntl_setfd(file, FdFlags::CLOEXEC)
}

/// Returns whether this process has no descriptor left, for drivers that don't say why they fail.
pub(crate) fn are_exhausted() -> bool {
    io::dup(std::io::stderr()).is_err_and(|errno| errno == Errno::MFILE)
}

/// Makes the kernel's table of this process large enough for `count` more descriptors. The table grows in
/// steps, and at each step a process with several threads waits for all processors, some milliseconds: so
/// once is better.
pub(crate) fn make_room(count: usize) {
    let Ok(lowest) = io::dup(std::io::stderr()) else {
        return;
    };
    let Ok(wanted) = RawFd::try_from(lowest.as_raw_fd() as usize + count) else {
        return;
    };
    // It fails beyond the process's limit, where the table does not grow either.
    let _ = io::fcntl_dupfd_cloexec(&lowest, wanted);
}

/// Returns whether this process may fetch descriptor `number` of another one, and finds the same
/// file there as behind `file`.
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

/// Makes a descriptor of our own for the file that a driver's descriptor leads to.
pub(crate) fn duplicate(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is not -1, and the borrow is used for one system call, which fails if the
    // number is no open descriptor.
    let theirs = unsafe { BorrowedFd::borrow_raw(number) };
    io::fcntl_dupfd_cloexec(theirs, 3)
}

/// A descriptor that can be read from while it is raised.
#[derive(Debug)]
pub(crate) struct Flag(OwnedFd);

impl Flag {
    /// Makes one that is not raised.
    pub(crate) fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Raises it, also if it is raised, which wakes edge-triggered waiters.
    pub(crate) fn raise(&self) {
        // It fails only if it was raised 2⁶⁴ times, or if the program has closed the descriptor.
        let _ = io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Lowers it, also if it is not raised.
    pub(crate) fn lower(&self) {
        let _ = io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Flag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
