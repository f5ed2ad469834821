//! Round trips: one process signals, and the other process signals back.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use crosshandle::Event;

use super::ours::{self, Waiters};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{clock_cost, once, per_operation};
use crate::raw::counter::{FutexCounter, SpinCounter};
use crate::raw::memfd::{self, Mapping};
use crate::report::row::rows;

/// Offset of the raw word that the leader signals, in bytes.
const PING_OFFSET: usize = 0;
/// Offset of the raw word that the follower signals, in bytes. Both words are on one cache line,
/// which then crosses between the cores once for each direction. Words on two lines are slower.
const PONG_OFFSET: usize = 8;
/// Offset at which that word has a cache line of its own, as an event has.
const OTHER_LINE_OFFSET: usize = 256;
const PAGE_BYTES: usize = 4096;

/// Number of round trips per side and round that are not recorded.
const WARM_UP_TRIPS: usize = 100;

/// The raw technique of an arrangement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Raw {
    /// Both sides spin, on two words of one cache line.
    Spin,
    /// Both sides spin, on two words of two cache lines.
    SpinOnTwoLines,
    Futex,
}

/// One arrangement of the two processes.
pub(crate) struct Arrangement {
    /// Row of round trips that are timed in batches.
    pub(crate) batched: Option<&'static str>,
    /// Row of round trips that are timed one by one.
    pub(crate) single: &'static str,
    /// Index of the follower's CPU in the plan. The leader has CPU 0.
    pub(crate) follower_cpu: usize,
    pub(crate) raw: Raw,
    pub(crate) waiters: Waiters,
    /// Number of round trips that are timed one by one in each round, in a full and in a quick run.
    pub(crate) singles: (usize, usize),
}

const BATCHES: usize = 10;
const TRIPS_PER_BATCH: usize = 1000;

static SPIN: Arrangement = Arrangement {
    batched: Some("wake.spin"),
    single: "wake.spin.p99",
    follower_cpu: 1,
    raw: Raw::Spin,
    waiters: Waiters::Default,
    singles: (10_000, 5_000),
};
static SPIN_LINES: Arrangement = Arrangement {
    batched: Some("wake.spin-two-lines"),
    single: "wake.spin-two-lines.p99",
    raw: Raw::SpinOnTwoLines,
    ..SPIN
};
static SLEEP: Arrangement = Arrangement {
    batched: None,
    single: "wake.sleep",
    follower_cpu: 1,
    raw: Raw::Futex,
    waiters: Waiters::LowPower,
    singles: (1000, 200),
};
static SHARED: Arrangement = Arrangement {
    batched: None,
    single: "wake.shared-core",
    follower_cpu: 0,
    raw: Raw::Futex,
    waiters: Waiters::Default,
    singles: (10_000, 2000),
};

pub(crate) static SPINNING: Scenario = Scenario {
    name: "wake.spin",
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(60),
    rows: rows! {
        "wake.spin" => "round trip, two cores, spinning",
            "two words on one cache line, both sides spin", AtMostTimesRaw(1.15);
        "wake.spin.p99" => "round trip, two cores, spinning",
            "two words on one cache line, both sides spin", AtMostTimesRaw(1.5), p99;
    },
    leader: |participant| run_leader(participant, &SPIN),
    follower: |participant| run_follower(participant, &SPIN),
};

pub(crate) static SPINNING_ON_TWO_LINES: Scenario = Scenario {
    name: "wake.spin-two-lines",
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(60),
    rows: rows! {
        "wake.spin-two-lines" => "round trip, two cores, spinning, compared with two lines",
            "two words on two cache lines, both sides spin", AtMostTimesRaw(1.15);
        "wake.spin-two-lines.p99" => "round trip, two cores, spinning, compared with two lines",
            "two words on two cache lines, both sides spin", AtMostTimesRaw(1.5), p99;
    },
    leader: |participant| run_leader(participant, &SPIN_LINES),
    follower: |participant| run_follower(participant, &SPIN_LINES),
};

pub(crate) static SLEEPING: Scenario = Scenario {
    name: "wake.sleep",
    followers: 1,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: rows! {
        "wake.sleep" => "round trip, two cores, sleeping (low power)",
            "futex with a count of sleepers", AtMostTimesRaw(1.1);
    },
    leader: |participant| run_leader(participant, &SLEEP),
    follower: |participant| run_follower(participant, &SLEEP),
};

pub(crate) static SHARED_CORE: Scenario = Scenario {
    name: "wake.shared-core",
    followers: 1,
    cores: 1,
    limit: Duration::from_secs(120),
    rows: rows! {
        "wake.shared-core" => "round trip, one shared core",
            "futex with a count of sleepers", AtMostTimesRaw(1.1);
    },
    leader: |participant| run_leader(participant, &SHARED),
    follower: |participant| run_follower(participant, &SHARED),
};

/// An object that one process signals and the other waits for. Signals are numbered from 1.
pub(crate) trait Notifier {
    /// Submits signal `number`, which is the next one.
    fn notify(&self, number: u64) -> Result<()>;
    /// Waits for signal `number`.
    fn wait(&self, number: u64) -> Result<()>;
}

impl Notifier for SpinCounter<'_> {
    #[inline]
    fn notify(&self, number: u64) -> Result<()> {
        self.signal(number);
        Ok(())
    }

    #[inline]
    fn wait(&self, number: u64) -> Result<()> {
        self.wait(number);
        Ok(())
    }
}

impl Notifier for FutexCounter<'_> {
    #[inline]
    fn notify(&self, _: u64) -> Result<()> {
        self.signal()
    }

    #[inline]
    fn wait(&self, number: u64) -> Result<()> {
        // The counter compares cyclically, so a wrapped 32-bit number is correct.
        self.wait(number as u32)
    }
}

impl Notifier for Event {
    #[inline]
    fn notify(&self, _: u64) -> Result<()> {
        self.signal()?;
        Ok(())
    }

    #[inline]
    fn wait(&self, number: u64) -> Result<()> {
        self.wait_value(number)?;
        Ok(())
    }
}

/// The notifiers of both directions, and the number of the last round trip.
pub(crate) struct PingPong<N> {
    ping: N,
    pong: N,
    number: u64,
}

impl<N: Notifier> PingPong<N> {
    pub(crate) fn new(ping: N, pong: N) -> Self {
        Self {
            ping,
            pong,
            number: 0,
        }
    }

    /// Makes one round trip, as the leader.
    #[inline]
    fn round_trip(&mut self) -> Result<()> {
        self.number += 1;
        self.ping.notify(self.number)?;
        self.pong.wait(self.number)
    }

    /// Replies to `count` round trips, as the follower.
    pub(crate) fn answer(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.number += 1;
            self.ping.wait(self.number)?;
            self.pong.notify(self.number)?;
        }
        Ok(())
    }

    /// Measures the round trips of one side in one round, as the leader.
    pub(crate) fn measure(
        &mut self,
        participant: &Participant,
        arrangement: &Arrangement,
        side: Side,
        recorder: &mut Recorder,
    ) -> Result<()> {
        for _ in 0..WARM_UP_TRIPS {
            self.round_trip()?;
        }
        if let Some(row) = arrangement.batched {
            for _ in 0..BATCHES {
                recorder.push(
                    row,
                    side,
                    per_operation(TRIPS_PER_BATCH, || self.round_trip())?,
                );
            }
        }
        let clock = clock_cost();
        for _ in 0..participant
            .plan
            .pick(arrangement.singles.0, arrangement.singles.1)
        {
            let ((), elapsed) = once(clock, || self.round_trip())?;
            recorder.push(arrangement.single, side, elapsed);
        }
        Ok(())
    }
}

/// Returns the number of round trips per side and round. Both processes make this many.
pub(crate) fn trips(participant: &Participant, arrangement: &Arrangement) -> usize {
    let batched = if arrangement.batched.is_some() {
        BATCHES * TRIPS_PER_BATCH
    } else {
        0
    };
    WARM_UP_TRIPS
        + batched
        + participant
            .plan
            .pick(arrangement.singles.0, arrangement.singles.1)
}

fn run_leader(participant: &Participant, arrangement: &Arrangement) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let context = ours::context()?;
    let create = || ours::create_event(&context, arrangement.waiters);
    let (ping, pong) = (create()?, create()?);
    let mut handles = ping.handle()?.as_bytes().to_vec();
    handles.extend_from_slice(pong.handle()?.as_bytes());
    let file = memfd::create(PAGE_BYTES)?;
    participant.peer()?.send_with(&handles, &[file.as_fd()])?;
    let page = Mapping::shared(&file, PAGE_BYTES)?;
    participant.peer()?.await_number(0)?;

    let mut ours = PingPong::new(ping, pong);
    let pong = match arrangement.raw {
        Raw::SpinOnTwoLines => OTHER_LINE_OFFSET,
        Raw::Spin | Raw::Futex => PONG_OFFSET,
    };
    let (ping, pong) = (page.word(PING_OFFSET)?, page.word(pong)?);
    let mut spin = PingPong::new(SpinCounter(ping), SpinCounter(pong));
    let mut futex = PingPong::new(FutexCounter(ping), FutexCounter(pong));
    let mut recorder = Recorder::default();
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            match side {
                Side::Ours => ours.measure(participant, arrangement, side, &mut recorder)?,
                Side::Raw if arrangement.raw != Raw::Futex => {
                    spin.measure(participant, arrangement, side, &mut recorder)?
                }
                Side::Raw => futex.measure(participant, arrangement, side, &mut recorder)?,
            }
        }
    }
    Ok(recorder.finish())
}

fn run_follower(participant: &Participant, arrangement: &Arrangement) -> Result<Outcome> {
    participant.plan.pin(arrangement.follower_cpu)?;
    let context = ours::context()?;
    let message = participant.peer()?.receive()?;
    let events = ours::each_event(&message.bytes)
        .map(|bytes| ours::open_event(&context, bytes, arrangement.waiters))
        .collect::<Result<Vec<_>>>()?;
    let [ping, pong] = <[Event; 2]>::try_from(events)
        .ok()
        .context("expected the handles of two events")?;
    let file = message
        .descriptors
        .first()
        .context("expected a descriptor")?;
    let page = Mapping::shared(file, PAGE_BYTES)?;
    participant.peer()?.send_number(0)?;

    let mut ours = PingPong::new(ping, pong);
    let pong = match arrangement.raw {
        Raw::SpinOnTwoLines => OTHER_LINE_OFFSET,
        Raw::Spin | Raw::Futex => PONG_OFFSET,
    };
    let (ping, pong) = (page.word(PING_OFFSET)?, page.word(pong)?);
    let mut spin = PingPong::new(SpinCounter(ping), SpinCounter(pong));
    let mut futex = PingPong::new(FutexCounter(ping), FutexCounter(pong));
    let count = trips(participant, arrangement);
    for round in 0..participant.plan.rounds() {
        for side in Side::order(round) {
            match side {
                Side::Ours => ours.answer(count)?,
                Side::Raw if arrangement.raw != Raw::Futex => spin.answer(count)?,
                Side::Raw => futex.answer(count)?,
            }
        }
    }
    Ok(Outcome::default())
}
