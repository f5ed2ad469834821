//! Giving free memory back to the system.

use super::{Block, Class, Pool, PoolSegment};
use crate::sync::{HashMap, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An item of a pool's lists: it has a block.
pub(crate) trait Pooled {
    fn block(&self) -> &Block;
}

/// Memory that was taken off the lists. It goes back to the system when this is dropped, which
/// must not be done under a lock.
pub(crate) struct Trimmed<T> {
    _large: Vec<T>,
    _freed: Vec<T>,
    _blocks: Vec<Block>,
    _segments: Vec<Arc<PoolSegment>>,
}

impl<T: Pooled> Pool<T> {
    /// Takes free memory off the lists until `excess` bytes are taken: large segments, then those
    /// shared segments in which nothing is used. Returns the bytes that it took, too.
    pub(crate) fn trim(&self, excess: usize) -> (usize, Trimmed<T>) {
        let mut taken = 0;
        let large = self.take_large(excess, &mut taken);
        let mut trimmed = Trimmed {
            _large: large,
            _freed: Vec::new(),
            _blocks: Vec::new(),
            _segments: Vec::new(),
        };
        if taken < excess {
            // With all locks, in the order of the module, so that no block is taken meanwhile.
            let mut classes: Vec<_> = self.classes.iter().map(Mutex::lock).collect();
            let mut current = self.current.lock();
            for segment in empty_segments(&classes) {
                if taken >= excess {
                    break;
                }
                taken += segment.memory.len();
                segment.is_retired.store(true, Ordering::Relaxed);
                current.take_if(|current| Arc::ptr_eq(&current.segment, &segment));
                trimmed._segments.push(segment);
            }
            for class in &mut classes {
                let is_retired = |block: &Block| block.segment.is_retired.load(Ordering::Relaxed);
                let freed = class
                    .freed
                    .extract_if(.., |freed| is_retired(freed.block()));
                trimmed._freed.extend(freed);
                let blocks = class.blocks.extract_if(.., |block| is_retired(block));
                trimmed._blocks.extend(blocks);
                let span = &mut class.span;
                span.take_if(|span| span.segment.is_retired.load(Ordering::Relaxed));
            }
        }
        (taken, trimmed)
    }

    fn take_large(&self, excess: usize, taken: &mut usize) -> Vec<T> {
        let mut large = self.large.lock();
        let mut all = Vec::new();
        while *taken < excess {
            let Some((len, freed)) = large.kept.pop() else {
                break;
            };
            *taken += len;
            large.bytes -= len;
            all.push(freed);
        }
        all
    }
}

/// Returns the segments all of whose blocks are on the lists.
fn empty_segments<T: Pooled>(classes: &[MutexGuard<'_, Class<T>>]) -> Vec<Arc<PoolSegment>> {
    let mut free: HashMap<*const PoolSegment, (usize, &Arc<PoolSegment>)> = HashMap::default();
    for class in classes {
        let freed = class.freed.iter().map(Pooled::block);
        for block in freed.chain(&class.blocks) {
            let segment = &block.segment;
            let (bytes, _) = free.entry(Arc::as_ptr(segment)).or_insert((0, segment));
            *bytes += block.class.size();
        }
    }
    free.into_values()
        .filter(|(bytes, segment)| *bytes == segment.carved.load(Ordering::Relaxed))
        .map(|(_, segment)| Arc::clone(segment))
        .collect()
}
