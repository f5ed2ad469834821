//! Growth of both processes over thousands of rounds of allocate, export, open, close and free.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crosshandle::Context;

use super::ours;
use crate::harness::link::Link;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::procfs::Holdings;
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::nanoseconds;
use crate::raw::memfd::{self, Mapping};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

/// One size of allocation, and the identifiers of its rows.
struct Size {
    bytes: usize,
    memory: &'static str,
    descriptors: &'static str,
    mappings: &'static str,
    time: &'static str,
}

/// Creates a size with the identifiers of its rows.
macro_rules! size {
    ($name:literal, $bytes:expr) => {
        Size {
            bytes: $bytes,
            memory: concat!("churn.", $name, ".memory"),
            descriptors: concat!("churn.", $name, ".descriptors"),
            mappings: concat!("churn.", $name, ".mappings"),
            time: concat!("churn.", $name, ".time"),
        }
    };
}

static SMALL: Size = size!("64KiB", 64 << 10);
static LARGE: Size = size!("2MiB", 2 << 20);

/// Maximum growth that is treated as noise. It is less than seven bytes per round, and any leak is
/// larger.
const MEMORY_NOISE: Target = Target::AtMost(64.0 * 1024.0);
const NO_GROWTH: Target = Target::AtMost(0.0);

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "churn",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(240),
    rows: &[
        row(
            SMALL.memory,
            "growth in 10,000 rounds, 64 KiB: memory",
            Unit::Bytes,
            MEMORY_NOISE,
        ),
        row(
            SMALL.descriptors,
            "growth, 64 KiB: descriptors",
            Unit::Count,
            NO_GROWTH,
        ),
        row(
            SMALL.mappings,
            "growth, 64 KiB: mappings",
            Unit::Count,
            NO_GROWTH,
        ),
        row(
            SMALL.time,
            "one round, 64 KiB",
            Unit::Nanoseconds,
            Target::None,
        ),
        row(
            LARGE.memory,
            "growth in 10,000 rounds, 2 MiB: memory",
            Unit::Bytes,
            MEMORY_NOISE,
        ),
        row(
            LARGE.descriptors,
            "growth, 2 MiB: descriptors",
            Unit::Count,
            NO_GROWTH,
        ),
        row(
            LARGE.mappings,
            "growth, 2 MiB: mappings",
            Unit::Count,
            NO_GROWTH,
        ),
        row(
            LARGE.time,
            "one round, 2 MiB",
            Unit::Nanoseconds,
            Target::None,
        ),
    ],
    leader: run_leader,
    follower: run_follower,
};

const fn row(id: &'static str, what: &'static str, unit: Unit, target: Target) -> RowSpec {
    RowSpec {
        id,
        what,
        raw: "memfd each, descriptor over a socket",
        unit,
        statistic: Statistic::P50,
        target,
    }
}

/// Number of rounds between two clock readings.
const ROUNDS_PER_BATCH: usize = 500;
/// Number of batches before growth is measured.
const WARM_UP_BATCHES: usize = 2;

fn batches(participant: &Participant) -> usize {
    WARM_UP_BATCHES + participant.plan.pick(20, 4)
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let link = participant.peer()?;
    let mut recorder = Recorder::default();
    for size in [&SMALL, &LARGE] {
        for side in [Side::Raw, Side::Ours] {
            // One side runs after the other, so that neither side hides leaks of the other.
            let context = ours::context()?;
            let mut before = None;
            for batch in 0..batches(participant) {
                if batch == WARM_UP_BATCHES {
                    before = Some((Holdings::now()?, remote_holdings(link)?));
                }
                let start = Instant::now();
                for round in 0..ROUNDS_PER_BATCH {
                    match side {
                        Side::Ours => export_ours(&context, link, size, round)?,
                        Side::Raw => export_raw(link, size, round)?,
                    }
                }
                if batch >= WARM_UP_BATCHES {
                    recorder.push(
                        size.time,
                        side,
                        nanoseconds(start.elapsed()) / ROUNDS_PER_BATCH as f64,
                    );
                }
            }
            let before = before.context("no batch was measured")?;
            let after = (Holdings::now()?, remote_holdings(link)?);
            record_growth(size, side, before, after, &mut recorder);
            if participant.plan.quick {
                recorder.note(size.memory, "a quick run: 2,000 rounds only");
            }
        }
    }
    Ok(recorder.finish())
}

/// Records the growth of both processes together.
fn record_growth(
    size: &Size,
    side: Side,
    before: (Holdings, Holdings),
    after: (Holdings, Holdings),
    recorder: &mut Recorder,
) {
    let grown = |field: fn(&Holdings) -> u64| {
        let total = |both: &(Holdings, Holdings)| field(&both.0) as f64 + field(&both.1) as f64;
        total(&after) - total(&before)
    };
    recorder.push(
        size.memory,
        side,
        grown(|held| held.anonymous + held.shared),
    );
    recorder.push(size.descriptors, side, grown(|held| held.descriptors));
    recorder.push(size.mappings, side, grown(|held| held.mappings));
}

/// Returns the value of an allocation's first and last word.
fn token(round: usize) -> u64 {
    round as u64 + 1
}

/// Requests the holdings of the other process.
fn remote_holdings(link: &Link) -> Result<Holdings> {
    link.send(b"holdings")?;
    Ok(Holdings::from_bytes(link.receive_array()?))
}

fn export_ours(context: &Context, link: &Link, size: &Size, round: usize) -> Result<()> {
    let memory = context.allocate(size.bytes)?;
    let region = ours::region(&memory);
    region.write(0, token(round));
    region.write(size.bytes / 8 - 1, token(round));
    link.send(memory.handle()?.as_bytes())?;
    await_close(link, round)
}

fn export_raw(link: &Link, size: &Size, round: usize) -> Result<()> {
    let file = memfd::create(size.bytes)?;
    let mapping = Mapping::shared(&file, size.bytes)?;
    mapping.region().write(0, token(round));
    mapping.region().write(size.bytes / 8 - 1, token(round));
    link.send_with(b"raw", &[file.as_fd()])?;
    await_close(link, round)
}

/// Waits until the other process has read and closed the memory.
fn await_close(link: &Link, round: usize) -> Result<()> {
    ensure!(
        link.receive_number()? == 2 * token(round),
        "the importer does not read what the exporter wrote"
    );
    Ok(())
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(1)?;
    let link = participant.peer()?;
    for size in [&SMALL, &LARGE] {
        for side in [Side::Raw, Side::Ours] {
            let context = ours::context()?;
            for batch in 0..batches(participant) {
                if batch == WARM_UP_BATCHES {
                    answer_holdings(link)?;
                }
                for _ in 0..ROUNDS_PER_BATCH {
                    match side {
                        Side::Ours => import_ours(&context, link, size)?,
                        Side::Raw => import_raw(link, size)?,
                    }
                }
            }
            answer_holdings(link)?;
        }
    }
    Ok(Outcome::default())
}

fn answer_holdings(link: &Link) -> Result<()> {
    ensure!(
        link.receive()?.bytes == b"holdings",
        "the other process lost count"
    );
    link.send(&Holdings::now()?.to_bytes())
}

fn import_ours(context: &Context, link: &Link, size: &Size) -> Result<()> {
    let memory = ours::open_memory(context, &link.receive()?.bytes)?;
    let region = ours::region(&memory);
    let sum = region.read(0) + region.read(size.bytes / 8 - 1);
    drop(memory);
    link.send_number(sum)
}

fn import_raw(link: &Link, size: &Size) -> Result<()> {
    let message = link.receive()?;
    let file = message
        .descriptors
        .first()
        .context("expected a descriptor")?;
    let mapping = Mapping::shared(file, size.bytes)?;
    let sum = mapping.region().read(0) + mapping.region().read(size.bytes / 8 - 1);
    drop(mapping);
    drop(message);
    link.send_number(sum)
}
