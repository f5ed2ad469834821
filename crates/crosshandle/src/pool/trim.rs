//! Returns free memory to the system, or reuses it for blocks of other sizes.

use super::free_list::FreeList;
use super::{Block, Class, Pool, PoolSegment};
use crosshandle_types::sync::{HashMap, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of bytes freed before the pool searches for an empty segment again. A search looks at all
/// free blocks.
const SEARCH_STEP_BYTES: usize = 4 << 20;

/// An item in the lists of a pool, which owns a block.
pub(crate) trait Pooled {
    fn block(&self) -> &Block;
}

impl<T: Pooled> Pooled for Arc<T> {
    fn block(&self) -> &Block {
        (**self).block()
    }
}

/// An item that knows its pool.
pub(crate) trait InPool: Pooled + Sized {
    fn pool(&self) -> &Arc<Pool<Self>>;
}

impl Pooled for Block {
    fn block(&self) -> &Block {
        self
    }
}

/// Memory that was removed from the lists. Dropping it returns the memory to the system, and must
/// not happen while a lock is held.
pub(crate) struct Trimmed<T> {
    _large: Vec<Arc<T>>,
    _freed: Vec<Arc<T>>,
    _blocks: Vec<Block>,
    segments: Vec<Arc<PoolSegment>>,
}

impl<T> Drop for Trimmed<T> {
    fn drop(&mut self) {
        // Importers keep shared segments mapped, so the pages are returned explicitly.
        for segment in &self.segments {
            segment.memory.give_back(0, segment.memory.len());
        }
    }
}

impl<T: Pooled + Send + Sync + 'static> Pool<T> {
    /// Removes free memory from the lists until at least `excess` bytes are removed. Takes large
    /// segments first, then shared segments without used blocks. Also returns the number of bytes
    /// removed.
    pub(crate) fn trim(&self, excess: usize) -> (usize, Trimmed<T>) {
        let mut large_bytes = 0;
        let large = self.take_large(excess, &mut large_bytes);
        let left = excess.saturating_sub(large_bytes);
        let find = |classes: &[MutexGuard<'_, Class<T>>]| empty_segments(classes, false);
        let (bytes, mut trimmed) = self.take_segments(left, find);
        trimmed._large = large;
        (large_bytes + bytes, trimmed)
    }

    /// Returns all free memory to the system, including the pages of free blocks in segments that
    /// are in use.
    pub(crate) fn release(&self) {
        drop(self.trim(usize::MAX).1);
        self.release_pages(true);
    }

    /// Returns free memory to the system after an allocation failed. Returns whether there was free
    /// memory.
    #[cold]
    pub(super) fn has_given_back(&self) -> bool {
        let (bytes, trimmed) = self.trim(usize::MAX);
        drop(trimmed);
        bytes > 0
    }

    /// Removes the segments that `find` returns from the lists, until at least `excess` bytes are
    /// removed. `find` must return segments without used blocks. Also returns the number of bytes
    /// removed.
    pub(super) fn take_segments(
        &self,
        excess: usize,
        find: impl FnOnce(&[MutexGuard<'_, Class<T>>]) -> Vec<Arc<PoolSegment>>,
    ) -> (usize, Trimmed<T>) {
        let mut taken = 0;
        let mut trimmed = Trimmed {
            _large: Vec::new(),
            _freed: Vec::new(),
            _blocks: Vec::new(),
            segments: Vec::new(),
        };
        if excess == 0 {
            return (taken, trimmed);
        }
        self.empty_cells();
        // All locks are held, in the order that the module defines, so that no block is taken in
        // the meantime.
        let mut classes: Vec<_> = self.classes.iter().map(Mutex::lock).collect();
        let mut current = self.current.lock();
        for segment in find(&classes) {
            if taken >= excess {
                break;
            }
            taken += segment.memory.len();
            segment.is_retired.store(true, Ordering::Relaxed);
            current.take_if(|current| Arc::ptr_eq(&current.segment, &segment));
            trimmed.segments.push(segment);
        }
        if trimmed.segments.is_empty() {
            return (taken, trimmed);
        }
        for class in &mut classes {
            let is_retired = |block: &Block| block.segment.is_retired.load(Ordering::Relaxed);
            let freed = class.freed.extract(|freed| is_retired(freed.block()));
            trimmed._freed.extend(freed);
            trimmed._blocks.extend(class.blocks.extract(is_retired));
            let span = &mut class.span;
            span.take_if(|span| span.segment.is_retired.load(Ordering::Relaxed));
        }
        (taken, trimmed)
    }

    /// Removes a segment of at least `least` bytes without used blocks, so that new blocks can be
    /// carved from it.
    pub(super) fn take_empty(&self, least: usize) -> Option<Arc<PoolSegment>> {
        let bytes = |class: &Mutex<Class<T>>| {
            let class = class.lock();
            class.freed.bytes() + class.blocks.bytes()
        };
        let free: usize = self.classes.iter().map(bytes).sum();
        // A search looks at every free block, so it only happens after enough new blocks were
        // freed.
        let searched = self.searched.load(Ordering::Relaxed).min(free);
        self.searched.store(searched, Ordering::Relaxed);
        if free < least || free - searched < SEARCH_STEP_BYTES.min(least) {
            return None;
        }
        let find = |classes: &[MutexGuard<'_, Class<T>>]| {
            let mut found = empty_segments(classes, false);
            found.retain(|segment| segment.memory.len() >= least);
            found.truncate(1);
            found
        };
        let (_, mut trimmed) = self.take_segments(usize::MAX, find);
        let found = trimmed.segments.pop().map(|segment| segment.anew());
        // The former blocks must be dropped before new blocks have their addresses.
        drop(trimmed);
        let searched = if found.is_some() { 0 } else { free };
        self.searched.store(searched, Ordering::Relaxed);
        found
    }

    fn take_large(&self, excess: usize, taken: &mut usize) -> Vec<Arc<T>> {
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

/// Returns the segments of which all blocks are on the lists. If `old` is set, all blocks must also
/// be old.
pub(super) fn empty_segments<T: Pooled>(
    classes: &[MutexGuard<'_, Class<T>>],
    old: bool,
) -> Vec<Arc<PoolSegment>> {
    fn items<T>(list: &FreeList<T>, old: bool) -> &[T] {
        if old { list.old() } else { list.all() }
    }
    let mut free: HashMap<*const PoolSegment, (usize, &Arc<PoolSegment>)> = HashMap::default();
    for class in classes {
        let freed = items(&class.freed, old).iter().map(Pooled::block);
        for block in freed.chain(items(&class.blocks, old)) {
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
