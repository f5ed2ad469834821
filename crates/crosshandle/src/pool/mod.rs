//! Memory carved from segments, for every backend and every kind of memory.
//!
//! Small allocations share segments of up to 64 MiB, in blocks of a few dozen sizes. A large
//! allocation has a segment of its own. A freed block that was never exported is put on a list and
//! reused without a system call. An exported block is reused when no importer has it open, which
//! `ipc` decides.
//!
//! The lists contain items of a type `T` that the owner of the blocks chooses. This way the owner
//! recycles its own objects together with the memory. The block of each size that was freed last is
//! in a cell instead of a list, so that a program that frees and allocates in turn takes no lock.
//!
//! # Locks
//! Each block size has a lock, and the shared segment that is being carved has another. A thread
//! that needs both acquires the lock of the size first. No lock is held while a segment is created,
//! which may take long.

mod ageing;
mod free_list;
mod segment;
mod size_class;
mod trim;
mod usage;

pub(crate) use segment::{Block, PoolSegment};
pub(crate) use size_class::SizeClass;
pub(crate) use trim::{InPool, Pooled, Trimmed};
pub(crate) use usage::{Gauge, Usage};

use crosshandle_hal::BackendContext;
use crosshandle_os::arc_cell::ArcCell;
use crosshandle_os::cgroup;
use crosshandle_os::mapping::HUGE_PAGE;
use crosshandle_types::MemoryKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use free_list::{FreeList, UNWATCHED_BYTES};
use segment::Reservation;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// Smallest block, in bytes, for which huge pages are requested when it is carved. Programs mostly
/// use blocks of this size as a whole, and populating them page by page is several times slower.
const HUGE_PAGE_BLOCK_BYTES: usize = 256 << 10;

/// Maximum number of bytes of freed large segments that a context's own pool keeps for reuse.
/// Larger values save system calls. Smaller values leave more memory to other programs.
const KEPT_TOTAL_BYTES: usize = 256 << 20;

/// Largest freed segment, in bytes, that a context's own pool keeps. It is a quarter of
/// [`KEPT_TOTAL_BYTES`], so that one segment does not displace all others.
const KEPT_EACH_BYTES: usize = 64 << 20;

/// Smallest allocation of the host, in bytes, that is compared with the memory that the machine has
/// left. The comparison takes about 50 µs.
const CHECKED_BYTES: usize = 32 << 20;

/// Flag in the number of a segment that only one allocation uses. Importers unmap such a segment
/// together with the allocation.
pub(crate) const DEDICATED: u32 = 1 << 31;

/// A part of a segment from which blocks of one size are carved.
struct Span {
    segment: Arc<PoolSegment>,
    /// The offset of the next block.
    next: usize,
    end: usize,
    /// The offset up to which huge pages have been requested.
    populated: usize,
}

/// The free blocks of one size, and the span that new ones are carved from.
struct Class<T> {
    freed: FreeList<Arc<T>>,
    /// Blocks that were put back without an item of the owner.
    blocks: FreeList<Block>,
    span: Option<Span>,
}

/// Freed large segments that the pool keeps, with their lengths.
struct Large<T> {
    kept: Vec<(usize, Arc<T>)>,
    bytes: usize,
}

/// The shared segment from which spans are taken, and the number of its bytes in use.
struct CurrentSegment {
    segment: Arc<PoolSegment>,
    used: usize,
}

impl CurrentSegment {
    fn room(&self) -> usize {
        self.segment.memory.len() - self.used
    }
}

/// A pool for memory of one kind in one context.
pub(crate) struct Pool<T> {
    backend: Arc<dyn BackendContext>,
    kind: MemoryKind,
    options: PoolOptions,
    /// The accounts of a `MemoryPool`; `None` for a context's own pools.
    usage: Option<Arc<Usage>>,
    classes: Vec<Mutex<Class<T>>>,
    /// The item of each class that was freed last, unless it is on the list.
    latest: Vec<ArcCell<T>>,
    large: Mutex<Large<T>>,
    current: Mutex<Option<CurrentSegment>>,
    /// The next segment number, shared by all pools of a context.
    numbers: Arc<AtomicU32>,
    is_closed: AtomicBool,
    /// The number of free bytes at the last search that found no empty segment.
    searched: AtomicUsize,
    /// Whether free blocks age.
    ages: bool,
    /// Whether the pool is checked at intervals (see `ageing`).
    is_looked_after: AtomicBool,
    /// A weak reference to this pool, for the thread that checks it.
    this: Weak<Self>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolOptions {
    /// Whether small allocations share segments.
    pub(crate) sharing: bool,
    /// Whether huge pages are requested.
    pub(crate) huge_pages: bool,
    /// The length of the first shared segment, in bytes.
    pub(crate) first_segment: usize,
    /// The largest freed segment that the pool keeps, in bytes.
    pub(crate) largest_kept: usize,
    /// Whether to skip the comparison with the memory that the machine has left.
    pub(crate) overcommit: bool,
}

impl PoolOptions {
    pub(crate) fn new(sharing: bool, huge_pages: bool) -> Self {
        Self {
            sharing,
            huge_pages,
            first_segment: usize::MAX,
            largest_kept: KEPT_EACH_BYTES,
            overcommit: false,
        }
    }
}

impl<T: Pooled + Send + Sync + 'static> Pool<T> {
    pub(crate) fn new(
        backend: Arc<dyn BackendContext>,
        kind: MemoryKind,
        options: PoolOptions,
        usage: Option<Arc<Usage>>,
        numbers: Arc<AtomicU32>,
    ) -> Arc<Self> {
        // Memory of a device, and of a pool with accounts, is not checked at intervals.
        let ages = backend.takes_memory_late() && usage.is_none();
        let class = |index: usize| {
            let size = SizeClass::size_of(index);
            Mutex::new(Class {
                freed: FreeList::new(size, ages),
                blocks: FreeList::new(size, ages),
                span: None,
            })
        };
        Arc::new_cyclic(|this| Self {
            backend,
            kind,
            options,
            usage,
            classes: (0..SizeClass::COUNT).map(class).collect(),
            latest: (0..SizeClass::COUNT).map(|_| ArcCell::new()).collect(),
            large: Mutex::new(Large {
                kept: Vec::new(),
                bytes: 0,
            }),
            current: Mutex::default(),
            numbers,
            is_closed: AtomicBool::new(false),
            searched: AtomicUsize::new(0),
            ages,
            is_looked_after: AtomicBool::new(false),
            this: this.clone(),
        })
    }

    /// Returns the block size for an allocation, or the size of a dedicated segment.
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
        // A backend aligns memory to the largest power of two that divides its size.
        let rounded = len.checked_next_multiple_of(unit.max(align));
        rounded
            .filter(|len| *len <= isize::MAX as usize)
            .map(SizeClass::dedicated)
            .ok_or_else(|| Error::out_of_memory(len))
    }

    /// Returns an item of this class that was put back, if there is one.
    #[inline]
    pub(crate) fn take(&self, class: SizeClass) -> Option<Arc<T>> {
        match class.index() {
            Some(index) => match self.latest[index].take() {
                Some(item) => Some(item),
                None => self.classes[index].lock().freed.pop(),
            },
            None => {
                let mut large = self.large.lock();
                let found = large
                    .kept
                    .iter()
                    .position(|(len, _)| *len == class.size())?;
                large.bytes -= class.size();
                Some(large.kept.swap_remove(found).1)
            }
        }
    }

    /// Puts an item back for reuse. Returns the item if the pool does not keep it.
    #[inline]
    pub(crate) fn put(freed: Arc<T>) -> Option<Arc<T>>
    where
        T: InPool,
    {
        let class = freed.block().class;
        let Some(index) = class.index() else {
            return freed.pool().clone().put_large(class, freed);
        };
        // A list would report a single block of this size, and a cell has no alarm.
        if class.size() > UNWATCHED_BYTES {
            freed.pool().look_after_cell();
        }
        match ArcCell::put(freed, |freed| &freed.pool().latest[index]) {
            Ok(()) => None,
            Err(freed) => freed.pool().clone().put_on_list(index, freed),
        }
    }

    fn put_on_list(&self, index: usize, freed: Arc<T>) -> Option<Arc<T>> {
        let mut list = self.classes[index].lock();
        if self.is_closed.load(Ordering::Relaxed) {
            return Some(freed);
        }
        let has_many = list.freed.push(freed);
        drop(list);
        if has_many {
            self.look_after();
        }
        None
    }

    fn put_large(&self, class: SizeClass, freed: Arc<T>) -> Option<Arc<T>> {
        let mut large = self.large.lock();
        let len = class.size();
        let has_too_much = match &self.usage {
            Some(usage) => usage.has_too_much(),
            None => large.bytes + len > KEPT_TOTAL_BYTES,
        };
        let is_kept = len <= self.options.largest_kept && !has_too_much;
        if !is_kept || self.is_closed.load(Ordering::Relaxed) {
            return Some(freed);
        }
        large.bytes += len;
        large.kept.push((len, freed));
        None
    }

    /// Moves the items in the cells to the lists, so that they can age and be trimmed.
    fn empty_cells(&self) {
        for (index, cell) in self.latest.iter().enumerate() {
            if let Some(item) = cell.take() {
                // If the pool has been closed meanwhile, the item is dropped.
                drop(self.put_on_list(index, item));
            }
        }
    }

    /// Returns a block that was put back without an item, if there is one.
    pub(crate) fn take_block(&self, class: SizeClass) -> Option<Block> {
        self.classes[class.index()?].lock().blocks.pop()
    }

    /// Puts a block back for reuse. A dedicated segment returns to the system.
    pub(crate) fn put_block(&self, block: Block) {
        if let Some(index) = block.class.index() {
            let mut class = self.classes[index].lock();
            let is_retired = block.segment.is_retired.load(Ordering::Relaxed);
            if !is_retired && !self.is_closed.load(Ordering::Relaxed) {
                let has_many = class.blocks.push(block);
                drop(class);
                if has_many {
                    self.look_after();
                }
            }
        }
    }

    /// Carves a new block. If `overcommit` is set, the block may be larger than the memory that the
    /// machine has left.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn carve(&self, class: SizeClass, overcommit: bool) -> Result<Block> {
        let Some(index) = class.index() else {
            if !overcommit && !self.options.overcommit {
                check_room(&*self.backend, class.size())?;
            }
            let segment = self.new_segment(class.size(), true)?;
            segment.carved.store(class.size(), Ordering::Relaxed);
            return Ok(Block {
                segment,
                offset: 0,
                class,
            });
        };
        loop {
            let carved = self.classes[index].lock().carve(class);
            if let Some(block) = carved {
                self.populate(&block, index);
                return Ok(block);
            }
            let span = self.new_span(class.span(), class.size())?;
            self.install_span(index, class, span);
        }
    }

    /// Installs the span from which blocks of a size are carved, unless another thread has already
    /// installed one with room.
    fn install_span(&self, index: usize, class: SizeClass, span: Span) {
        let mut state = self.classes[index].lock();
        // A trim may have given up the segment, because none of its blocks was in use.
        if span.segment.is_retired.load(Ordering::Relaxed) {
            return;
        }
        if state
            .span
            .as_ref()
            .is_none_or(|span| span.room() < class.size())
        {
            state.span = Some(span);
            return;
        }
        // Returns the unused span to its segment, if it is still the last span taken from it.
        if let Some(current) = &mut *self.current.lock()
            && Arc::ptr_eq(&current.segment, &span.segment)
            && current.used == span.end
        {
            current.used = span.next;
        }
    }

    /// Requests huge pages for a block that is large enough, and for the bytes after it in its
    /// span.
    fn populate(&self, block: &Block, index: usize) {
        let size = block.class.size();
        if !self.options.huge_pages || size < HUGE_PAGE_BLOCK_BYTES {
            return;
        }
        let mut state = self.classes[index].lock();
        let Some(span) = &mut state.span else {
            return;
        };
        let block_end = block.offset + size;
        let is_of_span = Arc::ptr_eq(&span.segment, &block.segment) && block_end <= span.next;
        if !is_of_span || block_end <= span.populated {
            return;
        }
        let start = span.populated;
        span.populated = block_end.next_multiple_of(HUGE_PAGE).min(span.end);
        let len = span.populated - start;
        drop(state);
        // This takes long, so it happens without the lock. Until it is done, accesses get ordinary
        // pages.
        block.segment.memory.populate(start, len);
    }

    /// Takes `wanted` bytes of a shared segment. Takes fewer bytes, but at least `least`, if the
    /// segment has fewer left.
    fn new_span(&self, wanted: usize, least: usize) -> Result<Span> {
        let before = {
            let mut current = self.current.lock();
            if let Some(span) = take_span(&mut current, wanted, wanted) {
                return Ok(span);
            }
            current
                .as_ref()
                .map_or(0, |current| current.segment.memory.len())
        };
        let made = match self.take_empty(least) {
            Some(segment) => Ok(segment),
            None => {
                let len = self.next_segment(before, wanted, least);
                len.and_then(|len| self.new_shared_segment(len, least))
            }
        };
        let mut current = self.current.lock();
        match made {
            Ok(segment) => {
                // If another thread has made a segment in the meantime, this one is not needed.
                if let Some(span) = take_span(&mut current, wanted, wanted) {
                    drop(current);
                    return Ok(span);
                }
                *current = Some(CurrentSegment { segment, used: 0 });
                take_span(&mut current, wanted, least).ok_or_else(|| Error::out_of_memory(least))
            }
            // Falls back to the remainder of the current segment.
            Err(error) => take_span(&mut current, wanted, least).ok_or(error),
        }
    }

    /// Returns the length of the shared segment that follows one of `before` bytes. It is twice as
    /// long, within limits.
    fn next_segment(&self, before: usize, wanted: usize, least: usize) -> Result<usize> {
        let len = (2 * before)
            .max(self.options.first_segment)
            .min(self.backend.shared_segment(self.kind))
            .max(wanted);
        let Some(usage) = &self.usage else {
            return Ok(len);
        };
        // Uses only as much of the room as the backend aligns for all block sizes that fit in it.
        let room = usage.room();
        let room = aligned_below(room).unwrap_or(0);
        if room < least.max(self.backend.granularity()) {
            return Err(Error::out_of_memory(least));
        }
        Ok(len.min(room))
    }

    /// Creates a shared segment of `len` bytes. If memory or a limit of the system does not allow
    /// that, the segment is shorter, but at least `least` bytes long.
    fn new_shared_segment(&self, mut len: usize, least: usize) -> Result<Arc<PoolSegment>> {
        let least = least.max(self.backend.granularity());
        let first = self.new_segment(len, false);
        let mut made = first.clone();
        while let Err(Error::OutOfMemory { .. }) = made
            && let Some(shorter) = aligned_below(len / 2)
            && shorter >= least
        {
            len = shorter;
            made = self.new_segment(len, false);
        }
        made.or(first)
    }

    fn new_segment(&self, len: usize, dedicated: bool) -> Result<Arc<PoolSegment>> {
        match self.try_new_segment(len, dedicated) {
            // Returning this pool's free memory to the system may make room for the new segment.
            Err(Error::OutOfMemory { .. }) if self.has_given_back() => {
                self.try_new_segment(len, dedicated)
            }
            made => made,
        }
    }

    fn try_new_segment(&self, len: usize, dedicated: bool) -> Result<Arc<PoolSegment>> {
        let reservation = Reservation::new(self.usage.as_ref(), len)?;
        let memory = self.backend.create_segment(self.kind, len)?;
        if dedicated && self.options.huge_pages && len >= HUGE_PAGE {
            memory.populate(0, len);
        }
        Ok(Arc::new(PoolSegment {
            memory,
            number: next_number(&self.numbers, dedicated),
            carved: AtomicUsize::new(0),
            is_retired: AtomicBool::new(false),
            reservation,
        }))
    }

    /// Closes the pool, which then keeps nothing any more. Returns the items that it kept.
    pub(crate) fn close(&self) -> Vec<Arc<T>> {
        self.is_closed.store(true, Ordering::Relaxed);
        let mut all = Vec::from_iter(self.latest.iter().filter_map(ArcCell::close));
        // Like the returned items, these are dropped without a lock, because dropping the last use
        // of a segment calls the driver.
        let (mut blocks, mut spans) = (Vec::new(), Vec::new());
        for class in &self.classes {
            let mut class = class.lock();
            all.append(&mut class.freed.take_all());
            blocks.append(&mut class.blocks.take_all());
            spans.extend(class.span.take());
        }
        let _current = self.current.lock().take();
        let mut large = self.large.lock();
        large.bytes = 0;
        all.extend(large.kept.drain(..).map(|(_, freed)| freed));
        all
    }

    /// Adds an allocation to the used bytes.
    #[inline]
    pub(crate) fn note_used(&self, class: SizeClass) {
        if let Some(usage) = &self.usage {
            usage.used.add(class.size());
        }
    }

    /// Subtracts an allocation from the used bytes.
    #[inline]
    pub(crate) fn note_freed(&self, class: SizeClass) {
        if let Some(usage) = &self.usage {
            usage.used.subtract(class.size());
        }
    }
}

/// Checks that the machine and the process's control group have `len` bytes left. Applies only to
/// memory whose pages are allocated when they are first accessed.
///
/// # Errors
/// [`Error::OutOfMemory`] with the limit that was exceeded.
pub(crate) fn check_room(backend: &dyn BackendContext, len: usize) -> Result<()> {
    if len < CHECKED_BYTES || !backend.takes_memory_late() {
        return Ok(());
    }
    match cgroup::allocation_limit() {
        Some(limit) if limit.headroom < len as u64 => Err(Error::beyond_limit(
            len,
            format!("{limit}; ask for overcommit if no more than that will be touched"),
        )),
        _ => Ok(()),
    }
}

/// Returns the largest segment length up to `len` that the backend aligns for all block sizes that
/// fit in it.
fn aligned_below(len: usize) -> Option<usize> {
    if len >= HUGE_PAGE {
        Some(len - len % HUGE_PAGE)
    } else {
        len.checked_ilog2().map(|log| 1 << log)
    }
}

/// Returns the next segment number of a context.
pub(crate) fn next_number(numbers: &AtomicU32, dedicated: bool) -> u32 {
    let number = numbers.fetch_add(1, Ordering::Relaxed) & !DEDICATED;
    if dedicated {
        number | DEDICATED
    } else {
        number
    }
}

impl<T: Pooled> Class<T> {
    /// Carves a block from the span, if the span has room.
    fn carve(&mut self, class: SizeClass) -> Option<Block> {
        let size = class.size();
        let span = self.span.as_mut().filter(|span| span.room() >= size)?;
        let offset = span.next;
        span.next += size;
        span.segment.carved.fetch_add(size, Ordering::Relaxed);
        Some(Block {
            segment: Arc::clone(&span.segment),
            offset,
            class,
        })
    }
}

impl Span {
    fn room(&self) -> usize {
        self.end - self.next
    }
}

/// Takes `wanted` bytes of the current segment. Takes fewer bytes, but at least `least`, if the
/// segment has fewer left.
fn take_span(current: &mut Option<CurrentSegment>, wanted: usize, least: usize) -> Option<Span> {
    let current = current.as_mut().filter(|current| current.room() >= least)?;
    let start = current.used;
    current.used += wanted.min(current.room());
    Some(Span {
        segment: Arc::clone(&current.segment),
        next: start,
        end: current.used,
        populated: start,
    })
}
