//! When commands ran, by the device's clock, told by the host's.

use super::device::Gpu;
use super::driver::{CudaEvent, EventHandle, StreamHandle};
use crate::error::Result;
use crate::os::process;
use crate::sharing::Timestamps;
use std::sync::{Arc, Mutex, PoisonError};

/// How long a moment that both clocks know serves: the driver tells times since then in 32-bit
/// floats, after 4 s to a quarter of a microsecond.
const LIFETIME: u64 = 4_000_000_000;
/// Tries to find such a moment; the one that takes least time is the most exact.
const TRIES: usize = 3;

/// A moment that both clocks know.
struct Base {
    event: CudaEvent,
    /// In nanoseconds of the monotonic clock.
    host: u64,
}

/// The latest one of a device, in one context.
#[derive(Default)]
pub(super) struct Clock(Mutex<Option<Arc<Base>>>);

/// The device's context is current.
fn base(gpu: &Arc<Gpu>) -> Result<Arc<Base>> {
    let mut latest = gpu.clock().0.lock().unwrap_or_else(PoisonError::into_inner);
    let now = process::monotonic_nanoseconds();
    // Where streams may come behind others that wait, an old one is better than none.
    if let Some(base) = &*latest
        && (now.saturating_sub(base.host) < LIFETIME || gpu.traffic().is_crowded())
    {
        return Ok(Arc::clone(base));
    }
    let driver = gpu.driver();
    let stream = gpu.stock().take(gpu)?;
    let mut best: Option<(u64, Base)> = None;
    for _ in 0..TRIES {
        let event = driver.create_event(true)?;
        let before = process::monotonic_nanoseconds();
        driver.record_event(event.handle(), stream.handle())?;
        driver.finish_event(event.handle())?;
        let took = process::monotonic_nanoseconds() - before;
        let host = before + took / 2;
        if best.as_ref().is_none_or(|(least, _)| took < *least) {
            best = Some((took, Base { event, host }));
        }
    }
    gpu.stock().put(stream);
    let (_, base) = best.expect("one of several");
    let base = Arc::new(base);
    *latest = Some(Arc::clone(&base));
    Ok(base)
}

/// The times of one command.
pub(super) struct CommandTimes {
    gpu: Arc<Gpu>,
    base: Arc<Base>,
    submitted: u64,
    start: CudaEvent,
    end: CudaEvent,
}

impl CommandTimes {
    /// Notes when a stream begins with what is submitted from now on. The device's context is
    /// current.
    pub(super) fn begin(gpu: &Arc<Gpu>, stream: StreamHandle) -> Result<Self> {
        let base = base(gpu)?;
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

    /// Notes when it is done with what was submitted since.
    pub(super) fn end(&self, stream: StreamHandle) -> Result<()> {
        self.gpu.driver().record_event(self.end.handle(), stream)
    }

    fn time_of(&self, event: EventHandle) -> Result<u64> {
        let driver = self.gpu.driver();
        if !driver.is_event_done(event)? {
            return Ok(0);
        }
        let since = driver.milliseconds_between(self.base.event.handle(), event)?;
        let time = self.base.host as i64 + (f64::from(since) * 1e6) as i64;
        // The clocks agree to some microseconds: not enough to say that it began too early.
        let now = process::monotonic_nanoseconds();
        Ok((time as u64).clamp(self.submitted, now))
    }
}

impl Timestamps for CommandTimes {
    fn read(&self) -> (u64, u64) {
        let times = self.gpu.enter().and_then(|_current| {
            let started = self.time_of(self.start.handle())?;
            let ended = self.time_of(self.end.handle())?;
            Ok((started, ended.max(if ended == 0 { 0 } else { started })))
        });
        times.unwrap_or_else(|error| {
            tracing::warn!(%error, "the times of a command are lost");
            (0, 0)
        })
    }
}
