//! The stream pool: streams of one context that no queue uses.
//!
//! The driver makes streams some forty at a time, and the next lot only when no stream of the context
//! waits. So that a queue can be made at any time, streams are made ahead, and come back when their
//! queue is gone.

use super::Gpu;
use crate::error::{Error, Result};
use crate::hal::cuda::driver::{Driver, Stream};
use crate::hal::cuda::scheduler::Urgency;
use crate::hal::cuda::tuning::{POOL_BATCH, POOL_FULL, POOL_LOW};
use crate::os::process;
use crate::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Default)]
pub(crate) struct StreamPool {
    streams: Mutex<Vec<Stream>>,
    /// Whether calls are deferred that fill the pool when no stream waits, or make one stream at
    /// once.
    is_ordered: AtomicBool,
    is_urgent: AtomicBool,
    /// The reason why no stream could be made at once.
    failed: Mutex<Option<Error>>,
}

impl StreamPool {
    /// Takes a stream with nothing in flight. The device's context is current, and the caller holds no
    /// lock: if no stream is left while others wait, this may wait for them.
    pub(crate) fn take(&self, gpu: &Gpu) -> Result<Stream> {
        // Before any stream waits: then it would be too late.
        if self.order(gpu) && !gpu.scheduler().is_blocked() {
            gpu.scheduler().make_room();
        }
        match self.try_take(gpu) {
            Ok(Some(stream)) => Ok(stream),
            Ok(None) | Err(_) => gpu.driver().create_stream(),
        }
    }

    /// Orders more streams, to be made when no stream waits, if few are left. Returns whether this
    /// call ordered them.
    fn order(&self, gpu: &Gpu) -> bool {
        let is_few = self.streams.lock().len() < POOL_LOW;
        let is_new = is_few && !self.is_ordered.swap(true, Ordering::Relaxed);
        if is_new {
            for count in (POOL_BATCH..=POOL_FULL).step_by(POOL_BATCH) {
                let make = later(gpu, move |pool, driver| {
                    let made = driver.and_then(|driver| pool.fill(driver, count));
                    if count == POOL_FULL {
                        pool.is_ordered.store(false, Ordering::Relaxed);
                    }
                    made
                });
                gpu.scheduler().call_later(Urgency::WhenQuiet, 0, make);
            }
        }
        is_new
    }

    /// Takes a stream if there is one, and otherwise has one made. An error if the driver makes none.
    /// Waits for nothing, so the caller may have its queue locked.
    pub(crate) fn try_take(&self, gpu: &Gpu) -> Result<Option<Stream>> {
        self.order(gpu);
        if let Some(stream) = self.streams.lock().pop() {
            return Ok(Some(stream));
        }
        // As a rule one can be made although streams wait, and what they wait for may come after the
        // command that it is for.
        if self.is_urgent.swap(true, Ordering::Relaxed) {
            gpu.scheduler().prompt();
        } else {
            let make = later(gpu, |pool, driver| {
                let made = driver.and_then(|driver| pool.fill(driver, 1));
                *pool.failed.lock() = made.clone().err();
                pool.is_urgent.store(false, Ordering::Relaxed);
                made
            });
            gpu.scheduler().call_later(Urgency::AtOnce, 0, make);
        }
        self.failed.lock().take().map_or(Ok(None), Err)
    }

    /// Makes streams until the pool has `count`.
    fn fill(&self, driver: &'static Driver, count: usize) -> Result<()> {
        while self.streams.lock().len() < count {
            let stream = driver.create_stream()?;
            self.streams.lock().push(stream);
        }
        Ok(())
    }

    /// Takes back a stream that has nothing in flight.
    pub(crate) fn put(&self, stream: Stream) {
        if process::is_forked() {
            return;
        }
        let mut streams = self.streams.lock();
        if streams.len() < POOL_FULL {
            streams.push(stream);
        }
    }
}

/// Returns a function that works on the pool of a context later, and keeps neither of them alive.
fn later(
    gpu: &Gpu,
    make: impl FnOnce(&StreamPool, Result<&'static Driver>) -> Result<()> + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    let pool = Arc::downgrade(gpu.pool());
    gpu.later("making streams ahead", move |driver| {
        // Where the guard is open the pool is there.
        pool.upgrade().map_or(Ok(()), |pool| make(&pool, driver))
    })
}
