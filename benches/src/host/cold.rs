//! A large segment from its creation to its end, no page of it touched before.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crosshandle::Context;

use super::ours;
use crate::harness::link::Link;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::procfs::{machine_available_memory, machine_shared_memory};
use crate::harness::region::Region;
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::once;
use crate::raw::memfd::{self, Mapping, Pages};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

const CREATE: &str = "cold.create";
const READ: &str = "cold.read";
const CLOSE: &str = "cold.close";
const FREE: &str = "cold.free";
const TOTAL: &str = "cold.total";
const READ_ALL: &str = "cold.read-all";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cold",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(180),
    rows: &[
        row(
            CREATE,
            "1 GiB, cold: create, write to each page",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            READ,
            "1 GiB, cold: importer reads a word of each page",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            CLOSE,
            "1 GiB, cold: importer closes",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            FREE,
            "1 GiB, cold: exporter frees",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            TOTAL,
            "1 GiB, cold: sum of the four",
            Target::AtMostTimesRaw(0.3),
        ),
        row(
            READ_ALL,
            "1 GiB, cold: importer reads every byte",
            Target::None,
        ),
    ],
    leader: run_leader,
    follower: run_follower,
};

const fn row(id: &'static str, what: &'static str, target: Target) -> RowSpec {
    RowSpec {
        id,
        what,
        raw: "memfd with 4 KiB pages",
        unit: Unit::Nanoseconds,
        statistic: Statistic::P50,
        target,
    }
}

const LENGTH: usize = 1 << 30;
/// Rounds that nobody measures: the machine itself may get its memory at first touch only.
const WARM_UP: usize = 1;
/// How much the machine's shared memory may differ by others' doing.
const NOISE: u64 = 256 << 20;

fn rounds(participant: &Participant) -> usize {
    WARM_UP + participant.plan.rounds()
}

/// Touches and frees more memory than a round needs, so that the rounds after it measure this
/// system alone: a virtual machine may have given free memory back to its host, and the next
/// touch then waits for the host, for tenths of a second, whoever it is.
fn back_free_memory() -> Result<()> {
    // Small and huge pages come from different places.
    for pages in [Pages::Small, Pages::Huge] {
        let memory = Mapping::private(LENGTH + LENGTH / 2, pages)?;
        memory.region().touch_pages(1);
    }
    Ok(())
}

/// What each page's first word holds.
fn token(round: usize) -> u64 {
    round as u64 + 1
}

/// What the importer measured, in nanoseconds.
struct Importer {
    read: f64,
    read_all: f64,
    close: f64,
}

impl Importer {
    fn send(&self, link: &Link) -> Result<()> {
        let numbers = [self.read, self.read_all, self.close].map(f64::to_le_bytes);
        link.send(numbers.as_flattened())
    }

    fn receive(link: &Link) -> Result<Self> {
        let bytes: [u8; 24] = link.receive_array()?;
        let (numbers, _) = bytes.as_chunks();
        let number = |index: usize| f64::from_le_bytes(numbers[index]);
        Ok(Self {
            read: number(0),
            read_all: number(1),
            close: number(2),
        })
    }
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let available = machine_available_memory()?;
    ensure!(
        available > 2 * LENGTH as u64,
        "needs 2 GiB of free memory, and {} MiB are available",
        available >> 20
    );
    let link = participant.peer()?;
    let context = ours::unpooled_context()?;
    let mut recorder = Recorder::default();
    for round in 0..rounds(participant) {
        for side in Side::order(round) {
            back_free_memory()?;
            let before = machine_shared_memory()?;
            let (create, importer, free) = match side {
                Side::Ours => export_ours(&context, link, round)?,
                Side::Raw => export_raw(link, round)?,
            };
            // Else the next round would not be cold, and free would be a promise.
            let after = machine_shared_memory()?;
            ensure!(
                after < before + NOISE,
                "{} MiB of shared memory are left after freeing 1 GiB",
                after.saturating_sub(before) >> 20
            );
            if round < WARM_UP {
                continue;
            }
            recorder.push(CREATE, side, create);
            recorder.push(READ, side, importer.read);
            recorder.push(READ_ALL, side, importer.read_all);
            recorder.push(CLOSE, side, importer.close);
            recorder.push(FREE, side, free);
            recorder.push(TOTAL, side, create + importer.read + importer.close + free);
        }
    }
    Ok(recorder.finish())
}

fn export_ours(context: &Context, link: &Link, round: usize) -> Result<(f64, Importer, f64)> {
    let (memory, create) = once(0.0, || -> Result<_> {
        let memory = context.allocate(LENGTH)?;
        ours::region(&memory).touch_pages(token(round));
        Ok(memory)
    })?;
    link.send(memory.handle()?.as_bytes())?;
    let importer = Importer::receive(link)?;
    let ((), free) = once(0.0, || -> Result<()> {
        drop(memory);
        Ok(())
    })?;
    Ok((create, importer, free))
}

fn export_raw(link: &Link, round: usize) -> Result<(f64, Importer, f64)> {
    let ((file, mapping), create) = once(0.0, || -> Result<_> {
        let file = memfd::create(LENGTH)?;
        let mapping = Mapping::shared_small_pages(&file, LENGTH)?;
        mapping.region().touch_pages(token(round));
        Ok((file, mapping))
    })?;
    link.send_with(b"raw", &[file.as_fd()])?;
    let importer = Importer::receive(link)?;
    let ((), free) = once(0.0, || -> Result<()> {
        drop(mapping);
        drop(file);
        Ok(())
    })?;
    Ok((create, importer, free))
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(1)?;
    let link = participant.peer()?;
    let context = ours::context()?;
    for round in 0..rounds(participant) {
        for side in Side::order(round) {
            let mut message = link.receive()?;
            let importer = match side {
                Side::Ours => {
                    let memory = ours::open_memory(&context, &message.bytes)?;
                    measure(ours::region(&memory), memory, round)?
                }
                Side::Raw => {
                    let file = message.descriptors.pop().context("expected a descriptor")?;
                    let mapping = Mapping::shared_small_pages(&file, LENGTH)?;
                    drop(file);
                    measure(mapping.region(), mapping, round)?
                }
            };
            importer.send(link)?;
        }
    }
    Ok(Outcome::default())
}

/// Reads `region` and closes its `owner`.
fn measure<T>(region: Region, owner: T, round: usize) -> Result<Importer> {
    let expected = token(round).wrapping_mul(LENGTH as u64 / 4096);
    let read_pages = || -> Result<u64> { Ok(region.read_pages()) };
    let (pages, read) = once(0.0, read_pages)?;
    let read_every_byte = || -> Result<u64> { Ok(region.sum()) };
    let (sum, rest) = once(0.0, read_every_byte)?;
    ensure!(
        pages == expected && sum == expected,
        "the importer does not read what the exporter wrote"
    );
    let ((), close) = once(0.0, || -> Result<()> {
        drop(owner);
        Ok(())
    })?;
    // Both passes: the second one finds the pages mapped.
    Ok(Importer {
        read,
        read_all: read + rest,
        close,
    })
}
