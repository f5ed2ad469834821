//! Copies from and to imported device memory.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use crosshandle::{Command, Queue};

use super::ours;
use super::rows::{self, too_few_gpus};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::nanoseconds;
use crate::host::ours::open_memory;
use crate::raw::cuda::{Gpu, Memory, Stream};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

pub(super) const COPY_BYTES: usize = 1 << 30;
/// Number of copies between two clock readings. Each copy uses other allocations, because the
/// address of memory changes the speed by about one percent.
pub(super) const COPIES: usize = 4;
/// First word of the exported memory.
const TOKEN: u64 = 0x7_0000_0007;

/// The GPUs of the two processes, and the rows.
struct Arrangement {
    /// The exporter's GPU. The importer runs the copies and uses GPU 0.
    gpu: usize,
    rows: &'static [RowSpec],
    /// Row of copies from imported memory.
    pull: &'static str,
    /// Row of copies to imported memory.
    push: &'static str,
    /// Row of the time of all copies from imported memory, with a wait that sleeps.
    finish: Option<&'static str>,
    /// How often each byte of a copy crosses the memory interface of one GPU.
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

static ONE: Arrangement = Arrangement {
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
        rows::row(
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

static TWO: Arrangement = Arrangement {
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
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: ONE.rows,
    leader: |participant| run_leader(participant, &ONE),
    follower: |participant| run_follower(participant, &ONE),
};

pub(crate) static TWO_GPUS: Scenario = Scenario {
    name: "cuda-copy2",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(60),
    rows: TWO.rows,
    leader: |participant| run_leader(participant, &TWO),
    follower: |participant| run_follower(participant, &TWO),
};

/// Runs the exporter.
fn run_follower(participant: &Participant, arrangement: &Arrangement) -> Result<Outcome> {
    if too_few_gpus(arrangement.gpu + 1, arrangement.rows)?.is_some() {
        return Ok(Outcome::default());
    }
    let link = participant.peer()?;
    let context = ours::context(arrangement.gpu)?;
    let queue = context.create_queue()?;
    let memory = (0..COPIES).map(|_| Ok(context.allocate(COPY_BYTES)?));
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

fn run_leader(participant: &Participant, arrangement: &Arrangement) -> Result<Outcome> {
    if let Some(outcome) = too_few_gpus(arrangement.gpu + 1, arrangement.rows)? {
        return Ok(outcome);
    }
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let peer = Gpu::open(arrangement.gpu)?;
    let other = allocate(&peer)?;
    if arrangement.gpu != 0 {
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
        local.push(context.allocate(COPY_BYTES)?);
    }

    let bytes = (COPY_BYTES * COPIES) as f64 * arrangement.passes;
    let mut recorder = Recorder::default();
    for round in 0..1 + participant.plan.rounds() {
        for row in [arrangement.pull, arrangement.push]
            .into_iter()
            .chain(arrangement.finish)
        {
            for side in Side::order(round) {
                for _ in 0..participant.plan.pick(10, 4) {
                    let is_push = row == arrangement.push;
                    let command = |index: usize| {
                        let (to, from) = ends(is_push, &local[index], &imported[index]);
                        Ok(Command::copy(from.all(), to.all())?)
                    };
                    let start = Instant::now();
                    match side {
                        Side::Ours if Some(row) == arrangement.finish => {
                            for index in 0..COPIES {
                                queue.submit(command(index)?)?;
                            }
                            queue.finish()?;
                        }
                        Side::Ours => copy(&queue, command)?,
                        Side::Raw => {
                            for (own, other) in own.iter().zip(&other) {
                                let (to, from) = ends(is_push, own, other);
                                if arrangement.gpu == 0 {
                                    stream.copy(to, from, COPY_BYTES)?;
                                } else {
                                    stream.copy_peer(to, from, COPY_BYTES)?;
                                }
                            }
                            stream.synchronize()?;
                        }
                    }
                    let elapsed = nanoseconds(start.elapsed());
                    // The first round is a warm-up.
                    if round > 0 && Some(row) == arrangement.finish {
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

/// Allocates memory for all copies on the current GPU, which is `gpu`.
fn allocate(gpu: &Gpu) -> Result<Vec<Memory>> {
    (0..COPIES)
        .map(|_| Memory::allocate(gpu, COPY_BYTES))
        .collect()
}

/// Returns the destination and the source of a copy.
fn ends<'a, T>(is_push: bool, local: &'a T, other: &'a T) -> (&'a T, &'a T) {
    if is_push {
        (other, local)
    } else {
        (local, other)
    }
}

/// Submits all copies and spins until they are complete. A sleeping thread would wake late, and
/// later the longer it slept.
pub(super) fn copy(queue: &Queue, command: impl Fn(usize) -> Result<Command>) -> Result<()> {
    for index in 0..COPIES {
        queue.submit(command(index)?)?;
    }
    while !queue.is_idle() {
        std::hint::spin_loop();
    }
    Ok(queue.finish()?)
}
