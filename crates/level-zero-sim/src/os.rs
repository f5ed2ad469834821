//! Shared memory: files without a name, and mappings of them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::call::{OUT_OF_DEVICE_MEMORY, Result};

/// What the files are called in `/proc/PID/fd`.
const NAME: &str = "ze_sim";

/// Memory that descriptors lead to. Zeroed when new.
pub(crate) struct Segment {
    file: OwnedFd,
    inode: u64,
    size: usize,
}

impl Segment {
    pub(crate) fn new(size: usize) -> Result<Self> {
        let file = memfd_create(NAME, MemfdFlags::CLOEXEC).map_err(|_| OUT_OF_DEVICE_MEMORY)?;
        ftruncate(&file, size as u64).map_err(|_| OUT_OF_DEVICE_MEMORY)?;
        Self::from_file(file).ok_or(OUT_OF_DEVICE_MEMORY)
    }

    /// The segment that a descriptor leads to: `None` where it leads to anything else.
    pub(crate) fn from_file(file: OwnedFd) -> Option<Self> {
        let number = file.as_raw_fd();
        let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        if !target.to_str()?.starts_with(&format!("/memfd:{NAME}")) {
            return None;
        }
        let status = fstat(&file).ok()?;
        Some(Self {
            file,
            inode: status.st_ino,
            size: usize::try_from(status.st_size).ok()?,
        })
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Tells it from every other segment of the machine, as long as it exists.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Another descriptor of it.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        self.file.try_clone().map_err(|_| OUT_OF_DEVICE_MEMORY)
    }

    pub(crate) fn map(&self) -> Result<Mapping> {
        self.map_aligned(1)
    }

    /// Maps all of it. `alignment` is a power of two, in bytes.
    pub(crate) fn map_aligned(&self, alignment: usize) -> Result<Mapping> {
        let mapping = Mapping::reserve(self.size, alignment)?;
        match mapping.place(mapping.address(), self.size, self, 0) {
            true => Ok(mapping),
            false => Err(OUT_OF_DEVICE_MEMORY),
        }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The smallest unit of mappings, in bytes.
pub(crate) const PAGE: usize = 4096;

/// A range of addresses, given back when dropped.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: it is memory like any other; who touches it is up to its users.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// A range that nothing can be read from or written to. `alignment` is a power of two, in
    /// bytes.
    pub(crate) fn reserve(size: usize, alignment: usize) -> Result<Self> {
        let slack = if alignment > PAGE { alignment } else { 0 };
        let size = size.next_multiple_of(PAGE);
        let mut range = Self::anonymous(size + slack, ProtFlags::empty())?;
        let first = range.address();
        let start = first.next_multiple_of(alignment.max(1));
        let end = first + size + slack;
        for (from, to) in [(first, start), (start + size, end)] {
            if to > from {
                // SAFETY: a part of the new range, in whole pages, that nothing knows of yet.
                let _ = unsafe { munmap(ptr::without_provenance_mut(from), to - from) };
            }
        }
        // SAFETY: still within the range.
        range.base = unsafe { range.base.add(start - first) };
        range.size = size;
        Ok(range)
    }

    /// A range of zeros, without memory behind.
    pub(crate) fn zeros(size: usize) -> Result<Self> {
        Self::anonymous(size, ProtFlags::READ)
    }

    fn anonymous(size: usize, protection: ProtFlags) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new range at a place of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), size, protection, flags) };
        Ok(Self {
            base: base
                .ok()
                .and_then(NonNull::new)
                .ok_or(OUT_OF_DEVICE_MEMORY)?
                .cast(),
            size,
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Puts a part of a segment into a part of the range.
    pub(crate) fn place(&self, at: usize, size: usize, segment: &Segment, from: usize) -> bool {
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: `within` has checked that the range is this mapping's own.
        self.within(at, size)
            && unsafe {
                mmap(
                    ptr::without_provenance_mut(at),
                    size,
                    protection,
                    flags,
                    segment.file(),
                    from as u64,
                )
            }
            .is_ok()
    }

    /// Makes a part of the range what it was when reserved.
    pub(crate) fn clear(&self, at: usize, size: usize) -> bool {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let start = ptr::without_provenance_mut(at);
        // SAFETY: `within` has checked that the range is this mapping's own.
        self.within(at, size)
            && unsafe { mmap_anonymous(start, size, ProtFlags::empty(), flags) }.is_ok()
    }

    pub(crate) fn protect(&self, at: usize, size: usize, read: bool, write: bool) -> bool {
        let mut flags = MprotectFlags::empty();
        flags.set(MprotectFlags::READ, read);
        flags.set(MprotectFlags::WRITE, write);
        let start = ptr::without_provenance_mut(at);
        // SAFETY: `within` has checked that the range is this mapping's own.
        self.within(at, size) && unsafe { mprotect(start, size, flags) }.is_ok()
    }

    fn within(&self, at: usize, size: usize) -> bool {
        let end = self.address() + self.size;
        at >= self.address() && at.checked_add(size).is_some_and(|last| last <= end)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: whoever dropped it uses the range no more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.size) };
    }
}
