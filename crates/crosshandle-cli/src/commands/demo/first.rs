//! The first process of the demo, which creates and exports.

use super::Args;
use super::measure::{self, Percentiles};
use super::messages::{Answer, Done, Goodbye, Offer};
use super::pattern::{Pattern, Side};
use super::pin::{Pinned, two_cpus};
use super::report::{Exchange, Handles, Report, Times};
use super::stop::{self, Point};
use super::turns::Turns;
use crate::cli::Settings;
use crate::commands::peer::Role;
use crate::failure::{Context as _, Failure, Result};
use crate::peer::Peer;
use crate::progress::Progress;
use crate::transfer::Transfer;
use crosshandle::{EventHandle, EventOptions};
use std::time::{Duration, Instant};

/// Greatest number of pings, and longest time for them.
const MAX_PINGS: u64 = 20_000;
const PING_TIME_LIMIT: Duration = Duration::from_millis(500);

const SIDE: Side = Side::First;

pub(super) fn run(args: &Args, settings: &Settings) -> Result<Report> {
    let mut peer = Peer::start(Role::Demo, settings)?;
    let report = share(args, settings, &mut peer).map_err(|failure| peer.cause_of(failure))?;
    peer.finish(args.time_limit())?;
    Ok(report)
}

fn share(args: &Args, settings: &Settings, peer: &mut Peer) -> Result<Report> {
    let progress = Progress::steps("starting a second process");
    let time_limit = args.time_limit();
    let peer_pid = peer.pid();
    let at = |point| stop::at(SIDE, point, peer_pid);
    let cpus = two_cpus();
    at(Point::Started);

    progress.step("allocating the memory to share");
    let context = settings.origin.context_on(&args.device)?;
    let shared = context
        .allocate(args.size as usize)
        .context("allocating the memory to share")?;
    let mine = context.create_event()?;
    let (handle, get_first) = measure::once(|| shared.handle())?;
    let get_again = measure::mean(|| shared.handle())?;
    peer.link().send(&Offer {
        memory: handle.to_string(),
        event: mine.handle()?.to_string(),
        rounds: args.rounds,
        time_limit,
        cpus,
        device: args.peer_device.clone(),
        pid: std::process::id(),
    })?;
    at(Point::Shared);
    let answer: Answer = peer.link().receive(time_limit)?;
    let theirs: EventHandle = answer.event.parse()?;
    let sleepy = context.open_event_with(&theirs, EventOptions::new().low_power(true))?;
    let theirs = context.open_event(&theirs)?;

    progress.step("writing and verifying on both sides");
    let memory = Transfer::new(&context, &shared)?;
    let mut turns = Turns::new(&mine, &theirs, time_limit);
    let mut verified = 0;
    for round in 0..args.rounds {
        let ours = Pattern { side: SIDE, round };
        ours.fill(&memory, SIDE.half(memory.len()))?;
        if round == args.rounds.min(2) - 1 {
            at(Point::Exchange);
        }
        turns.pass()?;
        turns.take()?;
        let theirs = Pattern {
            side: Side::Second,
            round,
        };
        verified += theirs.verify(&memory, theirs.side.half(memory.len()))?;
    }

    progress.step("measuring round trips");
    let pinned = cpus.and_then(|[cpu, _]| Pinned::to(cpu));
    let round_trip = ping(&memory, &mut turns, || at(Point::Latency))?;
    let mut turns = turns.waiting_on(&sleepy);
    let round_trip_asleep = ping(&memory, &mut turns, || ())?;
    drop(pinned);
    let (signal, wait) = measure::signal_and_wait(&context)?;

    progress.step("measuring bandwidth");
    let everything = Pattern {
        side: SIDE,
        round: args.rounds,
    };
    everything.fill(&memory, 0..memory.len())?;
    turns.pass()?;
    at(Point::Bandwidth);
    let done: Done = peer.link().receive(time_limit)?;
    at(Point::Done);
    peer.link().send(&Goodbye {})?;

    Ok(Report {
        device: context.device().to_string(),
        device_name: context.device().info().name.clone(),
        peer_device: answer.device.clone(),
        processes: [std::process::id(), peer_pid],
        exchange: Exchange {
            size: args.size,
            rounds: args.rounds,
            bytes_verified: verified + done.verified,
            signals_verified: turns.taken() + done.signals,
        },
        cpus,
        nanoseconds: Times {
            round_trip,
            round_trip_asleep,
            signal,
            wait,
            handles: Handles {
                get_first,
                get_again,
                open: answer.opens,
            },
        },
        read_bandwidth: done.bandwidth,
        verified: true,
    })
}

/// Sends pings, each with a number that must come back inverted, and then one with 0 to end.
fn ping(memory: &Transfer<'_>, turns: &mut Turns<'_>, halfway: impl Fn()) -> Result<Percentiles> {
    let to = SIDE.half(memory.len()).start;
    let from = Side::Second.half(memory.len()).start;
    let mut samples = Vec::with_capacity(MAX_PINGS as usize);
    let mut word = [0; 8];
    let begin = Instant::now();
    for number in 1..=MAX_PINGS {
        memory.write(to, &number.to_le_bytes())?;
        if number == 100 {
            halfway();
        }
        let start = Instant::now();
        turns.pass()?;
        turns.take()?;
        samples.push(start.elapsed());
        memory.read(from, &mut word)?;
        let found = u64::from_le_bytes(word);
        if found != !number {
            return Err(Failure::error(format!(
                "verification failed: ping {number} came back as {found:#x}"
            )));
        }
        // Long enough for `halfway`, even on the slowest machine.
        if number > 100 && begin.elapsed() > PING_TIME_LIMIT {
            break;
        }
    }
    memory.write(to, &[0; 8])?;
    turns.pass()?;
    turns.take()?;
    Ok(Percentiles::of(samples))
}
