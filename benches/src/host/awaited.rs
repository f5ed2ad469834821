//! Many events that one thread awaits: wake-ups, and the cost of each signal.

use std::collections::VecDeque;
use std::env;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crosshandle::handle::EVENT_HANDLE_SIZE;
use crosshandle::{Context, Event, Notifier, event::Reached};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};

use super::ours::{self, Waiters};
use crate::harness::link::{HungUp, Link};
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::{monotonic_ns, nanoseconds};
use crate::raw::memfd::{self, Mapping};
use crate::report::row::rows;

/// Pause between two signals of awaited events.
///
/// The awaiting threads must fall asleep again in between. On a slow machine, a shorter pause would
/// find some of them awake, and wake-ups would look too fast.
const AWAITED_PAUSE: Duration = Duration::from_micros(300);

/// Number of events that are awaited at once in most rows.
const EVENTS: usize = 1000;
/// Number of events that are awaited at once in the rows that show whether the cost stays constant.
const MANY: usize = 100_000;
/// Number of signals whose cost is averaged. It is also the number of events whose handles fit into
/// one message.
const BATCH: usize = 1000;
const STAMP_BYTES: usize = 8;
/// Environment variable with the number of rounds in which 100,000 events are signalled, to search
/// for a lost signal.
const ROUNDS_VARIABLE: &str = "CROSSHANDLE_AWAITED_ROUNDS";

const WAKE: &str = "awaited.wake";
const WAKE_P99: &str = "awaited.wake.p99";
const ADD: &str = "awaited.add";
const SIGNAL: &str = "awaited.signal-100k";
const FLAT: &str = "awaited.signal-flat";

const LOW_POWER: &str = "low-power wait for one event";
const NONE: &str = "none";

/// Maximum ratio of the last tenth's cost to the first tenth's for the cost to be constant.
const MAX_FLAT_RATIO: f64 = 1.5;

pub(crate) static SCENARIO: Scenario = Scenario {
    name: "awaited",
    followers: 1,
    cores: 2,
    // The limit is long enough for a thousand rounds.
    limit: Duration::from_secs(1800),
    rows: rows! {
        WAKE => "1,000 awaited events, signal to future's end", LOW_POWER, AtMostTimesRaw(2.5);
        WAKE_P99 => "1,000 awaited events, signal to future's end",
            LOW_POWER, AtMostTimesRaw(2.5), p99;
        ADD => "await one more event, of 100,000", NONE, None;
        SIGNAL => "signal an awaited event, of 100,000", NONE, None;
        FLAT => "signal an awaited event, last tenth / first tenth",
            NONE, AtMost(MAX_FLAT_RATIO), quotient;
    },
    leader: run_leader,
    follower: run_follower,
};

/// The orders that the leader sends to a follower.
const MAKE: u64 = 1;
const SIGNAL_SPACED: u64 = 2;
const SIGNAL_ALL: u64 = 3;
const SHARE_STAMPS: u64 = 4;

/// Returns the order in which events are signalled.
fn order(count: usize, round: usize) -> Vec<usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(round as u64 + 1);
    let mut order = Vec::from_iter(0..count);
    for index in (1..count).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        order.swap(index, (state >> 33) as usize % (index + 1));
    }
    order
}

/// Receives the handles of `count` events of the other process, and opens them.
fn open(context: &Context, link: &Link, count: usize) -> Result<Vec<Event>> {
    link.send_number(MAKE)?;
    link.send_number(count as u64)?;
    let mut events = Vec::with_capacity(count);
    while events.len() < count {
        let message = link.receive()?;
        for bytes in ours::each_event(&message.bytes) {
            events.push(ours::open_event(context, bytes, Waiters::LowPower)?);
        }
    }
    Ok(events)
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(0)?;
    let context = ours::context()?;
    let mut recorder = Recorder::default();
    measure_wakes(participant, &context, &mut recorder)?;
    measure_signals(participant, &context, &mut recorder)?;
    Ok(recorder.finish())
}

/// Makes all of many events awaited and signalled, in rounds. If a notification is lost, the wait
/// lasts until the scenario's limit.
fn measure_signals(
    participant: &Participant,
    context: &Context,
    recorder: &mut Recorder,
) -> Result<()> {
    let link = participant.peer()?;
    let rounds = match env::var(ROUNDS_VARIABLE) {
        Ok(rounds) => rounds.parse().context(ROUNDS_VARIABLE)?,
        Err(_) => participant.plan.pick(3, 1) as u64,
    };
    let events = open(context, link, MANY)?;
    let notifier = Notifier::new()?;
    for value in 1..=rounds {
        let began = Instant::now();
        for (token, event) in events.iter().enumerate() {
            notifier.add(event, value, token as u64)?;
        }
        recorder.push(ADD, Side::Ours, nanoseconds(began.elapsed()) / MANY as f64);
        link.send_number(SIGNAL_ALL)?;
        collect(&notifier, MANY)?;
        link.receive_number()?;
    }
    let awaited = rounds * MANY as u64;
    recorder.note(
        SIGNAL,
        format!("{awaited} signals were awaited, and all of them were reported"),
    );
    Ok(())
}

/// Takes `count` notifications.
fn collect(notifier: &Notifier, count: usize) -> Result<()> {
    let mut left = count;
    while left > 0 {
        poll(&mut [PollFd::new(notifier, PollFlags::IN)], None)?;
        while let Some(notification) = notifier.next() {
            notification.result?;
            left -= 1;
        }
    }
    Ok(())
}

/// The tasks that must be polled again, and the thread that polls them.
struct Tasks {
    due: Mutex<VecDeque<usize>>,
    thread: Thread,
}

struct TaskWaker {
    index: usize,
    tasks: Arc<Tasks>,
}

impl Tasks {
    fn next(&self) -> Option<usize> {
        self.due
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let due = &self.tasks.due;
        due.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(self.index);
        self.tasks.thread.unpark();
    }
}

fn measure_wakes(
    participant: &Participant,
    context: &Context,
    recorder: &mut Recorder,
) -> Result<()> {
    let link = participant.peer()?;
    let events = open(context, link, EVENTS)?;
    let file = memfd::create(EVENTS * STAMP_BYTES)?;
    let stamps = Mapping::shared(&file, EVENTS * STAMP_BYTES)?;
    link.send_number(SHARE_STAMPS)?;
    link.send_with(&[0], &[file.as_fd()])?;
    let elapsed = |index: usize| -> Result<f64> {
        let now = monotonic_ns();
        let stamp = stamps.word(index * STAMP_BYTES)?.load(Ordering::Acquire);
        ensure!(
            stamp != 0 && stamp <= now,
            "event {index} ended before its signal"
        );
        Ok((now - stamp) as f64)
    };
    let tasks = Arc::new(Tasks {
        due: Mutex::default(),
        thread: thread::current(),
    });
    let mut value = 0;
    for round in 0..participant.plan.pick(10, 2) {
        for side in Side::order(round) {
            value += 1;
            let mut record = |index: usize| -> Result<()> {
                let elapsed = elapsed(index)?;
                recorder.push(WAKE, side, elapsed);
                recorder.push(WAKE_P99, side, elapsed);
                Ok(())
            };
            if side == Side::Raw {
                start_spaced(link, round)?;
                for index in order(EVENTS, round) {
                    events[index].wait_value(value)?;
                    record(index)?;
                }
                continue;
            }
            let wakers = Vec::from_iter((0..EVENTS).map(|index| {
                let tasks = Arc::clone(&tasks);
                Waker::from(Arc::new(TaskWaker { index, tasks }))
            }));
            let poll_one = |future: &mut Reached, index: usize| {
                let mut task = task::Context::from_waker(&wakers[index]);
                Pin::new(future).poll(&mut task)
            };
            let mut futures = Vec::from_iter(events.iter().map(|event| event.reached(value)));
            for (index, future) in futures.iter_mut().enumerate() {
                ensure!(poll_one(future, index).is_pending());
            }
            start_spaced(link, round)?;
            let mut left = EVENTS;
            while left > 0 {
                let Some(index) = tasks.next() else {
                    thread::park();
                    continue;
                };
                if let Poll::Ready(result) = poll_one(&mut futures[index], index) {
                    record(index)?;
                    result?;
                    left -= 1;
                }
            }
        }
    }
    Ok(())
}

fn start_spaced(link: &Link, round: usize) -> Result<()> {
    link.send_number(SIGNAL_SPACED)?;
    link.send_number(round as u64)
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    participant.plan.pin(1)?;
    let (context, link) = (ours::context()?, participant.peer()?);
    let mut recorder = Recorder::default();
    let mut events = Vec::new();
    let mut stamps = None;
    loop {
        let command = match link.receive_number() {
            Err(error) if error.is::<HungUp>() => return Ok(recorder.finish()),
            command => command?,
        };
        match command {
            MAKE => {
                let count = link.receive_number()? as usize;
                events = make(&context, link, count)?;
            }
            SIGNAL_SPACED => {
                let round = link.receive_number()? as usize;
                let stamps = stamps.as_ref().context("there are no stamps yet")?;
                signal_spaced(&events, stamps, round)?;
            }
            SHARE_STAMPS => {
                let file = link.receive()?.descriptor()?;
                stamps = Some(Mapping::shared(file, EVENTS * STAMP_BYTES)?);
            }
            SIGNAL_ALL => {
                signal_all(&events, &mut recorder)?;
                link.send_number(0)?;
            }
            other => anyhow::bail!("no command has the number {other}"),
        }
    }
}

/// Returns the processor time of the calling thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Creates `count` events and sends their handles.
fn make(context: &Context, link: &Link, count: usize) -> Result<Vec<Event>> {
    let mut events = Vec::with_capacity(count);
    let mut message = Vec::with_capacity(BATCH * EVENT_HANDLE_SIZE);
    while events.len() < count {
        message.clear();
        for _ in 0..BATCH {
            let event = ours::create_event(context, Waiters::LowPower)?;
            message.extend_from_slice(event.handle()?.as_bytes());
            events.push(event);
        }
        link.send(&message)?;
    }
    Ok(events)
}

/// Signals each event after a pause, during which the awaiting thread falls asleep.
fn signal_spaced(events: &[Event], stamps: &Mapping, round: usize) -> Result<()> {
    for index in order(events.len(), round) {
        thread::sleep(AWAITED_PAUSE);
        let stamp = stamps.word(index * STAMP_BYTES)?;
        stamp.store(monotonic_ns(), Ordering::Release);
        events[index].signal()?;
    }
    Ok(())
}

fn signal_all(events: &[Event], recorder: &mut Recorder) -> Result<()> {
    let mut costs = Vec::new();
    for batch in order(events.len(), 0).chunks(BATCH) {
        // Only this thread's own processor time is measured, because other threads may use the
        // processor too.
        let began = processor_time();
        for index in batch {
            events[*index].signal()?;
        }
        let used = processor_time() - began;
        costs.push(nanoseconds(used) / batch.len() as f64);
    }
    recorder.push(SIGNAL, Side::Ours, mean(&costs));
    recorder.push(FLAT, Side::Ours, flatness(&costs));
    Ok(())
}

fn mean(costs: &[f64]) -> f64 {
    costs.iter().sum::<f64>() / costs.len().max(1) as f64
}

/// Returns the mean of the last tenth of the costs, divided by the mean of the first tenth.
fn flatness(costs: &[f64]) -> f64 {
    let tenth = costs.len() / 10;
    mean(&costs[costs.len() - tenth..]) / mean(&costs[..tenth])
}
