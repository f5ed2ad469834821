//! The cost of submitting commands.

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
use crate::tuning::DEVICE_BUSY_DELAY;
use cases::{CASES, Case, DeviceLoad, ROWS, Submission};

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
const COMMANDS_PER_BATCH: usize = 32;
/// Commands before a batch, which are not timed.
const UNTIMED_COMMANDS: usize = 8;
/// Batches of a side that are not recorded, in each round.
const WARM_UP_BATCHES: usize = 2;
/// Bytes of a copy or a fill: so few that the device needs no time for them.
const SHORT_BYTES: usize = 64;
const PATTERN: [u8; 4] = [1, 2, 3, 4];
/// Bytes of a copy that keeps the device busy while a batch is submitted. The simulated device
/// sleeps for a copy of this size.
const LONG_BYTES: usize = 1 << 17;

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let raw = Raw::new()?;
    let ours = Ours::new()?;
    // The first use comes before this thread is pinned, so that the sides' threads are not pinned.
    for case in CASES.iter().filter(|case| case.load == DeviceLoad::Busy) {
        ours.batch(case)?;
        raw.batch(case)?;
    }
    participant.plan.pin(0)?;
    let mut recorder = Recorder::default();
    let batches = participant.plan.pick(40, 20);
    for round in 0..participant.plan.rounds() {
        for case in &CASES {
            for side in Side::order(round) {
                for batch in 0..WARM_UP_BATCHES + batches {
                    let elapsed = match side {
                        Side::Ours => ours.batch(case)?,
                        Side::Raw => raw.batch(case)?,
                    };
                    // A batch during which the device became idle measures another row.
                    if let (Some(elapsed), true) = (elapsed, batch >= WARM_UP_BATCHES) {
                        recorder.push(case.row.id, side, elapsed);
                    }
                }
            }
        }
    }
    Ok(recorder.finish())
}

/// Submits a batch. Returns the nanoseconds per command.
#[inline(always)] // So that each side's `submit` is inlined into its batch.
fn timed(load: DeviceLoad, submit: &mut impl FnMut() -> Result<()>) -> Result<f64> {
    match load {
        DeviceLoad::Idle | DeviceLoad::Busy => {
            for _ in 0..UNTIMED_COMMANDS {
                submit()?;
            }
            per_operation(COMMANDS_PER_BATCH, submit)
        }
        DeviceLoad::FirstIdle | DeviceLoad::First => per_operation(1, submit),
    }
}

/// The library's objects.
struct Ours {
    _context: Context,
    queue: Queue,
    /// Queue that signals the events in `awaited`.
    other: Queue,
    /// Event for which devices wait.
    shared: Event,
    /// Event for which only hosts wait.
    hosts: Event,
    /// Event that is signalled when the device is no longer busy.
    idle: Event,
    /// Events for which commands wait.
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
            // After the first wait of a device, the event has a native mirror.
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
            awaited: (0..COMMANDS_PER_BATCH)
                .map(|_| shared())
                .collect::<Result<_>>()?,
            queue,
            memory: pair(SHORT_BYTES)?,
            long: pair(LONG_BYTES)?,
            _context: context,
        })
    }

    /// Keeps the device busy with a long copy.
    fn occupy(&self, queue: &Queue) -> Result<()> {
        let [to, from] = &self.long;
        let copy = Command::copy(from.all(), to.all())?;
        Ok(queue.submit(copy.signal(&self.idle))?)
    }

    /// Submits a batch. Returns the nanoseconds per command, or `None` if the device should have
    /// been busy and was not.
    fn batch(&self, case: &Case) -> Result<Option<f64>> {
        let Case {
            submission, load, ..
        } = *case;
        let is_busy = load.is_busy();
        if submission == Submission::Wait {
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
            thread::sleep(DEVICE_BUSY_DELAY);
        }
        let mut awaited = self.awaited.iter().cycle();
        let [to, from] = &self.memory;
        // Written as programs write it: a function that returned commands would move them once more.
        let mut submit = || -> Result<()> {
            match submission {
                Submission::Signal => self.queue.signal(&self.shared)?,
                Submission::SignalHosts => self.queue.signal(&self.hosts)?,
                Submission::Wait => awaited
                    .next()
                    .map_or(Ok(()), |event| self.queue.wait(event))?,
                Submission::Copy => self.queue.submit(Command::copy(from.all(), to.all())?)?,
                Submission::Fill => {
                    self.queue.submit(Command::fill(to.all(), &PATTERN)?)?;
                }
                Submission::CopySignal => self
                    .queue
                    .submit(Command::copy(from.all(), to.all())?.signal(&self.shared))?,
                Submission::CopySignalHosts => self
                    .queue
                    .submit(Command::copy(from.all(), to.all())?.signal(&self.hosts))?,
            }
            Ok(())
        };
        if load == DeviceLoad::FirstIdle {
            submit()?;
            self.queue.finish()?;
        }
        let elapsed = timed(load, &mut submit)?;
        let is_valid = !is_busy || !self.idle.try_wait()?;
        self.other.finish()?;
        self.queue.finish()?;
        Ok(is_valid.then_some(elapsed))
    }
}

/// The driver's objects.
struct Raw {
    list: List,
    /// List that signals the events in `awaited`.
    other: List,
    /// Event that processes share.
    shared: CounterEvent,
    /// Events for this process alone. Each command has its own, since an event counts one signal
    /// until it is reset.
    private: Vec<PooledEvent>,
    /// Event that is signalled when the device is no longer busy.
    idle: PooledEvent,
    /// Events for which commands wait.
    awaited: Vec<CounterEvent>,
    /// Event that is signalled when a list has executed all commands.
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
            private: PooledEvent::create_many(gpu, 2 * COMMANDS_PER_BATCH as u32)?,
            idle: PooledEvent::create(gpu)?,
            awaited: (0..COMMANDS_PER_BATCH)
                .map(|_| shared())
                .collect::<Result<_>>()?,
            done: PooledEvent::create(gpu)?,
            memory: pair(SHORT_BYTES)?,
            long: pair(LONG_BYTES)?,
        })
    }

    /// Keeps the device busy with a long copy.
    fn occupy(&self, list: &List) -> Result<()> {
        let [to, from] = &self.long;
        list.copy(to, from, LONG_BYTES, Some(&self.idle))
    }

    /// Waits until a list has executed all commands.
    fn finish(&self, list: &List) -> Result<()> {
        list.signal(&self.done)?;
        self.done.synchronize()?;
        self.done.reset()
    }

    /// Submits a batch. Returns the nanoseconds per command, or `None` if the device should have
    /// been busy and was not.
    fn batch(&self, case: &Case) -> Result<Option<f64>> {
        let Case {
            submission, load, ..
        } = *case;
        let is_busy = load.is_busy();
        if submission == Submission::Wait {
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
            thread::sleep(DEVICE_BUSY_DELAY);
        }
        let mut awaited = self.awaited.iter().cycle();
        let mut private = self.private.iter().cycle();
        let mut private = || private.next().map(|event| event as &dyn Signalled);
        let has_event = case.raw_has_event;
        let mut submit = || match submission {
            Submission::Signal => self.list.signal(&self.shared),
            Submission::SignalHosts => private().map_or(Ok(()), |event| self.list.signal(event)),
            Submission::Wait => awaited.next().map_or(Ok(()), |event| self.list.wait(event)),
            Submission::Copy => {
                self.list
                    .copy(to, from, SHORT_BYTES, private().filter(|_| has_event))
            }
            Submission::Fill => {
                self.list
                    .fill(to, &PATTERN, SHORT_BYTES, private().filter(|_| has_event))
            }
            Submission::CopySignal => self.list.copy(to, from, SHORT_BYTES, Some(&self.shared)),
            Submission::CopySignalHosts => self.list.copy(to, from, SHORT_BYTES, private()),
        };
        if load == DeviceLoad::FirstIdle {
            submit()?;
            self.finish(&self.list)?;
        }
        let elapsed = timed(load, &mut submit)?;
        let is_valid = !is_busy || !self.idle.is_done()?;
        self.finish(&self.other)?;
        self.finish(&self.list)?;
        self.idle.reset()?;
        self.private.iter().try_for_each(PooledEvent::reset)?;
        Ok(is_valid.then_some(elapsed))
    }
}
