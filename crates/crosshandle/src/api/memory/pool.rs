//! Memory pools: memory kept apart, and accounted for.

use super::Memory;
use crate::api::core::{Allocation, ContextCore, Pools, pool_of, trim};
use crate::error::{Error, Result};
use crate::os::mapping::HUGE_PAGE;
use crate::pool::{Gauge, Usage};
use crate::types::AllocationOptions;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The behaviour of a memory pool. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPoolOptions {
    limit: usize,
    kept: usize,
    largest_kept: usize,
    first_segment: usize,
}

impl Default for MemoryPoolOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryPoolOptions {
    /// Returns the options of a pool without a limit, which keeps up to 256 MiB.
    pub fn new() -> Self {
        Self {
            limit: usize::MAX,
            kept: 256 << 20,
            largest_kept: 64 << 20,
            first_segment: HUGE_PAGE,
        }
    }

    /// Sets how much the pool may reserve (default: no limit).
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Sets the amount of reserved memory up to which the pool keeps large memory that is freed
    /// (default: 256 MiB). Small allocations share segments, which are kept until
    /// [`MemoryPool::trim_to`].
    pub fn keep(mut self, bytes: usize) -> Self {
        self.kept = bytes;
        self
    }

    /// Sets the largest memory that is kept when it is freed (default: 64 MiB).
    pub fn keep_each(mut self, bytes: usize) -> Self {
        self.largest_kept = bytes;
        self
    }

    /// Sets how much the pool reserves when its small allocations first need memory (default: 2 MiB);
    /// the amount doubles each time. It is rounded up to a multiple of 2 MiB, and is at most 64 MiB.
    pub fn first_segment(mut self, bytes: usize) -> Self {
        const LARGEST_BYTES: usize = 64 << 20;
        let bytes = bytes.clamp(1, LARGEST_BYTES);
        self.first_segment = bytes.next_multiple_of(HUGE_PAGE);
        self
    }
}

/// The memory that a memory pool holds, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryPoolUsage {
    /// Memory taken from the system.
    pub reserved: usize,
    /// The greatest `reserved` so far, or since [`MemoryPool::reset_reserved_peak`].
    pub reserved_peak: usize,
    /// Reserved memory in use: the blocks of all allocations that were not freed.
    pub used: usize,
    /// The greatest `used` so far, or since [`MemoryPool::reset_used_peak`].
    pub used_peak: usize,
}

/// A pool of memory in a context. None of its allocations shares a page, or a handle's reach, with
/// memory from elsewhere. Cheap to clone; any thread may use it.
///
/// When the last clone is dropped, its free memory goes back to the system at once, and its
/// allocations follow as they are freed.
#[derive(Clone)]
pub struct MemoryPool {
    inner: Arc<Inner>,
}

struct Inner {
    core: Arc<ContextCore>,
    pools: Pools,
    usage: Arc<Usage>,
}

impl MemoryPool {
    pub(crate) fn create(core: &Arc<ContextCore>, options: MemoryPoolOptions) -> Self {
        let usage = Arc::new(Usage::new(options.limit, options.kept));
        let mut pool_options = core.pool_options();
        pool_options.first_segment = options.first_segment;
        pool_options.largest_kept = options.largest_kept;
        Self {
            inner: Arc::new(Inner {
                core: Arc::clone(core),
                pools: core.new_pools(pool_options, Arc::clone(&usage)),
                usage,
            }),
        }
    }

    /// Allocates `len` bytes of device memory, whose contents are arbitrary.
    ///
    /// # Errors
    /// As [`Context::allocate`](crate::Context::allocate); [`Error::OutOfMemory`] also if the
    /// pool's limit is reached.
    #[inline]
    pub fn allocate(&self, len: usize) -> Result<Memory> {
        self.allocate_with(AllocationOptions::new(len))
    }

    /// Allocates memory of a kind, at an alignment.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), also for an alignment that is no power of two or more than
    /// 2 MiB.
    #[inline]
    pub fn allocate_with(&self, options: AllocationOptions) -> Result<Memory> {
        let Inner { core, pools, usage } = &*self.inner;
        let pool = pool_of(pools, options.kind);
        let allocation = match Allocation::allocate(core, pool, options) {
            // What is free for other sizes may make room.
            Err(Error::OutOfMemory { .. }) if usage.reserved.get() > 0 => {
                self.trim_to(0);
                Allocation::allocate(core, pool, options)
            }
            result => result,
        };
        allocation.map(Memory::owned)
    }

    /// Returns how much memory the pool holds.
    pub fn usage(&self) -> MemoryPoolUsage {
        let Usage { reserved, used, .. } = &*self.inner.usage;
        MemoryPoolUsage {
            reserved: reserved.get(),
            reserved_peak: reserved.peak(),
            used: used.get(),
            used_peak: used.peak(),
        }
    }

    /// Resets [`MemoryPoolUsage::reserved_peak`] to what is reserved now.
    pub fn reset_reserved_peak(&self) {
        Gauge::reset_peak(&self.inner.usage.reserved);
    }

    /// Resets [`MemoryPoolUsage::used_peak`] to what is used now.
    pub fn reset_used_peak(&self) {
        Gauge::reset_peak(&self.inner.usage.used);
    }

    /// Returns how many bytes the pool may reserve; `usize::MAX` for no limit.
    pub fn limit(&self) -> usize {
        self.inner.usage.limit
    }

    /// Returns the number of reserved bytes up to which the pool keeps large memory that is freed.
    pub fn kept(&self) -> usize {
        self.inner.usage.kept.load(Ordering::Relaxed)
    }

    /// Sets the number of reserved bytes up to which the pool keeps large memory that is freed from
    /// now on.
    pub fn set_kept(&self, bytes: usize) {
        self.inner.usage.kept.store(bytes, Ordering::Relaxed);
    }

    /// Gives free memory back to the system until no more than `bytes` are reserved, or no segment
    /// is left that is free as a whole.
    pub fn trim_to(&self, bytes: usize) {
        let Inner { core, pools, usage } = &*self.inner;
        core.exporter().reclaim_all();
        let excess = usage.reserved.get().saturating_sub(bytes);
        drop(trim(pools, excess));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.core.is_inherited() {
            return;
        }
        for pool in &self.pools {
            drop(pool.close());
        }
    }
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPool")
            .field("limit", &self.limit())
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}
