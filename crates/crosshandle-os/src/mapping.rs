//! Mappings of descriptors, and reservations of addresses.

use super::lock::last_error;
use crosshandle_types::Access;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Size of a huge page in bytes, and the alignment that a mapping needs to use huge pages.
pub const HUGE_PAGE: usize = 2 << 20;

/// An address with room for an aligned mapping. It is only a hint: the kernel finds another place
/// if the address is occupied.
static CANDIDATE: AtomicUsize = AtomicUsize::new(0);

fn protection(access: Access) -> ProtFlags {
    match access {
        Access::ReadOnly => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    }
}

/// Returns the size of a page in bytes.
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// A range of addresses that this value owns and unmaps on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is only an address and a length. The code that accesses the bytes decides what
// is allowed.
unsafe impl Send for Mapping {}
// SAFETY: a mapping is only an address and a length. The methods make system calls, and only
// `collapse` reads bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a shared file at an address that is a multiple of `align`.
    /// Pages are allocated when they are first touched.
    pub fn shared(
        file: impl AsFd,
        len: usize,
        align: usize,
        access: Access,
    ) -> Result<Self, Errno> {
        let is_aligned = |mapping: &Self| mapping.start.addr().get().is_multiple_of(align);
        let hint = if align > page_size() {
            CANDIDATE.load(Ordering::Relaxed)
        } else {
            0
        };
        let mut mapping = Self::shared_near(hint - hint % align, &file, len, access)?;
        if !is_aligned(&mapping) {
            // Usually the next lower address that fits is free.
            let hint = mapping.start.addr().get();
            drop(mapping);
            mapping = Self::shared_near(hint - hint % align, &file, len, access)?;
        }
        if is_aligned(&mapping) {
            if align > page_size() {
                let below = mapping.start.addr().get().saturating_sub(len);
                CANDIDATE.store(below, Ordering::Relaxed);
            }
            return Ok(mapping);
        }
        drop(mapping);
        let mapping = Self::reserve(len, align)?;
        mapping.place(0, file, 0, len, access)?;
        Ok(mapping)
    }

    fn shared_near(
        address: usize,
        file: impl AsFd,
        len: usize,
        access: Access,
    ) -> Result<Self, Errno> {
        let hint = ptr::without_provenance_mut(address);
        // SAFETY: the kernel chooses the place of a new mapping, because the address is only a
        // hint.
        let start = unsafe { mm::mmap(hint, len, protection(access), MapFlags::SHARED, file, 0) }?;
        Self::new(start, len)
    }

    /// Reserves addresses without memory. Touching them is a fault.
    pub fn reserve(len: usize, align: usize) -> Result<Self, Errno> {
        // Only whole pages can be unmapped again.
        let len = len
            .checked_next_multiple_of(page_size())
            .ok_or(Errno::NOMEM)?;
        let slack = len.checked_add(align).ok_or(Errno::NOMEM)?;
        let mut whole = Self::reserve_near(0, slack)?;
        let start = whole.start.as_ptr();
        let skip = start.align_offset(align);
        // SAFETY: `skip` ≤ `align`, so both parts lie in the new mapping, which no other code knows
        // yet. After each step, `whole` is the part that is still mapped.
        unsafe {
            let end = start.add(skip + len);
            let tail = slack - skip - len;
            if tail > 0 {
                mm::munmap(end.cast(), tail)?;
                whole.len -= tail;
            }
            if skip > 0 {
                mm::munmap(start.cast(), skip)?;
                whole.start = whole.start.add(skip);
                whole.len -= skip;
            }
        }
        Ok(whole)
    }

    /// Reserves addresses at `wish` if it is not 0, aligned and free, and elsewhere otherwise.
    pub fn reserve_at(wish: usize, len: usize, align: usize) -> Result<Self, Errno> {
        if wish != 0 && wish.is_multiple_of(align) && len.is_multiple_of(page_size()) {
            let mapping = Self::reserve_near(wish, len)?;
            if mapping.start.addr().get() == wish {
                return Ok(mapping);
            }
        }
        Self::reserve(len, align)
    }

    /// Reserves whole pages at `address` if they are free, and elsewhere otherwise.
    fn reserve_near(address: usize, len: usize) -> Result<Self, Errno> {
        let hint = ptr::without_provenance_mut(address);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the place of a new mapping, because the address is only a
        // hint.
        let start = unsafe { mm::mmap_anonymous(hint, len, ProtFlags::empty(), flags) }?;
        Self::new(start, len)
    }

    fn new(start: *mut std::ffi::c_void, len: usize) -> Result<Self, Errno> {
        let start = NonNull::new(start.cast()).ok_or(Errno::FAULT)?;
        Ok(Self { start, len })
    }

    /// Maps `len` bytes of a file from `file_offset` on at `offset` of this mapping, in place of
    /// the former contents.
    pub fn place(
        &self,
        offset: usize,
        file: impl AsFd,
        file_offset: u64,
        len: usize,
        access: Access,
    ) -> Result<(), Errno> {
        let start = self.part(offset, len)?;
        // SAFETY: `part` has checked that the addresses are in this mapping, so MAP_FIXED replaces
        // nothing else.
        unsafe {
            mm::mmap(
                start.cast(),
                len,
                protection(access),
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                file_offset,
            )
        }?;
        Ok(())
    }

    /// Turns `len` bytes at `offset` into a reservation without memory again.
    pub fn vacate(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let start = self.part(offset, len)?;
        // SAFETY: `part` has checked that the addresses are in this mapping.
        unsafe {
            mm::mmap_anonymous(
                start.cast(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        }?;
        Ok(())
    }

    /// Changes the access rights of `len` bytes at `offset`.
    pub fn protect(&self, offset: usize, len: usize, access: Access) -> Result<(), Errno> {
        let start = self.part(offset, len)?;
        let protection = match access {
            Access::ReadOnly => MprotectFlags::READ,
            Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        // SAFETY: `part` has checked that the addresses are in this mapping. A thread that still
        // writes there gets a fault, as documented.
        unsafe { mm::mprotect(start.cast(), len, protection) }
    }

    /// Collapses the pages of a range into huge pages, and allocates missing pages. Returns `false`
    /// if the kernel cannot do so, which costs only speed.
    pub fn collapse(&self, offset: usize, len: usize) -> bool {
        let Ok(start) = self.part(offset, len) else {
            return false;
        };
        for page in (0..len).step_by(HUGE_PAGE) {
            // The kernel collapses only where a page is present, and reading allocates one. An
            // atomic operation without effect would not help, because the compiler removes it.
            // SAFETY: `page` < `len`, so the byte is in this mapping, and the caller ensures that
            // it is readable. The value does not matter.
            unsafe { start.add(page).read_volatile() };
        }
        const MADV_COLLAPSE: libc::c_int = 25;
        // SAFETY: the range is in this mapping, and collapsing changes no byte of it.
        unsafe { libc::madvise(start.cast(), len, MADV_COLLAPSE) == 0 }
    }

    /// Allocates all pages of a range, writable. Fails with [`Errno::INVAL`] if the kernel cannot
    /// do so (Linux before 5.14).
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), Errno> {
        let start = self.part(offset, len)?;
        loop {
            // SAFETY: the range is in this mapping, and populating changes no byte of it.
            match unsafe { mm::madvise(start.cast(), len, Advice::LinuxPopulateWrite) } {
                Err(Errno::INTR | Errno::AGAIN) => {}
                result => return result,
            }
        }
    }

    /// Returns how many bytes of a range of whole pages are not in memory.
    pub fn missing(&self, offset: usize, len: usize) -> Result<usize, Errno> {
        /// Maximum number of pages per system call.
        const PAGES: usize = 4096;
        let mut missing = 0;
        let mut pages = [0_u8; PAGES];
        let end = offset + len;
        for offset in (offset..end).step_by(PAGES * page_size()) {
            let len = (end - offset).min(PAGES * page_size());
            let start = self.part(offset, len)?;
            // SAFETY: the range is in this mapping. The kernel writes one byte for each of its
            // pages, of which there are at most `PAGES`.
            let result = unsafe { libc::mincore(start.cast(), len, pages.as_mut_ptr()) };
            if result == -1 {
                return Err(last_error());
            }
            let pages = &pages[..len.div_ceil(page_size())];
            missing += pages.iter().filter(|page| **page & 1 == 0).count();
        }
        Ok(missing * page_size())
    }

    /// Excludes the mapping from core dumps.
    pub fn exclude_from_dumps(&self) {
        // SAFETY: the range is this mapping, and the advice changes no byte of it.
        let _ = unsafe { mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontDump) };
    }

    /// Returns the address of `len` bytes at `offset`, which must be inside the mapping.
    fn part(&self, offset: usize, len: usize) -> Result<*mut u8, Errno> {
        let end = offset.checked_add(len).ok_or(Errno::INVAL)?;
        if end > self.len {
            return Err(Errno::INVAL);
        }
        // SAFETY: `offset` ≤ `self.len`, so the result is in the mapping or directly behind it.
        Ok(unsafe { self.start.as_ptr().add(offset) })
    }

    /// Returns the address at which the mapping starts.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the mapping's length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len >= HUGE_PAGE {
            CANDIDATE.store(self.start.addr().get(), Ordering::Relaxed);
        }
        // SAFETY: the range belongs to this mapping. Its owners hand out no reference into the
        // mapping that outlives it.
        let result = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
        if let Err(error) = result {
            tracing::warn!(%error, len = self.len, "could not unmap");
        }
    }
}
