//! Anonymous memory with a descriptor, by memfd_create(2).

use super::mapping::page_size;
use crosshandle_types::error::Error;
use rustix::fs::{self, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::{self, Errno};
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Creates a file of `len` zeros that no process can ever shrink or grow, so that no peer can turn
/// a mapping into a `SIGBUS`. `name` is shown in `/proc/PID/maps`.
pub fn create(name: &str, len: u64) -> Result<OwnedFd, Errno> {
    let file = create_unsealed(name, len)?;
    fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Creates a file of `len` zeros that the caller must seal before another process gets it.
pub fn create_unsealed(name: &str, len: u64) -> Result<OwnedFd, Errno> {
    check_size(len)?;
    let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    // Another user that gets a read-only descriptor must not be able to reopen it for writing.
    fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    io::retry_on_intr(|| fs::ftruncate(&file, len))?;
    Ok(file)
}

/// Seals a file that this process has mapped, and returns a descriptor for readers. No process can
/// then change the file's size, or write to the file other than through existing mappings.
pub fn seal_for_readers(file: OwnedFd) -> Result<OwnedFd, Errno> {
    let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    match fs::fcntl_add_seals(&file, size | SealFlags::FUTURE_WRITE) {
        Ok(()) => Ok(file),
        // Linux before 5.1 lacks this seal. A read-only descriptor protects as well, except against
        // the same user.
        Err(Errno::INVAL) => {
            fs::fcntl_add_seals(&file, size)?;
            reopen_read_only(file.as_fd())
        }
        Err(errno) => Err(errno),
    }
}

/// Returns a function that converts the errno of a failed memfd operation on `bytes` bytes into an
/// error.
pub fn failed(operation: &'static str, bytes: usize) -> impl Fn(Errno) -> Error {
    move |errno| match errno {
        // Sandboxes and kernels without the call return these errors.
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => Error::Unsupported(format!(
            "{operation}: the system refuses memfd_create ({}), without which there is no shared \
             memory of the host; allow it in the sandbox's seccomp profile",
            std::io::Error::from(errno)
        )),
        errno => Error::memory(operation, bytes)(errno),
    }
}

/// Rejects a size above RLIMIT_FSIZE, for which the kernel would send SIGXFSZ and end the process.
fn check_size(len: u64) -> Result<(), Errno> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if len > limit => Err(Errno::FBIG),
        _ => Ok(()),
    }
}

/// Allocates the pages of `len` bytes at `offset`, if the kernel has memory for them. Existing
/// contents are kept.
pub fn make_present(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    io::retry_on_intr(|| fs::fallocate(file, FallocateFlags::empty(), offset, len))
}

/// Returns the memory of `len` bytes at `offset` to the system. The bytes read as zeros afterwards.
pub fn give_back(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    io::retry_on_intr(|| fs::fallocate(file, flags, offset, len))
}

/// Creates a file with these bytes that no process can ever change.
pub fn create_constant(name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    check_size(bytes.len() as u64)?;
    let file = fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    // The file is in memory, so one call writes all bytes.
    if io::pwrite(&file, bytes, 0)? != bytes.len() {
        return Err(Errno::NOSPC);
    }
    let changes = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fs::fcntl_add_seals(&file, changes | SealFlags::SEAL)?;
    Ok(file)
}

/// Returns whether a peer's file is memory, made by memfd_create(2) or in a tmpfs. Only such files
/// have seals. The kernel itself reports seals, whereas fstat(2) of a FUSE file asks another
/// program.
pub fn is_memory(file: impl AsFd) -> bool {
    fs::fcntl_get_seals(file).is_ok()
}

/// Returns the size of a peer's file in bytes, and whether it is safe to touch a mapping of it. The
/// mapping is safe if the file is ordinary memory that is sealed against shrinking. A missing huge
/// page would be a `SIGBUS`.
pub fn check(file: impl AsFd) -> Result<(u64, bool), Errno> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    // Seals are checked first, as in `is_memory`, because other file systems may not reply. Seals
    // are never removed.
    let Ok(seals) = fs::fcntl_get_seals(&file) else {
        return Ok((0, false));
    };
    let status = fs::fstat(&file)?;
    let len = status.st_size;
    // The block size reveals huge pages. Only if it differs is a further call necessary.
    let is_memory = status.st_blksize as usize == page_size()
        || fs::fstatfs(&file)?.f_type as u64 == TMPFS_MAGIC;
    let is_sealed = seals.contains(SealFlags::SHRINK);
    Ok((len.try_into().unwrap_or(0), is_memory && is_sealed))
}

/// Opens one of this process's files again, read-only. Needs no permission, but `/proc`, and
/// otherwise fails with [`Errno::NOENT`] or [`Errno::NOTDIR`].
pub fn reopen_read_only(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    io::retry_on_intr(|| fs::open(&path, flags, Mode::empty()))
}
