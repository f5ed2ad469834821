//! The state of a counter-based event: counters in a page that processes share.
//!
//! When signal number *n* completes, the driver stores *n* in one word of a ring. A wait reads the
//! number of the latest signal when the wait begins, and waits for that signal only. Signal number
//! 0 was never submitted and is treated as complete, so a fresh event is complete.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::call::{INVALID_ARGUMENT, Result};
use crate::os::{Mapping, PAGE, Segment};
use crate::wait::{Bell, Deadline, Waited};

/// The maximum number of signals in flight. A further signal waits until an earlier one completes.
const RING: usize = 64;

#[repr(C)]
struct Words {
    /// Rings whenever a signal completes.
    changes: Bell,
    /// The number of the latest signal.
    issued: AtomicU64,
    done: [AtomicU64; RING],
}

const _: () = assert!(size_of::<Words>() <= PAGE);

pub(crate) struct Counter {
    /// The segment that handles refer to, if the event can be shared.
    segment: Option<Segment>,
    mapping: Mapping,
    /// The latest signal when the handle was made. It is set for an opened event that does not see
    /// later signals.
    snapshot: Option<u64>,
}

impl Counter {
    pub(crate) fn new(shared: bool) -> Result<Self> {
        let segment = Segment::new(PAGE)?;
        let mapping = segment.map()?;
        let segment = shared.then_some(segment);
        Ok(Self {
            segment,
            mapping,
            snapshot: None,
        })
    }

    /// Opens the event in a segment that another process created.
    pub(crate) fn open(segment: &Segment, snapshot: Option<u64>) -> Result<Self> {
        if segment.size() < PAGE {
            return Err(INVALID_ARGUMENT);
        }
        Ok(Self {
            segment: None,
            mapping: segment.map()?,
            snapshot,
        })
    }

    pub(crate) fn segment(&self) -> Result<&Segment> {
        self.segment.as_ref().ok_or(INVALID_ARGUMENT)
    }

    fn words(&self) -> &Words {
        // SAFETY: the mapping has room for the words, is aligned to pages and lives as long as
        // `self`. The words are atomic, and any bytes are valid values.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    /// Takes the number of a new signal.
    pub(crate) fn issue(&self) -> u64 {
        self.words().issued.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns the number of the latest signal.
    pub(crate) fn latest(&self) -> u64 {
        let issued = || self.words().issued.load(Ordering::Acquire);
        self.snapshot.unwrap_or_else(issued)
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        &self.words().done[(number % RING as u64) as usize]
    }

    pub(crate) fn is_done(&self, number: u64) -> bool {
        number == 0 || self.slot(number).load(Ordering::Acquire) >= number
    }

    pub(crate) fn complete(&self, number: u64, gone: impl Fn() -> bool) {
        // The word may still belong to an earlier signal that is not complete.
        let before = number.saturating_sub(RING as u64);
        if self.wait(before, Deadline::NEVER, gone) != Waited::Done {
            return;
        }
        let words = self.words();
        self.slot(number).store(number, Ordering::Release);
        words.changes.ring();
    }

    pub(crate) fn wait(&self, number: u64, deadline: Deadline, gone: impl Fn() -> bool) -> Waited {
        let words = self.words();
        words.changes.wait(deadline, gone, || self.is_done(number))
    }
}
