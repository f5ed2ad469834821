//! Takes times.

use std::time::{Duration, Instant};

/// The fewest rounds whose median is told, and the most.
const ROUNDS: std::ops::Range<usize> = 3..1000;

/// Does something once, then over and over for about `limit`. Returns the median in nanoseconds, and the rounds.
pub(crate) fn measure(
    limit: Duration,
    mut step: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<String, Box<dyn std::error::Error>> {
    step()?;
    let begun = Instant::now();
    let mut times = Vec::new();
    while times.len() < ROUNDS.start || begun.elapsed() < limit && times.len() < ROUNDS.end {
        let start = Instant::now();
        step()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(format!(
        "{} {}",
        times[times.len() / 2].as_nanos(),
        times.len()
    ))
}
