//! Streams in stock.
//!
//! The driver makes streams some thirty at a time, and takes the next lot only when no stream of
//! the context waits. So that a queue can be made at any time, streams are made ahead, and come
//! back when their queue is gone.

use super::device::Gpu;
use super::driver::{Driver, Stream};
use crate::error::{Error, Result};
use crate::os::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// With fewer than this in stock, more are made when no stream waits: up to the other number, so
/// many at a time, since streams that would wait are kept back meanwhile. One takes 20 µs, or some
/// milliseconds while many processes begin.
const FEW: usize = 16;
const FULL: usize = 64;
const STEP: usize = 8;
/// How many are made when there are none and streams wait.
const SOME: usize = 2;

/// Streams of one context that nobody uses.
#[derive(Default)]
pub(super) struct Stock {
    streams: Mutex<Vec<Stream>>,
    /// Whether somebody will make more when no stream waits, and whether at once.
    is_ordered: AtomicBool,
    is_urgent: AtomicBool,
    /// Why none could be made at once.
    failed: Mutex<Option<Error>>,
}

impl Stock {
    fn streams(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> MutexGuard<'_, Option<Error>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream with nothing under way. The device's context is current. If none is left while
    /// others wait, this may too.
    pub(super) fn take(&self, gpu: &Gpu) -> Result<Stream> {
        // Before any stream waits: then it would be too late.
        if self.order(gpu) && !gpu.traffic().is_blocked() {
            gpu.traffic().make_room();
        }
        match self.try_take(gpu) {
            Ok(Some(stream)) => Ok(stream),
            Ok(None) | Err(_) => gpu.driver().create_stream(),
        }
    }

    /// Has more of them made when no stream waits, if there are few. Whether that is new.
    fn order(&self, gpu: &Gpu) -> bool {
        let is_new = self.streams().len() < FEW && !self.is_ordered.swap(true, Ordering::Relaxed);
        if is_new {
            for count in (STEP..=FULL).step_by(STEP) {
                gpu.traffic().sometime(later(gpu, move |stock, driver| {
                    let made = driver.and_then(|driver| stock.fill(driver, count));
                    if count == FULL {
                        stock.is_ordered.store(false, Ordering::Relaxed);
                    }
                    made
                }));
            }
        }
        is_new
    }

    /// The same as [`take`](Self::take) without waiting for other streams, if there is one. An error
    /// if the driver makes none.
    pub(super) fn try_take(&self, gpu: &Gpu) -> Result<Option<Stream>> {
        self.order(gpu);
        if let Some(stream) = self.streams().pop() {
            return Ok(Some(stream));
        }
        // As a rule some can be made all the same, and what the streams wait for may come after this
        // one.
        if self.is_urgent.swap(true, Ordering::Relaxed) {
            gpu.traffic().prompt();
        } else {
            let make = later(gpu, |stock, driver| {
                let made = driver.and_then(|driver| stock.fill(driver, SOME));
                *stock.failed() = made.clone().err();
                stock.is_urgent.store(false, Ordering::Relaxed);
                made
            });
            gpu.traffic().at_once(make);
        }
        match (self.streams().pop(), self.failed().take()) {
            (None, Some(error)) => Err(error),
            (stream, _) => Ok(stream),
        }
    }

    /// Makes so many of them.
    fn fill(&self, driver: &'static Driver, count: usize) -> Result<()> {
        while self.streams().len() < count {
            let stream = driver.create_stream()?;
            self.streams().push(stream);
        }
        Ok(())
    }

    /// Takes one back that has nothing under way.
    pub(super) fn put(&self, stream: Stream) {
        if process::is_forked() {
            return;
        }
        let mut streams = self.streams();
        if streams.len() < FULL {
            streams.push(stream);
        }
    }
}

/// Has something done for the stock of a context later, which keeps neither.
fn later(
    gpu: &Gpu,
    make: impl FnOnce(&Stock, Result<&'static Driver>) -> Result<()> + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    let stock = Arc::downgrade(gpu.stock());
    gpu.later("making streams ahead", move |driver| {
        // Where the gate is open it is there.
        stock.upgrade().map_or(Ok(()), |stock| make(&stock, driver))
    })
}
