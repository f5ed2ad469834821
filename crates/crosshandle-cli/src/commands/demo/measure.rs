//! The measurements that the demo makes.

use super::pattern::each_chunk;
use crate::failure::{Failure, Result};
use crate::transfer::Transfer;
use crate::tuning::COPY_CHUNK_BYTES;
use crosshandle::Context;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Number of repetitions of an operation whose mean time is measured.
///
/// With this number, the cost of reading the clock is negligible.
const DEMO_MEAN_REPEATS: u32 = 10_000;

/// Time after which the demo stops repeating its reads of the memory.
///
/// In this time, memory of the default size is read dozens of times.
const DEMO_READ_TIME: Duration = Duration::from_millis(300);

/// Minimum and maximum number of passes of reading the memory.
///
/// A median needs at least three passes. Beyond a thousand passes, the median no longer changes.
const DEMO_READ_PASSES: RangeInclusive<u32> = 3..=1000;

/// Times to open handles, in nanoseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Opens {
    /// Time to open the exporter's first memory. It includes connecting, receiving a descriptor and
    /// mapping.
    pub(super) memory_first: f64,
    /// Time to open and close memory that is already open.
    pub(super) memory_again: f64,
    /// Time to open the exporter's first event.
    pub(super) event_first: f64,
    /// Time to open and close an event that is already open.
    pub(super) event_again: f64,
}

/// Speed at which the importer reads memory that the exporter has written.
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
    /// Computes the percentiles of at least one sample.
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

/// Runs an operation once. Returns its result, and the time that it took in nanoseconds.
pub(super) fn once<T>(operation: impl FnOnce() -> crosshandle::Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let result = operation()?;
    Ok((result, nanoseconds(start.elapsed())))
}

/// Returns the mean time of a short operation in nanoseconds.
pub(super) fn mean<T>(mut operation: impl FnMut() -> crosshandle::Result<T>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..DEMO_MEAN_REPEATS {
        black_box(operation()?);
    }
    Ok(nanoseconds(start.elapsed()) / f64::from(DEMO_MEAN_REPEATS))
}

/// Returns the times, in nanoseconds, of a signal without waiters and of a wait for a completed
/// signal.
pub(super) fn signal_and_wait(context: &Context) -> Result<(f64, f64)> {
    let event = context.create_event()?;
    let signal = mean(|| event.signal())?;
    let wait = mean(|| event.wait())?;
    if event.status().completed != u64::from(DEMO_MEAN_REPEATS) {
        return Err(Failure::error(format!(
            "verification failed: {DEMO_MEAN_REPEATS} signals have counted to {}",
            event.status().completed
        )));
    }
    Ok((signal, wait))
}

/// Measures how fast all of the memory can be read into a buffer that fits into a cache.
pub(super) fn read_bandwidth(memory: &Transfer<'_>) -> Result<Bandwidth> {
    let (min_passes, max_passes) = DEMO_READ_PASSES.into_inner();
    let mut buffer = vec![0; COPY_CHUNK_BYTES];
    let mut passes = Vec::new();
    let start = Instant::now();
    while passes.len() < min_passes as usize
        || start.elapsed() < DEMO_READ_TIME && passes.len() < max_passes as usize
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
