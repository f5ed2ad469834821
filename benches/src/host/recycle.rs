//! The time to allocate and free memory that is never exported.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::memfd::{self, Mapping};
use crate::report::row::{RowSpec, Target};

static SIZES: [(usize, &str); 3] = [
    (4 << 10, "recycle.4KiB"),
    (64 << 10, "recycle.64KiB"),
    (2 << 20, "recycle.2MiB"),
];

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "recycle",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: &[
        row("recycle.4KiB", "alloc + free, never exported, 4 KiB"),
        row("recycle.64KiB", "alloc + free, never exported, 64 KiB"),
        row("recycle.2MiB", "alloc + free, never exported, 2 MiB"),
    ],
    leader: run_leader,
    follower: no_follower,
};

const fn row(id: &'static str, what: &'static str) -> RowSpec {
    RowSpec::time(id, what, "memfd, mmap, munmap, close", Target::AtMost(40.0))
}

const OURS_CYCLES_PER_BATCH: usize = 10_000;
const RAW_CYCLES_PER_BATCH: usize = 1000;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let context = ours::context()?;
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(10, 3);
    for round in 0..participant.plan.rounds() {
        for (length, row) in SIZES {
            for side in Side::order(round) {
                for batch in 0..=batches {
                    let elapsed = match side {
                        Side::Ours => per_operation(OURS_CYCLES_PER_BATCH, || -> Result<()> {
                            drop(black_box(context.allocate(black_box(length))?));
                            Ok(())
                        })?,
                        Side::Raw => per_operation(RAW_CYCLES_PER_BATCH, || -> Result<()> {
                            let file = memfd::create(black_box(length))?;
                            drop(black_box(Mapping::shared(&file, length)?));
                            Ok(())
                        })?,
                    };
                    // The first batch fills the pool.
                    if batch > 0 {
                        recorder.push(row, side, elapsed);
                    }
                }
            }
        }
    }
    Ok(recorder.finish())
}
