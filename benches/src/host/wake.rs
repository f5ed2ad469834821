//! Round trips: one process signals, the other one answers.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use crosshandle::Event;

use super::ours::{self, Waiters};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Scenario, Seat};
use crate::harness::timing::{clock_cost, once, per_operation};
use crate::raw::counter::{FutexCounter, SpinCounter};
use crate::raw::memfd::{self, Mapping};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;

/// Offsets of the two raw words, in bytes: far enough apart for a prefetcher that loads lines in
/// pairs.
const PING: usize = 0;
const PONG: usize = 256;
const PAGE: usize = 4096;

/// Number of unmeasured round trips before each turn.
const WARM_UP: usize = 100;

/// One arrangement of the two processes.
struct Kind {
    /// Row of round trips timed a thousand at a time.
    batched: Option<&'static str>,
    /// Row of round trips timed one by one.
    single: &'static str,
    /// Index of the CPU to which the answering process is pinned. The other process uses CPU 0.
    hand_cpu: usize,
    raw_spins: bool,
    waiters: Waiters,
    /// Number of round trips timed one by one in a turn, of a full and of a quick run.
    singles: (usize, usize),
}

const BATCHES: usize = 10;
const BATCH: usize = 1000;

static SPIN: Kind = Kind {
    batched: Some("wake.spin"),
    single: "wake.spin.p99",
    hand_cpu: 1,
    raw_spins: true,
    waiters: Waiters::Default,
    singles: (10_000, 5_000),
};
static SLEEP: Kind = Kind {
    batched: None,
    single: "wake.sleep",
    hand_cpu: 1,
    raw_spins: false,
    waiters: Waiters::LowPower,
    singles: (1000, 200),
};
static SHARED: Kind = Kind {
    batched: None,
    single: "wake.shared-core",
    hand_cpu: 0,
    raw_spins: false,
    waiters: Waiters::Default,
    singles: (10_000, 2000),
};

pub(crate) static SPINNING: Scenario = Scenario {
    name: "wake.spin",
    hands: 1,
    cores: 2,
    limit: Duration::from_secs(60),
    rows: &[
        RowSpec {
            id: "wake.spin",
            what: "round trip, two cores, spinning",
            raw: "two words, both sides spin",
            unit: Unit::Nanoseconds,
            statistic: Statistic::P50,
            target: Target::AtMostTimesRaw(1.15),
        },
        RowSpec {
            id: "wake.spin.p99",
            what: "round trip, two cores, spinning",
            raw: "two words, both sides spin",
            unit: Unit::Nanoseconds,
            statistic: Statistic::P99,
            target: Target::AtMostTimesRaw(1.5),
        },
    ],
    lead: |seat| lead(seat, &SPIN),
    hand: |seat| hand(seat, &SPIN),
};

pub(crate) static SLEEPING: Scenario = Scenario {
    name: "wake.sleep",
    hands: 1,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: &[RowSpec {
        id: "wake.sleep",
        what: "round trip, two cores, sleeping (low power)",
        raw: "futex with a count of sleepers",
        unit: Unit::Nanoseconds,
        statistic: Statistic::P50,
        target: Target::AtMostTimesRaw(1.1),
    }],
    lead: |seat| lead(seat, &SLEEP),
    hand: |seat| hand(seat, &SLEEP),
};

pub(crate) static SHARED_CORE: Scenario = Scenario {
    name: "wake.shared-core",
    hands: 1,
    cores: 1,
    limit: Duration::from_secs(120),
    rows: &[RowSpec {
        id: "wake.shared-core",
        what: "round trip, one shared core",
        raw: "futex with a count of sleepers",
        unit: Unit::Nanoseconds,
        statistic: Statistic::P50,
        target: Target::AtMostTimesRaw(1.1),
    }],
    lead: |seat| lead(seat, &SHARED),
    hand: |seat| hand(seat, &SHARED),
};

/// A word or event to signal and to wait for. Signals come in order, numbered from 1.
trait Notification {
    fn signal_number(&self, number: u64) -> Result<()>;
    fn wait(&self, number: u64) -> Result<()>;
}

impl Notification for SpinCounter<'_> {
    #[inline]
    fn signal_number(&self, number: u64) -> Result<()> {
        self.signal(number);
        Ok(())
    }

    #[inline]
    fn wait(&self, number: u64) -> Result<()> {
        self.wait(number);
        Ok(())
    }
}

impl Notification for FutexCounter<'_> {
    #[inline]
    fn signal_number(&self, _: u64) -> Result<()> {
        self.signal()
    }

    #[inline]
    fn wait(&self, number: u64) -> Result<()> {
        // The counter wraps like its 32-bit sequence.
        self.wait(number as u32)
    }
}

impl Notification for Event {
    #[inline]
    fn signal_number(&self, _: u64) -> Result<()> {
        self.signal()?;
        Ok(())
    }

    #[inline]
    fn wait(&self, number: u64) -> Result<()> {
        self.wait_value(number)?;
        Ok(())
    }
}

/// The words or events of both directions, and the number of the last round trip.
struct PingPong<B> {
    ping: B,
    pong: B,
    number: u64,
}

impl<B: Notification> PingPong<B> {
    fn new(ping: B, pong: B) -> Self {
        Self {
            ping,
            pong,
            number: 0,
        }
    }

    #[inline]
    fn call(&mut self) -> Result<()> {
        self.number += 1;
        self.ping.signal_number(self.number)?;
        self.pong.wait(self.number)
    }

    fn answer(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            self.number += 1;
            self.ping.wait(self.number)?;
            self.pong.signal_number(self.number)?;
        }
        Ok(())
    }

    /// Runs one turn of the calling process.
    fn turn(
        &mut self,
        seat: &Seat,
        kind: &Kind,
        side: Side,
        recorder: &mut Recorder,
    ) -> Result<()> {
        for _ in 0..WARM_UP {
            self.call()?;
        }
        if let Some(row) = kind.batched {
            for _ in 0..BATCHES {
                recorder.push(row, side, per_operation(BATCH, || self.call())?);
            }
        }
        let clock = clock_cost();
        for _ in 0..seat.plan.pick(kind.singles.0, kind.singles.1) {
            let ((), elapsed) = once(clock, || self.call())?;
            recorder.push(kind.single, side, elapsed);
        }
        Ok(())
    }
}

/// Returns the number of round trips in one turn, on which both processes agree.
fn trips(seat: &Seat, kind: &Kind) -> usize {
    let batched = if kind.batched.is_some() {
        BATCHES * BATCH
    } else {
        0
    };
    WARM_UP + batched + seat.plan.pick(kind.singles.0, kind.singles.1)
}

fn lead(seat: &Seat, kind: &Kind) -> Result<Outcome> {
    seat.plan.pin(0)?;
    let context = ours::context()?;
    let create = || ours::create_event(&context, kind.waiters);
    let (ping, pong) = (create()?, create()?);
    let mut handles = ping.handle()?.as_bytes().to_vec();
    handles.extend_from_slice(pong.handle()?.as_bytes());
    let file = memfd::create(PAGE)?;
    seat.peer()?.send_with(&handles, &[file.as_fd()])?;
    let page = Mapping::shared(&file, PAGE)?;
    ensure!(
        seat.peer()?.receive_number()? == 0,
        "the other process is not ready"
    );

    let mut ours = PingPong::new(ping, pong);
    let (ping, pong) = (page.word(PING)?, page.word(PONG)?);
    let mut spin = PingPong::new(SpinCounter(ping), SpinCounter(pong));
    let mut futex = PingPong::new(FutexCounter(ping), FutexCounter(pong));
    let mut recorder = Recorder::default();
    for round in 0..seat.plan.rounds() {
        for side in Side::turns(round) {
            match side {
                Side::Ours => ours.turn(seat, kind, side, &mut recorder)?,
                Side::Raw if kind.raw_spins => spin.turn(seat, kind, side, &mut recorder)?,
                Side::Raw => futex.turn(seat, kind, side, &mut recorder)?,
            }
        }
    }
    Ok(recorder.finish())
}

fn hand(seat: &Seat, kind: &Kind) -> Result<Outcome> {
    seat.plan.pin(kind.hand_cpu)?;
    let context = ours::context()?;
    let message = seat.peer()?.receive()?;
    let events = ours::each_handle(&message.bytes)
        .map(|bytes| ours::open_event(&context, bytes, kind.waiters))
        .collect::<Result<Vec<_>>>()?;
    let [ping, pong] = <[Event; 2]>::try_from(events)
        .ok()
        .context("expected the handles of two events")?;
    let file = message
        .descriptors
        .first()
        .context("expected a descriptor")?;
    let page = Mapping::shared(file, PAGE)?;
    seat.peer()?.send_number(0)?;

    let mut ours = PingPong::new(ping, pong);
    let (ping, pong) = (page.word(PING)?, page.word(PONG)?);
    let mut spin = PingPong::new(SpinCounter(ping), SpinCounter(pong));
    let mut futex = PingPong::new(FutexCounter(ping), FutexCounter(pong));
    let count = trips(seat, kind);
    for round in 0..seat.plan.rounds() {
        for side in Side::turns(round) {
            match side {
                Side::Ours => ours.answer(count)?,
                Side::Raw if kind.raw_spins => spin.answer(count)?,
                Side::Raw => futex.answer(count)?,
            }
        }
    }
    Ok(Outcome::default())
}
