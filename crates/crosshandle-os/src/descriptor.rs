//! Properties of descriptors.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{self, AtFlags, FileType, StatxFlags};
use rustix::io::{self, Errno, FdFlags};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The kind of file behind a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A file on disk or in memory.
    Regular,
    /// A character device.
    CharacterDevice {
        /// Major number of the device's driver.
        major: u32,
    },
    /// A pipe or a socket.
    Stream,
    /// Any other file.
    Other,
}

/// Returns the kind of file behind a peer's descriptor. Changes nothing, and never calls a file
/// system in user space, which might not reply.
pub fn kind(file: impl AsFd) -> Result<FileKind, Errno> {
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

/// Returns whether a peer's file is a dma-buf, which is a driver's memory outside any file system.
/// Asks only the kernel. Returns `false` without `/proc`.
pub fn is_dma_buf(file: impl AsFd) -> bool {
    // The text of the file's link in `/proc` could be faked by a mount of the peer, but this line
    // cannot.
    let number = file.as_fd().as_raw_fd();
    std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))
        .is_ok_and(|info| info.lines().any(|line| line.starts_with("exp_name:")))
}

/// Returns whether a file is in a file system that, as far as known, no other running kernel
/// shares.
pub fn is_on_this_machine_alone(file: impl AsFd) -> bool {
    /// Magic numbers of file systems in memory and on local disks.
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

/// Returns the first descriptor that a service manager has passed to this process, according to
/// `LISTEN_PID` and `LISTEN_FDS`. Returns it only once. The descriptor is closed in programs that
/// this process starts.
pub fn handed_by_service_manager() -> Option<OwnedFd> {
    /// Number of the first descriptor, which the protocol fixes.
    const FIRST: RawFd = 3;
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let is_ours = number("LISTEN_PID") == Some(std::process::id()) && number("LISTEN_FDS")? >= 1;
    if !is_ours || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the call touches no memory, and fails if the descriptor is not open.
    if unsafe { libc::fcntl(FIRST, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return None;
    }
    // SAFETY: the descriptor is open, as the call before has shown. `IS_TAKEN` ensures that it is
    // taken only once, and nothing else in this process owns it.
    Some(unsafe { OwnedFd::from_raw_fd(FIRST) })
}

/// Returns the device and inode numbers of the file behind a descriptor, or `None` if the
/// descriptor is not open.
pub fn identity_of(number: RawFd) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the result is written to a live place of its type. The call fails if the descriptor
    // is not open.
    if unsafe { libc::fstat(number, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it has written the result.
    let status = unsafe { status.assume_init() };
    Some((status.st_dev, status.st_ino))
}

/// Marks a descriptor that a driver made as close-on-exec.
pub fn close_on_exec(file: impl AsFd) -> Result<(), Errno> {
    io::fcntl_setfd(file, FdFlags::CLOEXEC)
}

/// Returns whether this process has no free descriptor, for drivers that do not say why they fail.
pub fn are_exhausted() -> bool {
    io::dup(std::io::stderr()).is_err_and(|errno| errno == Errno::MFILE)
}

/// Grows the kernel's descriptor table of this process for `count` more descriptors. The table
/// grows in steps, and each step blocks a process with several threads for some milliseconds. One
/// large step is therefore cheaper.
pub fn make_room(count: usize) {
    let Ok(lowest) = io::dup(std::io::stderr()) else {
        return;
    };
    let Ok(wanted) = RawFd::try_from(lowest.as_raw_fd() as usize + count) else {
        return;
    };
    // It fails beyond the process's limit, to which the table cannot grow either.
    let _ = io::fcntl_dupfd_cloexec(&lowest, wanted);
}

/// Returns whether this process may fetch descriptor `number` of process `pid`, and that descriptor
/// refers to the same file as `file`.
pub fn can_fetch(pid: u32, number: RawFd, file: impl AsFd) -> bool {
    let fetch = || -> Result<bool, Errno> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
        let theirs = pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?;
        let (theirs, ours) = (fs::fstat(theirs)?, fs::fstat(file)?);
        Ok((theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino))
    };
    fetch().unwrap_or(false)
}

/// Duplicates a driver's descriptor.
pub fn duplicate(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is not -1. The borrow is used for one system call, which fails if the
    // number is not an open descriptor.
    let theirs = unsafe { BorrowedFd::borrow_raw(number) };
    io::fcntl_dupfd_cloexec(theirs, 3)
}

/// A descriptor that is readable while the flag is raised.
#[derive(Debug)]
pub struct Flag(OwnedFd);

impl Flag {
    /// Makes a flag that is not raised.
    pub fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Raises the flag. If it is raised already, this still wakes edge-triggered waiters.
    pub fn raise(&self) {
        // It fails only after 2⁶⁴ calls, or if the program has closed the descriptor.
        let _ = io::retry_on_intr(|| io::write(&self.0, &1_u64.to_ne_bytes()));
    }

    /// Lowers the flag, if it is raised.
    pub fn lower(&self) {
        let _ = io::retry_on_intr(|| io::read(&self.0, &mut [0_u8; 8]));
    }
}

impl AsFd for Flag {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
