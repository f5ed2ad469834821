//! Copies from and to imported device memory.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use crosshandle::{Command, Queue};

use super::{ours, too_few_gpus};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Scenario, Seat};
use crate::harness::timing::nanoseconds;
use crate::host::ours::open_memory;
use crate::raw::cuda::{Gpu, Memory, Stream};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

pub(super) const LENGTH: usize = 1 << 30;
/// Number of copies between two readings of the clock, each between other allocations: the place of
/// memory makes a difference of one in a hundred.
pub(super) const COPIES: usize = 4;
/// First word of the exported memory.
const TOKEN: u64 = 0x7_0000_0007;

/// One arrangement of GPUs.
struct Kind {
    /// Index of the exporter's GPU. The importer, which copies, uses GPU 0.
    gpu: usize,
    rows: &'static [RowSpec],
    pull: &'static str,
    push: &'static str,
    /// Row of the time of all copies from imported memory, with a wait that sleeps.
    finish: Option<&'static str>,
    /// Number of times that each byte of a copy passes the memory of one GPU.
    passes: f64,
}

const fn row(id: &'static str, what: &'static str, raw: &'static str, target: Target) -> RowSpec {
    RowSpec {
        id,
        what,
        raw,
        unit: Unit::GigabytesPerSecond,
        statistic: Statistic::P50,
        target,
    }
}

const LOCAL: &str = "cuMemcpyAsync between two allocations of the process's own";
const PEER: &str = "cuMemcpyPeerAsync between allocations of one process on two GPUs";

static ONE: Kind = Kind {
    gpu: 0,
    rows: &[
        row(
            "cuda-copy.from-imported",
            "copy from imported memory, 1 GiB, one GPU (read + written)",
            LOCAL,
            Target::AtLeastTimesRaw(0.99),
        ),
        row(
            "cuda-copy.to-imported",
            "copy to imported memory, 1 GiB, one GPU (read + written)",
            LOCAL,
            Target::AtLeastTimesRaw(0.99),
        ),
        super::row(
            "cuda-copy.finish",
            "wait asleep for 4 such copies, one GPU",
            "cuStreamSynchronize, which does not sleep",
            Target::None,
        ),
    ],
    pull: "cuda-copy.from-imported",
    push: "cuda-copy.to-imported",
    finish: Some("cuda-copy.finish"),
    passes: 2.0,
};

static TWO: Kind = Kind {
    gpu: 1,
    rows: &[
        row(
            "cuda-copy2.from-imported",
            "copy from imported memory of another GPU, 1 GiB",
            PEER,
            Target::AtLeastTimesRaw(0.98),
        ),
        row(
            "cuda-copy2.to-imported",
            "copy to imported memory of another GPU, 1 GiB",
            PEER,
            Target::AtLeastTimesRaw(0.98),
        ),
    ],
    pull: "cuda-copy2.from-imported",
    push: "cuda-copy2.to-imported",
    finish: None,
    passes: 1.0,
};

pub(crate) static ONE_GPU: Scenario = Scenario {
    name: "cuda-copy",
    hands: 1,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: ONE.rows,
    lead: |seat| lead(seat, &ONE),
    hand: |seat| hand(seat, &ONE),
};

pub(crate) static TWO_GPUS: Scenario = Scenario {
    name: "cuda-copy2",
    hands: 1,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: TWO.rows,
    lead: |seat| lead(seat, &TWO),
    hand: |seat| hand(seat, &TWO),
};

/// Runs the exporter.
fn hand(seat: &Seat, kind: &Kind) -> Result<Outcome> {
    if too_few_gpus(kind.gpu + 1, kind.rows)?.is_some() {
        return Ok(Outcome::default());
    }
    let link = seat.peer()?;
    let context = ours::context(kind.gpu)?;
    let queue = context.create_queue()?;
    let memory = (0..COPIES).map(|_| Ok(context.allocate(LENGTH)?));
    let memory = memory.collect::<Result<Vec<_>>>()?;
    for memory in &memory {
        queue.submit(Command::fill(memory.all(), &TOKEN.to_le_bytes())?)?;
    }
    queue.finish()?;
    for memory in &memory {
        link.send(memory.handle()?.as_bytes())?;
    }
    ensure!(link.receive_number()? == 0, "the other process lost count");
    Ok(Outcome::default())
}

fn lead(seat: &Seat, kind: &Kind) -> Result<Outcome> {
    if let Some(outcome) = too_few_gpus(kind.gpu + 1, kind.rows)? {
        return Ok(outcome);
    }
    let link = seat.peer()?;
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let peer = Gpu::open(kind.gpu)?;
    let other = allocate(&peer)?;
    if kind.gpu != 0 {
        peer.enable_peer(&gpu)?;
        gpu.make_current()?;
        gpu.enable_peer(&peer)?;
    }
    let own = allocate(&gpu)?;
    for memory in &own {
        memory.fill(&stream, 1)?;
    }

    let context = ours::context(0)?;
    let queue = context.create_queue()?;
    let (mut local, mut imported) = (Vec::new(), Vec::new());
    for _ in 0..COPIES {
        let memory = open_memory(&context, &link.receive()?.bytes)?;
        ours::check(ours::first_word(&context, &queue, &memory)?, TOKEN)?;
        imported.push(memory);
        local.push(context.allocate(LENGTH)?);
    }

    let bytes = (LENGTH * COPIES) as f64 * kind.passes;
    let mut recorder = Recorder::default();
    for round in 0..1 + seat.plan.rounds() {
        for row in [kind.pull, kind.push].into_iter().chain(kind.finish) {
            for side in Side::turns(round) {
                for _ in 0..seat.plan.pick(10, 4) {
                    let is_push = row == kind.push;
                    let command = |index: usize| {
                        let (to, from) = ends(is_push, &local[index], &imported[index]);
                        Ok(Command::copy(from.all(), to.all())?)
                    };
                    let start = Instant::now();
                    match side {
                        Side::Ours if Some(row) == kind.finish => {
                            for index in 0..COPIES {
                                queue.submit(command(index)?)?;
                            }
                            queue.finish()?;
                        }
                        Side::Ours => copy(&queue, command)?,
                        Side::Raw => {
                            for (own, other) in own.iter().zip(&other) {
                                let (to, from) = ends(is_push, own, other);
                                if kind.gpu == 0 {
                                    stream.copy(to, from, LENGTH)?;
                                } else {
                                    stream.copy_peer(to, from, LENGTH)?;
                                }
                            }
                            stream.synchronize()?;
                        }
                    }
                    let elapsed = nanoseconds(start.elapsed());
                    // The first round warms up.
                    if round > 0 && Some(row) == kind.finish {
                        recorder.push(row, side, elapsed);
                    } else if round > 0 {
                        // Bytes per nanosecond are gigabytes per second.
                        recorder.push(row, side, bytes / elapsed);
                    }
                }
            }
        }
    }
    for memory in &local {
        ours::check(ours::first_word(&context, &queue, memory)?, TOKEN)?;
    }
    link.send_number(0)?;
    Ok(recorder.finish())
}

/// Allocates memory on the current GPU.
fn allocate(gpu: &Gpu) -> Result<Vec<Memory>> {
    (0..COPIES).map(|_| Memory::allocate(gpu, LENGTH)).collect()
}

/// Returns the destination and the source of a copy.
fn ends<'a, T>(is_push: bool, local: &'a T, other: &'a T) -> (&'a T, &'a T) {
    if is_push {
        (other, local)
    } else {
        (local, other)
    }
}

/// Submits all copies and polls until they are done. A wait that sleeps would end late, by a part
/// of the time it has slept.
pub(super) fn copy(queue: &Queue, command: impl Fn(usize) -> Result<Command>) -> Result<()> {
    for index in 0..COPIES {
        queue.submit(command(index)?)?;
    }
    while !queue.is_idle() {
        std::hint::spin_loop();
    }
    Ok(queue.finish()?)
}
