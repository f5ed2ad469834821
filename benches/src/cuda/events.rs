//! The time to open events of another process.

use std::time::Duration;

use anyhow::{Result, ensure};
use crosshandle::Context;
use crosshandle::handle::EVENT_HANDLE_SIZE;

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{clock_cost, collect_timed, drop_once, drop_timed, once};
use crate::host::ours::{Waiters, each_event, open_event};
use crate::raw::cuda::{Event, Gpu, IPC_EVENT_SIZE};
use crate::report::row::rows;

const OPEN: &str = "cuda-events.open";
const CLOSE: &str = "cuda-events.close";

const NATIVE: &str = "cuIpcOpenEventHandle; cuEventDestroy";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-events",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: rows! {
        OPEN => "open an event, the peer's arena mapped", NATIVE, AtMost(1000.0);
        CLOSE => "close an event", NATIVE, None;
    },
    leader: run_leader,
    follower: run_follower,
};

/// Number of the library's events in a round.
const EVENTS: usize = 1000;
/// Number of the driver's events in a round. Opening one takes about a hundred times as long.
const NATIVE_EVENTS: usize = 16;
/// Number of rounds that are not recorded. They map the arena.
const WARM_UP_ROUNDS: usize = 2;

fn rounds(participant: &Participant) -> usize {
    WARM_UP_ROUNDS + participant.plan.rounds()
}

/// Runs the exporter. Each round has new events, so none is opened twice.
fn run_leader(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let context = ours::context(0)?;
    for round in 0..rounds(participant) {
        let events = (0..EVENTS).map(|_| Ok(context.create_event()?));
        let events = events.collect::<Result<Vec<_>>>()?;
        let handles = events.iter().map(|event| Ok(*event.handle()?.as_bytes()));
        link.send(&handles.collect::<Result<Vec<_>>>()?.concat())?;
        let natives = (0..NATIVE_EVENTS).map(|_| Event::create(&gpu));
        let natives = natives.collect::<Result<Vec<_>>>()?;
        let handles = natives.iter().map(Event::export);
        link.send(&handles.collect::<Result<Vec<_>>>()?.concat())?;
        link.await_number(round as u64)?;
    }
    Ok(Outcome::default())
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let context = ours::context(0)?;
    participant.plan.pin(0)?;
    let clock = clock_cost();
    let mut recorder = Recorder::default();
    for round in 0..rounds(participant) {
        let handles = link.receive()?.bytes;
        let natives = link.receive()?.bytes;
        ensure!(
            handles.len() == EVENTS * EVENT_HANDLE_SIZE
                && natives.len() == NATIVE_EVENTS * IPC_EVENT_SIZE,
            "expected more handles"
        );
        let mut figures = Recorder::default();
        for side in Side::order(round) {
            match side {
                Side::Ours => open_ours(&context, &handles, &mut figures)?,
                Side::Raw => open_native(&gpu, &natives, clock, &mut figures)?,
            }
        }
        if round >= WARM_UP_ROUNDS {
            recorder.absorb(figures);
        }
        link.send_number(round as u64)?;
    }
    Ok(recorder.finish())
}

fn open_ours(context: &Context, handles: &[u8], figures: &mut Recorder) -> Result<()> {
    let events = each_event(handles).map(|bytes| open_event(context, bytes, Waiters::Default));
    let (opened, each) = collect_timed(events)?;
    figures.push(OPEN, Side::Ours, each);
    figures.push(CLOSE, Side::Ours, drop_timed(opened));
    Ok(())
}

fn open_native(gpu: &Gpu, handles: &[u8], clock: f64, figures: &mut Recorder) -> Result<()> {
    let (handles, _) = handles.as_chunks();
    let mut opened = Vec::with_capacity(NATIVE_EVENTS);
    for bytes in handles {
        let (event, elapsed) = once(clock, || Event::open(gpu, *bytes))?;
        figures.push(OPEN, Side::Raw, elapsed);
        opened.push(event);
    }
    for event in opened {
        figures.push(CLOSE, Side::Raw, drop_once(clock, event));
    }
    Ok(())
}
