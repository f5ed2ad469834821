//! The demo's second process. It is the child, and opens the memory.

use super::measure::{self, Opens};
use super::messages::{Done, Goodbye, Offer, Reply};
use super::pattern::{Pattern, Side};
use super::pin::Pinned;
use super::signal_pair::SignalPair;
use super::stop::{StopPoint, stop_at};
use crate::failure::{ErrorContext as _, Failure, Result};
use crate::link::Link;
use crate::settings::Settings;
use crate::transfer::Transfer;
use crate::tuning::DEMO_PINGS_BEFORE_MIDDLE;
use crosshandle::{Context, Event, EventHandle, EventOptions, Memory, MemoryHandle};
use std::time::Duration;

/// Maximum time for the demo's first process to create the shared objects.
///
/// Initialising a GPU's driver and allocating most of its memory takes seconds. With much less, a
/// demo could fail on a machine with many GPUs.
const DEMO_OFFER_TIMEOUT: Duration = Duration::from_secs(60);

const SIDE: Side = Side::Second;

/// Runs the child process's part of the demo.
pub(crate) fn run_child(link: &mut Link, settings: &Settings) -> Result<()> {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    stop_at(SIDE, StopPoint::Started, parent);
    let offer: Offer = link.receive(DEMO_OFFER_TIMEOUT)?;
    let at = |point| stop_at(SIDE, point, offer.pid);
    let handle: MemoryHandle = offer.memory.parse()?;
    let timeout = Some(offer.timeout);
    let context = match &offer.device {
        Some(device) => settings.context_on(device, timeout)?,
        None => settings.context_for(handle.backend(), handle.device(), timeout)?,
    };
    let opened = OpenedOffer::new(&context, &offer, &handle)?;
    let own = context.create_event()?;
    at(StopPoint::Shared);
    link.send(&Reply {
        event: own.handle()?.to_string(),
        device: context.device().to_string(),
        opens: opened.times,
    })?;

    let memory = Transfer::new(&context, &opened.memory)?;
    let mut signals = SignalPair::new(&own, &opened.event, offer.timeout);
    let mut verified = 0;
    for round in 0..offer.rounds {
        signals.wait_next()?;
        let expected = Pattern {
            side: Side::First,
            round,
        };
        verified += expected.verify(&memory, expected.side.half(memory.len()))?;
        let written = Pattern { side: SIDE, round };
        written.fill(&memory, SIDE.half(memory.len()))?;
        if round == offer.rounds.min(2) - 1 {
            at(StopPoint::Exchange);
        }
        signals.signal_next()?;
    }

    let pinned = offer.cpus.and_then(|[_, cpu]| Pinned::to(cpu));
    echo(&memory, &mut signals, || at(StopPoint::Latency))?;
    let mut signals = signals.waiting_on(&opened.low_power_event);
    echo(&memory, &mut signals, || ())?;
    drop(pinned);

    signals.wait_next()?;
    at(StopPoint::Bandwidth);
    let bandwidth = measure::read_bandwidth(&memory)?;
    let everything = Pattern {
        side: Side::First,
        round: offer.rounds,
    };
    verified += everything.verify(&memory, 0..memory.len())?;
    at(StopPoint::Done);
    link.send(&Done {
        verified,
        signals: signals.waits(),
        bandwidth,
    })?;
    let Goodbye {} = link.receive(offer.timeout)?;
    Ok(())
}

/// The first process's objects, opened in this process.
struct OpenedOffer {
    memory: Memory,
    event: Event,
    /// The first process's event, opened a second time for waits that sleep at once.
    low_power_event: Event,
    times: Opens,
}

impl OpenedOffer {
    fn new(context: &Context, offer: &Offer, handle: &MemoryHandle) -> Result<Self> {
        let event_handle: EventHandle = offer.event.parse()?;
        let (memory, memory_first) =
            measure::once(|| context.open_memory(handle)).context("opening the memory")?;
        let memory_again = measure::mean(|| context.open_memory(handle))?;
        let (event, event_first) =
            measure::once(|| context.open_event(&event_handle)).context("opening the event")?;
        let event_again = measure::mean(|| context.open_event(&event_handle))?;
        let options = EventOptions::new().low_power(true);
        let low_power_event = context.open_event_with(&event_handle, options)?;
        Ok(Self {
            memory,
            event,
            low_power_event,
            times: Opens {
                memory_first,
                memory_again,
                event_first,
                event_again,
            },
        })
    }
}

/// Replies to every ping of the first process, until a ping contains 0.
///
/// A ping is a word in the first process's half of the memory. The reply is the inverted word, in
/// this process's half.
fn echo(memory: &Transfer<'_>, signals: &mut SignalPair<'_>, halfway: impl Fn()) -> Result<()> {
    let (from, to) = (Side::First, SIDE);
    let mut word = [0; 8];
    for expected in 1_u64.. {
        signals.wait_next()?;
        memory.read(from.half(memory.len()).start, &mut word)?;
        match u64::from_le_bytes(word) {
            0 => return signals.signal_next(),
            found if found == expected => {}
            found => {
                return Err(Failure::error(format!(
                    "verification failed: ping {expected} carries {found}"
                )));
            }
        }
        memory.write(to.half(memory.len()).start, &(!expected).to_le_bytes())?;
        if expected == DEMO_PINGS_BEFORE_MIDDLE {
            halfway();
        }
        signals.signal_next()?;
    }
    Ok(())
}
