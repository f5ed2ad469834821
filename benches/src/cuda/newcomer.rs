//! The time that a newcomer needs for device memory: a context of its own, the memory opened, and
//! both closed. CUDA is initialised before.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Result;

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{clock_cost, once};
use crate::host::ours::open_memory;
use crate::raw::cuda::{Gpu, Physical, Stream};
use crate::raw::descriptor::{self, OfferedDescriptors};
use crate::raw::newcomer;
use crate::report::row::rows;

const ROW: &str = "cuda-newcomer.2MiB";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "cuda-newcomer",
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(60),
    rows: rows! {
        ROW => "newcomer: context, first open of 2 MiB, close; one GPU",
            "socket connected, descriptor requested, cuMemImportFromShareableHandle, \
             cuMemAddressReserve, cuMemMap, cuMemSetAccess, all released",
            AtMostTimesRaw(1.5);
    },
    leader: run_leader,
    follower: run_follower,
};

const LENGTH: usize = 2 << 20;
/// Number under which the raw exporter offers the memory.
const OFFERED: u64 = 0;
/// Both halves of the memory's first word.
const HALF: u32 = 0x6e65_7763;
const WARM_UP_ROUNDS: usize = 2;

fn token() -> u64 {
    u64::from(HALF) << 32 | u64::from(HALF)
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let stream = Stream::create(&gpu)?;
    let context = ours::context(0)?;
    let queue = context.create_queue()?;
    let memory = context.allocate(LENGTH)?;
    ours::set_first_word(&queue, &memory, token())?;
    let physical = Physical::create(&gpu, LENGTH)?;
    let offers = OfferedDescriptors::default();
    offers.add(OFFERED, physical.export()?);
    let mapped = physical.map(LENGTH)?;
    mapped.set_first_word(&stream, HALF)?;
    newcomer::serve(&offers)?;
    link.send_number(u64::from(std::process::id()))?;
    link.send(memory.handle()?.as_bytes())?;
    // The follower replies when it is done.
    link.await_number(0)?;
    Ok(Outcome::default())
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let gpu = Gpu::open(0)?;
    let exporter = u32::try_from(link.receive_number()?)?;
    let handle = link.receive()?.bytes;
    // The content is checked once, before the measurement.
    let kept = ours::context(0)?;
    let queue = kept.create_queue()?;
    let memory = open_memory(&kept, &handle)?;
    ours::check(ours::first_word(&kept, &queue, &memory)?, token())?;
    drop(memory);
    let socket = newcomer::connect(exporter)?;
    let descriptor = descriptor::request(socket.as_fd(), OFFERED)?;
    let mapped = Physical::import(&gpu, descriptor)?.map(LENGTH)?;
    ours::check(mapped.first_word()?, token())?;
    drop((mapped, socket, queue, kept));
    let clock = clock_cost();
    let mut recorder = Recorder::default();
    for round in 0..WARM_UP_ROUNDS + participant.plan.pick(101, 15) {
        for side in Side::order(round) {
            let ((), elapsed) = once(clock, || match side {
                Side::Ours => {
                    let context = ours::context(0)?;
                    drop(open_memory(&context, &handle)?);
                    anyhow::Ok(())
                }
                Side::Raw => {
                    let socket = newcomer::connect(exporter)?;
                    let descriptor = descriptor::request(socket.as_fd(), OFFERED)?;
                    drop(Physical::import(&gpu, descriptor)?.map(LENGTH)?);
                    Ok(())
                }
            })?;
            if round >= WARM_UP_ROUNDS {
                recorder.push(ROW, side, elapsed);
            }
        }
    }
    link.send_number(0)?;
    Ok(recorder.finish())
}
