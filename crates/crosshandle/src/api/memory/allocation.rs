//! Memory allocated here.

use super::Memory;
use crate::api::context::{AllocationOptions, ContextCore, Pool};
use crate::error::{Error, Result};
use crate::hal::Segment;
use crate::handle::{Fields, MemoryHandle};
use crate::ipc::{KeepAlive, Record, RecordCell, Shared};
use crate::os::process;
use crate::pool::{Block, Pooled, SizeClass};
use crate::types::Access;
use crate::types::Address;
use crate::types::MemoryKind;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A block in use, or on a pool's list of free ones.
pub(crate) struct Allocation {
    core: Arc<ContextCore>,
    pool: Arc<Pool>,
    /// `None` only while it is being dropped.
    block: Option<Block>,
    start: Address,
    class: SizeClass,
    kind: MemoryKind,
    /// Bytes that were asked for; 0 while it is free.
    len: AtomicUsize,
    /// The records under which it is exported, for writing and for reading only.
    exports: [RecordCell; 2],
}

impl Allocation {
    #[inline]
    pub(crate) fn allocate(
        core: &Arc<ContextCore>,
        pool: &Arc<Pool>,
        options: AllocationOptions,
    ) -> Result<Memory> {
        // A child's lists name memory that its parent has too.
        if process::is_forked() {
            return Err(Error::forked());
        }
        let class = pool.class_of(options.len, options.align)?;
        let allocation = match pool.take(class) {
            Some(allocation) => {
                allocation.len.store(options.len, Ordering::Relaxed);
                allocation
            }
            None => Self::make(core, pool, class, options)?,
        };
        pool.note_used(class);
        Ok(Memory::owned(allocation))
    }

    #[cold]
    fn make(
        core: &Arc<ContextCore>,
        pool: &Arc<Pool>,
        class: SizeClass,
        options: AllocationOptions,
    ) -> Result<Arc<Self>> {
        // What importers have closed meanwhile may be what is needed.
        core.exporter().reclaim();
        let block = match pool.take_block(class) {
            Some(block) => block,
            None => pool.carve(class)?,
        };
        let start = block.segment.memory.start().offset(block.offset);
        let allocation = Arc::new(Self {
            core: Arc::clone(core),
            pool: Arc::clone(pool),
            block: Some(block),
            start,
            class,
            kind: options.kind,
            len: AtomicUsize::new(options.len),
            exports: Default::default(),
        });
        core.note_address(start.get(), &allocation);
        Ok(allocation)
    }

    pub(crate) fn start(&self) -> Address {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("present until drop")
    }

    fn is_exported(&self) -> bool {
        self.exports.iter().any(|export| export.get().is_some())
    }

    /// A handle to what starts at `offset`, up to the end.
    pub(crate) fn handle(&self, offset: usize, access: Access) -> Result<MemoryHandle> {
        let len = self.len();
        if offset >= len {
            return Err(Error::invalid(format!(
                "offset {offset} is not inside {len} bytes of memory"
            )));
        }
        let record = self.export(access)?;
        if self.len.load(Ordering::SeqCst) == 0 {
            return Err(Error::invalid("this memory was just freed"));
        }
        let block = self.block();
        Ok(MemoryHandle::new(&Fields {
            read_only: access == Access::ReadOnly,
            segment: block.segment.number,
            offset: (block.offset + offset) as u64,
            length: (len - offset) as u64,
            segment_length: block.segment.memory.len() as u64,
            ..self.core.fields(record)
        }))
    }

    fn export(&self, access: Access) -> Result<Record> {
        let place = &self.exports[usize::from(access == Access::ReadOnly)];
        if let Some(record) = place.get() {
            return Ok(record);
        }
        let segment = &self.block().segment;
        let memory: Arc<dyn Shared> = Arc::clone(&segment.memory) as _;
        memory.prepare()?;
        let exporter = self.core.exporter();
        exporter.export_at(place, &memory, segment.number, access)
    }
}

impl Pooled for Arc<Allocation> {
    fn block(&self) -> &Block {
        Allocation::block(self)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        self.core.forget_address(self.start.get());
        let Some(block) = self.block.take() else {
            return;
        };
        if !self.is_exported() {
            self.pool.put_block(block);
            return;
        }
        // The block is shared by the records; it is free when the last of them is.
        let returned = Arc::new(Returned {
            pool: Arc::clone(&self.pool),
            block: Some(block),
        });
        let exporter = self.core.exporter();
        for record in self.exports.iter().filter_map(RecordCell::get) {
            let keep: KeepAlive = Some(Box::new(Arc::clone(&returned)));
            exporter.retire(record, true, keep);
        }
        drop(returned);
        exporter.reclaim();
    }
}

/// A block that goes back to its pool when nobody can see it any more.
struct Returned {
    pool: Arc<Pool>,
    block: Option<Block>,
}

impl Drop for Returned {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.put_block(block);
        }
    }
}

/// An allocation that a `Memory` owns. On drop it goes back to its pool as it is, ready for the
/// next one, unless it was exported or a command still uses it.
pub(super) struct Owned(Option<Arc<Allocation>>);

impl Owned {
    pub(super) fn new(allocation: Arc<Allocation>) -> Self {
        Self(Some(allocation))
    }

    #[inline]
    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        self.0.as_ref().expect("present until drop")
    }

    #[inline]
    pub(super) fn start(&self) -> Address {
        self.allocation().start
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.allocation().len()
    }

    pub(super) fn kind(&self) -> MemoryKind {
        self.allocation().kind
    }

    pub(super) fn segment(&self) -> (&dyn Segment, usize) {
        let block = self.allocation().block();
        (&*block.segment.memory, block.offset)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let Some(allocation) = mem::take(&mut self.0) else {
            return;
        };
        if process::is_forked() {
            mem::forget(allocation);
            return;
        }
        // The length first: who exports it by a pointer at this moment looks at it last, so that
        // either we see the export, or he sees that it is free.
        allocation.len.swap(0, Ordering::SeqCst);
        allocation.pool.note_freed(allocation.class);
        if Arc::strong_count(&allocation) == 1 && !allocation.is_exported() {
            let pool = Arc::clone(&allocation.pool);
            drop(pool.put(allocation.class, allocation));
        }
    }
}
