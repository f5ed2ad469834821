//! The demo's first process. It is the parent, and allocates and exports the memory.

use super::Args;
use super::measure::{self, Percentiles};
use super::messages::{Done, Goodbye, Offer, Reply};
use super::pattern::{Pattern, Side};
use super::pin::{Pinned, two_cpus};
use super::report::{Exchange, Handles, Report, Times};
use super::signal_pair::SignalPair;
use super::stop::{StopPoint, stop_at};
use crate::failure::{ErrorContext as _, Failure, Result};
use crate::peer::{Peer, Role};
use crate::progress::Progress;
use crate::settings::Settings;
use crate::transfer::Transfer;
use crate::tuning::DEMO_PINGS_BEFORE_MIDDLE;
use crosshandle::{EventHandle, EventOptions};
use std::time::{Duration, Instant};

/// Maximum number of round trips of one ping-pong.
///
/// This number gives a stable 99th percentile. On slow machines, `DEMO_PING_TIME` ends the
/// ping-pong earlier.
const DEMO_PINGS_MAX: u64 = 20_000;

/// Time after which a ping-pong ends even if it has made fewer round trips.
///
/// The user waits for two ping-pongs. With less time, slow machines give fewer samples.
const DEMO_PING_TIME: Duration = Duration::from_millis(500);

const SIDE: Side = Side::First;

pub(super) fn run(args: &Args, settings: &Settings) -> Result<Report> {
    let mut peer = Peer::start(Role::Demo, settings)?;
    let report = share(args, settings, &mut peer).map_err(|failure| peer.root_cause(failure))?;
    peer.finish(args.step_timeout())?;
    Ok(report)
}

fn share(args: &Args, settings: &Settings, peer: &mut Peer) -> Result<Report> {
    let progress = Progress::steps("starting a second process");
    let timeout = args.step_timeout();
    let peer_pid = peer.pid();
    let at = |point| stop_at(SIDE, point, peer_pid);
    let cpus = two_cpus();
    at(StopPoint::Started);

    progress.step("allocating the memory to share");
    let context = settings.context_on(&args.device, None)?;
    let shared = context
        .allocate(args.size as usize)
        .context("allocating the memory to share")?;
    let own = context.create_event()?;
    let (handle, get_first) = measure::once(|| shared.handle())?;
    let get_again = measure::mean(|| shared.handle())?;
    peer.link().send(&Offer {
        memory: handle.to_string(),
        event: own.handle()?.to_string(),
        rounds: args.rounds,
        timeout,
        cpus,
        device: args.peer_device.clone(),
        pid: std::process::id(),
    })?;
    at(StopPoint::Shared);
    let reply: Reply = peer.link().receive(timeout)?;
    let peers: EventHandle = reply.event.parse()?;
    let peers_low_power = context.open_event_with(&peers, EventOptions::new().low_power(true))?;
    let peers = context.open_event(&peers)?;

    progress.step("writing and verifying on both sides");
    let memory = Transfer::new(&context, &shared)?;
    let mut signals = SignalPair::new(&own, &peers, timeout);
    let mut verified = 0;
    for round in 0..args.rounds {
        let written = Pattern { side: SIDE, round };
        written.fill(&memory, SIDE.half(memory.len()))?;
        if round == args.rounds.min(2) - 1 {
            at(StopPoint::Exchange);
        }
        signals.signal_next()?;
        signals.wait_next()?;
        let expected = Pattern {
            side: Side::Second,
            round,
        };
        verified += expected.verify(&memory, expected.side.half(memory.len()))?;
    }

    progress.step("measuring round trips");
    let pinned = cpus.and_then(|[cpu, _]| Pinned::to(cpu));
    let round_trip = ping(&memory, &mut signals, || at(StopPoint::Latency))?;
    let mut signals = signals.waiting_on(&peers_low_power);
    let round_trip_asleep = ping(&memory, &mut signals, || ())?;
    drop(pinned);
    let (signal, wait) = measure::signal_and_wait(&context)?;

    progress.step("measuring bandwidth");
    let everything = Pattern {
        side: SIDE,
        round: args.rounds,
    };
    everything.fill(&memory, 0..memory.len())?;
    signals.signal_next()?;
    at(StopPoint::Bandwidth);
    let done: Done = peer.link().receive(timeout)?;
    at(StopPoint::Done);
    peer.link().send(&Goodbye {})?;

    Ok(Report {
        device: context.device().to_string(),
        device_name: context.device().info().name.clone(),
        peer_device: reply.device.clone(),
        processes: [std::process::id(), peer_pid],
        exchange: Exchange {
            size: args.size,
            rounds: args.rounds,
            bytes_verified: verified + done.verified,
            signals_verified: signals.waits() + done.signals,
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
                open: reply.opens,
            },
        },
        read_bandwidth: done.bandwidth,
        verified: true,
    })
}

/// Runs the ping-pong: sends numbers through the memory, which the second process must send back
/// inverted. The number 0 ends the ping-pong. Returns the time of each round trip.
fn ping(
    memory: &Transfer<'_>,
    signals: &mut SignalPair<'_>,
    halfway: impl Fn(),
) -> Result<Percentiles> {
    let to = SIDE.half(memory.len()).start;
    let from = Side::Second.half(memory.len()).start;
    let mut samples = Vec::with_capacity(DEMO_PINGS_MAX as usize);
    let mut word = [0; 8];
    let begin = Instant::now();
    for number in 1..=DEMO_PINGS_MAX {
        memory.write(to, &number.to_le_bytes())?;
        if number == DEMO_PINGS_BEFORE_MIDDLE {
            halfway();
        }
        let start = Instant::now();
        signals.signal_next()?;
        signals.wait_next()?;
        samples.push(start.elapsed());
        memory.read(from, &mut word)?;
        let found = u64::from_le_bytes(word);
        if found != !number {
            return Err(Failure::error(format!(
                "verification failed: ping {number} came back as {found:#x}"
            )));
        }
        if number > DEMO_PINGS_BEFORE_MIDDLE && begin.elapsed() > DEMO_PING_TIME {
            break;
        }
    }
    memory.write(to, &[0; 8])?;
    signals.signal_next()?;
    signals.wait_next()?;
    Ok(Percentiles::of(samples))
}
