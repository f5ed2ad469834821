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

/// Streams of one context that nobody uses.
#[derive(Default)]
pub(super) struct Stock {
    streams: Mutex<Vec<Stream>>,
    /// Whether somebody will make more.
    is_ordered: AtomicBool,
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

    /// The same if there is one.
    pub(super) fn try_take(&self, gpu: &Arc<Gpu>) -> Option<Stream> {
        let count = self.streams().len();
        if count < FEW && !self.is_ordered.swap(true, Ordering::Relaxed) {
            // What is waited for may be the program's context's end.
            let weak = Arc::downgrade(gpu);
            let fill = move || {
                if let Some(gpu) = weak.upgrade() {
                    gpu.stock().fill(&gpu);
                }
            };
            gpu.traffic().when_quiet(0, fill);
        }
        self.streams().pop()
    }

    /// Makes more of them.
    fn fill(&self, gpu: &Gpu) {
        self.is_ordered.store(false, Ordering::Relaxed);
        let Ok(_current) = gpu.enter() else {
            return;
        };
        while self.streams().len() < FULL {
            match gpu.driver().create_stream() {
                Ok(stream) => self.streams().push(stream),
                Err(error) => {
                    tracing::debug!(%error, "no streams are made ahead");
                    return;
                }
            }
        }
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
