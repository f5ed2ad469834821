//! The times of commands: measured by the device's clock, and reported by the host's clock.

use super::Gpu;
use crate::driver::{CudaEvent, EventHandle, StreamHandle};
use crosshandle_hal::BackendTimestamps;
use crosshandle_os::process;
use crosshandle_types::error::Result;
use crosshandle_types::sync::Mutex;
use std::sync::Arc;

/// Time, in nanoseconds, for which a base is used. A base is a moment whose time is known on both
/// clocks. The driver reports times since the base as 32-bit floats, which after 4 s are accurate
/// to a quarter of a microsecond.
const CLOCK_LIFETIME_NS: u64 = 4_000_000_000;

/// Number of attempts to find a new base. The fastest attempt is the most accurate.
const CLOCK_TRIES: usize = 3;

/// Maximum time of an attempt to find a base, in nanoseconds, before a command is submitted and
/// while its times are read. A slower attempt is queued behind other streams, which may wait
/// indefinitely.
const CLOCK_TRY_SUBMIT_NS: u64 = 5_000_000;

const CLOCK_TRY_READ_NS: u64 = 100_000_000;

/// Time after a failed attempt to find a base, in nanoseconds, in which no command makes another
/// attempt. Commands submitted in this time get their times late.
const CLOCK_PAUSE_NS: u64 = 100_000_000;

/// A moment whose time is known on both clocks.
struct Base {
    event: CudaEvent,
    /// The time of this moment, in nanoseconds of the host's monotonic clock.
    host: u64,
}

/// The latest moment that both clocks of a device know, in one context.
#[derive(Default)]
pub(super) struct Clock(Mutex<Latest>);

#[derive(Default)]
struct Latest {
    base: Option<Arc<Base>>,
    /// The earliest time of the next attempt, if the latest attempt failed.
    next_try: u64,
}

impl Gpu {
    /// Finds a moment that both clocks know, before a command with times is submitted. The device's
    /// context is current. The caller holds no lock, because this may take several milliseconds.
    pub(crate) fn refresh_clock(&self) -> Result<()> {
        base(self, CLOCK_TRY_SUBMIT_NS).map(drop)
    }
}

/// Returns a recent moment that both clocks know. If finding a new one would wait for other
/// streams, returns an old moment or none. The device's context is current.
fn base(gpu: &Gpu, longest: u64) -> Result<Option<Arc<Base>>> {
    let now = process::monotonic_nanoseconds();
    let known = {
        let latest = gpu.clock.0.lock();
        let is_young = |base: &Arc<Base>| now.saturating_sub(base.host) < CLOCK_LIFETIME_NS;
        let serves = latest.base.as_ref().is_some_and(is_young);
        let is_paused = longest == CLOCK_TRY_SUBMIT_NS && now < latest.next_try;
        if serves || is_paused {
            return Ok(latest.base.clone());
        }
        latest.base.clone()
    };
    // An attempt would fail.
    if gpu.scheduler().is_crowded() {
        return Ok(known);
    }
    let found = find(gpu, longest)?.map(Arc::new);
    let mut latest = gpu.clock.0.lock();
    match &found {
        Some(base) => latest.base = Some(Arc::clone(base)),
        None => latest.next_try = process::monotonic_nanoseconds() + CLOCK_PAUSE_NS,
    }
    Ok(found.or(known))
}

/// Finds a moment that both clocks know.
fn find(gpu: &Gpu, longest: u64) -> Result<Option<Base>> {
    let driver = gpu.driver();
    let Ok(Some(stream)) = gpu.pool().try_take(gpu) else {
        return Ok(None);
    };
    let mut best: Option<(u64, Base)> = None;
    for _ in 0..CLOCK_TRIES {
        let event = driver.create_event(true)?;
        let before = process::monotonic_nanoseconds();
        driver.record_event(event.handle(), stream.handle())?;
        let took = loop {
            let is_done = driver.is_event_done(event.handle())?;
            let took = process::monotonic_nanoseconds() - before;
            if is_done {
                break took;
            }
            if took > longest {
                // The stream is dropped too, because it has something in flight.
                return Ok(None);
            }
            std::hint::spin_loop();
        };
        let host = before + took / 2;
        if best.as_ref().is_none_or(|(least, _)| took < *least) {
            best = Some((took, Base { event, host }));
        }
    }
    gpu.pool().put(stream);
    Ok(best.map(|(_, base)| base))
}

/// The start and end times of one command.
pub(crate) struct CommandTimes {
    gpu: Arc<Gpu>,
    /// The moment that was known when the command was submitted, if any.
    base: Option<Arc<Base>>,
    submitted: u64,
    start: CudaEvent,
    end: CudaEvent,
}

impl CommandTimes {
    /// Records the time at which a stream starts the commands that are submitted from now on. The
    /// device's context is current.
    pub(crate) fn begin(gpu: &Arc<Gpu>, stream: StreamHandle) -> Result<Self> {
        let base = gpu.clock.0.lock().base.clone();
        let driver = gpu.driver();
        let times = Self {
            gpu: Arc::clone(gpu),
            base,
            submitted: process::monotonic_nanoseconds(),
            start: driver.create_event(true)?,
            end: driver.create_event(true)?,
        };
        driver.record_event(times.start.handle(), stream)?;
        Ok(times)
    }

    /// Records the time at which the stream has finished the commands that were submitted since
    /// [`begin`](Self::begin).
    pub(crate) fn end(&self, stream: StreamHandle) -> Result<()> {
        self.gpu.driver().record_event(self.end.handle(), stream)
    }

    /// Returns the time at which an event happened, calculated from a moment before or after it.
    /// Returns 0 if the event has not happened yet.
    fn time_of(&self, event: EventHandle, base: &Base) -> Result<u64> {
        let driver = self.gpu.driver();
        if !driver.is_event_done(event)? {
            return Ok(0);
        }
        let since = driver.milliseconds_between(base.event.handle(), event)?;
        let time = base.host as i64 + (f64::from(since) * 1e6) as i64;
        // The clocks agree only to a few microseconds, so the result is limited to the time since
        // submission.
        let now = process::monotonic_nanoseconds();
        Ok((time as u64).clamp(self.submitted, now))
    }
}

impl BackendTimestamps for CommandTimes {
    fn read(&self) -> (u64, u64) {
        let times = self.gpu.enter().and_then(|_current| {
            let late = match &self.base {
                Some(_) => None,
                None => base(&self.gpu, CLOCK_TRY_READ_NS)?,
            };
            let Some(base) = self.base.as_ref().or(late.as_ref()) else {
                // No moment is known yet.
                return Ok((0, 0));
            };
            let started = self.time_of(self.start.handle(), base)?;
            let ended = self.time_of(self.end.handle(), base)?;
            Ok((started, ended.max(if ended == 0 { 0 } else { started })))
        });
        times.unwrap_or_else(|error| {
            tracing::warn!(%error, "the times of a command are lost");
            (0, 0)
        })
    }
}
