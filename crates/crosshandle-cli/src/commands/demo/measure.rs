//! The measurements of the demo.

use super::pattern::each_chunk;
use crate::failure::{Failure, Result};
use crate::transfer::{CHUNK_BYTES, Transfer};
use crosshandle::Context;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Number of repetitions of a short operation, for its mean time.
const REPEATS: u32 = 10_000;

/// Time for which the memory is read, and least and greatest number of passes.
const READ_TIME: Duration = Duration::from_millis(300);
const READ_PASSES: std::ops::RangeInclusive<u32> = 3..=1000;

/// Times of opening handles, in nanoseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Opens {
    /// Opens the first memory of an exporter: connects, receives a descriptor, maps.
    pub(super) memory_first: f64,
    /// Opens the same memory again, and closes that.
    pub(super) memory_again: f64,
    pub(super) event_first: f64,
    pub(super) event_again: f64,
}

/// The speed at which the importer reads what the exporter wrote.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Bandwidth {
    /// Bytes per second in the median pass over all of the memory.
    pub(super) bytes_per_second: f64,
    pub(super) passes: u32,
}

/// Median and 99th percentile, in nanoseconds.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) samples: usize,
}

impl Percentiles {
    /// Returns the percentiles of samples, of which there is at least one.
    pub(super) fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let at = |percent: usize| {
            let index = (samples.len() * percent / 100).min(samples.len().saturating_sub(1));
            samples
                .get(index)
                .map_or(0.0, |sample| nanoseconds(*sample))
        };
        Self {
            p50: at(50),
            p99: at(99),
            samples: samples.len(),
        }
    }
}

/// Runs `f` once, and returns its result and its time in nanoseconds.
pub(super) fn once<T>(f: impl FnOnce() -> crosshandle::Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let result = f()?;
    Ok((result, nanoseconds(start.elapsed())))
}

/// Returns the mean time of a short operation, in nanoseconds.
pub(super) fn mean<T>(mut f: impl FnMut() -> crosshandle::Result<T>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..REPEATS {
        black_box(f()?);
    }
    Ok(nanoseconds(start.elapsed()) / f64::from(REPEATS))
}

/// Returns the times of a signal without waiters, and of a wait for a finished signal.
pub(super) fn signal_and_wait(context: &Context) -> Result<(f64, f64)> {
    let event = context.create_event()?;
    let signal = mean(|| event.signal())?;
    let wait = mean(|| event.wait())?;
    if event.status().completed != u64::from(REPEATS) {
        return Err(Failure::error(format!(
            "verification failed: {REPEATS} signals have counted to {}",
            event.status().completed
        )));
    }
    Ok((signal, wait))
}

/// Reads all of the memory repeatedly, into a buffer that stays in a cache.
pub(super) fn read_bandwidth(memory: &Transfer<'_>) -> Result<Bandwidth> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut passes = Vec::new();
    let start = Instant::now();
    while passes.len() < *READ_PASSES.start() as usize
        || start.elapsed() < READ_TIME && passes.len() < *READ_PASSES.end() as usize
    {
        let pass = Instant::now();
        each_chunk(0..memory.len(), |offset, len| {
            memory.read(offset, black_box(&mut buffer[..len]))
        })?;
        passes.push(pass.elapsed());
    }
    let count = passes.len() as u32;
    let median = Percentiles::of(passes).p50;
    Ok(Bandwidth {
        bytes_per_second: memory.len() as f64 / (median.max(1.0) / 1e9),
        passes: count,
    })
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}
