//! Host memory: memfd files and their mappings.

use crate::{BackendObject, BackendRange, BackendSegment};

use crosshandle_os::cgroup::{self, MemoryLimit};
use crosshandle_os::mapping::{HUGE_PAGE, Mapping, page_size};
use crosshandle_os::memfd;
use crosshandle_os::threads::ThreadKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, Address, SharedBytes};
use rustix::io::Errno;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

/// Size in bytes from which memory is compared with the rest of its control group's limit before
/// huge pages are requested, because such a request commits the memory. The check takes about 50
/// µs.
const CHECKED_POPULATE_BYTES: usize = 32 << 20;

/// Size in bytes of the parts of memory that threads populate in parallel. It is a multiple of a huge
/// page. Smaller parts make more system calls, some of which wait for all CPUs.
const POPULATED_PART_BYTES: usize = 64 << 20;

/// Maximum number of threads that populate memory. More threads do not clear pages faster.
const MAX_POPULATING_THREADS: usize = 16;

/// Calls `populate` for parts of a range, by offset and length, on several threads if the range is
/// long. Clearing the pages of a large model on one thread takes longer than reading the model.
fn in_parts(
    offset: usize,
    len: usize,
    populate: impl Fn(usize, usize) -> Result<(), Errno> + Sync,
) -> Result<(), Errno> {
    let count = len.div_ceil(POPULATED_PART_BYTES);
    if count <= 1 {
        return populate(offset, len);
    }
    let usable = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = usable.min(MAX_POPULATING_THREADS).min(count);
    let next = AtomicUsize::new(0);
    let failed = OnceLock::new();
    ThreadKind::Populate.run_beside(threads - 1, || {
        while failed.get().is_none() {
            let at = next.fetch_add(1, Ordering::Relaxed) * POPULATED_PART_BYTES;
            if at >= len {
                return;
            }
            if let Err(errno) = populate(offset + at, POPULATED_PART_BYTES.min(len - at)) {
                let _ = failed.set(errno);
            }
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// A sealed memfd that this process created, with descriptors for both kinds of access.
struct File {
    writable: Arc<OwnedFd>,
    read_only: OnceLock<Arc<OwnedFd>>,
}

impl File {
    fn create(name: &str, len: usize) -> Result<Self> {
        let file =
            memfd::create(name, len as u64).map_err(memfd::failed("creating memory", len))?;
        Ok(Self {
            writable: Arc::new(file),
            read_only: OnceLock::new(),
        })
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        if access == Access::ReadWrite {
            return Ok(Arc::clone(&self.writable));
        }
        if let Some(file) = self.read_only.get() {
            return Ok(Arc::clone(file));
        }
        let file = self.lend(access)?;
        Ok(Arc::clone(self.read_only.get_or_init(|| file)))
    }

    /// Returns the descriptor for `access` as [`descriptor`](Self::descriptor) does, but does not
    /// keep a newly opened descriptor for later calls.
    fn lend(&self, access: Access) -> Result<Arc<OwnedFd>> {
        match (access, self.read_only.get()) {
            (Access::ReadWrite, _) => Ok(Arc::clone(&self.writable)),
            (Access::ReadOnly, Some(file)) => Ok(Arc::clone(file)),
            (Access::ReadOnly, None) => {
                let file = memfd::reopen_read_only(self.writable.as_fd()).map_err(no_read_only)?;
                Ok(Arc::new(file))
            }
        }
    }
}

/// Returns the error for a file that cannot be reopened read-only.
fn no_read_only(errno: Errno) -> Error {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::PERM => Error::Unsupported(format!(
            "a read-only descriptor cannot be made, since /proc/self/fd cannot be used ({}); mount \
             /proc in the exporter's container",
            std::io::Error::from(errno)
        )),
        errno => Error::os("making a read-only descriptor")(errno),
    }
}

/// Memory mapped in this process.
pub struct HostSegment {
    mapping: Mapping,
    access: Access,
    /// The file, if this process created it. Importers need no descriptor after they have mapped
    /// the memory.
    file: Option<File>,
}

impl HostSegment {
    pub fn create(len: usize) -> Result<Self> {
        let file = File::create("crosshandle-memory", len)?;
        // The contract requires alignment to the largest power of two that divides the length.
        let align = (1 << len.trailing_zeros()).clamp(page_size(), HUGE_PAGE);
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { align };
        let mapping = map(&file.writable, len, align, Access::ReadWrite)?;
        Ok(Self {
            mapping,
            access: Access::ReadWrite,
            file: Some(file),
        })
    }

    pub fn import(file: &OwnedFd, len: usize, access: Access) -> Result<Self> {
        check(file, len)?;
        // Importers are promised no other alignment than the one for huge pages.
        let align = if len >= HUGE_PAGE {
            HUGE_PAGE
        } else {
            page_size()
        };
        Ok(Self {
            mapping: map(file, len, align, access)?,
            access,
            file: None,
        })
    }
}

/// Returns an error for a file that a peer could shrink. Access to memory beyond the end of a file
/// ends the process.
fn check(file: &OwnedFd, len: usize) -> Result<()> {
    let (actual, sealed) = memfd::check(file).map_err(Error::os("looking at imported memory"))?;
    if actual != len as u64 {
        return Err(Error::Extent {
            end: len as u64,
            actual,
        });
    }
    if !sealed || !len.is_multiple_of(page_size()) {
        return Err(Error::Protocol(
            "its memory is not sealed, or not of whole pages",
        ));
    }
    Ok(())
}

fn map(file: &OwnedFd, len: usize, align: usize, access: Access) -> Result<Mapping> {
    Mapping::shared(file, len, align, access).map_err(Error::memory("mapping memory", len))
}

impl BackendObject for HostSegment {
    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        match &self.file {
            Some(file) => file.descriptor(access),
            None => Err(Error::invalid("only the exporter of memory can share it")),
        }
    }
}

impl BackendSegment for HostSegment {
    fn start(&self) -> Address {
        Address::new(self.mapping.start())
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        let writable = self.access == Access::ReadWrite;
        // SAFETY: the mapping lives as long as `self`, and all code accesses it only as shared
        // memory.
        Some(unsafe { SharedBytes::new(self.mapping.start(), self.mapping.len(), writable) })
    }

    fn populate(&self, offset: usize, len: usize) {
        // Only whole huge pages are requested. The system provides the other pages on first access.
        let len = len - len % HUGE_PAGE;
        // If memory is scarce, only pages that are accessed are allocated.
        if len >= CHECKED_POPULATE_BYTES
            && cgroup::memory_limit().is_some_and(|limit| limit.headroom < len as u64)
        {
            return;
        }
        let collapse = |offset, len| match self.mapping.collapse(offset, len) {
            true => Ok(()),
            false => Err(Errno::NOMEM),
        };
        if len > 0 && in_parts(offset, len, collapse).is_err() {
            tracing::debug!(len, "the kernel has no huge pages for this memory");
        }
    }

    fn give_back(&self, offset: usize, len: usize) {
        let start = offset.next_multiple_of(page_size());
        let end = offset + len - (offset + len) % page_size();
        if let Some(file) = self.file.as_ref().filter(|_| start < end) {
            let (start, len) = (start as u64, (end - start) as u64);
            if let Err(error) = memfd::give_back(file.writable.as_fd(), start, len) {
                tracing::debug!(%error, "the system does not take free memory back");
            }
        }
    }

    fn make_present(&self, offset: usize, len: usize) -> Result<()> {
        let start = offset - offset % page_size();
        let end = (offset + len).next_multiple_of(page_size()).min(self.len());
        let len = end - start;
        let failed = Error::memory("taking all pages", len);
        // If the group's memory is exhausted, the kernel would kill processes of the group instead
        // of returning an error.
        let limit = cgroup::memory_limit();
        let refuse = |limit: &MemoryLimit| Err(Error::beyond_limit(len, limit.to_string()));
        if let Some(limit) = limit.as_ref().filter(|limit| limit.limit < len as u64) {
            return refuse(limit);
        }
        // If the system cannot report the missing pages, all pages are assumed to be missing.
        let missing = self.mapping.missing(start, len).unwrap_or(len);
        if let Some(limit) = limit.filter(|limit| limit.headroom < missing as u64) {
            return refuse(&limit);
        }
        let populate = |start, len| self.mapping.populate(start, len);
        match (in_parts(start, len, populate), &self.file) {
            // Linux before 5.14 lacks this request.
            (Err(Errno::INVAL), Some(file)) => {
                memfd::make_present(file.writable.as_fd(), start as u64, len as u64).map_err(failed)
            }
            (result, _) => result.map_err(failed),
        }
    }
}

/// Physical memory, which is a file without a mapping of its own.
pub struct PhysicalFile {
    file: File,
    len: usize,
}

impl PhysicalFile {
    pub fn create(len: usize) -> Result<Self> {
        Ok(Self {
            file: File::create("crosshandle-physical", len)?,
            len,
        })
    }

    pub fn import(file: Arc<OwnedFd>, len: usize) -> Result<Self> {
        check(&file, len)?;
        Ok(Self {
            file: File {
                writable: file,
                read_only: OnceLock::new(),
            },
            len,
        })
    }
}

impl BackendObject for PhysicalFile {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, access: Access) -> Result<Arc<OwnedFd>> {
        self.file.descriptor(access)
    }

    fn lend(&self, access: Access) -> Result<Arc<OwnedFd>> {
        self.file.lend(access)
    }
}

/// A reserved address range.
pub struct HostRange(Mapping);

impl HostRange {
    pub fn reserve(wish: usize, len: usize, align: usize) -> Result<Self> {
        Mapping::reserve_at(wish, len, align)
            .map(Self)
            .map_err(Error::memory("reserving addresses", len))
    }
}

impl BackendRange for HostRange {
    fn start(&self) -> Address {
        Address::new(self.0.start())
    }

    fn host_bytes(&self, access: Access) -> Option<SharedBytes<'_>> {
        let writable = access == Access::ReadWrite;
        // SAFETY: the reservation lives as long as `self`. By contract, callers access only mapped
        // parts.
        Some(unsafe { SharedBytes::new(self.0.start(), self.0.len(), writable) })
    }

    fn map(
        &self,
        offset: usize,
        memory: &dyn BackendObject,
        memory_offset: usize,
        len: usize,
        access: Access,
    ) -> Result<()> {
        let file = memory.descriptor(Access::ReadWrite)?;
        self.0
            .place(offset, &*file, memory_offset as u64, len, access)
            .map_err(Error::memory("mapping physical memory", len))
    }

    fn unmap(&self, offset: usize, len: usize) -> Result<()> {
        self.0
            .vacate(offset, len)
            .map_err(Error::memory("unmapping physical memory", len))
    }

    fn keeps_memory(&self) -> bool {
        true
    }

    fn set_access(&self, offset: usize, len: usize, access: Access) -> Result<()> {
        self.0
            .protect(offset, len, access)
            .map_err(Error::os("changing access"))
    }
}
