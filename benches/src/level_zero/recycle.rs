//! Allocating and freeing device memory that is never exported.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;

use super::ours;
use super::rows::{CLOSE, row};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::level_zero::{Gpu, Memory};

const SIZES: [(usize, &str); 2] = [
    (64 << 10, "level-zero-recycle.64KiB"),
    (16 << 20, "level-zero-recycle.16MiB"),
];

const RAW: &str = "zeMemAllocDevice, zeMemFree";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "level-zero-recycle",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: &[
        row(
            SIZES[0].1,
            "alloc + free, never exported, 64 KiB",
            RAW,
            CLOSE,
        ),
        row(
            SIZES[1].1,
            "alloc + free, never exported, 16 MiB",
            RAW,
            CLOSE,
        ),
    ],
    leader: run_leader,
    follower: no_follower,
};

const OURS_CYCLES_PER_BATCH: usize = 1000;
const RAW_CYCLES_PER_BATCH: usize = 100;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::first()?;
    let context = ours::context()?;
    participant.plan.pin(0)?;
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
                            drop(black_box(Memory::allocate(gpu, black_box(length))?));
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
