//! When commands ran that signalled an event.

use crate::os::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Timestamps of the command that signalled last, in nanoseconds of the monotonic clock.
#[derive(Default)]
pub(crate) struct Profile {
    /// Whether it takes none at the moment.
    is_off: AtomicBool,
    pub(crate) submitted: AtomicU64,
    pub(crate) started: AtomicU64,
    pub(crate) ended: AtomicU64,
    /// Present if a device keeps the times of the command that signalled last.
    device: Mutex<Option<Arc<dyn Timestamps>>>,
}

/// Times that a device keeps of a command.
pub(crate) trait Timestamps: Send + Sync {
    /// When it started and ended, in nanoseconds of the monotonic clock (0: it hasn't).
    fn read(&self) -> (u64, u64);
}

impl Profile {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.is_off.load(Ordering::Relaxed)
    }

    /// Lets it take timestamps from now on, or none.
    pub(super) fn switch(&self, on: bool) {
        if self.is_on() != on {
            self.is_off.store(!on, Ordering::Relaxed);
        }
    }

    pub(crate) fn stamp(place: &AtomicU64) {
        place.store(process::monotonic_nanoseconds(), Ordering::Relaxed);
    }

    /// A command of a device's queue is submitted.
    pub(crate) fn restart(&self) {
        *self.device() = None;
        Self::stamp(&self.submitted);
        self.started.store(0, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
    }

    /// Takes the times of that command from the device.
    pub(crate) fn follow(&self, device: Arc<dyn Timestamps>) {
        *self.device() = Some(device);
    }

    fn device(&self) -> MutexGuard<'_, Option<Arc<dyn Timestamps>>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the command was submitted, started and ended.
    pub(crate) fn times(&self) -> (u64, u64, u64) {
        // Read without the lock: that may take a while, and whoever submits takes it.
        let asked = self.device().clone();
        if let Some(times) = asked {
            let (started, ended) = times.read();
            let mut device = self.device();
            // Not if another command was submitted meanwhile.
            if device.as_ref().is_some_and(|now| Arc::ptr_eq(now, &times)) {
                self.started.store(started, Ordering::Relaxed);
                self.ended.store(ended, Ordering::Relaxed);
                if ended != 0 {
                    *device = None;
                }
            }
        }
        let read = |place: &AtomicU64| place.load(Ordering::Acquire);
        (
            read(&self.submitted),
            read(&self.started),
            read(&self.ended),
        )
    }
}
