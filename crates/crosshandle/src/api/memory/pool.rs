//! Memory pools, whose memory is kept apart and accounted for.

use super::Memory;
use crate::api::context::Context;
use crate::api::core::{Allocation, ContextCore, Pools, pool_of, trim};
use crate::pool::{Gauge, Usage};
use crosshandle_os::mapping::HUGE_PAGE;
use crosshandle_types::AllocationOptions;
use crosshandle_types::error::{Error, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Options of a memory pool. Sizes are in bytes.
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

    /// Sets the maximum number of bytes that the pool may reserve (default: no limit).
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Sets how many reserved bytes the pool may have and still keep large memory when it is freed
    /// (default: 256 MiB). Small allocations share segments, which are kept until
    /// [`MemoryPool::trim_to`].
    pub fn keep(mut self, bytes: usize) -> Self {
        self.kept = bytes;
        self
    }

    /// Sets the maximum size of an allocation that the pool keeps when it is freed (default: 64
    /// MiB).
    pub fn keep_each(mut self, bytes: usize) -> Self {
        self.largest_kept = bytes;
        self
    }

    /// Sets the size of the first segment for small allocations (default: 2 MiB). Each further
    /// segment is twice as large. The size is rounded up to a multiple of 2 MiB, and is at most 64
    /// MiB.
    pub fn first_segment(mut self, bytes: usize) -> Self {
        const LARGEST_BYTES: usize = 64 << 20;
        let bytes = bytes.clamp(1, LARGEST_BYTES);
        self.first_segment = bytes.next_multiple_of(HUGE_PAGE);
        self
    }
}

/// The memory that a memory pool has reserved, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryPoolUsage {
    /// Memory that the pool took from the system.
    pub reserved: usize,
    /// The maximum of `reserved` so far, or since [`MemoryPool::reset_reserved_peak`].
    pub reserved_peak: usize,
    /// Reserved memory in use, which is the blocks of all allocations that were not freed.
    pub used: usize,
    /// The maximum of `used` so far, or since [`MemoryPool::reset_used_peak`].
    pub used_peak: usize,
}

/// A pool of memory in a context. Its allocations share no page with memory from outside the pool,
/// and a handle to one of them gives no access to such memory. Cloning is cheap, and any thread may
/// use a pool.
///
/// When the last clone is dropped, its free memory is returned to the system at once. The memory of
/// its allocations follows as they are freed.
#[derive(Clone)]
pub struct MemoryPool {
    inner: Arc<PoolCore>,
}

struct PoolCore {
    core: Arc<ContextCore>,
    pools: Pools,
    usage: Arc<Usage>,
}

impl MemoryPool {
    /// Creates a pool whose memory is kept apart from all other memory of the context, and is
    /// accounted for.
    pub fn new(context: &Context, options: MemoryPoolOptions) -> Self {
        let core = context.core();
        let usage = Arc::new(Usage::new(options.limit, options.kept));
        let mut pool_options = core.pool_options();
        pool_options.first_segment = options.first_segment;
        pool_options.largest_kept = options.largest_kept;
        Self {
            inner: Arc::new(PoolCore {
                core: Arc::clone(core),
                pools: core.new_pools(pool_options, Arc::clone(&usage)),
                usage,
            }),
        }
    }

    /// Allocates `len` bytes of device memory, whose contents are arbitrary.
    ///
    /// # Errors
    /// As [`Context::allocate`]. Also [`Error::OutOfMemory`] if the
    /// pool's limit is reached.
    #[inline]
    pub fn allocate(&self, len: usize) -> Result<Memory> {
        self.allocate_with(AllocationOptions::new(len))
    }

    /// Allocates memory with options, for instance of another kind or with a larger alignment.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate). Also [`Error::InvalidArgument`] for an alignment that is
    /// not a power of two, or is larger than 2 MiB.
    #[inline]
    pub fn allocate_with(&self, options: AllocationOptions) -> Result<Memory> {
        let PoolCore { core, pools, usage } = &*self.inner;
        let pool = pool_of(pools, options.kind);
        let allocation = match Allocation::allocate(core, pool, options) {
            // Returning free blocks of other sizes may make room.
            Err(Error::OutOfMemory { .. }) if usage.reserved.get() > 0 => {
                self.trim_to(0);
                Allocation::allocate(core, pool, options)
            }
            result => result,
        };
        allocation.map(Memory::owned)
    }

    /// Returns how much memory the pool has reserved and how much of it is in use.
    pub fn usage(&self) -> MemoryPoolUsage {
        let Usage { reserved, used, .. } = &*self.inner.usage;
        MemoryPoolUsage {
            reserved: reserved.get(),
            reserved_peak: reserved.peak(),
            used: used.get(),
            used_peak: used.peak(),
        }
    }

    /// Resets [`MemoryPoolUsage::reserved_peak`] to the current value of `reserved`.
    pub fn reset_reserved_peak(&self) {
        Gauge::reset_peak(&self.inner.usage.reserved);
    }

    /// Resets [`MemoryPoolUsage::used_peak`] to the current value of `used`.
    pub fn reset_used_peak(&self) {
        Gauge::reset_peak(&self.inner.usage.used);
    }

    /// Returns how many bytes the pool may reserve, or `usize::MAX` if there is no limit.
    pub fn limit(&self) -> usize {
        self.inner.usage.limit
    }

    /// Returns how many reserved bytes the pool may have and still keep large memory when it is
    /// freed.
    pub fn kept(&self) -> usize {
        self.inner.usage.kept.load(Ordering::Relaxed)
    }

    /// Sets how many reserved bytes the pool may have and still keep large memory that is freed
    /// from now on.
    pub fn set_kept(&self, bytes: usize) {
        self.inner.usage.kept.store(bytes, Ordering::Relaxed);
    }

    /// Returns free memory to the system until at most `bytes` bytes are reserved, or until every
    /// remaining segment has an allocation in use.
    pub fn trim_to(&self, bytes: usize) {
        let PoolCore { core, pools, usage } = &*self.inner;
        if core.is_inherited() {
            return;
        }
        core.exporter().reclaim_all();
        let excess = usage.reserved.get().saturating_sub(bytes);
        drop(trim(pools, excess));
    }
}

impl Drop for PoolCore {
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
