//! Check of sharing with a second process, and of noticing its death.

use super::row::Row;
use crate::cli::Settings;
use crate::commands::peer::Role;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::peer::Peer;
use crate::transfer::Transfer;
use crate::units::nanoseconds;
use crosshandle::{Device, Event, EventHandle, MemoryHandle};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const SHARED_BYTES: usize = 64 << 10;

/// Longest time of each step: far more than any takes.
const STEP_TIME_LIMIT: Duration = Duration::from_secs(10);

/// The first process's objects.
#[derive(Serialize, Deserialize)]
struct Offer {
    memory: String,
    event: String,
}

/// The second process's event, sent once it has written to the memory and signalled.
#[derive(Serialize, Deserialize)]
struct Answer {
    event: String,
}

pub(super) fn check(settings: &Settings) -> Vec<Row> {
    let devices = Device::all();
    let mut rows: Vec<_> = devices
        .iter()
        .map(|device| {
            let check = format!("sharing on {device}");
            match exchange(device, settings) {
                Ok((shared, noticed)) => Row::ok(
                    check,
                    format!(
                        "memory and an event crossed in {}; the death of a process was noticed \
                         in {}",
                        nanoseconds(shared.as_nanos() as f64),
                        nanoseconds(noticed.as_nanos() as f64)
                    ),
                ),
                Err(failure) => Row::problem(
                    check,
                    failure.message(),
                    "see the rows of the socket directory and of the limits",
                ),
            }
        })
        .collect();
    if rows.is_empty() {
        rows.push(Row::problem(
            "sharing",
            "there is no device",
            "see the rows of the drivers",
        ));
    }
    rows
}

/// Shares with a second process and then kills it. Returns how long it took to share and to notice
/// the death.
fn exchange(device: &Device, settings: &Settings) -> Result<(Duration, Duration)> {
    let mut peer = Peer::start(Role::Doctor, settings)?;
    let shared = share(device, settings, &mut peer);
    let (theirs, taken) = shared.map_err(|failure| peer.cause_of(failure))?;

    let start = Instant::now();
    drop(peer);
    match theirs.wait_value_timeout(1, STEP_TIME_LIMIT) {
        Err(error) if error.is_peer_dead() => Ok((taken, start.elapsed())),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Failure::error("a dead process counts as having signalled")),
    }
}

fn share(device: &Device, settings: &Settings, peer: &mut Peer) -> Result<(Event, Duration)> {
    let start = Instant::now();
    let context = settings.origin.context_on(&device.to_string())?;
    let memory = context.allocate(SHARED_BYTES)?;
    Transfer::new(&context, &memory)?.write(0, &pattern(1))?;
    let event = context.create_event()?;
    peer.link().send(&Offer {
        memory: memory.handle()?.to_string(),
        event: event.handle()?.to_string(),
    })?;
    let answer: Answer = peer.link().receive(STEP_TIME_LIMIT)?;
    event.wait_value_timeout(1, STEP_TIME_LIMIT)?;
    verify(&Transfer::new(&context, &memory)?, 2)?;
    let theirs: EventHandle = answer.event.parse()?;
    let theirs = context.open_event(&theirs)?;
    Ok((theirs, start.elapsed()))
}

/// Plays the second process.
pub(crate) fn answer(link: &mut Link, settings: &Settings) -> Result<()> {
    let offer: Offer = link.receive(STEP_TIME_LIMIT)?;
    let handle: MemoryHandle = offer.memory.parse()?;
    let context = settings
        .origin
        .context_for(handle.backend(), handle.device())?;
    let memory = context.open_memory(&handle)?;
    verify(&Transfer::new(&context, &memory)?, 1)?;
    Transfer::new(&context, &memory)?.write(0, &pattern(2))?;
    let event: EventHandle = offer.event.parse()?;
    context.open_event(&event)?.signal()?;
    let never = context.create_event()?;
    link.send(&Answer {
        event: never.handle()?.to_string(),
    })?;
    // The first process kills this one here.
    link.receive(STEP_TIME_LIMIT)
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..SHARED_BYTES)
        .map(|index| (index * seed % 251) as u8)
        .collect()
}

fn verify(memory: &Transfer<'_>, seed: usize) -> Result<()> {
    let mut found = vec![0; SHARED_BYTES];
    memory.read(0, &mut found)?;
    if found == pattern(seed) {
        return Ok(());
    }
    Err(Failure::error(
        "the memory has other bytes than the other process wrote",
    ))
}
