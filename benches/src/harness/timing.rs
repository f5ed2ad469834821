//! Clocks.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Number of pairs of clock readings, whose median is the clock's cost. They take less than a
/// millisecond.
const CLOCK_SAMPLES: usize = 10_001;

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds. All processes of a machine share this
/// clock.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The clock starts at boot, so neither part is ever negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

pub(crate) fn nanoseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

/// Runs `operation` `count` times between two clock readings. Returns the nanoseconds per
/// operation.
///
/// With a thousand operations or more, the cost of the readings is negligible.
pub(crate) fn per_operation<E>(
    count: usize,
    mut operation: impl FnMut() -> Result<(), E>,
) -> Result<f64, E> {
    let start = Instant::now();
    for _ in 0..count {
        operation()?;
    }
    Ok(nanoseconds(start.elapsed()) / count as f64)
}

/// Measures the cost of two clock readings, in nanoseconds. It is subtracted from the time of a
/// single operation.
pub(crate) fn clock_cost() -> f64 {
    let mut samples: Vec<f64> = (0..CLOCK_SAMPLES)
        .map(|_| nanoseconds(Instant::now().elapsed()))
        .collect();
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Runs one operation. Returns its result and its time in nanoseconds, minus the clock's cost.
pub(crate) fn once<T, E>(
    clock_cost: f64,
    operation: impl FnOnce() -> Result<T, E>,
) -> Result<(T, f64), E> {
    let start = Instant::now();
    let value = operation()?;
    let elapsed = nanoseconds(start.elapsed());
    Ok((value, (elapsed - clock_cost).max(0.0)))
}

/// Drops a value. Returns the time in nanoseconds, minus the clock's cost.
pub(crate) fn drop_once<T>(clock_cost: f64, value: T) -> f64 {
    let start = Instant::now();
    drop(value);
    (nanoseconds(start.elapsed()) - clock_cost).max(0.0)
}

/// Collects the items of an iterator. Also returns the nanoseconds per item.
pub(crate) fn collect_timed<T>(
    items: impl ExactSizeIterator<Item = anyhow::Result<T>>,
) -> anyhow::Result<(Vec<T>, f64)> {
    let count = items.len();
    let mut collected = Vec::with_capacity(count);
    let start = Instant::now();
    for item in items {
        collected.push(item?);
    }
    Ok((collected, nanoseconds(start.elapsed()) / count as f64))
}

/// Drops all items. Returns the nanoseconds per item.
pub(crate) fn drop_timed<T>(mut items: Vec<T>) -> f64 {
    let count = items.len();
    let start = Instant::now();
    items.clear();
    nanoseconds(start.elapsed()) / count as f64
}
