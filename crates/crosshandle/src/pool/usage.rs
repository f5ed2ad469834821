//! The accounts of a memory pool: its reserved bytes, its used bytes, and its limits.

use crosshandle_types::error::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of bytes and its peak.
#[derive(Default)]
pub(crate) struct Gauge {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Gauge {
    pub(crate) fn get(&self) -> usize {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn reset_peak(&self) {
        self.peak.store(self.get(), Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.note_peak(now);
    }

    /// Adds `bytes` unless the sum would exceed `limit`. Returns whether the bytes were added.
    fn try_add(&self, bytes: usize, limit: usize) -> bool {
        let sum = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= limit);
        let before = self
            .now
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        if let Ok(before) = before {
            self.note_peak(before + bytes);
        }
        before.is_ok()
    }

    pub(crate) fn subtract(&self, bytes: usize) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[inline]
    fn note_peak(&self, now: usize) {
        // A new peak is rare, so the common path only loads.
        if now > self.peak() {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }
}

/// The accounts of a `MemoryPool`.
pub(crate) struct Usage {
    /// The bytes of the pool's segments.
    pub(crate) reserved: Gauge,
    /// The bytes of blocks that are allocated and not freed.
    pub(crate) used: Gauge,
    /// The maximum number of bytes that the pool may reserve.
    pub(crate) limit: usize,
    /// While the pool has reserved more than this number of bytes, freed large segments return to
    /// the system.
    pub(crate) kept: AtomicUsize,
}

impl Usage {
    pub(crate) fn new(limit: usize, kept: usize) -> Self {
        Self {
            reserved: Gauge::default(),
            used: Gauge::default(),
            limit,
            kept: AtomicUsize::new(kept),
        }
    }

    /// Returns the number of bytes that the pool may still reserve.
    pub(super) fn room(&self) -> usize {
        self.limit.saturating_sub(self.reserved.get())
    }

    pub(super) fn has_too_much(&self) -> bool {
        self.reserved.get() > self.kept.load(Ordering::Relaxed)
    }

    pub(super) fn reserve(&self, bytes: usize) -> Result<()> {
        if self.reserved.try_add(bytes, self.limit) {
            return Ok(());
        }
        Err(Error::out_of_memory(bytes))
    }
}
