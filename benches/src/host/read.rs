//! The speed of reading imported memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::procfs::huge_bytes;
use crate::harness::region::Region;
use crate::harness::scenario::{Participant, Scenario};
use crate::raw::memfd::{Mapping, Pages};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

static SIZES: [(usize, &str); 2] = [(64 << 20, "read.64MiB"), (256 << 20, "read.256MiB")];

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "read",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(120),
    rows: &[
        row("read.64MiB", "read imported memory, 64 MiB"),
        row("read.256MiB", "read imported memory, 256 MiB"),
    ],
    leader: run_leader,
    follower: run_follower,
};

const fn row(id: &'static str, what: &'static str) -> RowSpec {
    RowSpec {
        id,
        what,
        raw: "private memory with pages of the same size",
        unit: Unit::GigabytesPerSecond,
        statistic: Statistic::P50,
        target: Target::AtLeastTimesRaw(0.95),
    }
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let link = participant.peer()?;
    let context = ours::context()?;
    for (length, _) in SIZES {
        let memory = context.allocate(length)?;
        ours::region(&memory).number_words();
        link.send(memory.handle()?.as_bytes())?;
        ensure!(
            link.receive_number()? == length as u64,
            "the other process lost count"
        );
    }
    Ok(Outcome::default())
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let link = participant.peer()?;
    let context = ours::context()?;
    let mut recorder = Recorder::default();
    for (length, row) in SIZES {
        let memory = ours::open_memory(&context, &link.receive()?.bytes)?;
        let imported = ours::region(&memory);
        // The first pass maps the pages. Only then does the kernel report their size.
        // SAFETY: the exporter has written all words before it sent the handle.
        check(imported, unsafe { imported.sum() })?;
        let huge = huge_bytes(memory.as_ptr().addr())? >= length as u64 / 2;
        let private = Mapping::private(length, if huge { Pages::Huge } else { Pages::Small })?;
        private.region().number_words();
        let private_huge = huge_bytes(private.address())? >= length as u64 / 2;
        ensure!(
            private_huge == huge,
            "the kernel gave private memory other pages than imported memory, so that they \
             cannot be compared"
        );
        recorder.note(
            row,
            format!(
                "{} pages on both sides",
                if huge { "huge" } else { "small" }
            ),
        );
        let passes = participant.plan.pick(10, 4);
        for round in 0..participant.plan.rounds() {
            for pass in 0..passes {
                for side in Side::order(round + pass) {
                    let region = match side {
                        Side::Ours => imported,
                        Side::Raw => private.region(),
                    };
                    let start = Instant::now();
                    // SAFETY: the exporter does not write after it has sent the handle, and no
                    // other thread of this process accesses the memory.
                    let sum = black_box(unsafe { region.sum() });
                    let seconds = start.elapsed().as_secs_f64();
                    check(region, sum)?;
                    recorder.push(row, side, length as f64 / seconds / 1e9);
                }
            }
        }
        link.send_number(length as u64)?;
    }
    Ok(recorder.finish())
}

/// Returns an error unless `sum` is the sum of numbered words.
fn check(region: Region<'_>, sum: u64) -> Result<()> {
    ensure!(
        sum == region.numbered_sum(),
        "the memory does not hold what was written to it"
    );
    Ok(())
}
