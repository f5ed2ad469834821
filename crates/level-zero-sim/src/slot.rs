//! Flags with times, in memory that processes may share. They are the state of pooled events and of
//! fences.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::call::{INVALID_ARGUMENT, Result};
use crate::os::{Mapping, Segment};
use crate::wait::{Bell, Deadline, Waited};

#[repr(C, align(64))]
struct Words {
    /// 1 when signalled.
    state: AtomicU32,
    _padding: u32,
    /// Rings whenever the state changes.
    changes: Bell,
    /// The times when the signalling work began and ended, in nanoseconds.
    start: AtomicU64,
    end: AtomicU64,
}

/// The flags of a pool.
pub(crate) struct Slots {
    /// The segment that handles refer to, if the pool can be shared.
    segment: Option<Segment>,
    mapping: Mapping,
    count: usize,
}

impl Slots {
    pub(crate) fn new(count: u32, shared: bool) -> Result<Arc<Self>> {
        let segment = Segment::new(count as usize * size_of::<Words>())?;
        Self::of(segment, shared)
    }

    /// Opens the flags in a segment that another process shared.
    pub(crate) fn open(segment: Segment) -> Result<Arc<Self>> {
        Self::of(segment, false)
    }

    fn of(segment: Segment, shared: bool) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            mapping: segment.map()?,
            count: segment.size() / size_of::<Words>(),
            segment: shared.then_some(segment),
        }))
    }

    pub(crate) fn segment(&self) -> Result<&Segment> {
        self.segment.as_ref().ok_or(INVALID_ARGUMENT)
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

/// A flag of a set.
pub(crate) struct Slot {
    pub(crate) slots: Arc<Slots>,
    /// The index of the flag, below the count.
    pub(crate) index: u32,
}

impl Slot {
    fn words(&self) -> &Words {
        let words = self.slots.mapping.base().cast::<Words>();
        // SAFETY: the mapping has room for all flags and lives as long as `self`. The words are
        // atomic, and any bytes are valid values.
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
        words.changes.ring();
    }

    pub(crate) fn reset(&self) {
        self.words().state.store(0, Ordering::Release);
        self.words().changes.ring();
    }

    pub(crate) fn wait(&self, deadline: Deadline, gone: impl Fn() -> bool) -> Waited {
        self.words().changes.wait(deadline, gone, || self.is_done())
    }

    pub(crate) fn times(&self) -> (u64, u64) {
        let words = self.words();
        (
            words.start.load(Ordering::Relaxed),
            words.end.load(Ordering::Relaxed),
        )
    }
}
