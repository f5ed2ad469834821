//! The time from a process's death until every waiter in other processes returns its error.

use std::slice;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use crosshandle::{Command, Context, Event, Queue};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde::{Deserialize, Serialize};

use super::ours::{self, Waiters};
use crate::harness::launcher::Extra;
use crate::harness::link::HungUp;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::procfs::are_all_in;
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::monotonic_ns;
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;
use crate::tuning::{DEATHS_SPREAD, STATE_CHECK_INTERVAL};

const NAME: &str = "deaths";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: NAME,
    followers: 0,
    cores: 2,
    limit: Duration::from_secs(300),
    rows: &[
        p50(EXPORTER.p50, "death of an event's exporter"),
        p99(EXPORTER.p99, "death of an event's exporter"),
        p50(IMPORTER.p50, "death of an importer"),
        p99(IMPORTER.p99, "death of an importer"),
        p50(ORPHAN.p50, "death of an importer, exporter dead"),
        p99(ORPHAN.p99, "death of an importer, exporter dead"),
        p50(UNHEARD.p50, "death of an importer, exporter stopped"),
        p99(UNHEARD.p99, "death of an importer, exporter stopped"),
    ],
    leader: run_leader,
    follower: run_follower,
};

/// Maximum median time until a waiter returns, in nanoseconds.
const TARGET_P50: f64 = 1e6;
/// Maximum 99th percentile of the time until a waiter returns, in nanoseconds.
const TARGET_P99: f64 = 10e6;

const fn p50(id: &'static str, what: &'static str) -> RowSpec {
    row(id, what, Statistic::P50, Target::AtMost(TARGET_P50))
}

const fn p99(id: &'static str, what: &'static str) -> RowSpec {
    row(id, what, Statistic::P99, Target::AtMost(TARGET_P99))
}

const fn row(
    id: &'static str,
    what: &'static str,
    statistic: Statistic,
    target: Target,
) -> RowSpec {
    RowSpec {
        id,
        what,
        raw: "a thread that polls a pidfd of the victim",
        unit: Unit::Nanoseconds,
        statistic,
        target,
    }
}

/// A kind of death, with its rows.
struct Death {
    p50: &'static str,
    p99: &'static str,
    /// The signal for the exporter before the victim is killed. The exporter is the victim if the
    /// outer option is `None`.
    exporter_gets: Option<Option<Signal>>,
}

const EXPORTER: Death = Death {
    p50: "deaths.exporter",
    p99: "deaths.exporter.p99",
    exporter_gets: None,
};
const IMPORTER: Death = Death {
    p50: "deaths.importer",
    p99: "deaths.importer.p99",
    exporter_gets: Some(None),
};
const ORPHAN: Death = Death {
    p50: "deaths.orphan",
    p99: "deaths.orphan.p99",
    exporter_gets: Some(Some(Signal::KILL)),
};
const UNHEARD: Death = Death {
    p50: "deaths.unheard",
    p99: "deaths.unheard.p99",
    exporter_gets: Some(Some(Signal::STOP)),
};

/// Number of processes that wait for the victim's signal.
const WITNESSES: usize = 2;

/// An order from the leader to another process.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Creates the event. The reply is its handle.
    Create,
    /// Opens the event.
    Open(Vec<u8>),
    /// Submits a signal that never completes.
    Submit,
    /// Waits in every way. The first reply says that all waits have started, and the second one
    /// contains their end times.
    Wait {
        victim: i32,
        /// Whether to wait also for a signal that no process has submitted.
        later: bool,
    },
}

/// The ways to wait, in the order of a witness's reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Wait,
    WaitValue,
    WaitAny,
    WaitAll,
    /// Waits for a signal that was never submitted.
    Later,
    AnyLater,
    /// Polls a pidfd, without the library.
    Pidfd,
}

impl Way {
    fn all(later: bool) -> &'static [Self] {
        use Way::*;
        match later {
            false => &[Wait, WaitValue, WaitAny, WaitAll, Pidfd],
            true => &[Wait, WaitValue, WaitAny, WaitAll, Pidfd, Later, AnyLater],
        }
    }
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let rounds = participant.plan.pick(100, 10);
    let mut recorder = Recorder::default();
    let mut slowest = Vec::new();
    for round in 0..rounds {
        // The kinds alternate, so that a disturbance of the machine affects all of them.
        for death in [&EXPORTER, &IMPORTER, &ORPHAN, &UNHEARD] {
            let pause = DEATHS_SPREAD * round / rounds;
            for (way, elapsed) in die(participant, death, pause)? {
                let side = match way {
                    Way::Pidfd => Side::Raw,
                    _ => Side::Ours,
                };
                recorder.push(death.p50, side, elapsed);
                recorder.push(death.p99, side, elapsed);
                if side == Side::Ours {
                    slowest.push((death.p99, way, elapsed));
                }
            }
        }
    }
    slowest.sort_by(|(_, _, a), (_, _, b)| b.total_cmp(a));
    for death in [&EXPORTER, &IMPORTER, &ORPHAN, &UNHEARD] {
        let own = slowest.iter().filter(|(row, ..)| *row == death.p99);
        let worst: Vec<_> = own
            .take(4)
            .map(|(_, way, elapsed)| format!("{} ({way:?})", Unit::Nanoseconds.show(*elapsed)))
            .collect();
        recorder.note(death.p99, format!("the slowest: {}", worst.join(", ")));
    }
    Ok(recorder.finish())
}

/// Kills a process while others wait for its signal. Returns the time until each waiter noticed.
fn die(participant: &Participant, death: &Death, pause: Duration) -> Result<Vec<(Way, f64)>> {
    let start = || Extra::start(NAME, &participant.plan);
    let exporter = start()?;
    order(&exporter, &Order::Create)?;
    let handle = exporter.link.receive()?.bytes;
    let importer = match death.exporter_gets {
        None => None,
        Some(_) => {
            let importer = start()?;
            ask(&importer, &Order::Open(handle.clone()))?;
            Some(importer)
        }
    };
    let witnesses = (0..WITNESSES)
        .map(|_| start())
        .collect::<Result<Vec<_>>>()?;
    for witness in &witnesses {
        ask(witness, &Order::Open(handle.clone()))?;
    }
    let victim = importer.as_ref().unwrap_or(&exporter);
    ask(victim, &Order::Submit)?;
    let later = death.exporter_gets.is_none();
    let wait = Order::Wait {
        victim: victim.pid().as_raw_pid(),
        later,
    };
    for witness in &witnesses {
        ask(witness, &wait)?;
    }
    if let Some(Some(signal)) = death.exporter_gets {
        exporter.send(signal)?;
        // During this time, the witnesses notice the exporter's end.
        until_all_in(&exporter, &['T', 'Z', 'X'])?;
        thread::sleep(STATE_CHECK_INTERVAL);
    }
    for witness in &witnesses {
        until_all_in(witness, &['S'])?;
    }
    thread::sleep(pause);
    let killed = monotonic_ns();
    victim.send(Signal::KILL)?;
    let mut times = Vec::new();
    for witness in &witnesses {
        let answer = witness.link.receive()?.bytes;
        let (ends, _) = answer.as_chunks();
        let ends = ends.iter().copied().map(u64::from_le_bytes);
        for (way, ended) in Way::all(later).iter().zip(ends) {
            ensure!(ended >= killed, "{way:?} ended before the death");
            times.push((*way, (ended - killed) as f64));
        }
    }
    ensure!(times.len() == WITNESSES * Way::all(later).len());
    Ok(times)
}

fn order(process: &Extra, order: &Order) -> Result<()> {
    process.link.send(&serde_json::to_vec(order)?)
}

/// Sends an order whose reply has no value.
fn ask(process: &Extra, what: &Order) -> Result<()> {
    order(process, what)?;
    process.link.receive_number().map(drop)
}

fn until_all_in(process: &Extra, states: &[char]) -> Result<()> {
    let pid = u64::try_from(process.pid().as_raw_pid())?;
    while !are_all_in(pid, states)? {
        thread::sleep(STATE_CHECK_INTERVAL);
    }
    Ok(())
}

/// A signal that never completes, and the objects that keep it pending.
struct Unfinished {
    _gate: Event,
    _queue: Queue,
}

fn leave_unfinished(context: &Context, event: &Event) -> Result<Unfinished> {
    let (gate, queue) = (context.create_event()?, context.create_queue()?);
    queue.submit(Command::barrier().after_value(&gate, 1).signal(event))?;
    Ok(Unfinished {
        _gate: gate,
        _queue: queue,
    })
}

fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let context = ours::context()?;
    let mut event = None;
    let mut unfinished = Vec::new();
    loop {
        let message = match link.receive() {
            Err(error) if error.is::<HungUp>() => return Ok(Outcome::default()),
            message => message?,
        };
        let known = || event.as_ref().context("there is no event yet");
        match serde_json::from_slice(&message.bytes)? {
            Order::Create => {
                let created = context.create_event()?;
                link.send(created.handle()?.as_bytes())?;
                event = Some(created);
            }
            Order::Open(handle) => {
                event = Some(ours::open_event(&context, &handle, Waiters::Default)?);
                link.send_number(0)?;
            }
            Order::Submit => {
                unfinished.push(leave_unfinished(&context, known()?)?);
                link.send_number(0)?;
            }
            Order::Wait { victim, later } => {
                let pending = context.create_event()?;
                unfinished.push(leave_unfinished(&context, &pending)?);
                let ways = Way::all(later);
                let began = Barrier::new(ways.len() + 1);
                let ends = thread::scope(|scope| {
                    let wait = |way| {
                        let (event, pending) = (known()?, &pending);
                        began.wait();
                        wait(way, event, pending, victim)?;
                        Ok(monotonic_ns().to_le_bytes())
                    };
                    let waits = ways.iter().map(|way| scope.spawn(move || wait(*way)));
                    let waits: Vec<_> = waits.collect();
                    began.wait();
                    link.send_number(0)?;
                    let ends = waits.into_iter().map(|wait| wait.join().expect("no panic"));
                    ends.collect::<Result<Vec<_>>>()
                })?;
                link.send(ends.as_flattened())?;
            }
        }
    }
}

/// Waits in one way until the victim is dead.
fn wait(way: Way, event: &Event, pending: &Event, victim: i32) -> Result<()> {
    let result = match way {
        Way::Wait => event.wait(),
        Way::WaitValue => event.wait_value(1),
        Way::WaitAny => Event::wait_any(&[pending, event], None).map(drop),
        Way::WaitAll => Event::wait_all(&[event, pending], None),
        Way::Later => event.wait_value(30),
        Way::AnyLater => Event::wait_any_value(&[(pending, 1), (event, 30)], None).map(drop),
        Way::Pidfd => {
            let pid = Pid::from_raw(victim).context("no process id")?;
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            let mut polled = PollFd::new(&pidfd, PollFlags::IN);
            poll(slice::from_mut(&mut polled), None)?;
            return Ok(());
        }
    };
    match result {
        Err(error) if error.is_peer_dead() => Ok(()),
        other => bail!("{way:?} was to end with the death, and ended with {other:?}"),
    }
}
