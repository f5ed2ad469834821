//! Getting, opening and closing handles of memory and events.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crosshandle::Context;
use crosshandle::handle::HANDLE_SIZE;

use super::ours;
use super::rows::{CLOSE, row};
use crate::harness::link::Link;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::nanoseconds;
use crate::host::ours::{Waiters, each_handle, open_event, open_memory};
use crate::raw::descriptor::{self, OfferedDescriptors};
use crate::raw::level_zero::{
    CounterEvent, Gpu, HANDLE_SIZE as RAW_SIZE, Memory, OpenedEvent, OpenedMemory,
    duplicate_descriptor, with_descriptor,
};
use crate::report::row::Target;
use crate::tuning::DESCRIPTORS_MAX;

const GET: &str = "level-zero-handles.memory.get";
const GET_AGAIN: &str = "level-zero-handles.memory.get-again";
const GET_POOLED: &str = "level-zero-handles.memory.get-pooled";
const OPEN: &str = "level-zero-handles.memory.open";
const OPEN_AGAIN: &str = "level-zero-handles.memory.open-again";
const CLOSE_AGAIN: &str = "level-zero-handles.memory.close-again";
const CLOSE_LAST: &str = "level-zero-handles.memory.close";
const EVENT_GET: &str = "level-zero-handles.event.get";
const EVENT_GET_AGAIN: &str = "level-zero-handles.event.get-again";
const EVENT_OPEN: &str = "level-zero-handles.event.open";
const EVENT_CLOSE: &str = "level-zero-handles.event.close";

const RAW_GET: &str = "zeMemGetIpcHandle";
const RAW_OPEN: &str = "zeMemOpenIpcHandle";
const RAW_CLOSE: &str = "zeMemCloseIpcHandle";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "level-zero-handles",
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: &[
        row(
            GET,
            "get a memory handle, first of its allocation",
            RAW_GET,
            CLOSE,
        ),
        row(GET_AGAIN, "get a memory handle again", RAW_GET, CLOSE),
        row(
            GET_POOLED,
            "get a memory handle, first, of an allocation in a pool",
            RAW_GET,
            CLOSE,
        ),
        row(
            OPEN,
            "first open of memory",
            "descriptor asked for over a socket, zeMemOpenIpcHandle",
            Target::None,
        ),
        row(OPEN_AGAIN, "open memory again", RAW_OPEN, CLOSE),
        row(CLOSE_AGAIN, "close memory, not the last", RAW_CLOSE, CLOSE),
        row(CLOSE_LAST, "close memory, the last", RAW_CLOSE, CLOSE),
        row(
            EVENT_GET,
            "get an event handle, first of its event",
            "zeEventCounterBasedGetIpcHandle",
            CLOSE,
        ),
        row(
            EVENT_GET_AGAIN,
            "get an event handle again",
            "zeEventCounterBasedGetIpcHandle",
            CLOSE,
        ),
        row(
            EVENT_OPEN,
            "open an event",
            "zeEventCounterBasedOpenIpcHandle, descriptor at hand",
            CLOSE,
        ),
        row(
            EVENT_CLOSE,
            "close an event",
            "zeEventCounterBasedCloseIpcHandle",
            CLOSE,
        ),
    ],
    leader: run_leader,
    follower: run_follower,
};

/// Objects in a round, of each kind: the number of descriptors that one message carries.
const OBJECTS: usize = DESCRIPTORS_MAX;
const ALLOCATION_BYTES: usize = 1 << 20;
const POOLED_ALLOCATION_BYTES: usize = 4096;
/// Rounds that are not recorded: the processes connect in them.
const WARM_UP_ROUNDS: usize = 1;

fn rounds(participant: &Participant) -> usize {
    WARM_UP_ROUNDS + participant.plan.pick(30, 10)
}

/// Runs an operation on each of `items`. Returns the results, and the nanoseconds per item.
fn each<I, T>(
    items: impl IntoIterator<Item = I>,
    mut operation: impl FnMut(I) -> Result<T>,
) -> Result<(Vec<T>, f64)> {
    let mut results = Vec::with_capacity(OBJECTS);
    let start = Instant::now();
    for item in items {
        results.push(operation(item)?);
    }
    let elapsed = nanoseconds(start.elapsed());
    let each = elapsed / results.len().max(1) as f64;
    Ok((results, each))
}

/// Drops `items`. Returns the nanoseconds per item.
fn drop_each<T>(items: Vec<T>) -> f64 {
    let count = items.len().max(1) as f64;
    let start = Instant::now();
    drop(items);
    nanoseconds(start.elapsed()) / count
}

/// Objects that the exporter keeps until the round is over.
struct Exports {
    _ours: Vec<crosshandle::Memory>,
    _pooled: Vec<crosshandle::Memory>,
    _events: Vec<crosshandle::Event>,
    _raw: Vec<Memory>,
    _raw_events: Vec<CounterEvent>,
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::first()?;
    let (context, pooled) = (ours::unpooled_context()?, ours::context()?);
    let (exporter, importer) = Link::pair()?;
    link.send_with(b"raw", &[importer.as_fd()])?;
    drop(importer);
    let offers = OfferedDescriptors::default();
    offers.serve(exporter.into())?;
    let mut recorder = Recorder::default();
    for round in 0..rounds(participant) {
        let mut figures = Recorder::default();
        let _exports = export(link, gpu, &context, &pooled, &offers, &mut figures)?;
        ensure!(
            link.receive_number()? == round as u64,
            "the other process lost count"
        );
        if round >= WARM_UP_ROUNDS {
            recorder.absorb(figures);
        }
    }
    Ok(recorder.finish())
}

fn export(
    link: &Link,
    gpu: &'static Gpu,
    context: &Context,
    pooled: &Context,
    offers: &OfferedDescriptors,
    figures: &mut Recorder,
) -> Result<Exports> {
    let (ours, _) = each(0..OBJECTS, |_| Ok(context.allocate(ALLOCATION_BYTES)?))?;
    let (small, _) = each(
        0..OBJECTS,
        |_| Ok(pooled.allocate(POOLED_ALLOCATION_BYTES)?),
    )?;
    let (raw, _) = each(0..OBJECTS, |_| Memory::allocate(gpu, ALLOCATION_BYTES))?;
    let (events, _) = each(0..OBJECTS, |_| Ok(context.create_event()?))?;
    let (raw_events, _) = each(0..OBJECTS, |_| CounterEvent::create(gpu))?;

    let (handles, first) = each(&ours, |memory| Ok(*memory.handle()?.as_bytes()))?;
    figures.push(GET, Side::Ours, first);
    let (_, again) = each(&ours, |memory| Ok(memory.handle()?))?;
    figures.push(GET_AGAIN, Side::Ours, again);
    // The first handle of a segment costs more, since the segment itself is exported with it.
    small[0].handle()?;
    let (_, first) = each(&small[1..], |memory| Ok(memory.handle()?))?;
    figures.push(GET_POOLED, Side::Ours, first);
    let (raw_handles, first) = each(&raw, Memory::export)?;
    figures.push(GET, Side::Raw, first);
    figures.push(GET_POOLED, Side::Raw, first);
    let (_, again) = each(&raw, Memory::export)?;
    figures.push(GET_AGAIN, Side::Raw, again);

    let (event_handles, first) = each(&events, |event| Ok(*event.handle()?.as_bytes()))?;
    figures.push(EVENT_GET, Side::Ours, first);
    let (_, again) = each(&events, |event| Ok(event.handle()?))?;
    figures.push(EVENT_GET_AGAIN, Side::Ours, again);
    let (raw_event_handles, first) = each(&raw_events, CounterEvent::export)?;
    figures.push(EVENT_GET, Side::Raw, first);
    let (_, again) = each(&raw_events, CounterEvent::export)?;
    figures.push(EVENT_GET_AGAIN, Side::Raw, again);

    for (number, handle) in raw_handles.iter().enumerate() {
        // SAFETY: the handle was exported above from memory in `raw`, which lives.
        offers.add(number as u64, unsafe { duplicate_descriptor(handle)? });
    }
    // SAFETY: the handles were exported above from events in `raw_events`, which live.
    let (files, _) = each(&raw_event_handles, |handle| unsafe {
        duplicate_descriptor(handle)
    })?;
    let (borrowed, _) = each(&files, |file| Ok(file.as_fd()))?;
    link.send(&handles.concat())?;
    link.send(&raw_handles.concat())?;
    link.send(&event_handles.concat())?;
    link.send_with(&raw_event_handles.concat(), &borrowed)?;
    Ok(Exports {
        _ours: ours,
        _pooled: small,
        _events: events,
        _raw: raw,
        _raw_events: raw_events,
    })
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::first()?;
    let context = ours::context()?;
    let message = link.receive()?;
    let socket: &OwnedFd = message.descriptors.first().context("expected a socket")?;
    participant.plan.pin(0)?;
    let mut recorder = Recorder::default();
    for round in 0..rounds(participant) {
        let (handles, raw_handles) = (link.receive()?.bytes, link.receive()?.bytes);
        let (events, raw_events) = (link.receive()?.bytes, link.receive()?);
        ensure!(
            handles.len() == OBJECTS * HANDLE_SIZE && raw_events.descriptors.len() == OBJECTS,
            "expected more handles"
        );
        let mut figures = Recorder::default();
        for side in Side::order(round) {
            match side {
                Side::Ours => {
                    open_all(&context, &handles, &mut figures)?;
                    open_all_events(&context, &events, &mut figures)?;
                }
                Side::Raw => {
                    open_raw(gpu, socket, &raw_handles, &mut figures)?;
                    let files = &raw_events.descriptors;
                    open_raw_events(gpu, &raw_events.bytes, files, &mut figures)?;
                }
            }
        }
        if round >= WARM_UP_ROUNDS {
            recorder.absorb(figures);
        }
        link.send_number(round as u64)?;
    }
    Ok(recorder.finish())
}

fn open_all(context: &Context, handles: &[u8], figures: &mut Recorder) -> Result<()> {
    let open = |bytes| open_memory(context, bytes);
    let (opened, first) = each(each_handle(handles), open)?;
    let (more, again) = each(each_handle(handles), open)?;
    figures.push(OPEN, Side::Ours, first);
    figures.push(OPEN_AGAIN, Side::Ours, again);
    figures.push(CLOSE_AGAIN, Side::Ours, drop_each(more));
    figures.push(CLOSE_LAST, Side::Ours, drop_each(opened));
    Ok(())
}

fn open_all_events(context: &Context, handles: &[u8], figures: &mut Recorder) -> Result<()> {
    let open = |bytes| open_event(context, bytes, Waiters::Default);
    let (opened, first) = each(each_handle(handles), open)?;
    figures.push(EVENT_OPEN, Side::Ours, first);
    figures.push(EVENT_CLOSE, Side::Ours, drop_each(opened));
    Ok(())
}

fn open_raw(
    gpu: &'static Gpu,
    socket: &OwnedFd,
    handles: &[u8],
    figures: &mut Recorder,
) -> Result<()> {
    let handles = || handles.chunks_exact(RAW_SIZE).enumerate();
    let (opened, first) = each(handles(), |(number, handle)| {
        let file = descriptor::request(socket.as_fd(), number as u64)?;
        let memory = OpenedMemory::open(gpu, with_descriptor(handle, file.as_fd())?)?;
        Ok((memory, file))
    })?;
    let (opened, files): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    let (more, again) = each(handles(), |(number, handle)| {
        OpenedMemory::open(gpu, with_descriptor(handle, files[number].as_fd())?)
    })?;
    figures.push(OPEN, Side::Raw, first);
    figures.push(OPEN_AGAIN, Side::Raw, again);
    figures.push(CLOSE_AGAIN, Side::Raw, drop_each(more));
    figures.push(CLOSE_LAST, Side::Raw, drop_each(opened));
    Ok(())
}

fn open_raw_events(
    gpu: &'static Gpu,
    handles: &[u8],
    files: &[OwnedFd],
    figures: &mut Recorder,
) -> Result<()> {
    let handles = handles.chunks_exact(RAW_SIZE).zip(files);
    let (opened, first) = each(handles, |(handle, file)| {
        OpenedEvent::open(gpu, with_descriptor(handle, file.as_fd())?)
    })?;
    figures.push(EVENT_OPEN, Side::Raw, first);
    figures.push(EVENT_CLOSE, Side::Raw, drop_each(opened));
    Ok(())
}
