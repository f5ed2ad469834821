//! When commands ran, by the device's clock, told by the host's.

use super::device::Gpu;
use super::driver::{CudaEvent, EventHandle, StreamHandle};
use crate::error::Result;
use crate::ipc::Timestamps;
use crate::os::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long a moment that both clocks know serves: the driver tells times since then in 32-bit
/// floats, after 4 s to a quarter of a microsecond.
const LIFETIME: u64 = 4_000_000_000;
/// Tries to find such a moment; the one that takes least time is the most exact.
const TRIES: usize = 3;
/// How long a try may take, while a command is submitted and while its times are read. What takes
/// longer is behind other streams, which may wait for anything.
const SHORT: u64 = 5_000_000;
const LONG: u64 = 100_000_000;
/// How long no command tries again then.
const PAUSE: u64 = 100_000_000;

/// A moment that both clocks know.
struct Base {
    event: CudaEvent,
    /// In nanoseconds of the monotonic clock.
    host: u64,
}

/// The latest one of a device, in one context.
#[derive(Default)]
pub(super) struct Clock(Mutex<Latest>);

impl Clock {
    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Latest {
    base: Option<Arc<Base>>,
    /// When the next command may try, if the latest failed.
    next_try: u64,
}

/// The device's context is current. None, or an old one, if none can be found without waiting for
/// other streams.
fn base(gpu: &Arc<Gpu>, longest: u64) -> Result<Option<Arc<Base>>> {
    let now = process::monotonic_nanoseconds();
    let known = {
        let latest = gpu.clock().latest();
        let is_young = |base: &Arc<Base>| now.saturating_sub(base.host) < LIFETIME;
        let serves = latest.base.as_ref().is_some_and(is_young);
        let is_paused = longest == SHORT && now < latest.next_try;
        if serves || is_paused {
            return Ok(latest.base.clone());
        }
        latest.base.clone()
    };
    // It would be in vain.
    if gpu.traffic().is_crowded() {
        return Ok(known);
    }
    let found = find(gpu, longest)?.map(Arc::new);
    let mut latest = gpu.clock().latest();
    match &found {
        Some(base) => latest.base = Some(Arc::clone(base)),
        None => latest.next_try = process::monotonic_nanoseconds() + PAUSE,
    }
    Ok(found.or(known))
}

/// Finds such a moment now.
fn find(gpu: &Arc<Gpu>, longest: u64) -> Result<Option<Base>> {
    let driver = gpu.driver();
    let Ok(Some(stream)) = gpu.stock().try_take(gpu) else {
        return Ok(None);
    };
    let mut best: Option<(u64, Base)> = None;
    for _ in 0..TRIES {
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
                // The stream goes too: it has something under way.
                return Ok(None);
            }
            std::hint::spin_loop();
        };
        let host = before + took / 2;
        if best.as_ref().is_none_or(|(least, _)| took < *least) {
            best = Some((took, Base { event, host }));
        }
    }
    gpu.stock().put(stream);
    Ok(best.map(|(_, base)| base))
}

/// The times of one command.
pub(super) struct CommandTimes {
    gpu: Arc<Gpu>,
    /// If there was one when it was submitted.
    base: Option<Arc<Base>>,
    submitted: u64,
    start: CudaEvent,
    end: CudaEvent,
}

impl CommandTimes {
    /// Notes when a stream begins with what is submitted from now on. The device's context is
    /// current.
    pub(super) fn begin(gpu: &Arc<Gpu>, stream: StreamHandle) -> Result<Self> {
        let base = base(gpu, SHORT)?;
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

    /// By a moment before or after it.
    fn time_of(&self, event: EventHandle, base: &Base) -> Result<u64> {
        let driver = self.gpu.driver();
        if !driver.is_event_done(event)? {
            return Ok(0);
        }
        let since = driver.milliseconds_between(base.event.handle(), event)?;
        let time = base.host as i64 + (f64::from(since) * 1e6) as i64;
        // The clocks agree to some microseconds: not enough to say that it began too early.
        let now = process::monotonic_nanoseconds();
        Ok((time as u64).clamp(self.submitted, now))
    }
}

impl Timestamps for CommandTimes {
    fn read(&self) -> (u64, u64) {
        let times = self.gpu.enter().and_then(|_current| {
            let late = match &self.base {
                Some(_) => None,
                None => base(&self.gpu, LONG)?,
            };
            let Some(base) = self.base.as_ref().or(late.as_ref()) else {
                // Not yet.
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
