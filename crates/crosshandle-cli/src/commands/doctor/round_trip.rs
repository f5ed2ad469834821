//! A check that sharing works: shares objects with a child process, and then kills that process.

use super::check::Check;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::peer::{Peer, Role};
use crate::settings::Settings;
use crate::transfer::Transfer;
use crate::units::nanoseconds;
use crosshandle::{Device, Event, EventHandle, MemoryHandle};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Maximum duration of each step of `doctor`'s exchange with its child process.
///
/// All steps together normally take milliseconds. With much less, a busy machine could be reported
/// as a problem.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Size in bytes of the memory that `doctor` shares with its child process.
const LEN: usize = 64 << 10;

/// Handles of the parent's shared objects, as text.
#[derive(Serialize, Deserialize)]
struct Offer {
    memory: String,
    event: String,
}

/// Handle of the child's shared event, as text. It is sent after the child has written to the
/// memory and signalled.
#[derive(Serialize, Deserialize)]
struct Reply {
    event: String,
}

pub(super) fn check(settings: &Settings) -> Vec<Check> {
    let devices = Device::all();
    let mut checks: Vec<_> = devices
        .iter()
        .map(|device| {
            let check = format!("sharing on {device}");
            match exchange(device, settings) {
                Ok((shared, noticed)) => Check::ok(
                    check,
                    format!(
                        "memory and an event crossed in {}; the death of a process was noticed \
                         in {}",
                        nanoseconds(shared.as_nanos() as f64),
                        nanoseconds(noticed.as_nanos() as f64)
                    ),
                ),
                Err(failure) => Check::problem(
                    check,
                    failure.message(),
                    "see the rows of the socket directory and of the limits",
                ),
            }
        })
        .collect();
    if checks.is_empty() {
        checks.push(Check::problem(
            "sharing",
            "there is no device",
            "see the rows of the drivers",
        ));
    }
    checks
}

/// Shares objects with a child process, and then kills that process. Returns the time until
/// everything was shared, and the time from the death until a waiting thread was notified.
fn exchange(device: &Device, settings: &Settings) -> Result<(Duration, Duration)> {
    let mut peer = Peer::start(Role::Doctor, settings)?;
    let shared = share(device, settings, &mut peer);
    let (childs_event, sharing_time) = shared.map_err(|failure| peer.root_cause(failure))?;

    let start = Instant::now();
    drop(peer);
    match childs_event.wait_value_timeout(1, TIMEOUT) {
        Err(error) if error.is_peer_dead() => Ok((sharing_time, start.elapsed())),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Failure::error(
            "an event of a dead process is reported as signalled",
        )),
    }
}

/// Shares objects with the child process. Returns an event that the child process created and never
/// signals, and the total time.
fn share(device: &Device, settings: &Settings, peer: &mut Peer) -> Result<(Event, Duration)> {
    let start = Instant::now();
    let context = settings.context_on(&device.to_string(), None)?;
    let memory = context.allocate(LEN)?;
    Transfer::new(&context, &memory)?.write(0, &pattern(1))?;
    let event = context.create_event()?;
    peer.link().send(&Offer {
        memory: memory.handle()?.to_string(),
        event: event.handle()?.to_string(),
    })?;
    let reply: Reply = peer.link().receive(TIMEOUT)?;
    event.wait_value_timeout(1, TIMEOUT)?;
    verify(&Transfer::new(&context, &memory)?, 2)?;
    let childs_event: EventHandle = reply.event.parse()?;
    let childs_event = context.open_event(&childs_event)?;
    Ok((childs_event, start.elapsed()))
}

/// Runs the child process's part of the check.
pub(crate) fn run_child(link: &mut Link, settings: &Settings) -> Result<()> {
    let offer: Offer = link.receive(TIMEOUT)?;
    let handle: MemoryHandle = offer.memory.parse()?;
    let context = settings.context_for(handle.backend(), handle.device(), None)?;
    let memory = context.open_memory(&handle)?;
    verify(&Transfer::new(&context, &memory)?, 1)?;
    Transfer::new(&context, &memory)?.write(0, &pattern(2))?;
    let event: EventHandle = offer.event.parse()?;
    context.open_event(&event)?.signal()?;
    let own = context.create_event()?;
    link.send(&Reply {
        event: own.handle()?.to_string(),
    })?;
    // The parent process sends nothing more, and kills this process during this wait.
    link.receive(TIMEOUT)
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
        "the memory does not have the bytes that the other process wrote",
    ))
}
