//! Memory pools: memory kept apart, and accounted for.

use super::{Allocation, Memory};
use crate::api::context::{AllocationOptions, ContextCore, Pools, pool_of, trim};
use crate::error::{Error, Result};
use crate::os::mapping::HUGE_PAGE;
use crate::os::process;
use crate::pool::{Gauge, Usage};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How a memory pool behaves. Sizes are in bytes.
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
    /// A pool without a limit, which keeps up to 256 MiB.
    pub fn new() -> Self {
        Self {
            limit: usize::MAX,
            kept: 256 << 20,
            largest_kept: 64 << 20,
            first_segment: HUGE_PAGE,
        }
    }

    /// What the pool may reserve at most (no limit).
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// What the pool may have reserved and still keep large memory that is freed (256 MiB). Small
    /// allocations share segments, which are kept until [`MemoryPool::trim_to`].
    pub fn keep(mut self, bytes: usize) -> Self {
        self.kept = bytes;
        self
    }

    /// Larger memory is never kept when it is freed (64 MiB).
    pub fn keep_each(mut self, bytes: usize) -> Self {
        self.largest_kept = bytes;
        self
    }

    /// What the pool reserves at least when its small allocations need more (2 MiB), at most
    /// 64 MiB. It doubles each time.
    pub fn first_segment(mut self, bytes: usize) -> Self {
        const LARGEST: usize = 64 << 20;
        self.first_segment = bytes.clamp(1, LARGEST).next_multiple_of(HUGE_PAGE);
        self
    }
}

/// What a memory pool holds, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryPoolUsage {
    /// Taken from the system.
    pub reserved: usize,
    /// The most that ever was, or was since [`MemoryPool::reset_reserved_peak`].
    pub reserved_peak: usize,
    /// Of it in use: the blocks of all allocations that were not freed.
    pub used: usize,
    /// The most that ever was, or was since [`MemoryPool::reset_used_peak`].
    pub used_peak: usize,
}

/// A pool of memory in a context. No allocation of it shares a page, or a handle's reach, with
/// memory from elsewhere. Cheap to clone; any thread may use it.
///
/// When the last clone is dropped, its free memory goes back to the system at once, and its
/// allocations do as they are freed.
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
        match Allocation::allocate(core, pool, options) {
            // What is free for other sizes may make room.
            Err(Error::OutOfMemory { .. }) if usage.reserved.get() > 0 => {
                self.trim_to(0);
                Allocation::allocate(core, pool, options)
            }
            result => result,
        }
    }

    /// What it holds.
    pub fn usage(&self) -> MemoryPoolUsage {
        let Usage { reserved, used, .. } = &*self.inner.usage;
        MemoryPoolUsage {
            reserved: reserved.get(),
            reserved_peak: reserved.peak(),
            used: used.get(),
            used_peak: used.peak(),
        }
    }

    /// Lets [`MemoryPoolUsage::reserved_peak`] start again from what is reserved now.
    pub fn reset_reserved_peak(&self) {
        Gauge::reset_peak(&self.inner.usage.reserved);
    }

    /// Lets [`MemoryPoolUsage::used_peak`] start again from what is used now.
    pub fn reset_used_peak(&self) {
        Gauge::reset_peak(&self.inner.usage.used);
    }

    /// What it may reserve at most; `usize::MAX` for no limit.
    pub fn limit(&self) -> usize {
        self.inner.usage.limit
    }

    /// What it may have reserved and still keep large memory that is freed.
    pub fn kept(&self) -> usize {
        self.inner.usage.kept.load(Ordering::Relaxed)
    }

    /// Changes it from now on; what is kept already stays.
    pub fn set_kept(&self, bytes: usize) {
        self.inner.usage.kept.store(bytes, Ordering::Relaxed);
    }

    /// Gives free memory back to the system until no more than `bytes` are reserved, or nothing
    /// is left that could be given: a segment goes only as a whole.
    pub fn trim_to(&self, bytes: usize) {
        let Inner { core, pools, usage } = &*self.inner;
        core.exporter().reclaim_all();
        let excess = usage.reserved.get().saturating_sub(bytes);
        drop(trim(pools, excess));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if process::is_forked() {
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
