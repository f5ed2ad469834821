//! Timestamps of the commands that signal an event.

use crosshandle_os::process;
use crosshandle_types::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Timestamps of the latest command that signalled, in nanoseconds of the monotonic clock.
#[derive(Default)]
pub struct Profile {
    /// Whether timestamps are currently disabled.
    is_off: AtomicBool,
    pub submitted: AtomicU64,
    pub started: AtomicU64,
    pub ended: AtomicU64,
    /// Present if a device keeps the times of the latest command that signalled.
    device: Mutex<Option<Arc<dyn BackendTimestamps>>>,
}

/// The times of a command that a device keeps.
pub trait BackendTimestamps: Send + Sync {
    /// Returns the times at which the command started and ended, in nanoseconds of the monotonic
    /// clock. A time is 0 until the command has started or ended.
    fn read(&self) -> (u64, u64);
}

impl Profile {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        !self.is_off.load(Ordering::Relaxed)
    }

    /// Turns timestamps on or off.
    pub(super) fn switch(&self, on: bool) {
        if self.is_on() != on {
            self.is_off.store(!on, Ordering::Relaxed);
        }
    }

    /// Stores the current time.
    pub fn stamp(place: &AtomicU64) {
        place.store(process::monotonic_nanoseconds(), Ordering::Relaxed);
    }

    /// Starts the timestamps of a command that is being submitted.
    pub fn restart(&self) {
        let before = self.device.lock().take();
        Self::stamp(&self.submitted);
        self.started.store(0, Ordering::Relaxed);
        self.ended.store(0, Ordering::Relaxed);
        // The lock is released first, because the drop may call a driver.
        drop(before);
    }

    /// Reads the start and end times of that command from the device.
    pub fn follow(&self, device: Arc<dyn BackendTimestamps>) {
        let before = self.device.lock().replace(device);
        // The lock is released first, because the drop may call a driver.
        drop(before);
    }

    /// Returns the times at which the latest command was submitted, started and ended.
    pub fn times(&self) -> (u64, u64, u64) {
        // The device is read without the lock, because reading may take long and submitters need
        // the lock.
        let asked = self.device.lock().clone();
        if let Some(times) = asked {
            let (started, ended) = times.read();
            let mut device = self.device.lock();
            // The times are dropped if another command was submitted in the meantime.
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
