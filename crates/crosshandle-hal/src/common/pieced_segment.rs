//! Memory of another process that consists of pieces, mapped side by side.

use crate::{BackendContext, BackendRange, BackendSegment};
use crosshandle_ipc::{BackendObject, Import, PiecePart};
use crosshandle_os::mapping::HUGE_PAGE;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, Address, SharedBytes};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Pieces of another process's memory in one range of addresses. The pieces that the exporter
/// announced were checked for consistency with each other. Each piece's descriptor is checked when
/// the piece is added.
pub struct PiecedSegment {
    /// Dropped before the pieces, because they are mapped in it.
    range: Box<dyn BackendRange>,
    /// The pieces that their mappings do not keep alive.
    pieces: Vec<Arc<dyn BackendObject>>,
    len: usize,
    /// The number of bytes, from the start, that are mapped.
    placed: usize,
    access: Access,
    /// The counter of this segment's pieces, if each piece is a mapping of this process.
    mapped: Option<MappedPieces>,
}

/// The number of pieces of other processes' memory that this process has mapped.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// The fraction (one in `MAPPED_PART`) of a process's mappings that pieces of other processes'
/// memory may use. A peer decides how many pieces there are. If no mappings are left, threads
/// cannot start and memory cannot be allocated.
const MAPPED_PART: usize = 4;

/// The number of pieces that one segment has mapped. [`MAPPED`] contains it until it is dropped.
struct MappedPieces(usize);

impl MappedPieces {
    fn add(&mut self) -> Result<()> {
        let limit = max_mappings() / MAPPED_PART;
        if MAPPED.fetch_add(1, Ordering::Relaxed) >= limit {
            MAPPED.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::LimitReached {
                what: format!("{limit} pieces of other processes' memory are mapped already"),
                remedy: "raise vm.max_map_count (sysctl), or let the exporter make larger pieces"
                    .into(),
            });
        }
        self.0 += 1;
        Ok(())
    }
}

impl Drop for MappedPieces {
    fn drop(&mut self) {
        MAPPED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Returns the maximum number of mappings of a process.
fn max_mappings() -> usize {
    static MAX: LazyLock<usize> = LazyLock::new(|| {
        let limit = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
        let limit = limit.and_then(|limit| limit.trim().parse().ok());
        limit.unwrap_or(USUAL_MAX_MAPPINGS)
    });
    *MAX
}

/// The maximum number of mappings of a process in the system's default configuration.
const USUAL_MAX_MAPPINGS: usize = 65_530;

impl PiecedSegment {
    /// Reserves addresses for `len` bytes.
    pub fn reserve(context: &dyn BackendContext, len: u64, access: Access) -> Result<Self> {
        let granularity = context.granularity();
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len > 0 && len.is_multiple_of(granularity))
            .ok_or(NOT_WHOLE)?;
        let align = match len < HUGE_PAGE {
            true => granularity,
            false => granularity.max(HUGE_PAGE),
        };
        let range = context.reserve(0, len, align)?;
        let is_mapped_here = range.host_bytes(access).is_some();
        Ok(Self {
            range,
            pieces: Vec::new(),
            len,
            placed: 0,
            access,
            mapped: is_mapped_here.then_some(MappedPieces(0)),
        })
    }

    /// Maps the next piece after the pieces that are already mapped. `import` has the length of all
    /// memory behind its descriptor, and `part` lies inside that memory.
    pub fn add(
        &mut self,
        context: &dyn BackendContext,
        import: Import,
        part: PiecePart,
    ) -> Result<()> {
        let granularity = context.granularity();
        let whole = |bytes: u64| {
            let bytes = usize::try_from(bytes).ok();
            bytes
                .filter(|bytes| bytes.is_multiple_of(granularity))
                .ok_or(NOT_WHOLE)
        };
        let (offset, len) = (whole(part.offset)?, whole(part.len)?);
        if len == 0 || len > self.len - self.placed || whole(part.whole).is_err() {
            return Err(NOT_WHOLE);
        }
        if let Some(mapped) = &mut self.mapped {
            mapped.add()?;
        }
        let piece = context.import_physical(import)?;
        self.range
            .place(self.placed, &*piece, offset, len, self.access)?;
        self.placed += len;
        if !self.range.keeps_memory() {
            self.pieces.push(piece);
        }
        Ok(())
    }

    /// Grants access after all pieces were added.
    pub fn finish(self) -> Result<Arc<dyn BackendSegment>> {
        if self.placed != self.len {
            return Err(Error::Protocol("some of its pieces are missing"));
        }
        self.range.open(self.access)?;
        Ok(Arc::new(self))
    }
}

const NOT_WHOLE: Error = Error::Protocol("its pieces are not of whole pages");

impl BackendObject for PiecedSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("only the exporter of memory can share it"))
    }
}

impl BackendSegment for PiecedSegment {
    fn start(&self) -> Address {
        self.range.start()
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        self.range.host_bytes(self.access)
    }

    fn populate(&self, _offset: usize, _len: usize) {
        // Nothing to do, because the exporter has chosen the pages of this memory.
    }

    fn release_finished(&self) {
        self.range.release_finished();
    }

    fn release_soon(&self) {
        self.range.release_soon();
    }
}
