//! Shared memory: unnamed files, and mappings of them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::call::{OUT_OF_DEVICE_MEMORY, Result};

/// Name of the files in `/proc/PID/fd`.
const NAME: &str = "ze_sim";

/// Memory that a descriptor refers to. It is zeroed when new.
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

    /// Returns the segment that a descriptor refers to, or `None` if it refers to anything else.
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

    /// Returns the number that identifies the segment on this machine while it exists.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns another descriptor of the segment.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        self.file.try_clone().map_err(|_| OUT_OF_DEVICE_MEMORY)
    }

    pub(crate) fn map(&self) -> Result<Mapping> {
        self.map_aligned(1)
    }

    /// Maps the whole segment. `alignment` is a power of two, in bytes.
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

/// Size of a page, in bytes.
pub(crate) const PAGE: usize = 4096;

/// A range of addresses, which is unmapped when dropped.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping is ordinary memory, and its users synchronise access to it.
unsafe impl Send for Mapping {}
// SAFETY: the mapping is ordinary memory, and its users synchronise access to it.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves a range that allows neither reads nor writes. `alignment` is a power of two, in
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
                // SAFETY: the unmapped part consists of whole pages of the new range, which no
                // other code knows yet.
                let _ = unsafe { munmap(ptr::without_provenance_mut(from), to - from) };
            }
        }
        // SAFETY: the address is within the range.
        range.base = unsafe { range.base.add(start - first) };
        range.size = size;
        Ok(range)
    }

    /// Reserves a range as [`reserve`](Self::reserve) does, at this address. Returns `None` if an
    /// address of the range is taken.
    pub(crate) fn reserve_at(address: usize, size: usize) -> Option<Self> {
        let range = Self::anonymous_near(address, size, ProtFlags::empty()).ok()?;
        (range.address() == address).then_some(range)
    }

    /// Maps a range that reads as zeros and uses no memory.
    pub(crate) fn zeros(size: usize) -> Result<Self> {
        Self::anonymous(size, ProtFlags::READ)
    }

    fn anonymous(size: usize, protection: ProtFlags) -> Result<Self> {
        Self::anonymous_near(0, size, protection)
    }

    fn anonymous_near(hint: usize, size: usize, protection: ProtFlags) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let hint = ptr::without_provenance_mut(hint);
        // SAFETY: the address is a hint, so the kernel replaces no other mapping.
        let base = unsafe { mmap_anonymous(hint, size, protection, flags) };
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

    /// Maps a part of a segment into a part of the range.
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

    /// Returns a part of the range to its reserved state.
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
        // SAFETY: the owner dropped the mapping, so no code uses the range any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.size) };
    }
}
