//! The time until a signal has woken many processes.

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
use crate::report::row::rows;

/// Interval at which the leader checks whether a follower sleeps.
///
/// A shorter interval would take the processor from followers that are about to sleep.
const SLEEP_CHECK_INTERVAL: Duration = Duration::from_micros(50);

const PROCESSES: usize = 32;
const LOW_POWER: &str = "fanout.low-power";
const DEFAULT: &str = "fanout.after-spinning";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "fanout",
    followers: PROCESSES,
    cores: 1,
    limit: Duration::from_secs(120),
    rows: rows! {
        LOW_POWER => "one signal waking 32 processes (low power)",
            "futex with a count of sleepers", AtMostTimesRaw(1.15);
        DEFAULT => "one signal waking 32 processes (spinning has ended)",
            "futex with a count of sleepers", AtMostTimesRaw(1.15);
    },
    leader: run_leader,
    follower: run_follower,
};

/// A measured way to signal and wait. Each has its own counter or event.
#[derive(Clone, Copy)]
enum Contender {
    Raw,
    LowPower,
    Default,
}

/// Returns the order in `round`. The order rotates, so that each contender follows each of the
/// others.
fn contenders(round: usize) -> [Contender; 3] {
    let mut contenders = [Contender::Raw, Contender::LowPower, Contender::Default];
    contenders.rotate_left(round % 3);
    contenders
}

fn rounds(participant: &Participant) -> usize {
    participant.plan.pick(300, 30)
}

/// The words that all processes share in addition to the library's events.
///
/// A *pass* is one signal of one contender. Passes are counted from 1.
struct SharedWords<'a> {
    /// Signalled by the leader to start each pass.
    pass_started: FutexCounter<'a>,
    /// How often followers have woken, in all passes.
    awake: &'a AtomicU64,
    /// The last follower that wakes in a pass signals it.
    all_awake: FutexCounter<'a>,
    /// The raw technique's counter.
    raw: FutexCounter<'a>,
    page: &'a Mapping,
}

/// Size of the shared words, in bytes.
const WORDS_BYTES: usize = 4 * 4096;
/// Distance between two words in bytes. It is a pair of cache lines, because processors load them
/// in pairs.
const STRIDE_BYTES: usize = 128;

impl<'a> SharedWords<'a> {
    fn new(page: &'a Mapping) -> Result<Self> {
        Ok(Self {
            pass_started: FutexCounter(page.word(0)?),
            awake: page.word(STRIDE_BYTES)?,
            all_awake: FutexCounter(page.word(2 * STRIDE_BYTES)?),
            raw: FutexCounter(page.word(3 * STRIDE_BYTES)?),
            page,
        })
    }

    /// Returns the word with the pass in which follower `index` is about to wait.
    fn waiting(&self, index: usize) -> Result<&AtomicU64> {
        self.page.word((4 + index) * STRIDE_BYTES)
    }

    /// Returns the word with the time at which follower `index` woke, in nanoseconds.
    fn woken_at(&self, index: usize) -> Result<&AtomicU64> {
        self.page.word((4 + index) * STRIDE_BYTES + 8)
    }
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let context = ours::context()?;
    let low_power = ours::create_event(&context, Waiters::LowPower)?;
    let default = context.create_event()?;
    let mut handles = low_power.handle()?.as_bytes().to_vec();
    handles.extend_from_slice(default.handle()?.as_bytes());
    let file = memfd::create(WORDS_BYTES)?;
    let page = Mapping::shared(&file, WORDS_BYTES)?;
    let words = SharedWords::new(&page)?;
    let mut pids = Vec::with_capacity(PROCESSES);
    for (index, link) in participant.links.iter().enumerate() {
        link.send_with(&handles, &[file.as_fd()])?;
        link.send_number(index as u64)?;
        pids.push(link.receive_number()?);
    }

    let mut recorder = Recorder::default();
    let mut number = 0;
    for round in 0..rounds(participant) {
        for contender in contenders(round) {
            number += 1;
            words.pass_started.signal()?;
            all_asleep(&words, &pids, number)?;
            let start = monotonic_ns();
            match contender {
                Contender::Raw => words.raw.signal()?,
                Contender::LowPower => low_power.signal().map(drop)?,
                Contender::Default => default.signal().map(drop)?,
            }
            words.all_awake.wait(number as u32)?;
            let mut last = 0;
            for index in 0..PROCESSES {
                last = last.max(words.woken_at(index)?.load(Ordering::Acquire));
            }
            ensure!(last >= start, "a process woke before the signal");
            let elapsed = (last - start) as f64;
            match contender {
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

/// Waits until every follower has announced pass `number` and is blocked in its wait.
fn all_asleep(words: &SharedWords<'_>, pids: &[u64], number: u64) -> Result<()> {
    for (index, &pid) in pids.iter().enumerate() {
        let waiting = words.waiting(index)?;
        while waiting.load(Ordering::Acquire) != number || !is_asleep(pid)? {
            // Sleeping leaves the CPU to followers that are about to block.
            thread::sleep(SLEEP_CHECK_INTERVAL);
        }
    }
    Ok(())
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    let context = ours::context()?;
    let link = participant.peer()?;
    let message = link.receive()?;
    let mut handles = ours::each_event(&message.bytes);
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
    let page = Mapping::shared(file, WORDS_BYTES)?;
    let words = SharedWords::new(&page)?;
    let index = link.receive_number()? as usize;
    let (waiting, woken_at) = (words.waiting(index)?, words.woken_at(index)?);
    link.send_number(u64::from(std::process::id()))?;

    let mut number = 0;
    for round in 0..rounds(participant) {
        for contender in contenders(round) {
            number += 1;
            words.pass_started.wait(number as u32)?;
            waiting.store(number, Ordering::Release);
            // Each contender has one pass per round.
            let value = round as u64 + 1;
            match contender {
                Contender::Raw => words.raw.wait(value as u32)?,
                Contender::LowPower => low_power.wait_value(value).map(drop)?,
                Contender::Default => default.wait_value(value).map(drop)?,
            }
            woken_at.store(monotonic_ns(), Ordering::Release);
            if words.awake.fetch_add(1, Ordering::AcqRel) + 1 == number * PROCESSES as u64 {
                words.all_awake.signal()?;
            }
        }
    }
    Ok(Outcome::default())
}
