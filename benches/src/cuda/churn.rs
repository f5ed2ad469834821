//! Growth of the exporter's and the GPU's resource use while a thousand importers come and go.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::ours;
use crate::harness::link::Link;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::procfs;
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::nanoseconds;
use crate::host::ours::open_memory;
use crate::raw::cuda::{Gpu, Physical};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;
use crate::tuning::CONNECTIONS_CLOSE_TIME;

const MEMORY_BYTES: usize = 2 << 20;

const MEMORY: &str = "cuda-churn.memory";
const DESCRIPTORS: &str = "cuda-churn.descriptors";
const MAPPINGS: &str = "cuda-churn.mappings";
const TIME: &str = "cuda-churn.time";

const NO_GROWTH: Target = Target::AtMost(0.0);

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-churn",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(90),
    rows: &[
        row(
            MEMORY,
            "growth with 1,000 importers: memory of the GPU",
            Unit::Bytes,
            NO_GROWTH,
        ),
        row(
            DESCRIPTORS,
            "growth: descriptors, both processes",
            Unit::Count,
            NO_GROWTH,
        ),
        row(
            MAPPINGS,
            "growth: mappings, both processes",
            Unit::Count,
            Target::None,
        ),
        row(
            TIME,
            "one importer: context, open 2 MiB, close",
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
        raw: "descriptor over a socket, import, map, unmap",
        unit,
        statistic: Statistic::P50,
        target,
    }
}

/// Number of importers before growth is measured.
const WARM_UP_ROUNDS: usize = 100;

fn rounds(participant: &Participant) -> usize {
    participant.plan.pick(1000, 300)
}

/// Resources of a process, and the GPU's free memory.
#[derive(Clone, Copy)]
struct Holdings {
    descriptors: u64,
    mappings: u64,
    /// Free memory of the GPU in bytes.
    free: u64,
}

impl Holdings {
    fn now(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            descriptors: procfs::descriptors()?,
            mappings: procfs::mappings()?,
            free: gpu.free_memory()?,
        })
    }
}

/// Runs the exporter.
fn run_leader(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let context = ours::context(0)?;
    let memory = context.allocate(MEMORY_BYTES)?;
    let handle = *memory.handle()?.as_bytes();
    let physical = Physical::create(&gpu, MEMORY_BYTES)?;
    let file = physical.export()?;
    let mut recorder = Recorder::default();
    for side in [Side::Raw, Side::Ours] {
        let mut before = None;
        for round in 0..WARM_UP_ROUNDS + rounds(participant) {
            if round == WARM_UP_ROUNDS {
                await_closed_connections(link)?;
                before = Some((Holdings::now(&gpu)?, remote_holdings(link)?));
            }
            let start = Instant::now();
            match side {
                Side::Ours => link.send(&handle)?,
                Side::Raw => link.send_with(b"raw", &[file.as_fd()])?,
            }
            ensure!(link.receive_number()? == 1, "the other process lost count");
            if round >= WARM_UP_ROUNDS {
                recorder.push(TIME, side, nanoseconds(start.elapsed()));
            }
        }
        await_closed_connections(link)?;
        let (leader, follower) = before.context("no round was measured")?;
        let (leader_now, follower_now) = (Holdings::now(&gpu)?, remote_holdings(link)?);
        let both = |field: fn(&Holdings) -> u64| {
            let sum = |a: &Holdings, b: &Holdings| field(a) as f64 + field(b) as f64;
            sum(&leader_now, &follower_now) - sum(&leader, &follower)
        };
        recorder.push(DESCRIPTORS, side, both(|held| held.descriptors));
        recorder.push(MAPPINGS, side, both(|held| held.mappings));
        // Both processes use the same GPU, so one measurement is enough.
        recorder.push(MEMORY, side, leader.free as f64 - leader_now.free as f64);
    }
    link.send(b"end")?;
    if participant.plan.quick {
        recorder.note(MEMORY, "a quick run: 300 importers only");
    }
    Ok(recorder.finish())
}

/// Waits until the library's threads have closed the connections of past importers.
fn await_closed_connections(link: &Link) -> Result<()> {
    thread::sleep(CONNECTIONS_CLOSE_TIME);
    link.send(b"wait")?;
    ensure!(link.receive_number()? == 2, "the other process lost count");
    Ok(())
}

/// Requests the resources of the other process.
fn remote_holdings(link: &Link) -> Result<Holdings> {
    link.send(b"holdings")?;
    Ok(Holdings {
        descriptors: link.receive_number()?,
        mappings: link.receive_number()?,
        free: link.receive_number()?,
    })
}

/// Runs all importers, each with its own context and its own connection.
fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    loop {
        let message = link.receive()?;
        match &message.bytes[..] {
            b"end" => return Ok(Outcome::default()),
            b"wait" => link.send_number(2)?,
            b"holdings" => {
                drop(message);
                let held = Holdings::now(&gpu)?;
                for number in [held.descriptors, held.mappings, held.free] {
                    link.send_number(number)?;
                }
            }
            b"raw" => {
                let file = message.descriptors.first();
                let file = file.context("expected a descriptor")?;
                drop(Physical::import(&gpu, file)?.map(MEMORY_BYTES)?);
                drop(message);
                link.send_number(1)?;
            }
            handle => {
                let context = ours::context(0)?;
                drop(open_memory(&context, handle)?);
                drop(context);
                link.send_number(1)?;
            }
        }
    }
}
