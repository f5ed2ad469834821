//! Segments and the blocks that are carved from them.

use super::{SizeClass, Usage};
use crosshandle_hal::BackendSegment;
use crosshandle_types::error::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// A part of a segment, of one size class.
#[derive(Clone)]
pub(crate) struct Block {
    pub(crate) segment: Arc<PoolSegment>,
    pub(crate) offset: usize,
    pub(crate) class: SizeClass,
}

/// A segment and the number by which importers identify it.
pub(crate) struct PoolSegment {
    pub(crate) memory: Arc<dyn BackendSegment>,
    pub(crate) number: u32,
    /// The bytes of all blocks carved from the segment, used and free.
    pub(super) carved: AtomicUsize,
    /// Whether the pool has given up the free blocks. The memory returns to the system after its
    /// last use, or new blocks are carved from it.
    pub(super) is_retired: AtomicBool,
    pub(super) reservation: Option<Arc<Reservation>>,
}

impl PoolSegment {
    /// Returns a segment with the same memory and no carved blocks. All blocks of `self` must have
    /// been given up.
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

/// Bytes that are counted in the accounts of a `MemoryPool` until this is dropped.
pub(super) struct Reservation {
    usage: Arc<Usage>,
    bytes: usize,
}

impl Reservation {
    /// Reserves bytes in the accounts, if there are any.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if the bytes would exceed the limit of the
    /// pool.
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
