//! Streams in stock.
//!
//! The driver makes streams some thirty at a time, and takes the next lot only when no stream of
//! the context waits. So that a queue can be made at any time, streams are made ahead, and come
//! back when their queue is gone.

use super::device::Gpu;
use super::driver::Stream;
use crate::error::Result;
use crate::os::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// With fewer than this in stock, more are made when no stream waits: up to the other number, which
/// takes about a millisecond.
const FEW: usize = 16;
const FULL: usize = 64;
/// How many are made when there are none and streams wait.
const SOME: usize = 2;

/// Streams of one context that nobody uses.
#[derive(Default)]
pub(super) struct Stock {
    streams: Mutex<Vec<Stream>>,
    /// Whether somebody will make more when no stream waits, and whether at once.
    is_ordered: AtomicBool,
    is_urgent: AtomicBool,
}

impl Stock {
    fn streams(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream with nothing under way. The device's context is current. If none is left while
    /// others wait, this may too.
    pub(super) fn take(&self, gpu: &Arc<Gpu>) -> Result<Stream> {
        match self.try_take(gpu) {
            Some(stream) => Ok(stream),
            None => gpu.driver().create_stream(),
        }
    }

    /// The same without waiting for other streams, if there is one.
    pub(super) fn try_take(&self, gpu: &Arc<Gpu>) -> Option<Stream> {
        let order = |count| {
            // What waits may outlast the program's context.
            let weak = Arc::downgrade(gpu);
            move || {
                if let Some(gpu) = weak.upgrade() {
                    gpu.stock().fill(&gpu, count);
                }
            }
        };
        if self.streams().len() < FEW && !self.is_ordered.swap(true, Ordering::Relaxed) {
            gpu.traffic().when_quiet(0, order(FULL));
        }
        if let Some(stream) = self.streams().pop() {
            return Some(stream);
        }
        // As a rule some can be made all the same, and what the streams wait for may come after this
        // one.
        if !self.is_urgent.swap(true, Ordering::Relaxed) {
            gpu.traffic().at_once(order(SOME));
        }
        self.streams().pop()
    }

    /// Makes so many of them.
    fn fill(&self, gpu: &Gpu, count: usize) {
        if let Ok(_current) = gpu.enter() {
            while self.streams().len() < count {
                match gpu.driver().create_stream() {
                    Ok(stream) => self.streams().push(stream),
                    Err(error) => {
                        tracing::debug!(%error, "no streams are made ahead");
                        break;
                    }
                }
            }
        }
        let order = if count == FULL {
            &self.is_ordered
        } else {
            &self.is_urgent
        };
        order.store(false, Ordering::Relaxed);
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
