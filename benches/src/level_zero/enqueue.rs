//! What it costs to submit commands.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use crosshandle::{Command, Context, Event, Memory, Queue};

use super::{CLOSE, ours, row};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Scenario, Seat, no_hand};
use crate::harness::timing::per_operation;
use crate::raw::level_zero::{self as raw, CounterEvent, Gpu, List, PooledEvent, Signalled};
use crate::report::row::Target;

const SIGNAL: &str = "zeCommandListAppendSignalEvent";
const WAIT: &str = "zeCommandListAppendWaitOnEvents";
const COPY: &str = "zeCommandListAppendMemoryCopy with an event";
const COPY_ALONE: &str = "zeCommandListAppendMemoryCopy";
const FILL: &str = "zeCommandListAppendMemoryFill with an event";
const FILL_ALONE: &str = "zeCommandListAppendMemoryFill";
const COPY_SIGNAL: &str = "zeCommandListAppendMemoryCopy with the event";

/// What is submitted.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Signal,
    /// Of an event that no device waits for, in no process.
    SignalHosts,
    Wait,
    Copy,
    Fill,
    CopySignal,
    CopySignalHosts,
}

/// A row: with the raw call as it tells nobody when it is done, where there is a choice.
struct Case {
    row: &'static str,
    what: What,
    /// The device is at a longer command meanwhile.
    is_busy: bool,
    raw_has_event: bool,
    /// As many commands come right before, which nobody measures.
    follows: bool,
}

const fn case(row: &'static str, what: What, is_busy: bool) -> Case {
    Case {
        row,
        what,
        is_busy,
        raw_has_event: true,
        follows: false,
    }
}

const fn following(row: &'static str, what: What) -> Case {
    Case {
        follows: true,
        ..case(row, what, true)
    }
}

const fn alone(row: &'static str, what: What, is_busy: bool) -> Case {
    Case {
        raw_has_event: false,
        ..case(row, what, is_busy)
    }
}

const CASES: [Case; 21] = [
    case("level-zero-enqueue.signal", What::Signal, false),
    case("level-zero-enqueue.signal-busy", What::Signal, true),
    case("level-zero-enqueue.hosts", What::SignalHosts, false),
    case("level-zero-enqueue.hosts-busy", What::SignalHosts, true),
    case("level-zero-enqueue.wait", What::Wait, true),
    case("level-zero-enqueue.wait-done", What::Wait, false),
    case("level-zero-enqueue.copy", What::Copy, false),
    case("level-zero-enqueue.copy-busy", What::Copy, true),
    alone("level-zero-enqueue.copy-alone", What::Copy, false),
    case("level-zero-enqueue.fill", What::Fill, false),
    case("level-zero-enqueue.fill-busy", What::Fill, true),
    alone("level-zero-enqueue.fill-alone", What::Fill, false),
    case("level-zero-enqueue.copy-signal", What::CopySignal, false),
    case(
        "level-zero-enqueue.copy-signal-busy",
        What::CopySignal,
        true,
    ),
    alone("level-zero-enqueue.fill-alone-busy", What::Fill, true),
    following("level-zero-enqueue.signal-more", What::Signal),
    following("level-zero-enqueue.copy-more", What::Copy),
    following("level-zero-enqueue.fill-more", What::Fill),
    following("level-zero-enqueue.copy-signal-more", What::CopySignal),
    case(
        "level-zero-enqueue.copy-hosts-busy",
        What::CopySignalHosts,
        true,
    ),
    following("level-zero-enqueue.copy-hosts-more", What::CopySignalHosts),
];

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "level-zero-enqueue",
    hands: 0,
    cores: 2,
    limit: Duration::from_secs(120),
    rows: &[
        row(CASES[0].row, "submit a signal", SIGNAL, CLOSE),
        row(CASES[1].row, "submit a signal, device busy", SIGNAL, CLOSE),
        row(
            CASES[2].row,
            "submit a signal that only hosts wait for",
            SIGNAL,
            CLOSE,
        ),
        row(CASES[3].row, "the same, device busy", SIGNAL, CLOSE),
        row(
            CASES[4].row,
            "submit a wait for another queue's signal, not there yet",
            WAIT,
            CLOSE,
        ),
        row(
            CASES[5].row,
            "submit a wait for what has happened",
            WAIT,
            CLOSE,
        ),
        row(CASES[6].row, "submit a copy", COPY, CLOSE),
        row(CASES[7].row, "submit a copy, device busy", COPY, CLOSE),
        row(
            CASES[8].row,
            "submit a copy, whose end the raw call tells nobody",
            COPY_ALONE,
            Target::None,
        ),
        row(CASES[9].row, "submit a fill", FILL, CLOSE),
        row(CASES[10].row, "submit a fill, device busy", FILL, CLOSE),
        row(
            CASES[11].row,
            "submit a fill, whose end the raw call tells nobody",
            FILL_ALONE,
            Target::None,
        ),
        row(
            CASES[12].row,
            "submit a copy that signals",
            COPY_SIGNAL,
            CLOSE,
        ),
        row(
            CASES[13].row,
            "submit a copy that signals, device busy",
            COPY_SIGNAL,
            CLOSE,
        ),
        row(
            CASES[14].row,
            "submit a fill, device busy, whose end the raw call tells nobody",
            FILL_ALONE,
            Target::None,
        ),
        row(
            CASES[15].row,
            "submit another signal, device busy",
            SIGNAL,
            CLOSE,
        ),
        row(
            CASES[16].row,
            "submit another copy, device busy",
            COPY,
            CLOSE,
        ),
        row(
            CASES[17].row,
            "submit another fill, device busy",
            FILL,
            CLOSE,
        ),
        row(
            CASES[18].row,
            "submit another copy that signals, device busy",
            COPY_SIGNAL,
            CLOSE,
        ),
        row(
            CASES[19].row,
            "submit a copy with a signal that only hosts wait for, device busy",
            COPY_SIGNAL,
            CLOSE,
        ),
        row(
            CASES[20].row,
            "submit another one of these, device busy",
            COPY_SIGNAL,
            CLOSE,
        ),
    ],
    lead,
    hand: no_hand,
};

/// Commands between two times that the queue is empty.
const BATCH: usize = 32;
/// Batches of each turn that nobody measures.
const WARM_UP: usize = 2;
/// Bytes of a copy or a fill: no more than what takes no time.
const LENGTH: usize = 64;
const PATTERN: [u8; 4] = [1, 2, 3, 4];
/// Bytes that take the device longer than a batch takes to submit, with what comes before: the
/// simulated one sleeps then.
const LONG: usize = 1 << 20;
/// Until all threads that have something to do with that are where they will be meanwhile.
const SETTLE: Duration = Duration::from_micros(100);

fn lead(seat: &Seat) -> Result<Outcome> {
    let raw = Raw::new()?;
    let ours = Ours::new()?;
    // Before this thread is pinned, so that the threads of both sides are not.
    let first = case("", What::Copy, true);
    ours.batch(&first)?;
    raw.batch(&first)?;
    seat.plan.pin(0)?;
    let mut recorder = Recorder::default();
    let batches = seat.plan.pick(40, 20);
    for round in 0..seat.plan.rounds() {
        for case in &CASES {
            for side in Side::turns(round) {
                for batch in 0..WARM_UP + batches {
                    let elapsed = match side {
                        Side::Ours => ours.batch(case)?,
                        Side::Raw => raw.batch(case)?,
                    };
                    // If the device was not busy to the end, the batch was something else.
                    if let (Some(elapsed), true) = (elapsed, batch >= WARM_UP) {
                        recorder.push(case.row, side, elapsed);
                    }
                }
            }
        }
    }
    Ok(recorder.finish())
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
        let copy = Command::copy(to.all(), from.all())?;
        Ok(queue.submit(copy.signal(&self.idle))?)
    }

    /// Nanoseconds for each command; `None` if the device was not as busy as wanted.
    fn batch(&self, case: &Case) -> Result<Option<f64>> {
        let Case { what, is_busy, .. } = *case;
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
                What::Copy => self.queue.submit(Command::copy(to.all(), from.all())?)?,
                What::Fill => {
                    self.queue.submit(Command::fill(to.all(), &PATTERN)?)?;
                }
                What::CopySignal => self
                    .queue
                    .submit(Command::copy(to.all(), from.all())?.signal(&self.shared))?,
                What::CopySignalHosts => self
                    .queue
                    .submit(Command::copy(to.all(), from.all())?.signal(&self.hosts))?,
            }
            Ok(())
        };
        if case.follows {
            per_operation(BATCH, &mut submit)?;
        }
        let elapsed = per_operation(BATCH, submit)?;
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
        let Case { what, is_busy, .. } = *case;
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
        if case.follows {
            per_operation(BATCH, &mut submit)?;
        }
        let elapsed = per_operation(BATCH, submit)?;
        let is_valid = !is_busy || !self.idle.is_done()?;
        self.finish(&self.other)?;
        self.finish(&self.list)?;
        self.idle.reset()?;
        self.private.iter().try_for_each(PooledEvent::reset)?;
        Ok(is_valid.then_some(elapsed))
    }
}
