//! The second process of the demo, which opens.

use super::measure::{self, Opens};
use super::messages::{Answer, Done, Goodbye, Offer};
use super::pattern::{Pattern, Side};
use super::pin::Pinned;
use super::stop::{self, Point};
use super::turns::Turns;
use crate::cli::Settings;
use crate::failure::{Context as _, Failure, Result};
use crate::link::Link;
use crate::transfer::Transfer;
use crosshandle::{Context, Event, EventHandle, EventOptions, Memory, MemoryHandle};
use std::time::Duration;

/// Longest time in which the first process creates its objects.
const OFFER_TIME_LIMIT: Duration = Duration::from_secs(60);

const SIDE: Side = Side::Second;

/// Plays the second process.
pub(crate) fn answer(link: &mut Link, settings: &Settings) -> Result<()> {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    stop::at(SIDE, Point::Started, parent);
    let offer: Offer = link.receive(OFFER_TIME_LIMIT)?;
    let at = |point| stop::at(SIDE, point, offer.pid);
    let handle: MemoryHandle = offer.memory.parse()?;
    let (origin, time_limit) = (&settings.origin, Some(offer.time_limit));
    let context = match &offer.device {
        Some(device) => origin.context_on_within(device, time_limit)?,
        None => origin.context_for_within(handle.backend(), handle.device(), time_limit)?,
    };
    let opened = Opened::new(&context, &offer, &handle)?;
    let mine = context.create_event()?;
    at(Point::Shared);
    link.send(&Answer {
        event: mine.handle()?.to_string(),
        device: context.device().to_string(),
        opens: opened.times,
    })?;

    let memory = Transfer::new(&context, &opened.memory)?;
    let mut turns = Turns::new(&mine, &opened.event, offer.time_limit);
    let mut verified = 0;
    for round in 0..offer.rounds {
        turns.take()?;
        let theirs = Pattern {
            side: Side::First,
            round,
        };
        verified += theirs.verify(&memory, theirs.side.half(memory.len()))?;
        let ours = Pattern { side: SIDE, round };
        ours.fill(&memory, SIDE.half(memory.len()))?;
        if round == offer.rounds.min(2) - 1 {
            at(Point::Exchange);
        }
        turns.pass()?;
    }

    let pinned = offer.cpus.and_then(|[_, cpu]| Pinned::to(cpu));
    echo(&memory, &mut turns, || at(Point::Latency))?;
    let mut turns = turns.waiting_on(&opened.sleepy_event);
    echo(&memory, &mut turns, || ())?;
    drop(pinned);

    turns.take()?;
    at(Point::Bandwidth);
    let bandwidth = measure::read_bandwidth(&memory)?;
    let everything = Pattern {
        side: Side::First,
        round: offer.rounds,
    };
    verified += everything.verify(&memory, 0..memory.len())?;
    at(Point::Done);
    link.send(&Done {
        verified,
        signals: turns.taken(),
        bandwidth,
    })?;
    let Goodbye {} = link.receive(offer.time_limit)?;
    Ok(())
}

/// The first process's objects, open in this one.
struct Opened {
    memory: Memory,
    event: Event,
    /// The first process's event, opened for low-power waits.
    sleepy_event: Event,
    times: Opens,
}

impl Opened {
    fn new(context: &Context, offer: &Offer, handle: &MemoryHandle) -> Result<Self> {
        let event_handle: EventHandle = offer.event.parse()?;
        let (memory, memory_first) =
            measure::once(|| context.open_memory(handle)).context("opening the memory")?;
        let memory_again = measure::mean(|| context.open_memory(handle))?;
        let (event, event_first) =
            measure::once(|| context.open_event(&event_handle)).context("opening the event")?;
        let event_again = measure::mean(|| context.open_event(&event_handle))?;
        let options = EventOptions::new().low_power(true);
        let sleepy_event = context.open_event_with(&event_handle, options)?;
        Ok(Self {
            memory,
            event,
            sleepy_event,
            times: Opens {
                memory_first,
                memory_again,
                event_first,
                event_again,
            },
        })
    }
}

/// Answers every ping: reads the word in the other side's half, and writes it inverted into this
/// one's. Ends after 0.
fn echo(memory: &Transfer<'_>, turns: &mut Turns<'_>, halfway: impl Fn()) -> Result<()> {
    let (from, to) = (Side::First, SIDE);
    let mut word = [0; 8];
    for expected in 1_u64.. {
        turns.take()?;
        memory.read(from.half(memory.len()).start, &mut word)?;
        match u64::from_le_bytes(word) {
            0 => return turns.pass(),
            found if found == expected => {}
            found => {
                return Err(Failure::error(format!(
                    "verification failed: ping {expected} carries {found}"
                )));
            }
        }
        memory.write(to.half(memory.len()).start, &(!expected).to_le_bytes())?;
        if expected == 100 {
            halfway();
        }
        turns.pass()?;
    }
    Ok(())
}
