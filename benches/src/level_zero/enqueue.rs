//! What it costs to submit commands.

mod cases;

use std::thread;
use std::time::Duration;

use anyhow::Result;
use crosshandle::{Command, Context, Event, Memory, Queue};

use super::ours;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario, no_follower};
use crate::harness::timing::per_operation;
use crate::raw::level_zero::{self as raw, CounterEvent, Gpu, List, PooledEvent, Signalled};
use cases::{CASES, Case, ROWS, What, When};

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "level-zero-enqueue",
    followers: 0,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: ROWS,
    leader: run_leader,
    follower: no_follower,
};

/// Commands that are timed together.
const BATCH: usize = 32;
/// Commands that come first, and that nobody times unless the first one is the row.
const LEAD: usize = 8;
/// Batches of each turn that nobody measures.
const WARM_UP: usize = 2;
/// Bytes of a copy or a fill: no more than what takes no time.
const LENGTH: usize = 64;
const PATTERN: [u8; 4] = [1, 2, 3, 4];
/// Bytes that take the device longer than a batch takes to submit, with what comes before: the
/// simulated one sleeps then.
const LONG: usize = 1 << 17;
/// Until all threads that have something to do with that are where they will be meanwhile.
const SETTLE: Duration = Duration::from_micros(100);

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let raw = Raw::new()?;
    let ours = Ours::new()?;
    // Before this thread is pinned, so that the threads of both sides are not.
    for case in CASES.iter().filter(|case| case.when == When::Busy) {
        ours.batch(case)?;
        raw.batch(case)?;
    }
    participant.plan.pin(0)?;
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(40, 20);
    for round in 0..participant.plan.rounds() {
        for case in &CASES {
            for side in Side::order(round) {
                for batch in 0..WARM_UP + batches {
                    let elapsed = match side {
                        Side::Ours => ours.batch(case)?,
                        Side::Raw => raw.batch(case)?,
                    };
                    // If the device was not busy to the end, the batch was something else.
                    if let (Some(elapsed), true) = (elapsed, batch >= WARM_UP) {
                        recorder.push(case.row.id, side, elapsed);
                    }
                }
            }
        }
    }
    Ok(recorder.finish())
}

/// Nanoseconds for each command.
#[inline(always)] // Into each side's batch, with what it submits.
fn timed(when: When, submit: &mut impl FnMut() -> Result<()>) -> Result<f64> {
    match when {
        When::Idle | When::Busy => {
            for _ in 0..LEAD {
                submit()?;
            }
            per_operation(BATCH, submit)
        }
        When::FirstIdle | When::First => per_operation(1, submit),
    }
}

struct Ours {
    _context: Context,
    queue: Queue,
    /// What signals the events that are waited for.
    other: Queue,
    /// Devices wait for it.
    shared: Event,
    /// Only hosts do.
    hosts: Event,
    /// That the device is not busy any more.
    idle: Event,
    awaited: Vec<Event>,
    memory: [Memory; 2],
    long: [Memory; 2],
}

impl Ours {
    fn new() -> Result<Self> {
        let context = ours::context()?;
        let queue = context.create_queue()?;
        let hosts = || -> Result<Event> {
            let event = context.create_event()?;
            event.handle()?;
            Ok(event)
        };
        let shared = || -> Result<Event> {
            let event = hosts()?;
            // From the first such wait on, one of the driver's goes with it.
            queue.submit(Command::barrier().after_value(&event, 1))?;
            event.signal()?;
            queue.finish()?;
            Ok(event)
        };
        let pair = |length| -> Result<[Memory; 2]> {
            Ok([context.allocate(length)?, context.allocate(length)?])
        };
        Ok(Self {
            other: context.create_queue()?,
            shared: shared()?,
            hosts: hosts()?,
            idle: context.create_event()?,
            awaited: (0..BATCH).map(|_| shared()).collect::<Result<_>>()?,
            queue,
            memory: pair(LENGTH)?,
            long: pair(LONG)?,
            _context: context,
        })
    }

    fn occupy(&self, queue: &Queue) -> Result<()> {
        let [to, from] = &self.long;
        let copy = Command::copy(from.all(), to.all())?;
        Ok(queue.submit(copy.signal(&self.idle))?)
    }

    /// Nanoseconds for each command; `None` if the device was not as busy as wanted.
    fn batch(&self, case: &Case) -> Result<Option<f64>> {
        let Case { what, when, .. } = *case;
        let is_busy = when.is_busy();
        if what == What::Wait {
            if is_busy {
                self.occupy(&self.other)?;
                self.awaited
                    .iter()
                    .try_for_each(|event| self.other.signal(event))?;
            }
        } else if is_busy {
            self.occupy(&self.queue)?;
        }
        if is_busy {
            thread::sleep(SETTLE);
        }
        let mut awaited = self.awaited.iter().cycle();
        let [to, from] = &self.memory;
        // Written as programs write it: a function that hands out commands moves them once more.
        let mut submit = || -> Result<()> {
            match what {
                What::Signal => self.queue.signal(&self.shared)?,
                What::SignalHosts => self.queue.signal(&self.hosts)?,
                What::Wait => awaited
                    .next()
                    .map_or(Ok(()), |event| self.queue.wait(event))?,
                What::Copy => self.queue.submit(Command::copy(from.all(), to.all())?)?,
                What::Fill => {
                    self.queue.submit(Command::fill(to.all(), &PATTERN)?)?;
                }
                What::CopySignal => self
                    .queue
                    .submit(Command::copy(from.all(), to.all())?.signal(&self.shared))?,
                What::CopySignalHosts => self
                    .queue
                    .submit(Command::copy(from.all(), to.all())?.signal(&self.hosts))?,
            }
            Ok(())
        };
        if when == When::FirstIdle {
            submit()?;
            self.queue.finish()?;
        }
        let elapsed = timed(when, &mut submit)?;
        let is_valid = !is_busy || !self.idle.try_wait()?;
        self.other.finish()?;
        self.queue.finish()?;
        Ok(is_valid.then_some(elapsed))
    }
}

struct Raw {
    list: List,
    other: List,
    shared: CounterEvent,
    /// One for each command: an event tells of one signal until it is reset.
    private: Vec<PooledEvent>,
    /// That the device is not busy any more.
    idle: PooledEvent,
    awaited: Vec<CounterEvent>,
    /// That a list is empty.
    done: PooledEvent,
    memory: [raw::Memory; 2],
    long: [raw::Memory; 2],
}

impl Raw {
    fn new() -> Result<Self> {
        let gpu = Gpu::first()?;
        let shared = || CounterEvent::create(gpu);
        let pair = |length| -> Result<[raw::Memory; 2]> {
            let memory = || raw::Memory::allocate(gpu, length);
            Ok([memory()?, memory()?])
        };
        Ok(Self {
            list: List::create(gpu)?,
            other: List::create(gpu)?,
            shared: shared()?,
            private: PooledEvent::create_many(gpu, 2 * BATCH as u32)?,
            idle: PooledEvent::create(gpu)?,
            awaited: (0..BATCH).map(|_| shared()).collect::<Result<_>>()?,
            done: PooledEvent::create(gpu)?,
            memory: pair(LENGTH)?,
            long: pair(LONG)?,
        })
    }

    fn occupy(&self, list: &List) -> Result<()> {
        let [to, from] = &self.long;
        list.copy(to, from, LONG, Some(&self.idle))
    }

    fn finish(&self, list: &List) -> Result<()> {
        list.signal(&self.done)?;
        self.done.synchronize()?;
        self.done.reset()
    }

    /// As for ours.
    fn batch(&self, case: &Case) -> Result<Option<f64>> {
        let Case { what, when, .. } = *case;
        let is_busy = when.is_busy();
        if what == What::Wait {
            if is_busy {
                self.occupy(&self.other)?;
                self.awaited
                    .iter()
                    .try_for_each(|event| self.other.signal(event))?;
            }
        } else if is_busy {
            self.occupy(&self.list)?;
        }
        let [to, from] = &self.memory;
        if is_busy {
            thread::sleep(SETTLE);
        }
        let mut awaited = self.awaited.iter().cycle();
        let mut private = self.private.iter().cycle();
        let mut private = || private.next().map(|event| event as &dyn Signalled);
        let has_event = case.raw_has_event;
        let mut submit = || match what {
            What::Signal => self.list.signal(&self.shared),
            What::SignalHosts => private().map_or(Ok(()), |event| self.list.signal(event)),
            What::Wait => awaited.next().map_or(Ok(()), |event| self.list.wait(event)),
            What::Copy => self
                .list
                .copy(to, from, LENGTH, private().filter(|_| has_event)),
            What::Fill => self
                .list
                .fill(to, &PATTERN, LENGTH, private().filter(|_| has_event)),
            What::CopySignal => self.list.copy(to, from, LENGTH, Some(&self.shared)),
            What::CopySignalHosts => self.list.copy(to, from, LENGTH, private()),
        };
        if when == When::FirstIdle {
            submit()?;
            self.finish(&self.list)?;
        }
        let elapsed = timed(when, &mut submit)?;
        let is_valid = !is_busy || !self.idle.is_done()?;
        self.finish(&self.other)?;
        self.finish(&self.list)?;
        self.idle.reset()?;
        self.private.iter().try_for_each(PooledEvent::reset)?;
        Ok(is_valid.then_some(elapsed))
    }
}
