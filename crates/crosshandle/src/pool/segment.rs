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

/// A segment with its number, which importers know it by.
pub(crate) struct PoolSegment {
    pub(crate) memory: Arc<dyn Segment>,
    pub(crate) number: u32,
    /// Bytes in its blocks, used and free.
    pub(super) carved: AtomicUsize,
    /// Its free blocks were given up: it goes back to the system.
    pub(super) is_retired: AtomicBool,
    /// Where its bytes are counted.
    pub(super) usage: Option<Arc<Usage>>,
}

impl Drop for PoolSegment {
    fn drop(&mut self) {
        if let Some(usage) = &self.usage {
            usage.reserved.subtract(self.memory.len());
        }
    }
}
