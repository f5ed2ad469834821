//! Streams in stock.
//!
//! The driver makes streams some thirty at a time, and takes the next lot only when no stream of
//! the context waits. So that a queue can be made at any time, streams are made ahead, and come
//! back when their queue is gone.

use super::device::Gpu;
use super::driver::Stream;
use super::waits;
use crate::error::Result;
use crate::os::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// With fewer than this in stock, more are made when no stream waits: up to the other number, which
/// takes about a millisecond.
const FEW: usize = 16;
const FULL: usize = 64;

/// Streams of one context that nobody uses.
#[derive(Default)]
pub(super) struct Stock(Mutex<Vec<Stream>>);

impl Stock {
    fn streams(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream with nothing under way. The device's context is current.
    pub(super) fn take(&self, gpu: &Gpu) -> Result<Stream> {
        let driver = gpu.driver();
        let mut streams = self.streams();
        if streams.len() < FEW {
            let filled = waits::if_quiet(|| {
                while streams.len() < FULL {
                    match driver.create_stream() {
                        Ok(stream) => streams.push(stream),
                        Err(error) if streams.is_empty() => return Err(error),
                        // It will do with those.
                        Err(_) => break,
                    }
                }
                Ok(())
            });
            filled.unwrap_or(Ok(()))?;
        }
        let stream = streams.pop();
        drop(streams);
        stream.map_or_else(|| driver.create_stream(), Ok)
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
