//! Memory of another process that consists of pieces, mapped side by side.

use crate::error::{Error, Result};
use crate::hal::{AddressRange, BackendContext, Segment};
use crate::ipc::{Import, PiecePart, Shared};
use crate::os::mapping::HUGE_PAGE;
use crate::types::{Access, Address, SharedBytes};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Pieces of another process's memory in one range of addresses. The exporter's words about them were
/// checked against each other; each piece's descriptor is checked when it is added.
pub(crate) struct PiecedSegment {
    /// Dropped before the pieces, which are mapped in it.
    range: Box<dyn AddressRange>,
    /// Those that their mappings don't keep.
    pieces: Vec<Arc<dyn Shared>>,
    len: usize,
    /// Bytes from the start that have a piece.
    placed: usize,
    access: Access,
}

impl PiecedSegment {
    /// Reserves addresses for `len` bytes.
    pub(crate) fn reserve(context: &dyn BackendContext, len: u64, access: Access) -> Result<Self> {
        let granularity = context.granularity();
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len > 0 && len.is_multiple_of(granularity))
            .ok_or(NOT_WHOLE)?;
        let align = match len < HUGE_PAGE {
            true => granularity,
            false => granularity.max(HUGE_PAGE),
        };
        Ok(Self {
            range: context.reserve(0, len, align)?,
            pieces: Vec::new(),
            len,
            placed: 0,
            access,
        })
    }

    /// Maps the next piece behind the ones that are here. `import` has the length of all memory behind its
    /// descriptor, and `part` is inside that.
    pub(crate) fn add(
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
        let piece = context.import_physical(import)?;
        self.range
            .place(self.placed, &*piece, offset, len, self.access)?;
        self.placed += len;
        if !self.range.keeps_memory() {
            self.pieces.push(piece);
        }
        Ok(())
    }

    /// Grants access, when all pieces are here.
    pub(crate) fn finish(self) -> Result<Arc<dyn Segment>> {
        if self.placed != self.len {
            return Err(Error::Protocol("some of its pieces are missing"));
        }
        self.range.open(self.access)?;
        Ok(Arc::new(self))
    }
}

const NOT_WHOLE: Error = Error::Protocol("its pieces are not of whole pages");

impl Shared for PiecedSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::invalid("only the exporter of memory can share it"))
    }
}

impl Segment for PiecedSegment {
    fn start(&self) -> Address {
        self.range.start()
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        self.range.host_bytes(self.access)
    }

    fn populate(&self, _offset: usize, _len: usize) {
        // An exporter's memory, in its pages.
    }

    fn release_finished(&self) {
        self.range.release_finished();
    }

    fn release_soon(&self) {
        self.range.release_soon();
    }
}
