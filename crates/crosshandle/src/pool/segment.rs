//! Segments with the blocks carved from them.

use super::{SizeClass, Usage};
use crate::error::Result;
use crate::hal::Segment;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// A piece of a segment.
#[derive(Clone)]
pub(crate) struct Block {
    pub(crate) segment: Arc<PoolSegment>,
    pub(crate) offset: usize,
    pub(crate) class: SizeClass,
}

/// A segment with the number by which importers know it.
pub(crate) struct PoolSegment {
    pub(crate) memory: Arc<dyn Segment>,
    pub(crate) number: u32,
    /// The bytes of its blocks, used and free.
    pub(super) carved: AtomicUsize,
    /// The free blocks were given up: the memory goes back to the system when the last use ends, or was carved anew.
    pub(super) is_retired: AtomicBool,
    pub(super) reservation: Option<Arc<Reservation>>,
}

impl PoolSegment {
    /// Returns a segment of the same memory, of which nothing was carved yet. All blocks of this one were given up.
    pub(super) fn anew(&self) -> Arc<Self> {
        Arc::new(Self {
            memory: Arc::clone(&self.memory),
            number: self.number,
            carved: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
            reservation: self.reservation.clone(),
        })
    }
}

/// Bytes that are counted in the books of a `MemoryPool` until this is dropped.
pub(super) struct Reservation {
    usage: Arc<Usage>,
    bytes: usize,
}

impl Reservation {
    /// Counts bytes, if there are books.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) beyond the pool's limit.
    pub(super) fn new(usage: Option<&Arc<Usage>>, bytes: usize) -> Result<Option<Arc<Self>>> {
        let Some(usage) = usage else {
            return Ok(None);
        };
        usage.reserve(bytes)?;
        let usage = Arc::clone(usage);
        Ok(Some(Arc::new(Self { usage, bytes })))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.usage.reserved.subtract(self.bytes);
    }
}
