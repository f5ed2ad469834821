//! What is measured on the way.

use super::pattern::each_chunk;
use crate::failure::{Failure, Result};
use crate::transfer::{CHUNK, Transfer};
use crosshandle::Context;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How often something short is repeated, to get its mean.
const REPEATS: u32 = 10_000;

/// How long the memory is read, and how often at least and at most.
const READING: Duration = Duration::from_millis(300);
const READS: std::ops::RangeInclusive<u32> = 3..=1000;

/// Times to open handles, in nanoseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Opens {
    /// The first one of an exporter: connects, receives a descriptor, maps.
    pub(super) memory_first: f64,
    /// The same memory once more, and closing that.
    pub(super) memory_again: f64,
    pub(super) event_first: f64,
    pub(super) event_again: f64,
}

/// How fast the importer reads what the exporter wrote.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Bandwidth {
    /// Bytes per second, of the median pass over all of the memory.
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
    /// Of at least one sample.
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

/// Does something once, and says how long that took in nanoseconds.
pub(super) fn once<T>(f: impl FnOnce() -> crosshandle::Result<T>) -> Result<(T, f64)> {
    let start = Instant::now();
    let result = f()?;
    Ok((result, nanoseconds(start.elapsed())))
}

/// The mean time of something short, in nanoseconds.
pub(super) fn mean<T>(mut f: impl FnMut() -> crosshandle::Result<T>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..REPEATS {
        black_box(f()?);
    }
    Ok(nanoseconds(start.elapsed()) / f64::from(REPEATS))
}

/// Times of a signal for which nobody waits, and of a wait for a signal that is there already.
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

/// Reads all of the memory again and again, copying into a buffer that stays in a cache.
pub(super) fn read_bandwidth(memory: &Transfer<'_>) -> Result<Bandwidth> {
    let mut buffer = vec![0; CHUNK];
    let mut passes = Vec::new();
    let start = Instant::now();
    while passes.len() < *READS.start() as usize
        || start.elapsed() < READING && passes.len() < *READS.end() as usize
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
