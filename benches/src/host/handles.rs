//! Handles of memory and events whose segment the importer has already mapped.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crosshandle::handle::HANDLE_SIZE;
use crosshandle::{Context, Event, Memory};

use super::ours::{self, Waiters};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::nanoseconds;
use crate::raw::memfd::{self, Mapping};
use crate::raw::slab::{MappedSegments, SlabHandle};
use crate::report::row::{RowSpec, Target};

const GET: &str = "handles.memory.get";
const GET_AGAIN: &str = "handles.memory.get-again";
const OPEN: &str = "handles.memory.open";
const CLOSE: &str = "handles.memory.close";
const EVENT_GET: &str = "handles.event.get";
const EVENT_GET_AGAIN: &str = "handles.event.get-again";
const EVENT_OPEN: &str = "handles.event.open";
const EVENT_CLOSE: &str = "handles.event.close";

const SLAB: &str = "offset into a slab, nothing checked";
const NONE: &str = "none";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "handles",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(120),
    rows: &[
        RowSpec::time(
            GET,
            "get a memory handle, first of its allocation",
            SLAB,
            Target::AtMost(50.0),
        ),
        RowSpec::time(
            GET_AGAIN,
            "get a memory handle again",
            NONE,
            Target::AtMost(50.0),
        ),
        RowSpec::time(
            OPEN,
            "open memory, segment mapped",
            SLAB,
            Target::AtMost(100.0),
        ),
        RowSpec::time(CLOSE, "close memory", SLAB, Target::None),
        RowSpec::time(
            EVENT_GET,
            "get an event handle, first of its event",
            NONE,
            Target::AtMost(50.0),
        ),
        RowSpec::time(
            EVENT_GET_AGAIN,
            "get an event handle again",
            NONE,
            Target::AtMost(50.0),
        ),
        RowSpec::time(
            EVENT_OPEN,
            "open an event, segment mapped",
            NONE,
            Target::AtMost(100.0),
        ),
        RowSpec::time(EVENT_CLOSE, "close an event", NONE, Target::None),
    ],
    leader: run_leader,
    follower: run_follower,
};

/// Number of objects in one batch. Their handles fit into one message.
const BATCH_OBJECTS: usize = 1000;
const ALLOCATION_BYTES: usize = 4096;
/// Number of batches before recording. They fill the pools and map the segments.
const WARM_UP_BATCHES: usize = 3;

fn batches(participant: &Participant) -> usize {
    WARM_UP_BATCHES + participant.plan.pick(100, 20)
}

/// Returns the value of the first word of allocation `index` in batch `batch`.
fn token(batch: usize, index: usize) -> u64 {
    (batch * BATCH_OBJECTS + index) as u64 + 1
}

/// Returns the nanoseconds per object since `start`.
fn each(start: Instant) -> f64 {
    nanoseconds(start.elapsed()) / BATCH_OBJECTS as f64
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let link = participant.peer()?;
    let context = ours::context()?;
    let slab = memfd::create(BATCH_OBJECTS * ALLOCATION_BYTES)?;
    link.send_with(b"slab", &[slab.as_fd()])?;
    let slab = Mapping::shared(&slab, BATCH_OBJECTS * ALLOCATION_BYTES)?;
    let mut recorder = Recorder::default();
    for batch in 0..batches(participant) {
        let mut batch_recorder = Recorder::default();
        let memory = create_memory(&context, &slab, batch)?;
        link.send(&memory_handles(&memory, &mut batch_recorder)?)?;
        link.send(&slab_handles(&mut batch_recorder))?;
        let events = create_events(&context)?;
        link.send(&event_handles(&events, &mut batch_recorder)?)?;
        // The exporter frees nothing before the importer has closed it.
        link.await_number(batch as u64)?;
        if batch >= WARM_UP_BATCHES {
            recorder.absorb(batch_recorder);
        }
    }
    Ok(recorder.finish())
}

/// Creates allocations, and writes the token of each into its first word and into the slab.
fn create_memory(context: &Context, slab: &Mapping, batch: usize) -> Result<Vec<Memory>> {
    let slab = slab.region();
    let mut memory = Vec::with_capacity(BATCH_OBJECTS);
    for index in 0..BATCH_OBJECTS {
        let allocation = context.allocate(ALLOCATION_BYTES)?;
        ours::region(&allocation).write(0, token(batch, index));
        slab.write(index * ALLOCATION_BYTES / 8, token(batch, index));
        memory.push(allocation);
    }
    Ok(memory)
}

fn create_events(context: &Context) -> Result<Vec<Event>> {
    (0..BATCH_OBJECTS)
        .map(|_| Ok(context.create_event()?))
        .collect()
}

fn memory_handles(memory: &[Memory], recorder: &mut Recorder) -> Result<Vec<u8>> {
    let mut handles = Vec::with_capacity(2 * BATCH_OBJECTS);
    for row in [GET, GET_AGAIN] {
        handles.clear();
        let start = Instant::now();
        for allocation in memory {
            handles.push(allocation.handle()?);
        }
        recorder.push(row, Side::Ours, each(start));
    }
    Ok(handles
        .iter()
        .flat_map(|handle| *handle.as_bytes())
        .collect())
}

fn event_handles(events: &[Event], recorder: &mut Recorder) -> Result<Vec<u8>> {
    let mut handles = Vec::with_capacity(2 * BATCH_OBJECTS);
    for row in [EVENT_GET, EVENT_GET_AGAIN] {
        handles.clear();
        let start = Instant::now();
        for event in events {
            handles.push(event.handle()?);
        }
        recorder.push(row, Side::Ours, each(start));
    }
    Ok(handles
        .iter()
        .flat_map(|handle| *handle.as_bytes())
        .collect())
}

fn slab_handles(recorder: &mut Recorder) -> Vec<u8> {
    let mut slab_handles = Vec::with_capacity(BATCH_OBJECTS);
    let start = Instant::now();
    for index in 0..BATCH_OBJECTS {
        slab_handles.push(SlabHandle::get(
            1,
            (index * ALLOCATION_BYTES) as u64,
            ALLOCATION_BYTES as u64,
        ));
    }
    recorder.push(GET, Side::Raw, each(start));
    slab_handles.concat()
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(1)?;
    let link = participant.peer()?;
    let context = ours::context()?;
    let message = link.receive()?;
    let slab = message
        .descriptors
        .first()
        .context("expected a descriptor")?;
    let size = BATCH_OBJECTS * ALLOCATION_BYTES;
    let segments = MappedSegments::one(1, Mapping::shared(slab, size)?, size as u64);
    let mut recorder = Recorder::default();
    for batch in 0..batches(participant) {
        let mut batch_recorder = Recorder::default();
        let (memory, slab_handles, events) = (link.receive()?, link.receive()?, link.receive()?);
        for side in Side::order(batch) {
            match side {
                Side::Ours => open_memory(&context, &memory.bytes, batch, &mut batch_recorder)?,
                Side::Raw => {
                    open_slab_handles(&segments, &slab_handles.bytes, batch, &mut batch_recorder)?
                }
            }
        }
        open_events(&context, &events.bytes, &mut batch_recorder)?;
        link.send_number(batch as u64)?;
        if batch >= WARM_UP_BATCHES {
            recorder.absorb(batch_recorder);
        }
    }
    Ok(recorder.finish())
}

fn open_memory(
    context: &Context,
    bytes: &[u8],
    batch: usize,
    recorder: &mut Recorder,
) -> Result<()> {
    ensure!(
        bytes.len() == BATCH_OBJECTS * HANDLE_SIZE,
        "expected {BATCH_OBJECTS} handles"
    );
    let mut opened = Vec::with_capacity(BATCH_OBJECTS);
    let start = Instant::now();
    for bytes in ours::each_handle(bytes) {
        opened.push(ours::open_memory(context, bytes)?);
    }
    recorder.push(OPEN, Side::Ours, each(start));
    for (index, memory) in opened.iter().enumerate() {
        ensure!(
            ours::region(memory).read(0) == token(batch, index),
            "allocation {index} does not hold what its exporter wrote"
        );
    }
    let start = Instant::now();
    opened.clear();
    recorder.push(CLOSE, Side::Ours, each(start));
    Ok(())
}

fn open_slab_handles(
    segments: &MappedSegments,
    bytes: &[u8],
    batch: usize,
    recorder: &mut Recorder,
) -> Result<()> {
    let (slab_handles, _) = bytes.as_chunks();
    let mut opened = Vec::with_capacity(BATCH_OBJECTS);
    let start = Instant::now();
    for slab_handle in slab_handles {
        opened.push(segments.open(slab_handle).context("not in the slab")?);
    }
    recorder.push(OPEN, Side::Raw, each(start));
    for (index, memory) in opened.iter().enumerate() {
        ensure!(
            memory.first_word() == token(batch, index),
            "slab handle {index} leads to memory that holds something else"
        );
    }
    let start = Instant::now();
    opened.clear();
    recorder.push(CLOSE, Side::Raw, each(start));
    Ok(())
}

fn open_events(context: &Context, bytes: &[u8], recorder: &mut Recorder) -> Result<()> {
    ensure!(
        bytes.len() == BATCH_OBJECTS * HANDLE_SIZE,
        "expected {BATCH_OBJECTS} handles"
    );
    let mut opened = Vec::with_capacity(BATCH_OBJECTS);
    let start = Instant::now();
    for bytes in ours::each_handle(bytes) {
        opened.push(ours::open_event(context, bytes, Waiters::Default)?);
    }
    recorder.push(EVENT_OPEN, Side::Ours, each(start));
    let start = Instant::now();
    opened.clear();
    recorder.push(EVENT_CLOSE, Side::Ours, each(start));
    Ok(())
}
