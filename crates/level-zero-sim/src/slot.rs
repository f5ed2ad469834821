//! A flag with times, in memory that processes may share: the state of events from pools and of
//! fences.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::call::Result;
use crate::os::{Mapping, Segment};
use crate::wait::{Deadline, Waited, wait, wake};

#[repr(C, align(64))]
struct Words {
    /// 1 when signalled.
    state: AtomicU32,
    /// Changes whenever the state does: for sleepers.
    changes: AtomicU32,
    /// When what signalled it began and ended, in nanoseconds.
    start: AtomicU64,
    end: AtomicU64,
}

/// Flags of a pool.
pub(crate) struct Slots {
    segment: Segment,
    mapping: Mapping,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Result<Arc<Self>> {
        Self::open(Segment::new(count as usize * size_of::<Words>())?)
    }

    /// The flags of a segment that another process may have.
    pub(crate) fn open(segment: Segment) -> Result<Arc<Self>> {
        let mapping = segment.map()?;
        Ok(Arc::new(Self { segment, mapping }))
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn count(&self) -> usize {
        self.segment.size() / size_of::<Words>()
    }
}

/// One of them.
pub(crate) struct Slot {
    pub(crate) slots: Arc<Slots>,
    /// Below the count.
    pub(crate) index: u32,
}

impl Slot {
    fn words(&self) -> &Words {
        let words = self.slots.mapping.base().cast::<Words>();
        // SAFETY: the mapping has room for all and lives as long as this; they are atomic, and
        // any bytes are valid.
        unsafe { words.add(self.index as usize).as_ref() }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.words().state.load(Ordering::Acquire) == 1
    }

    pub(crate) fn complete(&self, times: (u64, u64)) {
        let words = self.words();
        words.start.store(times.0, Ordering::Relaxed);
        words.end.store(times.1, Ordering::Relaxed);
        words.state.store(1, Ordering::Release);
        wake(&words.changes);
    }

    pub(crate) fn reset(&self) {
        self.words().state.store(0, Ordering::Release);
        wake(&self.words().changes);
    }

    pub(crate) fn wait(&self, deadline: Deadline, gone: impl Fn() -> bool) -> Waited {
        wait(&self.words().changes, deadline, gone, || self.is_done())
    }

    pub(crate) fn times(&self) -> (u64, u64) {
        let words = self.words();
        (
            words.start.load(Ordering::Relaxed),
            words.end.load(Ordering::Relaxed),
        )
    }
}
