//! The time to allocate and free device memory that is never exported.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Result;

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::cuda::{Gpu, Memory, Stream, pool_round};
use crate::report::row::{Target, rows};

const SIZES: [(usize, &str); 4] = [
    (64 << 10, "cuda-recycle.64KiB"),
    (1 << 20, "cuda-recycle.1MiB"),
    (16 << 20, "cuda-recycle.16MiB"),
    (64 << 20, "cuda-recycle.64MiB"),
];
/// Length and row of the comparison with the driver's own pool.
const POOL_SIZE: (usize, &str) = (1 << 20, "cuda-recycle.pool-1MiB");

const RAW: &str = "cuMemAlloc, cuMemFree";
const MICROSECOND: Target = Target::AtMost(1000.0);

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-recycle",
    followers: 0,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: rows! {
        SIZES[0].1 => "alloc + free, never exported, 64 KiB", RAW, MICROSECOND;
        SIZES[1].1 => "alloc + free, never exported, 1 MiB", RAW, MICROSECOND;
        SIZES[2].1 => "alloc + free, never exported, 16 MiB", RAW, MICROSECOND;
        SIZES[3].1 => "alloc + free, never exported, 64 MiB", RAW, MICROSECOND;
        POOL_SIZE.1 => "alloc + free, 1 MiB, compared with the driver's pool",
            "cuMemAllocAsync, cuMemFreeAsync", None;
    },
    leader: run_leader,
    follower: no_follower,
};

const OURS_CYCLES_PER_BATCH: usize = 1000;
const RAW_CYCLES_PER_BATCH: usize = 10;
const POOL_CYCLES_PER_BATCH: usize = 32;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let context = ours::context(0)?;
    participant.plan.pin(0)?;
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(10, 3);
    for round in 0..participant.plan.rounds() {
        for (length, row) in SIZES.into_iter().chain([POOL_SIZE]) {
            for side in Side::order(round) {
                for batch in 0..=batches {
                    let elapsed = match side {
                        Side::Ours => per_operation(OURS_CYCLES_PER_BATCH, || -> Result<()> {
                            drop(black_box(context.allocate(black_box(length))?));
                            Ok(())
                        })?,
                        Side::Raw if row == POOL_SIZE.1 => {
                            let each = per_operation(POOL_CYCLES_PER_BATCH, || {
                                pool_round(&gpu, &stream, length)
                            })?;
                            stream.synchronize()?;
                            each
                        }
                        Side::Raw => per_operation(RAW_CYCLES_PER_BATCH, || -> Result<()> {
                            drop(black_box(Memory::allocate(&gpu, black_box(length))?));
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
