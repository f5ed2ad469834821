//! memfd_create(2): memory with a descriptor and without a name.

use super::is_planted;
use super::mapping::page_size;
use crate::error::Error;
use rustix::fs::{self, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{self, Errno};
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Creates `len` bytes of zeros that no process can ever shrink or grow, so that no peer can turn a
/// mapping into a `SIGBUS`. `name` shows in `/proc/PID/maps`.
pub(crate) fn create(name: &str, len: u64) -> Result<OwnedFd, Errno> {
    let file = create_unsealed(name, len)?;
    fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Creates `len` bytes of zeros, to be sealed before any other process gets them.
pub(crate) fn create_unsealed(name: &str, len: u64) -> Result<OwnedFd, Errno> {
    check_size(len)?;
    let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    // Another user who is given a read-only descriptor must not be able to open it for writing.
    fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    fs::ftruncate(&file, len)?;
    Ok(file)
}

/// Seals a file that this process has mapped, so that no process can write it in another way or
/// change its size, and returns a descriptor for readers.
pub(crate) fn seal_for_readers(file: OwnedFd) -> Result<OwnedFd, Errno> {
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    match fs::fcntl_add_seals(&file, size | SealFlags::FUTURE_WRITE) {
        Ok(()) => Ok(file),
        // Linux before 5.1: a descriptor for reading will do, except against the same user.
        Err(Errno::INVAL) => {
            fs::fcntl_add_seals(&file, size)?;
            reopen_read_only(file.as_fd())
        }
        Err(errno) => Err(errno),
    }
}

/// Makes the error of an operation that creates `bytes` bytes.
pub(crate) fn failed(operation: &'static str, bytes: usize) -> impl Fn(Errno) -> Error {
    move |errno| match errno {
        // What sandboxes answer, and kernels without the call.
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => Error::Unsupported(format!(
            "{operation}: the system refuses memfd_create ({}), without which there is no shared \
             memory of the host; allow it in the sandbox's seccomp profile",
            std::io::Error::from(errno)
        )),
        errno => Error::memory(operation, bytes)(errno),
    }
}

/// Refuses a size that RLIMIT_FSIZE forbids: the kernel would send SIGXFSZ, which ends the process.
fn check_size(len: u64) -> Result<(), Errno> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if len > limit && !is_planted("finding-6") => Err(Errno::FBIG),
        _ => Ok(()),
    }
}

/// Makes `len` bytes at `offset` present, if the kernel has memory for them. They keep their contents.
pub(crate) fn make_present(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    loop {
        match fs::fallocate(file, FallocateFlags::empty(), offset, len) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Gives `len` bytes at `offset` back to the system. Who touches them finds zeros.
pub(crate) fn give_back(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match fs::fallocate(file, flags, offset, len) {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Creates a file with these bytes, which no process can ever change.
pub(crate) fn create_constant(name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    check_size(bytes.len() as u64)?;
    let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    // Into memory, so all of it at once.
    if io::pwrite(&file, bytes, 0)? != bytes.len() {
        return Err(Errno::NOSPC);
    }
    let changes = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fs::fcntl_add_seals(&file, changes | SealFlags::SEAL)?;
    Ok(file)
}

/// Returns whether a peer's file is memory: of memfd_create(2) or in a tmpfs. Only those know seals,
/// and the kernel tells so itself: no other program is asked, as that of a FUSE file system is by
/// fstat(2).
pub(crate) fn is_memory(file: impl AsFd) -> bool {
    fs::fcntl_get_seals(file).is_ok()
}

/// Returns the size of a peer's file in bytes, and whether touching a mapping of it is safe: it is
/// ordinary memory (a huge page that isn't there would be a `SIGBUS`), sealed against shrinking.
pub(crate) fn check(file: impl AsFd) -> Result<(u64, bool), Errno> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    // First, as in `is_memory`: other file systems may not answer. Seals are never taken off again.
    let Ok(seals) = fs::fcntl_get_seals(&file) else {
        return Ok((0, false));
    };
    let status = fs::fstat(&file)?;
    let len = status.st_size;
    // Huge pages show in the block size; only if there may be some is it worth asking further.
    let is_memory = status.st_blksize as usize == page_size()
        || fs::fstatfs(&file)?.f_type as u64 == TMPFS_MAGIC;
    let is_sealed = seals.contains(SealFlags::SHRINK);
    Ok((len.try_into().unwrap_or(0), is_memory && is_sealed))
}

/// Opens a file of this process's own a second time, for reading only. Needs no permission, but
/// `/proc` ([`Errno::NOENT`] or [`Errno::NOTDIR`] otherwise).
pub(crate) fn reopen_read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
