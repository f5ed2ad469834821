//! Free memory that nothing has used for a while: the system gets it back.
//!
//! Pools whose memory the system takes page by page are looked at every [`AGEING_INTERVAL`] while they have much that
//! is free. A block that was free all the time between two looks is old. A segment that has only old blocks
//! goes back as a whole; of other old blocks the pages go back, and the blocks stay on their lists.
//!
//! The memory of other devices is not looked at: a thread of this library would call the driver while the process
//! ends. There, an empty segment is used for the next size that needs one, and [`Pool::trim`] gives it back.

use super::tuning::{AGEING_INTERVAL, SMALLEST_RELEASED_BYTES};
use super::{Class, Pool, PoolSegment, Pooled};
use crate::os::fork::PerProcess;
use crate::os::process;
use crate::sync::{Mutex, MutexGuard};
use crate::threads::{background, driver_jobs};
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// A pool that is looked after.
trait Ages: Send + Sync {
    /// Gives back what is old. Returns whether to look again.
    fn age(&self) -> bool;
}

/// The pools that have much that is free.
static POOLS: PerProcess<Mutex<Vec<Weak<dyn Ages>>>> = PerProcess::new(Mutex::default);
/// The process whose thread looks at them; 0 for none. Changed under the lock.
static LOOKER: AtomicU32 = AtomicU32::new(0);

/// Looks after a pool until it has little that is free.
fn add(pool: Weak<dyn Ages>) {
    let mut pools = POOLS.lock();
    pools.push(pool);
    // A forked child has no thread of its parent's.
    let own = process::pid();
    let has_looker = LOOKER.swap(own, Ordering::Relaxed) == own;
    drop(pools);
    if !has_looker {
        background::repeat(AGEING_INTERVAL, look);
    }
}

/// Looks at all pools. Returns whether to look again.
fn look() -> bool {
    let pools = mem::take(&mut *POOLS.lock());
    let ages = |pool: &Weak<dyn Ages>| {
        // The last reference to a context may be dropped here.
        let _announced = driver_jobs::announce();
        pool.upgrade().is_some_and(|pool| pool.age())
    };
    let left: Vec<_> = pools.into_iter().filter(ages).collect();
    let mut pools = POOLS.lock();
    pools.extend(left);
    let has_some = !pools.is_empty();
    if !has_some {
        LOOKER.store(0, Ordering::Relaxed);
    }
    has_some
}

impl<T: Pooled + Send + 'static> Pool<T> {
    /// Has the pool looked at, since it has much that is free.
    #[cold]
    pub(super) fn look_after(&self) {
        if !self.is_looked_after.swap(true, Ordering::SeqCst) {
            add(self.this.clone());
        }
    }

    /// Gives back the pages of blocks: of old ones, or of `all` that are free.
    pub(super) fn release_pages(&self, all: bool) {
        if !self.backend.takes_memory_late() {
            return;
        }
        for class in &self.classes {
            let mut lists = class.lock();
            if lists.freed.size() < SMALLEST_RELEASED_BYTES {
                continue;
            }
            let freed = lists.freed.take_unreleased(all);
            let blocks = lists.blocks.take_unreleased(all);
            drop(lists);
            if freed.is_empty() && blocks.is_empty() {
                continue;
            }
            // Without the lock, since it takes a while. Until then nobody finds the blocks.
            let all = freed.iter().map(Pooled::block).chain(&blocks);
            let mut parts: Vec<_> = all
                .map(|block| (Arc::as_ptr(&block.segment), block.offset, block))
                .collect();
            parts.sort_unstable_by_key(|(segment, offset, _)| (*segment, *offset));
            let is_next = |one: &(*const PoolSegment, usize, &super::Block),
                           next: &(_, usize, _)| {
                one.0 == next.0 && one.1 + one.2.class.size() == next.1
            };
            for run in parts.chunk_by(is_next) {
                let (Some((_, start, first)), Some((_, last, block))) = (run.first(), run.last())
                else {
                    continue;
                };
                let len = last + block.class.size() - start;
                first.segment.memory.give_back(*start, len);
            }
            let mut lists = class.lock();
            if self.is_closed.load(Ordering::Relaxed) {
                drop(lists);
                // They are dropped here.
                continue;
            }
            lists.freed.put_released(freed);
            lists.blocks.put_released(blocks);
        }
    }
}

impl<T: Pooled + Send + 'static> Ages for Pool<T> {
    fn age(&self) -> bool {
        // Before the lists set their alarms, so that none of those is missed.
        self.is_looked_after.store(false, Ordering::SeqCst);
        let (mut has_many, mut old_bytes) = (false, 0);
        for class in &self.classes {
            let mut lists = class.lock();
            // Both, since each sets its alarm.
            has_many |= lists.freed.look();
            has_many |= lists.blocks.look();
            old_bytes += lists.freed.old_bytes() + lists.blocks.old_bytes();
        }
        if old_bytes > 0 {
            let old =
                |classes: &[MutexGuard<'_, Class<T>>]| super::trim::empty_segments(classes, true);
            drop(self.take_segments(usize::MAX, old).1);
            self.release_pages(false);
        }
        has_many
            && !self.is_closed.load(Ordering::Relaxed)
            && !self.is_looked_after.swap(true, Ordering::SeqCst)
    }
}
