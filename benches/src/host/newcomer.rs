//! The time that a newcomer needs for memory: a context of its own, the memory opened, and both
//! closed.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{clock_cost, once};
use crate::raw::descriptor::{self, OfferedDescriptors};
use crate::raw::memfd::{self, Mapping};
use crate::raw::newcomer;
use crate::report::row::rows;

const ROW: &str = "newcomer.2MiB";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "newcomer",
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(60),
    rows: rows! {
        ROW => "newcomer: context, first open of 2 MiB, close",
            "socket connected, descriptor requested (SCM_RIGHTS), mmap, munmap, close",
            AtMostTimesRaw(1.5);
    },
    leader: run_leader,
    follower: run_follower,
};

const LENGTH: usize = 2 << 20;
/// Number under which the raw exporter offers the memory.
const OFFERED: u64 = 0;
/// The first word of the memory.
const TOKEN: u64 = 0x6e65_7763_6f6d_6572;
const WARM_UP_ROUNDS: usize = 2;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let context = ours::context()?;
    let memory = context.allocate(LENGTH)?;
    ours::region(&memory).write(0, TOKEN);
    let file = memfd::create(LENGTH)?;
    let own = Mapping::shared(&file, LENGTH)?;
    own.region().write(0, TOKEN);
    let offers = OfferedDescriptors::default();
    offers.add(OFFERED, file);
    newcomer::serve(&offers)?;
    link.send_number(u64::from(std::process::id()))?;
    link.send(memory.handle()?.as_bytes())?;
    // The follower replies when it is done.
    link.await_number(0)?;
    Ok(Outcome::default())
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let exporter = u32::try_from(link.receive_number()?)?;
    let handle = link.receive()?.bytes;
    let clock = clock_cost();
    let mut recorder = Recorder::default();
    let rounds = WARM_UP_ROUNDS + participant.plan.pick(101, 15);
    for round in 0..rounds {
        for side in Side::order(round) {
            let (word, elapsed) = once(clock, || match side {
                Side::Ours => {
                    let context = ours::context()?;
                    let memory = ours::open_memory(&context, &handle)?;
                    anyhow::Ok(ours::region(&memory).read(0))
                }
                Side::Raw => {
                    let socket = newcomer::connect(exporter)?;
                    let memory = descriptor::open(socket.as_fd(), OFFERED, LENGTH)?;
                    Ok(memory.region().read(0))
                }
            })?;
            ensure!(word == TOKEN, "the memory does not hold the word");
            if round >= WARM_UP_ROUNDS {
                recorder.push(ROW, side, elapsed);
            }
        }
    }
    link.send_number(0)?;
    Ok(recorder.finish())
}
