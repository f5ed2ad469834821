//! A real exchange with a second process, and a real death.

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

const LEN: usize = 64 << 10;

/// Far more than any of this takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the first process shares.
#[derive(Serialize, Deserialize)]
struct Offer {
    memory: String,
    event: String,
}

/// What the second process shares, once it has written to the memory and signalled.
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

/// Shares with a second process, then kills it. How long did either take?
fn exchange(device: &Device, settings: &Settings) -> Result<(Duration, Duration)> {
    let mut peer = Peer::start(Role::Doctor, settings)?;
    let shared = share(device, settings, &mut peer);
    let (theirs, taken) = shared.map_err(|failure| peer.blame(failure))?;

    let start = Instant::now();
    drop(peer);
    match theirs.wait_value_timeout(1, PATIENCE) {
        Err(error) if error.is_peer_dead() => Ok((taken, start.elapsed())),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Failure::error("a dead process counts as having signalled")),
    }
}

fn share(device: &Device, settings: &Settings, peer: &mut Peer) -> Result<(Event, Duration)> {
    let start = Instant::now();
    let context = settings.origin.context_on(&device.to_string())?;
    let memory = context.allocate(LEN)?;
    Transfer::new(&context, &memory)?.write(0, &pattern(1))?;
    let event = context.create_event()?;
    peer.link().send(&Offer {
        memory: memory.handle()?.to_string(),
        event: event.handle()?.to_string(),
    })?;
    let answer: Answer = peer.link().receive(PATIENCE)?;
    event.wait_value_timeout(1, PATIENCE)?;
    verify(&Transfer::new(&context, &memory)?, 2)?;
    let theirs: EventHandle = answer.event.parse()?;
    let theirs = context.open_event(&theirs)?;
    Ok((theirs, start.elapsed()))
}

/// The second process's part.
pub(crate) fn answer(link: &mut Link, settings: &Settings) -> Result<()> {
    let offer: Offer = link.receive(PATIENCE)?;
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
    // To be killed here.
    link.receive(PATIENCE)
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|index| (index * seed % 251) as u8).collect()
}

fn verify(memory: &Transfer<'_>, seed: usize) -> Result<()> {
    let mut found = vec![0; LEN];
    memory.read(0, &mut found)?;
    if found == pattern(seed) {
        return Ok(());
    }
    Err(Failure::error(
        "the memory has other bytes than the other process wrote",
    ))
}
