//! Memory carved from segments: the same for every backend and every kind of memory.
//!
//! Small allocations share segments of some 64 MiB, in blocks of a few dozen sizes; a large one has a
//! segment of its own. What is freed and was never exported goes on a list and comes back without
//! a system call; what was exported comes back when no importer has it open (`sharing` decides).
//!
//! The lists hold whatever the owner of the blocks wants them to (`T`), so that it can recycle
//! its own objects together with the memory.

mod segment;
mod size_class;
mod trim;
mod usage;

pub(crate) use segment::{Block, PoolSegment};
pub(crate) use size_class::SizeClass;
pub(crate) use trim::{Pooled, Trimmed};
pub(crate) use usage::{Gauge, Usage};

use crate::error::{Error, Result};
use crate::hal::BackendContext;
use crate::os::mapping::HUGE_PAGE;
use crate::types::MemoryKind;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks from this size on get huge pages when they are carved.
const EAGER: usize = 256 << 10;
/// Bytes of freed large segments that are kept for reuse at most, and in one at most.
const KEPT_IN_ALL: usize = 256 << 20;
const KEPT_EACH: usize = 64 << 20;

/// Set in the number of a segment that only one allocation uses: importers unmap it with that.
pub(crate) const DEDICATED: u32 = 1 << 31;

/// Where the next block of a size is carved.
struct Cursor {
    segment: Arc<PoolSegment>,
    next: usize,
    end: usize,
    /// Up to here huge pages were asked for.
    populated: usize,
}

struct Class<T> {
    freed: Vec<T>,
    /// Blocks that came back without their owner.
    blocks: Vec<Block>,
    cursor: Option<Cursor>,
}

/// Large segments that were freed.
struct Large<T> {
    kept: Vec<(usize, T)>,
    bytes: usize,
}

/// Memory of one kind of one context.
pub(crate) struct Pool<T> {
    backend: Arc<dyn BackendContext>,
    kind: MemoryKind,
    options: PoolOptions,
    /// Where it is counted; `None` for the memory that belongs to no `MemoryPool`.
    usage: Option<Arc<Usage>>,
    classes: Vec<Mutex<Class<T>>>,
    large: Mutex<Large<T>>,
    /// The shared segment that spans are taken from, and how far it is used.
    current: Mutex<Option<(Arc<PoolSegment>, usize)>>,
    /// Shared by all pools of a context.
    numbers: Arc<AtomicU32>,
    closed: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolOptions {
    /// Whether small allocations share segments.
    pub(crate) sharing: bool,
    /// Whether to ask for huge pages.
    pub(crate) huge_pages: bool,
    /// Bytes in the first shared segment.
    pub(crate) first_segment: usize,
    /// Larger segments are never kept when they are freed.
    pub(crate) largest_kept: usize,
}

impl PoolOptions {
    pub(crate) fn new(sharing: bool, huge_pages: bool) -> Self {
        Self {
            sharing,
            huge_pages,
            first_segment: usize::MAX,
            largest_kept: KEPT_EACH,
        }
    }
}

impl<T> Pool<T> {
    pub(crate) fn new(
        backend: Arc<dyn BackendContext>,
        kind: MemoryKind,
        options: PoolOptions,
        usage: Option<Arc<Usage>>,
        numbers: Arc<AtomicU32>,
    ) -> Self {
        let class = || {
            Mutex::new(Class {
                freed: Vec::new(),
                blocks: Vec::new(),
                cursor: None,
            })
        };
        Self {
            backend,
            kind,
            options,
            usage,
            classes: std::iter::repeat_with(class)
                .take(SizeClass::COUNT)
                .collect(),
            large: Mutex::new(Large {
                kept: Vec::new(),
                bytes: 0,
            }),
            current: Mutex::default(),
            numbers,
            closed: AtomicBool::new(false),
        }
    }

    /// How an allocation is served: by which size of block, or by a segment of its own.
    pub(crate) fn class_of(&self, len: usize, align: usize) -> Result<SizeClass> {
        if len == 0 {
            return Err(Error::invalid("an allocation needs at least one byte"));
        }
        if !align.is_power_of_two() || align > HUGE_PAGE {
            return Err(Error::invalid(format!(
                "an alignment is a power of two up to {HUGE_PAGE}, but {align} was asked for"
            )));
        }
        if self.options.sharing
            && let Some(class) = SizeClass::for_block(len, align)
        {
            return Ok(class);
        }
        let granularity = self.backend.granularity();
        let unit = if len >= HUGE_PAGE && self.options.huge_pages {
            granularity.max(HUGE_PAGE)
        } else {
            granularity
        };
        // A backend aligns memory like its size.
        let rounded = len.checked_next_multiple_of(unit.max(align));
        rounded
            .filter(|len| *len <= isize::MAX as usize)
            .map(SizeClass::dedicated)
            .ok_or_else(|| Error::out_of_memory(len))
    }

    /// Something of this class that was put back.
    #[inline]
    pub(crate) fn take(&self, class: SizeClass) -> Option<T> {
        match class.index() {
            Some(index) => lock(&self.classes[index]).freed.pop(),
            None => {
                let mut large = lock(&self.large);
                let found = large
                    .kept
                    .iter()
                    .position(|(len, _)| *len == class.size())?;
                large.bytes -= class.size();
                Some(large.kept.swap_remove(found).1)
            }
        }
    }

    /// Puts something back for reuse, or returns it if it isn't to be kept.
    #[inline]
    pub(crate) fn put(&self, class: SizeClass, freed: T) -> Option<T> {
        match class.index() {
            Some(index) => {
                let mut list = lock(&self.classes[index]);
                if self.closed.load(Ordering::Relaxed) {
                    return Some(freed);
                }
                list.freed.push(freed);
                None
            }
            None => {
                let mut large = lock(&self.large);
                let len = class.size();
                let has_too_much = match &self.usage {
                    Some(usage) => usage.has_too_much(),
                    None => large.bytes + len > KEPT_IN_ALL,
                };
                let is_kept = len <= self.options.largest_kept && !has_too_much;
                if !is_kept || self.closed.load(Ordering::Relaxed) {
                    return Some(freed);
                }
                large.bytes += len;
                large.kept.push((len, freed));
                None
            }
        }
    }

    /// A block that was put back.
    pub(crate) fn take_block(&self, class: SizeClass) -> Option<Block> {
        lock(&self.classes[class.index()?]).blocks.pop()
    }

    /// Puts a block back for reuse. A segment of its own goes back to the system.
    pub(crate) fn put_block(&self, block: Block) {
        if let Some(index) = block.class.index() {
            let mut class = lock(&self.classes[index]);
            let is_retired = block.segment.is_retired.load(Ordering::Relaxed);
            if !is_retired && !self.closed.load(Ordering::Relaxed) {
                class.blocks.push(block);
            }
        }
    }

    /// A new block.
    pub(crate) fn carve(&self, class: SizeClass) -> Result<Block> {
        let Some(index) = class.index() else {
            let segment = self.new_segment(class.size(), true)?;
            segment.carved.store(class.size(), Ordering::Relaxed);
            return Ok(Block {
                segment,
                offset: 0,
                class,
            });
        };
        let size = class.size();
        let mut state = lock(&self.classes[index]);
        if state
            .cursor
            .as_ref()
            .is_none_or(|cursor| cursor.end - cursor.next < size)
        {
            state.cursor = Some(self.new_span(class.span(), size)?);
        }
        let huge_pages = self.options.huge_pages;
        let cursor = state.cursor.as_mut().expect("set above");
        let offset = cursor.next;
        cursor.next += size;
        cursor.segment.carved.fetch_add(size, Ordering::Relaxed);
        if huge_pages && size >= EAGER && cursor.next > cursor.populated {
            let end = cursor.next.next_multiple_of(HUGE_PAGE).min(cursor.end);
            let len = end - cursor.populated;
            cursor.segment.memory.populate(cursor.populated, len);
            cursor.populated = end;
        }
        Ok(Block {
            segment: Arc::clone(&cursor.segment),
            offset,
            class,
        })
    }

    /// `wanted` bytes of a shared segment, or fewer if that is all that may be had, but at least
    /// `least`.
    fn new_span(&self, wanted: usize, least: usize) -> Result<Cursor> {
        let mut current = lock(&self.current);
        let (before, used) = current
            .as_ref()
            .map_or((0, 0), |(segment, used)| (segment.memory.len(), *used));
        let left = before - used;
        if left < wanted {
            let len = self.next_segment(before, wanted, least);
            match len.and_then(|len| self.new_segment(len, false)) {
                Ok(segment) => *current = Some((segment, 0)),
                Err(error) if left < least => return Err(error),
                // The rest of this one will do.
                Err(_) => {}
            }
        }
        let (segment, used) = current.as_mut().expect("set above");
        let next = *used;
        let end = segment.memory.len().min(next + wanted);
        *used = end;
        Ok(Cursor {
            segment: Arc::clone(segment),
            next,
            end,
            populated: next,
        })
    }

    /// The length of a new shared segment, after one of `before` bytes: twice as long.
    fn next_segment(&self, before: usize, wanted: usize, least: usize) -> Result<usize> {
        let len = (2 * before)
            .max(self.options.first_segment)
            .min(self.backend.shared_segment(self.kind))
            .max(wanted);
        let Some(usage) = &self.usage else {
            return Ok(len);
        };
        // Of the little that is left, what a backend aligns for all block sizes in it.
        let room = usage.room();
        let room = if room >= HUGE_PAGE {
            room - room % HUGE_PAGE
        } else {
            room.checked_ilog2().map_or(0, |log| 1 << log)
        };
        if room < least.max(self.backend.granularity()) {
            return Err(Error::out_of_memory(least));
        }
        Ok(len.min(room))
    }

    fn new_segment(&self, len: usize, dedicated: bool) -> Result<Arc<PoolSegment>> {
        if let Some(usage) = &self.usage {
            usage.reserve(len)?;
        }
        let memory = self.backend.create_segment(self.kind, len);
        let memory = memory.inspect_err(|_| {
            if let Some(usage) = &self.usage {
                usage.reserved.subtract(len);
            }
        })?;
        if dedicated && self.options.huge_pages && len >= HUGE_PAGE {
            memory.populate(0, len);
        }
        Ok(Arc::new(PoolSegment {
            memory,
            number: next_number(&self.numbers, dedicated),
            carved: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
            usage: self.usage.clone(),
        }))
    }

    /// Keeps nothing from now on, and returns what was kept.
    pub(crate) fn close(&self) -> Vec<T> {
        self.closed.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for class in &self.classes {
            let mut class = lock(class);
            all.append(&mut class.freed);
            class.blocks.clear();
            class.cursor = None;
        }
        *lock(&self.current) = None;
        let mut large = lock(&self.large);
        large.bytes = 0;
        all.extend(large.kept.drain(..).map(|(_, freed)| freed));
        all
    }

    /// Counts an allocation as used.
    #[inline]
    pub(crate) fn note_used(&self, class: SizeClass) {
        if let Some(usage) = &self.usage {
            usage.used.add(class.size());
        }
    }

    /// Counts it as freed.
    #[inline]
    pub(crate) fn note_freed(&self, class: SizeClass) {
        if let Some(usage) = &self.usage {
            usage.used.subtract(class.size());
        }
    }
}

/// The next number for a segment of a context.
pub(crate) fn next_number(numbers: &AtomicU32, dedicated: bool) -> u32 {
    let number = numbers.fetch_add(1, Ordering::Relaxed) & !DEDICATED;
    if dedicated {
        number | DEDICATED
    } else {
        number
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
