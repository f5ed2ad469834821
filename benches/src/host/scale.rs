//! The cost of a hundred thousand open objects of one exporter.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crosshandle::handle::HANDLE_SIZE;
use crosshandle::{Context, Event, Memory};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::ours::{self, Waiters};
use crate::harness::link::Link;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::procfs::{descriptors, mappings};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{nanoseconds, once};
use crate::raw::descriptor::{receive_descriptor, send_descriptor};
use crate::raw::memfd::{self, Mapping};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

/// Number of objects that are open at the end.
const OBJECTS: usize = 100_000;
/// Number of objects whose times are averaged. Their handles fit into one message.
const BATCH_OBJECTS: usize = 1000;
const BATCHES: usize = OBJECTS / BATCH_OBJECTS;
/// Soft limit on descriptors in both processes.
const DESCRIPTORS: u64 = 1024;
const ALLOCATION_BYTES: usize = 4096;
/// Maximum ratio of the last tenth's cost to the first tenth's for the cost to be constant.
const MAX_FLAT_RATIO: f64 = 1.25;

/// One kind of object, and the identifiers of its rows.
struct ObjectKind {
    events: bool,
    first: &'static str,
    tenth: &'static str,
    last: &'static str,
    flat: &'static str,
    create: &'static str,
    create_flat: &'static str,
    reached: &'static str,
    descriptors: &'static str,
    mappings: &'static str,
}

/// Creates a kind of object, its rows, and its scenario.
macro_rules! kind {
    ($name:literal, $object:literal, events: $events:literal, $kind:ident, $scenario:ident) => {
        static $kind: ObjectKind = ObjectKind {
            events: $events,
            first: concat!($name, ".open-1k"),
            tenth: concat!($name, ".open-10k"),
            last: concat!($name, ".open-100k"),
            flat: concat!($name, ".open-flat"),
            create: concat!($name, ".create"),
            create_flat: concat!($name, ".create-flat"),
            reached: concat!($name, ".reached"),
            descriptors: concat!($name, ".descriptors"),
            mappings: concat!($name, ".mappings"),
        };

        pub(crate) static $scenario: Scenario = Scenario {
            name: $name,
            followers: 1,
            cores: 1,
            limit: Duration::from_secs(120),
            rows: &[
                time(
                    $kind.first,
                    concat!("open ", $object, ", the first 1,000"),
                    OPEN,
                ),
                time(
                    $kind.tenth,
                    concat!("open ", $object, ", the 1,000 up to 10,000"),
                    OPEN,
                ),
                time(
                    $kind.last,
                    concat!("open ", $object, ", the 1,000 up to 100,000"),
                    OPEN,
                ),
                quotient(
                    $kind.flat,
                    concat!("open ", $object, ", last tenth / first tenth"),
                ),
                time(
                    $kind.create,
                    concat!("create ", $object, " and get a handle"),
                    Target::None,
                ),
                quotient(
                    $kind.create_flat,
                    concat!("create ", $object, ", last tenth / first tenth"),
                ),
                count(
                    $kind.reached,
                    concat!($object, "s open at once, 1,024 descriptors allowed"),
                    Target::AtLeast(OBJECTS as f64),
                ),
                count(
                    $kind.descriptors,
                    concat!("descriptors in the importer then (", $object, "s)"),
                    Target::AtMost(DESCRIPTORS as f64),
                ),
                count(
                    $kind.mappings,
                    concat!("mappings in the importer then (", $object, "s)"),
                    Target::None,
                ),
            ],
            leader: |participant| run_leader(participant, &$kind),
            follower: |participant| run_follower(participant, &$kind),
        };
    };
}

const OPEN: Target = Target::AtMost(500.0);

kind!("scale.events", "event", events: true, EVENT_ROWS, EVENTS);
kind!("scale.allocations", "allocation", events: false, ALLOCATION_ROWS, ALLOCATIONS);

const RAW: &str = "memfd each, descriptor over a socket, mmap";

const fn time(id: &'static str, what: &'static str, target: Target) -> RowSpec {
    row(id, what, Unit::Nanoseconds, target)
}

const fn quotient(id: &'static str, what: &'static str) -> RowSpec {
    row(id, what, Unit::Times, Target::AtMost(MAX_FLAT_RATIO))
}

const fn count(id: &'static str, what: &'static str, target: Target) -> RowSpec {
    row(id, what, Unit::Count, target)
}

const fn row(id: &'static str, what: &'static str, unit: Unit, target: Target) -> RowSpec {
    RowSpec {
        id,
        what,
        raw: RAW,
        unit,
        statistic: Statistic::P50,
        target,
    }
}

/// Pins this process, and limits its descriptors.
fn prepare(participant: &Participant, cpu: usize) -> Result<()> {
    participant.plan.pin(cpu)?;
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: Some(DESCRIPTORS),
        maximum,
    };
    setrlimit(Resource::Nofile, limit).context("cannot lower the limit of descriptors")
}

fn rounds(participant: &Participant) -> usize {
    participant.plan.pick(5, 2)
}

fn run_leader(participant: &Participant, kind: &ObjectKind) -> Result<Outcome> {
    prepare(participant, 0)?;
    let link = participant.peer()?;
    let mut recorder = Recorder::default();
    for _ in 0..rounds(participant) {
        export_raw(link)?;
        // Each round has a new context. The importer has mapped none of its segments.
        let context = ours::context()?;
        let costs = if kind.events {
            export(
                link,
                || Ok(context.create_event()?),
                |event| Ok(*event.handle()?.as_bytes()),
            )?
        } else {
            let create = || Ok(context.allocate(ALLOCATION_BYTES)?);
            export(link, create, |memory: &Memory| {
                Ok(*memory.handle()?.as_bytes())
            })?
        };
        recorder.push(kind.create, Side::Ours, mean(&costs));
        recorder.push(kind.create_flat, Side::Ours, flatness(&costs));
    }
    Ok(recorder.finish())
}

/// Creates all objects and sends their handles. Keeps the objects until the importer has finished.
/// Returns the nanoseconds per object of each batch.
fn export<T>(
    link: &Link,
    create: impl Fn() -> Result<T>,
    handle: impl Fn(&T) -> Result<[u8; HANDLE_SIZE]>,
) -> Result<Vec<f64>> {
    // The importer connects when it opens this additional object.
    let first = create()?;
    link.send(&handle(&first)?)?;
    let mut objects = Vec::with_capacity(OBJECTS);
    let mut costs = Vec::with_capacity(BATCHES);
    let mut message = Vec::with_capacity(BATCH_OBJECTS * HANDLE_SIZE);
    for _ in 0..BATCHES {
        message.clear();
        let start = Instant::now();
        for _ in 0..BATCH_OBJECTS {
            let object = create()?;
            message.extend_from_slice(&handle(&object)?);
            objects.push(object);
        }
        costs.push(nanoseconds(start.elapsed()) / BATCH_OBJECTS as f64);
        link.send(&message)?;
    }
    ensure!(
        link.receive_number()? == OBJECTS as u64,
        "the other process lost count"
    );
    Ok(costs)
}

/// Sends as many memfds as this process may have open.
fn export_raw(link: &Link) -> Result<()> {
    let mut files = Vec::new();
    loop {
        match memfd::create(ALLOCATION_BYTES) {
            Ok(file) => files.push(file),
            Err(error) if error.downcast_ref() == Some(&Errno::MFILE) => break,
            Err(error) => return Err(error),
        }
    }
    link.send_number(files.len() as u64)?;
    for file in &files {
        send_descriptor(link.as_fd(), file.as_fd())?;
    }
    ensure!(
        link.receive_number()? == files.len() as u64,
        "the other process lost count"
    );
    Ok(())
}

fn run_follower(participant: &Participant, kind: &ObjectKind) -> Result<Outcome> {
    prepare(participant, 1)?;
    let link = participant.peer()?;
    let mut recorder = Recorder::default();
    for _ in 0..rounds(participant) {
        import_raw(link, kind, &mut recorder)?;
        let context = ours::context()?;
        if kind.events {
            let open = |context: &Context, bytes: &[u8]| {
                ours::open_event(context, bytes, Waiters::Default)
            };
            import::<Event>(link, kind, &context, open, &mut recorder)?;
        } else {
            let open = |context: &Context, bytes: &[u8]| ours::open_memory(context, bytes);
            import::<Memory>(link, kind, &context, open, &mut recorder)?;
        }
    }
    Ok(recorder.finish())
}

fn import<T>(
    link: &Link,
    kind: &ObjectKind,
    context: &Context,
    open: impl Fn(&Context, &[u8]) -> Result<T>,
    recorder: &mut Recorder,
) -> Result<()> {
    let _connection = open(context, &link.receive()?.bytes)?;
    let mut objects = Vec::with_capacity(OBJECTS);
    let mut costs = Vec::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        let message = link.receive()?;
        let start = Instant::now();
        for bytes in ours::each_handle(&message.bytes) {
            objects.push(open(context, bytes)?);
        }
        costs.push(nanoseconds(start.elapsed()) / BATCH_OBJECTS as f64);
    }
    recorder.push(kind.first, Side::Ours, costs[0]);
    recorder.push(kind.tenth, Side::Ours, costs[BATCHES / 10 - 1]);
    recorder.push(kind.last, Side::Ours, costs[BATCHES - 1]);
    recorder.push(kind.flat, Side::Ours, flatness(&costs));
    recorder.push(kind.reached, Side::Ours, objects.len() as f64);
    recorder.push(kind.descriptors, Side::Ours, descriptors()? as f64);
    recorder.push(kind.mappings, Side::Ours, mappings()? as f64);
    link.send_number(objects.len() as u64)
}

fn import_raw(link: &Link, kind: &ObjectKind, recorder: &mut Recorder) -> Result<()> {
    let count = link.receive_number()?;
    let mut opened = Vec::new();
    let mut costs = Vec::new();
    for _ in 0..count {
        let (mapping, elapsed) = once(0.0, || -> Result<Option<Mapping>> {
            let Some(file) = receive_descriptor(link.as_fd())? else {
                return Ok(None);
            };
            Ok(Some(Mapping::shared(&file, ALLOCATION_BYTES)?))
        })?;
        opened.extend(mapping);
        costs.push(elapsed);
    }
    recorder.push(kind.first, Side::Raw, mean(&costs));
    recorder.push(kind.reached, Side::Raw, opened.len() as f64);
    recorder.push(kind.mappings, Side::Raw, mappings()? as f64);
    recorder.push(kind.descriptors, Side::Raw, descriptors()? as f64);
    link.send_number(count)
}

pub(super) fn mean(costs: &[f64]) -> f64 {
    costs.iter().sum::<f64>() / costs.len().max(1) as f64
}

/// Returns the mean of the last tenth of the costs, divided by the mean of the first tenth.
pub(super) fn flatness(costs: &[f64]) -> f64 {
    let tenth = costs.len() / 10;
    mean(&costs[costs.len() - tenth..]) / mean(&costs[..tenth])
}
