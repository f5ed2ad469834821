//! Shared memory: a memfd and its mappings.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::harness::region::Region;

/// Size of a huge page in bytes. The kernel maps huge pages only at this alignment.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Creates a memfd of `length` zero bytes.
pub(crate) fn create(length: usize) -> Result<OwnedFd> {
    let file =
        memfd_create("crosshandle-bench", MemfdFlags::CLOEXEC).context("cannot create a memfd")?;
    ftruncate(&file, length as u64).context("cannot set the size of a memfd")?;
    Ok(file)
}

/// The page size that a mapping asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    Small,
    Huge,
}

/// A readable and writable mapping, unmapped when dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// Start and length of the kernel's mapping, which is larger than the bytes above if they were
    /// aligned.
    whole: (NonNull<c_void>, usize),
}

// SAFETY: a mapping belongs to the process and not to a thread, so any thread may use and unmap it.
unsafe impl Send for Mapping {}
// SAFETY: methods that take `&self` give access only through atomics and volatile words.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes of `file`, shared.
    pub(crate) fn shared(file: impl AsFd, length: usize) -> Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address at which nothing is mapped.
        let start = unsafe { mmap(ptr::null_mut(), length, prot, MapFlags::SHARED, file, 0) }
            .context("cannot map a memfd")?;
        Self::of(start, length, start, length)
    }

    /// Maps `length` bytes of `file`, shared, with small pages regardless of the machine's setting.
    pub(crate) fn shared_small_pages(file: impl AsFd, length: usize) -> Result<Self> {
        let mapping = Self::shared(file, length)?;
        mapping.advise(Advice::LinuxNoHugepage)?;
        Ok(mapping)
    }

    /// Maps `length` bytes of private memory.
    pub(crate) fn private(length: usize, pages: Pages) -> Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let size = length + HUGE_PAGE_BYTES;
        // SAFETY: the kernel chooses an address at which nothing is mapped.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), size, prot, MapFlags::PRIVATE) }
            .context("cannot map private memory")?;
        let skip = start.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `skip` is less than the size of a huge page. The mapping is that much longer than
        // `length`, so the result points into it.
        let aligned = unsafe { start.byte_add(skip) };
        let mapping = Self::of(aligned, length, start, size)?;
        mapping.advise(match pages {
            Pages::Small => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        })?;
        Ok(mapping)
    }

    fn of(
        start: *mut c_void,
        length: usize,
        whole: *mut c_void,
        whole_length: usize,
    ) -> Result<Self> {
        Ok(Self {
            start: NonNull::new(start.cast()).context("a mapping at address zero")?,
            length,
            whole: (
                NonNull::new(whole).context("a mapping at address zero")?,
                whole_length,
            ),
        })
    }

    fn advise(&self, advice: Advice) -> Result<()> {
        // SAFETY: this object has mapped the range, and neither kind of advice changes the bytes.
        let advised = unsafe { madvise(self.start.as_ptr().cast(), self.length, advice) };
        match advised {
            // A kernel without huge pages uses small ones anyway.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            other => other.context("cannot choose the page size of a mapping"),
        }
    }

    /// Returns the mapping's bytes as words.
    pub(crate) fn region(&self) -> Region<'_> {
        // SAFETY: a mapping starts at a page. It stays mapped, readable and writable as long as
        // `self` lives, which the region borrows. The only other accesses of this process come from
        // `word` and are atomic.
        unsafe { Region::new(self.start.as_ptr(), self.length) }
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Returns the atomic word at byte `offset`, a multiple of eight.
    pub(crate) fn word(&self, offset: usize) -> Result<&AtomicU64> {
        ensure!(
            offset.is_multiple_of(8) && offset + 8 <= self.length,
            "no word at byte {offset} of a mapping of {}",
            self.length
        );
        // SAFETY: the check above ensures that the word is inside the mapping. Its address is a
        // multiple of eight, because a mapping starts at a page. It stays mapped as long as `self`,
        // which the result borrows, and any bits are valid.
        Ok(unsafe { self.start.add(offset).cast::<AtomicU64>().as_ref() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (start, length) = self.whole;
        // SAFETY: this object has mapped these bytes and unmaps them once. Regions and words borrow
        // the object, so none exists any more.
        let unmapped = unsafe { munmap(start.as_ptr(), length) };
        debug_assert!(
            unmapped.is_ok(),
            "cannot unmap what was mapped: {unmapped:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn two_mappings_of_one_memfd_are_the_same_bytes() {
        let file = create(8192).unwrap();
        let a = Mapping::shared(&file, 8192).unwrap();
        let b = Mapping::shared_small_pages(&file, 8192).unwrap();
        a.word(4096).unwrap().store(42, SeqCst);
        assert_eq!(b.region().read(512), 42);
        assert_ne!(a.address(), b.address());
        assert!(a.word(8192).is_err() && a.word(4).is_err());
    }

    #[test]
    fn private_memory_is_aligned() {
        for pages in [Pages::Small, Pages::Huge] {
            let mapping = Mapping::private(4 << 20, pages).unwrap();
            assert_eq!(mapping.address() % HUGE_PAGE_BYTES, 0);
            mapping.region().touch_pages(1);
            assert_eq!(mapping.region().read_pages(), 1024);
        }
    }
}
