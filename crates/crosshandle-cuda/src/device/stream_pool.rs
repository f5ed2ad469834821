//! The stream pool: streams of one context that no queue uses.
//!
//! The driver creates streams about forty at a time, and the next batch only when no stream of the
//! context waits. The pool creates streams ahead of time and takes them back from dropped queues,
//! so that a queue can be created at any time.

use super::Gpu;
use crate::driver::{Driver, Stream};
use crate::scheduler::Urgency;
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of streams in the pool below which more are created.
const POOL_LOW: usize = 16;

/// Number of streams in a full pool. Creating one takes 20 µs. Measured: the driver creates about
/// 43 streams at a time, and the next ones only when no stream waits. Once the pool is empty, a
/// queue that is created while streams wait has to wait too.
const POOL_FULL: usize = 64;

/// Number of streams that one deferred call creates. Streams that would wait are held back during
/// the call.
const POOL_BATCH: usize = 8;

#[derive(Default)]
pub(crate) struct StreamPool {
    streams: Mutex<Vec<Stream>>,
    /// Whether deferred calls are queued that fill the pool when no stream waits (`is_ordered`).
    /// Also whether a call is queued that creates one stream immediately (`is_urgent`).
    is_ordered: AtomicBool,
    is_urgent: AtomicBool,
    /// The reason why no stream could be created immediately.
    failed: Mutex<Option<Error>>,
}

impl StreamPool {
    /// Takes a stream with nothing in flight. The device's context is current. The caller holds no
    /// lock, because this may wait for other streams if the pool is empty and streams wait.
    pub(crate) fn take(&self, gpu: &Gpu) -> Result<Stream> {
        // Room must be made before any stream waits.
        if self.order(gpu) && !gpu.scheduler().is_blocked() {
            gpu.scheduler().make_room();
        }
        match self.try_take(gpu) {
            Ok(Some(stream)) => Ok(stream),
            Ok(None) | Err(_) => gpu.driver().create_stream(),
        }
    }

    /// Orders more streams if few are left. They are created when no stream waits. Returns whether
    /// this call ordered them.
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

    /// Takes a stream from the pool, or requests a new one if the pool is empty. Returns an error
    /// if the driver cannot create a stream. Never waits, so the caller may have its queue locked.
    pub(crate) fn try_take(&self, gpu: &Gpu) -> Result<Option<Stream>> {
        self.order(gpu);
        if let Some(stream) = self.streams.lock().pop() {
            return Ok(Some(stream));
        }
        // The driver can usually create a stream although streams wait. Those streams may wait for
        // something that is submitted after the command that needs this stream.
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

    /// Creates streams until the pool has `count`.
    fn fill(&self, driver: &'static Driver, count: usize) -> Result<()> {
        while self.streams.lock().len() < count {
            let stream = driver.create_stream()?;
            self.streams.lock().push(stream);
        }
        Ok(())
    }

    /// Returns a stream to the pool. Nothing is in flight in the stream.
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
        // While the guard is open, the pool exists.
        pool.upgrade().map_or(Ok(()), |pool| make(&pool, driver))
    })
}
