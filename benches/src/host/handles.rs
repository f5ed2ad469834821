//! Handles of memory and events whose segment the importer has already mapped.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crosshandle::{Context, Event, Memory};

use super::ours::{self, Waiters};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{collect_timed, drop_timed, nanoseconds};
use crate::raw::memfd::{self, Mapping};
use crate::raw::slab::{MappedSegments, SlabHandle};
use crate::report::row::rows;

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
    rows: rows! {
        GET => "get a memory handle, first of its allocation", SLAB, AtMost(50.0);
        GET_AGAIN => "get a memory handle again", NONE, AtMost(50.0);
        OPEN => "open memory, segment mapped", SLAB, AtMost(100.0);
        CLOSE => "close memory", SLAB, None;
        EVENT_GET => "get an event handle, first of its event", NONE, AtMost(50.0);
        EVENT_GET_AGAIN => "get an event handle again", NONE, AtMost(50.0);
        EVENT_OPEN => "open an event, segment mapped", NONE, AtMost(100.0);
        EVENT_CLOSE => "close an event", NONE, None;
    },
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
        let rows = [GET, GET_AGAIN];
        let memory_handles = handles(&memory, rows, Memory::handle, &mut batch_recorder)?;
        link.send(
            &memory_handles
                .iter()
                .flat_map(|handle| *handle.as_bytes())
                .collect::<Vec<_>>(),
        )?;
        link.send(&slab_handles(&mut batch_recorder)?)?;
        let events = (0..BATCH_OBJECTS).map(|_| Ok(context.create_event()?));
        let events = events.collect::<Result<Vec<_>>>()?;
        let rows = [EVENT_GET, EVENT_GET_AGAIN];
        let event_handles = handles(&events, rows, Event::handle, &mut batch_recorder)?;
        link.send(
            &event_handles
                .iter()
                .flat_map(|handle| *handle.as_bytes())
                .collect::<Vec<_>>(),
        )?;
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

/// Gets the handles of all objects, twice.
fn handles<T, H>(
    objects: &[T],
    rows: [&'static str; 2],
    get: impl Fn(&T) -> crosshandle::Result<H>,
    recorder: &mut Recorder,
) -> Result<Vec<H>> {
    let mut handles = Vec::with_capacity(2 * objects.len());
    for row in rows {
        handles.clear();
        let start = Instant::now();
        for object in objects {
            handles.push(get(object)?);
        }
        let elapsed = nanoseconds(start.elapsed());
        recorder.push(row, Side::Ours, elapsed / objects.len() as f64);
    }
    Ok(handles)
}

fn slab_handles(recorder: &mut Recorder) -> Result<Vec<u8>> {
    let offsets = (0..BATCH_OBJECTS).map(|index| (index * ALLOCATION_BYTES) as u64);
    let handle = |offset| Ok(SlabHandle::get(1, offset, ALLOCATION_BYTES as u64));
    let (handles, each) = collect_timed(offsets.map(handle))?;
    recorder.push(GET, Side::Raw, each);
    Ok(handles.concat())
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(1)?;
    let link = participant.peer()?;
    let context = ours::context()?;
    let slab = link.receive()?.descriptor()?;
    let size = BATCH_OBJECTS * ALLOCATION_BYTES;
    let segments = MappedSegments::one(1, Mapping::shared(slab, size)?, size as u64);
    let mut recorder = Recorder::default();
    for batch in 0..batches(participant) {
        let mut batch_recorder = Recorder::default();
        let [memory, slab_handles, events] =
            [link.receive()?, link.receive()?, link.receive()?].map(|message| message.bytes);
        for side in Side::order(batch) {
            match side {
                Side::Ours => open(
                    side,
                    [OPEN, CLOSE],
                    ours::each_memory(&memory).map(|bytes| ours::open_memory(&context, bytes)),
                    |index, memory| ours::region(memory).read(0) == token(batch, index),
                    &mut batch_recorder,
                )?,
                Side::Raw => open(
                    side,
                    [OPEN, CLOSE],
                    slab_handles
                        .as_chunks()
                        .0
                        .iter()
                        .map(|handle| segments.open(handle).context("not in the slab")),
                    |index, memory| memory.first_word() == token(batch, index),
                    &mut batch_recorder,
                )?,
            }
        }
        open(
            Side::Ours,
            [EVENT_OPEN, EVENT_CLOSE],
            ours::each_event(&events)
                .map(|bytes| ours::open_event(&context, bytes, Waiters::Default)),
            |_, _| true,
            &mut batch_recorder,
        )?;
        link.send_number(batch as u64)?;
        if batch >= WARM_UP_BATCHES {
            recorder.absorb(batch_recorder);
        }
    }
    Ok(recorder.finish())
}

/// Opens objects, checks each of them, and closes them.
fn open<T>(
    side: Side,
    [open, close]: [&'static str; 2],
    objects: impl ExactSizeIterator<Item = Result<T>>,
    is_right: impl Fn(usize, &T) -> bool,
    recorder: &mut Recorder,
) -> Result<()> {
    ensure!(
        objects.len() == BATCH_OBJECTS,
        "expected {BATCH_OBJECTS} handles"
    );
    let (opened, each) = collect_timed(objects)?;
    recorder.push(open, side, each);
    for (index, object) in opened.iter().enumerate() {
        ensure!(
            is_right(index, object),
            "object {index} does not hold what its exporter wrote"
        );
    }
    recorder.push(close, side, drop_timed(opened));
    Ok(())
}
