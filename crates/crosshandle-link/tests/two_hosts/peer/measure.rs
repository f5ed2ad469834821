//! Measures times.

use std::time::{Duration, Instant};

/// Minimum number of rounds for a median, and the limit.
const ROUNDS: std::ops::Range<usize> = 3..1000;

/// Runs `step` once, and then repeatedly for about `limit`. Returns the median in nanoseconds and
/// the number of rounds.
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
