//! The time to open handles of another process whose segment is already mapped.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use crosshandle::handle::HANDLE_SIZE;
use crosshandle::{Context, Event, Memory};

use super::loader::Runtime;
use super::rows::row;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::nanoseconds;
use crate::host::ours::{self, Waiters};

const OPEN: &str = "ur-opens.memory.open";
const CLOSE: &str = "ur-opens.memory.close";
const EVENT_OPEN: &str = "ur-opens.event.open";
const EVENT_CLOSE: &str = "ur-opens.event.close";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "ur-opens",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: &[
        row(
            OPEN,
            "urIPCOpenMemHandleExp, segment mapped",
            "Context::open_memory",
        ),
        row(CLOSE, "urIPCCloseMemHandleExp", "drop"),
        // The adapter creates and destroys an object for each opened event.
        row(
            EVENT_OPEN,
            "urIPCOpenEventHandleExp, segment mapped",
            "Context::open_event",
        )
        .for_information(),
        row(EVENT_CLOSE, "urEventRelease, opened event", "drop").for_information(),
    ],
    leader: run_leader,
    follower: run_follower,
};

/// Number of objects of each kind in a round.
const OBJECTS: usize = 1_000;
/// Number of rounds before recording. They map the segments and fill the lists.
const WARM_UP_ROUNDS: usize = 3;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let link = participant.peer()?;
    // Each side has its own exporter, so that it does not find segments that the other side has
    // mapped.
    let exporters: [(Context, Vec<Memory>, Vec<Event>); 2] = [export()?, export()?];
    for (_, memory, events) in &exporters {
        let handles = memory.iter().map(|memory| Ok(*memory.handle()?.as_bytes()));
        link.send(&handles.collect::<Result<Vec<_>>>()?.concat())?;
        let handles = events.iter().map(|event| Ok(*event.handle()?.as_bytes()));
        link.send(&handles.collect::<Result<Vec<_>>>()?.concat())?;
    }
    ensure!(link.receive_number()? == 0, "the other process lost count");
    Ok(Outcome::default())
}

/// Creates the objects of one exporter.
fn export() -> Result<(Context, Vec<Memory>, Vec<Event>)> {
    let context = ours::context()?;
    let memory = (0..OBJECTS).map(|_| Ok(context.allocate(4096)?));
    let memory = memory.collect::<Result<_>>()?;
    let events = (0..OBJECTS).map(|_| Ok(context.create_event()?));
    let events = events.collect::<Result<_>>()?;
    Ok((context, memory, events))
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(1)?;
    let link = participant.peer()?;
    let runtime = Runtime::start()?;
    let context = ours::context()?;
    let mut messages = Vec::new();
    for _ in 0..4 {
        let bytes = link.receive()?.bytes;
        ensure!(
            bytes.len() == OBJECTS * HANDLE_SIZE,
            "expected {OBJECTS} handles"
        );
        messages.push(bytes);
    }
    let mut recorder = Recorder::default();
    for round in 0..WARM_UP_ROUNDS + participant.plan.pick(100, 20) {
        let mut figures = Recorder::default();
        for side in Side::order(round) {
            match side {
                Side::Ours => {
                    let (memory, events) = messages.split_at_mut(1);
                    through_loader(&runtime, &mut memory[0], &events[0], &mut figures)?;
                }
                Side::Raw => directly(&context, &messages[2], &messages[3], &mut figures)?,
            }
        }
        if round >= WARM_UP_ROUNDS {
            recorder.absorb(figures);
        }
    }
    link.send_number(0)?;
    Ok(recorder.finish())
}

/// Measures one round through the loader and the adapter.
fn through_loader(
    runtime: &Runtime,
    memory: &mut [u8],
    events: &[u8],
    recorder: &mut Recorder,
) -> Result<()> {
    let mut opened = Vec::with_capacity(OBJECTS);
    let start = Instant::now();
    for handle in memory.chunks_exact_mut(HANDLE_SIZE) {
        opened.push(runtime.open_memory(handle)?);
    }
    recorder.push(OPEN, Side::Ours, each(start));
    let start = Instant::now();
    for memory in opened {
        runtime.close_memory(memory)?;
    }
    recorder.push(CLOSE, Side::Ours, each(start));

    let mut opened = Vec::with_capacity(OBJECTS);
    let start = Instant::now();
    for handle in ours::each_handle(events) {
        opened.push(runtime.open_event(handle)?);
    }
    recorder.push(EVENT_OPEN, Side::Ours, each(start));
    let start = Instant::now();
    opened.clear();
    recorder.push(EVENT_CLOSE, Side::Ours, each(start));
    Ok(())
}

/// Measures one round of the library's own calls.
fn directly(
    context: &Context,
    memory: &[u8],
    events: &[u8],
    recorder: &mut Recorder,
) -> Result<()> {
    let mut opened = Vec::with_capacity(OBJECTS);
    let start = Instant::now();
    for handle in ours::each_handle(memory) {
        opened.push(ours::open_memory(context, handle)?);
    }
    recorder.push(OPEN, Side::Raw, each(start));
    let start = Instant::now();
    opened.clear();
    recorder.push(CLOSE, Side::Raw, each(start));

    let mut opened = Vec::with_capacity(OBJECTS);
    let start = Instant::now();
    for handle in ours::each_handle(events) {
        opened.push(ours::open_event(context, handle, Waiters::Default)?);
    }
    recorder.push(EVENT_OPEN, Side::Raw, each(start));
    let start = Instant::now();
    opened.clear();
    recorder.push(EVENT_CLOSE, Side::Raw, each(start));
    Ok(())
}

/// Returns the nanoseconds per object since `start`.
fn each(start: Instant) -> f64 {
    nanoseconds(start.elapsed()) / OBJECTS as f64
}
