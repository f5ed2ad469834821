//! One signal that wakes many processes.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::ours::{self, Waiters};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::procfs::is_asleep;
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::monotonic_ns;
use crate::raw::counter::FutexCounter;
use crate::raw::memfd::{self, Mapping};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

const PROCESSES: usize = 32;
const LOW_POWER: &str = "fanout.low-power";
const DEFAULT: &str = "fanout.after-spinning";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "fanout",
    followers: PROCESSES,
    cores: 1,
    limit: Duration::from_secs(120),
    rows: &[
        RowSpec {
            id: LOW_POWER,
            what: "one signal waking 32 processes (low power)",
            raw: "futex with a count of sleepers",
            unit: Unit::Nanoseconds,
            statistic: Statistic::P50,
            target: Target::AtMostTimesRaw(1.15),
        },
        RowSpec {
            id: DEFAULT,
            what: "one signal waking 32 processes (spinning has ended)",
            raw: "futex with a count of sleepers",
            unit: Unit::Nanoseconds,
            statistic: Statistic::P50,
            target: Target::AtMostTimesRaw(1.15),
        },
    ],
    leader: run_leader,
    follower: run_follower,
};

/// Who takes a turn. Each has a counter of its own.
#[derive(Clone, Copy)]
enum Contender {
    Raw,
    LowPower,
    Default,
}

/// The order rotates, so that none always follows the same other one.
fn contenders(round: usize) -> [Contender; 3] {
    let mut turns = [Contender::Raw, Contender::LowPower, Contender::Default];
    turns.rotate_left(round % 3);
    turns
}

fn rounds(participant: &Participant) -> usize {
    participant.plan.pick(300, 30)
}

/// The words that all processes share, beside what is measured.
struct Board<'a> {
    /// Opens each turn; raw in all turns, so that it costs the same in each.
    gate: FutexCounter<'a>,
    /// Counts the processes that are awake, over all turns.
    awake: &'a AtomicU64,
    /// Signalled by the last one awake.
    all_awake: FutexCounter<'a>,
    /// What the raw turn measures.
    raw: FutexCounter<'a>,
    page: &'a Mapping,
}

const PAGES: usize = 4 * 4096;
const LINE: usize = 128;

impl<'a> Board<'a> {
    fn new(page: &'a Mapping) -> Result<Self> {
        Ok(Self {
            gate: FutexCounter(page.word(0)?),
            awake: page.word(LINE)?,
            all_awake: FutexCounter(page.word(2 * LINE)?),
            raw: FutexCounter(page.word(3 * LINE)?),
            page,
        })
    }

    /// The turn that process `index` is about to wait in.
    fn waiting(&self, index: usize) -> Result<&AtomicU64> {
        self.page.word((4 + index) * LINE)
    }

    /// When it woke.
    fn woken_at(&self, index: usize) -> Result<&AtomicU64> {
        self.page.word((4 + index) * LINE + 8)
    }
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let context = ours::context()?;
    let low_power = ours::create_event(&context, Waiters::LowPower)?;
    let default = context.create_event()?;
    let mut handles = low_power.handle()?.as_bytes().to_vec();
    handles.extend_from_slice(default.handle()?.as_bytes());
    let file = memfd::create(PAGES)?;
    let page = Mapping::shared(&file, PAGES)?;
    let board = Board::new(&page)?;
    let mut pids = Vec::with_capacity(PROCESSES);
    for (index, link) in participant.links.iter().enumerate() {
        link.send_with(&handles, &[file.as_fd()])?;
        link.send_number(index as u64)?;
        pids.push(link.receive_number()?);
    }

    let mut recorder = Recorder::default();
    let mut number = 0;
    for round in 0..rounds(participant) {
        for turn in contenders(round) {
            number += 1;
            board.gate.signal()?;
            all_asleep(&board, &pids, number)?;
            let start = monotonic_ns();
            match turn {
                Contender::Raw => board.raw.signal()?,
                Contender::LowPower => low_power.signal().map(drop)?,
                Contender::Default => default.signal().map(drop)?,
            }
            board.all_awake.wait(number as u32)?;
            let mut last = 0;
            for index in 0..PROCESSES {
                last = last.max(board.woken_at(index)?.load(Ordering::Acquire));
            }
            ensure!(last >= start, "a process woke before the signal");
            let elapsed = (last - start) as f64;
            match turn {
                Contender::Raw => {
                    recorder.push(LOW_POWER, Side::Raw, elapsed);
                    recorder.push(DEFAULT, Side::Raw, elapsed);
                }
                Contender::LowPower => recorder.push(LOW_POWER, Side::Ours, elapsed),
                Contender::Default => recorder.push(DEFAULT, Side::Ours, elapsed),
            }
        }
    }
    Ok(recorder.finish())
}

/// Returns once every process has announced turn `number` and is blocked in its wait.
fn all_asleep(board: &Board<'_>, pids: &[u64], number: u64) -> Result<()> {
    for (index, &pid) in pids.iter().enumerate() {
        let waiting = board.waiting(index)?;
        while waiting.load(Ordering::Acquire) != number || !is_asleep(pid)? {
            // Leaves the CPU to those that are on their way.
            thread::sleep(Duration::from_micros(50));
        }
    }
    Ok(())
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    let context = ours::context()?;
    let link = participant.peer()?;
    let message = link.receive()?;
    let mut handles = ours::each_handle(&message.bytes);
    let mut open = |waiters| {
        let bytes = handles
            .next()
            .context("expected the handles of two events")?;
        ours::open_event(&context, bytes, waiters)
    };
    let (low_power, default) = (open(Waiters::LowPower)?, open(Waiters::Default)?);
    let file = message
        .descriptors
        .first()
        .context("expected a descriptor")?;
    let page = Mapping::shared(file, PAGES)?;
    let board = Board::new(&page)?;
    let index = link.receive_number()? as usize;
    let (waiting, woken_at) = (board.waiting(index)?, board.woken_at(index)?);
    link.send_number(u64::from(std::process::id()))?;

    let mut number = 0;
    for round in 0..rounds(participant) {
        for turn in contenders(round) {
            number += 1;
            board.gate.wait(number as u32)?;
            waiting.store(number, Ordering::Release);
            // Each takes one turn a round.
            let value = round as u64 + 1;
            match turn {
                Contender::Raw => board.raw.wait(value as u32)?,
                Contender::LowPower => low_power.wait_value(value).map(drop)?,
                Contender::Default => default.wait_value(value).map(drop)?,
            }
            woken_at.store(monotonic_ns(), Ordering::Release);
            if board.awake.fetch_add(1, Ordering::AcqRel) + 1 == number * PROCESSES as u64 {
                board.all_awake.signal()?;
            }
        }
    }
    Ok(Outcome::default())
}
