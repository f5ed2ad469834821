//! Returns free memory to the system when it has not been used for a while.
//!
//! This applies to pools whose memory the system provides page by page. While such a pool has much
//! free memory, it is checked every [`AGEING_INTERVAL`]. A block that was free for the whole time
//! between two checks is old. A segment with only old blocks returns to the system as a whole.
//! Other old blocks lose their pages but stay on their lists.
//!
//! The memory of other devices is not checked, because a thread of this library would call the
//! driver while the process ends. There, an empty segment is reused for the next size that needs
//! one, and [`Pool::trim`] returns it to the system.

use super::{Class, Pool, PoolSegment, Pooled};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::process;
use crosshandle_os::threads::{background, driver_jobs};
use crosshandle_types::sync::{Mutex, MutexGuard};
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval at which pools with much free memory are checked. Free blocks that were not used for a
/// whole interval lose their pages. A program that reuses blocks more slowly than that touches
/// fresh pages each time.
const AGEING_INTERVAL: Duration = Duration::from_millis(500);

/// Smallest block, in bytes, whose pages are returned to the system while its segment is in use.
/// Smaller blocks are too many to sort, and rarely cover whole pages.
const SMALLEST_RELEASED_BYTES: usize = 1 << 10;

/// A pool that is checked at intervals.
trait Ages: Send + Sync {
    /// Returns old memory to the system. Returns whether the pool must be checked again.
    fn age(&self) -> bool;
}

/// The pools with much free memory.
static POOLS: PerProcess<Mutex<Vec<Weak<dyn Ages>>>> = PerProcess::new(Mutex::default);
/// The process id of the process whose thread checks the pools, or 0. Changed only under the lock
/// of [`POOLS`].
static LOOKER: AtomicU32 = AtomicU32::new(0);

/// Has a pool checked at intervals until it has little free memory.
fn add(pool: Weak<dyn Ages>) {
    let mut pools = POOLS.lock();
    pools.push(pool);
    // A forked child does not have the thread of its parent.
    let own = process::pid();
    let has_looker = LOOKER.swap(own, Ordering::Relaxed) == own;
    drop(pools);
    if !has_looker {
        background::repeat(AGEING_INTERVAL, look);
    }
}

/// Checks all pools. Returns whether to check again.
fn look() -> bool {
    let pools = mem::take(&mut *POOLS.lock());
    let ages = |pool: &Weak<dyn Ages>| {
        // This may drop the last reference to a context, and that drop may call the driver.
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

impl<T: Pooled + Send + Sync + 'static> Pool<T> {
    /// Starts checking the pool, because it has much free memory.
    #[cold]
    pub(super) fn look_after(&self) {
        if !self.is_looked_after.swap(true, Ordering::SeqCst) {
            add(self.this.clone());
        }
    }

    /// Starts checking the pool, because it is about to have a large block in a cell.
    #[inline]
    pub(super) fn look_after_cell(&self) {
        if self.ages && !self.is_looked_after.load(Ordering::Relaxed) {
            self.look_after();
        }
    }

    /// Returns the pages of free blocks to the system. Takes only old blocks unless `all` is set.
    pub(super) fn release_pages(&self, all: bool) {
        if !self.backend.takes_memory_late() {
            return;
        }
        if all {
            self.empty_cells();
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
            // This takes a while, so it happens without the lock. Until the blocks are back on
            // their lists, no thread finds them.
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
                // The blocks are dropped here.
                continue;
            }
            lists.freed.put_released(freed);
            lists.blocks.put_released(blocks);
        }
    }
}

impl<T: Pooled + Send + Sync + 'static> Ages for Pool<T> {
    fn age(&self) -> bool {
        // The flag is cleared before the lists set their alarms, so that no alarm is missed.
        self.is_looked_after.store(false, Ordering::SeqCst);
        self.empty_cells();
        let (mut has_many, mut old_bytes) = (false, 0);
        for class in &self.classes {
            let mut lists = class.lock();
            // Checks both lists, because each check sets an alarm.
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
