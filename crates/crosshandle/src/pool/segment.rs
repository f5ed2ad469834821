//! Segments with the blocks carved from them.

use super::{SizeClass, Usage};
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
    /// The free blocks were given up: the segment goes back to the system when the last use ends.
    pub(super) is_retired: AtomicBool,
    /// The books in which its bytes are counted.
    pub(super) usage: Option<Arc<Usage>>,
}

impl Drop for PoolSegment {
    fn drop(&mut self) {
        if let Some(usage) = &self.usage {
            usage.reserved.subtract(self.memory.len());
        }
    }
}
