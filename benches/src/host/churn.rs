//! Thousands of rounds of allocate, export, open, close, free: nothing may grow.

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

/// One size of allocation.
struct Size {
    bytes: usize,
    memory: &'static str,
    descriptors: &'static str,
    mappings: &'static str,
    time: &'static str,
}

/// A size and its rows' identifiers.
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

/// Less than seven bytes a round: whatever is forgotten in each round is larger.
const MEMORY_NOISE: Target = Target::AtMost(64.0 * 1024.0);
const NOTHING: Target = Target::AtMost(0.0);

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
            NOTHING,
        ),
        row(
            SMALL.mappings,
            "growth, 64 KiB: mappings",
            Unit::Count,
            NOTHING,
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
            NOTHING,
        ),
        row(
            LARGE.mappings,
            "growth, 2 MiB: mappings",
            Unit::Count,
            NOTHING,
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

/// Rounds of one turn, and turns before and while growth is measured.
const TURN: usize = 500;
const WARM_UP: usize = 2;

fn turns(participant: &Participant) -> usize {
    WARM_UP + participant.plan.pick(20, 4)
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let link = participant.peer()?;
    let mut recorder = Recorder::default();
    for size in [&SMALL, &LARGE] {
        for side in [Side::Raw, Side::Ours] {
            // One side after the other: what one leaves behind must not be lost in the other.
            let context = ours::context()?;
            let mut before = None;
            for turn in 0..turns(participant) {
                if turn == WARM_UP {
                    before = Some((Holdings::now()?, remote_holdings(link)?));
                }
                let start = Instant::now();
                for round in 0..TURN {
                    match side {
                        Side::Ours => export_ours(&context, link, size, round)?,
                        Side::Raw => export_raw(link, size, round)?,
                    }
                }
                if turn >= WARM_UP {
                    recorder.push(size.time, side, nanoseconds(start.elapsed()) / TURN as f64);
                }
            }
            let before = before.context("no turn was measured")?;
            let after = (Holdings::now()?, remote_holdings(link)?);
            record_growth(size, side, before, after, &mut recorder);
            if participant.plan.quick {
                recorder.note(size.memory, "a quick run: 2,000 rounds only");
            }
        }
    }
    Ok(recorder.finish())
}

/// Growth of both processes together.
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

/// What the first and the last word of an allocation hold.
fn token(round: usize) -> u64 {
    round as u64 + 1
}

/// Asks the other process what it holds.
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
    closed(link, round)
}

fn export_raw(link: &Link, size: &Size, round: usize) -> Result<()> {
    let file = memfd::create(size.bytes)?;
    let mapping = Mapping::shared(&file, size.bytes)?;
    mapping.region().write(0, token(round));
    mapping.region().write(size.bytes / 8 - 1, token(round));
    link.send_with(b"raw", &[file.as_fd()])?;
    closed(link, round)
}

/// Waits until the other process has read and closed the memory.
fn closed(link: &Link, round: usize) -> Result<()> {
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
            for turn in 0..turns(participant) {
                if turn == WARM_UP {
                    answer_holdings(link)?;
                }
                for _ in 0..TURN {
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
