//! Memory that this process has allocated.

use super::{ContextCore, ObjectName, Pool};
use crate::pool::{Block, DEDICATED, InPool, Pooled, SizeClass};
use crosshandle_hal::BackendSegment;
use crosshandle_handle::{Fields, MemoryHandle};
use crosshandle_ipc::{BackendObject, Credential, ExportCells, KeepAlive, Particulars};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, Address, AllocationOptions, MemoryKind};
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An allocated block, or a free block in a pool's list.
pub(crate) struct Allocation {
    core: Arc<ContextCore>,
    pool: Arc<Pool>,
    /// `None` only while the allocation is being dropped.
    block: Option<Block>,
    start: Address,
    kind: MemoryKind,
    /// Whether the host can access the memory.
    is_on_host: bool,
    /// Requested length in bytes, or 0 while the block is free.
    len: AtomicUsize,
    exports: ExportCells,
    name: ObjectName,
}

// 160 bytes in total, with the two counts of its `Arc` and the allocator's overhead. Much of the
// time that it takes to create thousands of allocations goes into touching fresh memory for them.
const _: () = assert!(size_of::<Allocation>() <= 136);

impl Allocation {
    /// Takes a free block from a pool, or carves a new one.
    #[inline]
    pub(crate) fn allocate(
        core: &Arc<ContextCore>,
        pool: &Arc<Pool>,
        options: AllocationOptions,
    ) -> Result<Arc<Self>> {
        // A forked child must not use its lists of free blocks, because the parent uses the same
        // memory.
        core.check_birth()?;
        let class = pool.class_of(options.len, options.align)?;
        let allocation = match pool.take(class) {
            Some(allocation) => {
                allocation.len.store(options.len, Ordering::Relaxed);
                allocation
            }
            None => Self::carve(core, pool, class, options)?,
        };
        pool.note_used(class);
        if options.populate {
            return allocation.make_present();
        }
        Ok(allocation)
    }

    #[cold]
    fn carve(
        core: &Arc<ContextCore>,
        pool: &Arc<Pool>,
        class: SizeClass,
        options: AllocationOptions,
    ) -> Result<Arc<Self>> {
        // The memory that importers have closed in the meantime may suffice for this allocation.
        core.exporter().reclaim();
        let block = match pool.take_block(class) {
            Some(block) => block,
            None => pool.carve(class, options.overcommit)?,
        };
        let start = block.segment.memory.start().offset(block.offset);
        let is_on_host = block.segment.memory.host_bytes().is_some();
        let allocation = Arc::new(Self {
            core: Arc::clone(core),
            pool: Arc::clone(pool),
            block: Some(block),
            start,
            kind: options.kind,
            is_on_host,
            len: AtomicUsize::new(options.len),
            exports: ExportCells::default(),
            name: ObjectName::default(),
        });
        core.note_address(start.get(), &allocation);
        Ok(allocation)
    }

    /// Takes all pages of the memory, or frees the allocation again.
    #[cold]
    fn make_present(self: Arc<Self>) -> Result<Arc<Self>> {
        let (segment, offset) = self.segment();
        match segment.make_present(offset, self.len()) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.free();
                Err(error)
            }
        }
    }

    /// Returns the block to its pool unchanged, ready for the next allocation. If it was exported,
    /// or if a command still uses it, it is dropped instead.
    pub(crate) fn free(self: Arc<Self>) {
        if self.core.is_inherited() {
            mem::forget(self);
            return;
        }
        // The length is cleared first. A thread that exports the memory by a pointer at this moment
        // reads the length last. Either it finds the memory freed, or the check below sees its
        // export.
        self.len.swap(0, Ordering::SeqCst);
        self.name.clear();
        let class = self.block().class;
        self.pool.note_freed(class);
        if Arc::strong_count(&self) == 1 && !self.is_exported() {
            drop(Pool::put(self));
        }
    }

    #[inline]
    pub(crate) fn start(&self) -> Address {
        self.start
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_on_host(&self) -> bool {
        self.is_on_host
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Returns the segment that the allocation lies in, and the allocation's offset there.
    pub(crate) fn segment(&self) -> (&dyn BackendSegment, usize) {
        let block = self.block();
        (&*block.segment.memory, block.offset)
    }

    pub(crate) fn core(&self) -> &Arc<ContextCore> {
        &self.core
    }

    /// Returns the segment, the number by which importers know it, and the allocation's offset in
    /// it.
    pub(crate) fn shared_segment(&self) -> (Arc<dyn BackendSegment>, u32, usize) {
        let Block {
            segment, offset, ..
        } = self.block();
        (Arc::clone(&segment.memory), segment.number, *offset)
    }

    /// Returns whether the allocation is the only one in its segment.
    pub(crate) fn is_alone(&self) -> bool {
        let block = self.block();
        block.segment.number & DEDICATED != 0 && block.offset == 0
    }

    /// Hands the memory over to a holder. All existing handles stay valid.
    pub(crate) fn hand_over(&self) {
        for export in self.exports.all() {
            drop(self.core.exporter().hand_over(export.record));
        }
    }

    /// Gives the allocation a name that reports show.
    pub(crate) fn set_name(&self, name: &str) {
        self.name.set(name);
        for export in self.exports.all() {
            self.core.exporter().set_name(export.record, name);
        }
    }

    pub(crate) fn name(&self) -> Option<String> {
        self.name.get()
    }

    fn is_exported(&self) -> bool {
        self.exports.has_some()
    }

    /// Returns a handle to the bytes from `offset` to the end of the allocation.
    pub(crate) fn handle(&self, offset: usize, access: Access) -> Result<MemoryHandle> {
        let len = self.len();
        if offset >= len {
            return Err(Error::invalid(format!(
                "offset {offset} is not inside {len} bytes of memory"
            )));
        }
        self.core.check_birth()?;
        let credential = self.export(access)?;
        // The length is read last, for the reason that `free` explains.
        if self.len.load(Ordering::SeqCst) == 0 {
            return Err(Error::invalid("this memory was just freed"));
        }
        let block = self.block();
        Ok(MemoryHandle::new(&Fields {
            read_only: access == Access::ReadOnly,
            segment: block.segment.number,
            offset: (block.offset + offset) as u64,
            length: (len - offset) as u64,
            ..self.core.handle_fields(credential)
        }))
    }

    fn export(&self, access: Access) -> Result<Credential> {
        if let Some(credential) = self.exports.get(access) {
            return Ok(credential);
        }
        let segment = &self.block().segment;
        let memory: Arc<dyn BackendObject> = Arc::clone(&segment.memory) as _;
        memory.prepare()?;
        let exporter = self.core.exporter();
        let particulars = Particulars {
            kind: self.kind.into(),
            len: self.len() as u64,
            allocation: ptr::from_ref(self).addr(),
        };
        let credential =
            exporter.export_at(&self.exports, particulars, &memory, segment.number, access)?;
        if let Some(name) = self.name.get() {
            exporter.set_name(credential.record, &name);
        }
        Ok(credential)
    }
}

impl Pooled for Allocation {
    #[inline]
    fn block(&self) -> &Block {
        self.block.as_ref().expect("present until drop")
    }
}

impl InPool for Allocation {
    #[inline]
    fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.core.is_inherited() {
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
        // The records share the block, which becomes free when the last of them is retired.
        let returned = Arc::new(ReturnedBlock {
            pool: Arc::clone(&self.pool),
            block: Some(block),
        });
        let exporter = self.core.exporter();
        for export in self.exports.all() {
            let keep: KeepAlive = Some(Box::new(Arc::clone(&returned)));
            exporter.retire(export.record, true, keep);
        }
        drop(returned);
        exporter.reclaim();
    }
}

/// A block that returns to its pool on drop, when no importer has it open any more.
struct ReturnedBlock {
    pool: Arc<Pool>,
    block: Option<Block>,
}

impl Drop for ReturnedBlock {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.put_block(block);
        }
    }
}
