//! The time to open memory whose segment the importer has not mapped before.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::ours;
use crate::harness::link::Link;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{clock_cost, once};
use crate::raw::descriptor::{self, OfferedDescriptors};
use crate::raw::memfd::{self, Mapping};
use crate::report::row::{RowSpec, Target};

/// One size of segments, with its rows.
struct Size {
    bytes: usize,
    two_cores: &'static str,
    shared_core: &'static str,
    /// Number of segments that are opened in a full and in a quick run.
    count: (usize, usize),
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Creates the sizes, and the rows of both scenarios.
macro_rules! sizes {
    ($($name:literal, $what:literal: $bytes:expr, $count:expr;)*) => {
        static SIZES: &[Size] = &[$(Size {
            bytes: $bytes,
            two_cores: concat!("first-open.", $name),
            shared_core: concat!("first-open-shared-core.", $name),
            count: $count,
        }),*];
        const TWO_CORES_ROWS: &[RowSpec] = &[$(row(
            concat!("first-open.", $name),
            concat!("first open of a new segment, ", $what, ", two cores"),
        ).bytes($bytes as u64)),*];
        const SHARED_CORE_ROWS: &[RowSpec] = &[$(row(
            concat!("first-open-shared-core.", $name),
            concat!("first open of a new segment, ", $what, ", one shared core"),
        ).bytes($bytes as u64)),*];
    };
}

sizes! {
    "4KiB", "4 KiB": 4 * KIB, (1000, 100);
    "64KiB", "64 KiB": 64 * KIB, (1000, 100);
    "2MiB", "2 MiB": 2 * MIB, (500, 50);
    "64MiB", "64 MiB": 64 * MIB, (100, 11);
    "1GiB", "1 GiB": 1024 * MIB, (21, 5);
}

/// Number of segments of each size that are not recorded. The first one also connects.
const WARM_UP_SEGMENTS: usize = 2;

/// Number under which the raw exporter offers the segment that is measured.
const MEASURED: u64 = 0;
/// Number under which the raw exporter offers the segment that wakes its thread.
///
/// Both sides open such a segment directly before the measured segments. The exporter's threads
/// sleep while new segments are created, so the side that is measured first would wait longer.
const WARMING: u64 = 1;
const WARMING_BYTES: usize = 4 * KIB;

pub(crate) static TWO_CORES: Scenario = Scenario {
    name: "first-open",
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(180),
    rows: TWO_CORES_ROWS,
    leader: |participant| run_leader(participant, 1),
    follower: |participant| run_follower(participant, |size| size.two_cores),
};

pub(crate) static SHARED_CORE: Scenario = Scenario {
    name: "first-open-shared-core",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(180),
    rows: SHARED_CORE_ROWS,
    leader: |participant| run_leader(participant, 0),
    follower: |participant| run_follower(participant, |size| size.shared_core),
};

const fn row(id: &'static str, what: &'static str) -> RowSpec {
    RowSpec::time(
        id,
        what,
        "memfd, descriptor requested over a socket (SCM_RIGHTS), mmap",
        Target::AtMostTimesRaw(1.3),
    )
}

fn segments(participant: &Participant, size: &Size) -> usize {
    WARM_UP_SEGMENTS + participant.plan.pick(size.count.0, size.count.1)
}

/// Returns the value of the first word of segment `index`.
fn token(size: &Size, index: usize) -> u64 {
    size.bytes as u64 ^ (index as u64 + 1) << 40
}

/// Runs the exporter. This process and the thread that replies use the plan's CPU `cpu`. The
/// importer uses CPU 0.
fn run_leader(participant: &Participant, cpu: usize) -> Result<Outcome> {
    participant.plan.pin(cpu)?;
    let link = participant.peer()?;
    let context = ours::unpooled_context()?;
    let (exporter, importer) = Link::pair()?;
    link.send_with(b"raw", &[importer.as_fd()])?;
    drop(importer);
    let offers = OfferedDescriptors::default();
    offers.serve(exporter.into())?;
    for size in SIZES {
        for index in 0..segments(participant, size) {
            let file = memfd::create(size.bytes)?;
            Mapping::shared(&file, size.bytes)?
                .region()
                .write(0, token(size, index));
            offers.add(MEASURED, file);
            offers.add(WARMING, memfd::create(WARMING_BYTES)?);
            let memory = context.allocate(size.bytes)?;
            ours::region(&memory).write(0, token(size, index));
            let warming = context.allocate(WARMING_BYTES)?;
            link.send(warming.handle()?.as_bytes())?;
            link.send(memory.handle()?.as_bytes())?;
            link.await_number(index as u64)?;
        }
    }
    Ok(Outcome::default())
}

fn run_follower(participant: &Participant, row: fn(&Size) -> &'static str) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let link = participant.peer()?;
    let context = ours::context()?;
    let socket = link.receive()?.descriptor()?;
    let open_ours = |handle: &[u8]| ours::open_memory(&context, handle);
    let open_raw = |number, length| descriptor::open(socket.as_fd(), number, length);
    let clock = clock_cost();
    let mut recorder = Recorder::default();
    for size in SIZES {
        for index in 0..segments(participant, size) {
            let warming = link.receive()?.bytes;
            let measured = link.receive()?.bytes;
            // The segments are closed after both measurements, because closing may wake the
            // exporter.
            let mut opened = vec![open_ours(&warming)?];
            let mut mapped = vec![open_raw(WARMING, WARMING_BYTES)?];
            for side in Side::order(index) {
                let (region, elapsed) = match side {
                    Side::Ours => {
                        let (memory, elapsed) = once(clock, || open_ours(&measured))?;
                        opened.push(memory);
                        (ours::region(&opened[1]), elapsed)
                    }
                    Side::Raw => {
                        let (mapping, elapsed) = once(clock, || open_raw(MEASURED, size.bytes))?;
                        mapped.push(mapping);
                        (mapped[1].region(), elapsed)
                    }
                };
                check(region.read(0), size, index)?;
                if index >= WARM_UP_SEGMENTS {
                    recorder.push(row(size), side, elapsed);
                }
            }
            drop((opened, mapped));
            link.send_number(index as u64)?;
        }
    }
    Ok(recorder.finish())
}

fn check(found: u64, size: &Size, index: usize) -> Result<()> {
    ensure!(
        found == token(size, index),
        "segment {index} of {} bytes does not hold what its exporter wrote",
        size.bytes
    );
    Ok(())
}
