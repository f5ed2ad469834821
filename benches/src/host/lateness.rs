//! The lateness of timed waits while a process that was given the event's handle attacks those who
//! sleep on its words.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use crosshandle::Event;

use super::ours::{self, Waiters};
use crate::harness::launcher::Extra;
use crate::harness::outcome::{Outcome, Recorder, Side};
use crate::harness::scenario::{Participant, Scenario};
use crate::harness::timing::nanoseconds;
use crate::raw::sleepers::{Attack, Attacker};
use crate::report::row::{RowSpec, Statistic, Target};
use crate::report::unit::Unit;
use crate::tuning::{ATTACK_LIMIT, ATTACK_PAUSE};

const NAME: &str = "lateness";

pub(crate) static SCENARIO: Scenario = Scenario {
    name: NAME,
    followers: 0,
    cores: 2,
    limit: Duration::from_secs(180),
    rows: &[
        row(REQUEUED, "timed wait's lateness, sleepers moved away"),
        row(LOCKED, "timed wait's lateness, wakes held off by a lock"),
        row(UNCOUNTED, "timed wait's lateness, sleepers' counts zeroed"),
    ],
    leader: run_leader,
    follower: run_follower,
};

const REQUEUED: &str = "lateness.requeued";
const LOCKED: &str = "lateness.locked";
const UNCOUNTED: &str = "lateness.uncounted";

/// The timeout of each wait.
const TIMEOUT: Duration = Duration::from_millis(100);
/// The most by which a wait may be late, in nanoseconds.
const TARGET: f64 = 50e6;
/// The ways to wait: for one event, for several, for a number that was never submitted.
const WAYS: usize = 3;

const fn row(id: &'static str, what: &'static str) -> RowSpec {
    RowSpec {
        id,
        what,
        raw: "none",
        unit: Unit::Nanoseconds,
        // Of fewer than a hundred samples it is the greatest.
        statistic: Statistic::P99,
        target: Target::AtMost(TARGET),
    }
}

fn run_leader(participant: &Participant) -> Result<Outcome> {
    let mut recorder = Recorder::default();
    let rounds = participant.plan.pick(30, 5);
    for (row, attack) in [
        (REQUEUED, Attack::Requeue),
        (LOCKED, Attack::LockWithPriority),
        (UNCOUNTED, Attack::ZeroCounts),
    ] {
        let context = ours::context()?;
        let event = context.create_event()?;
        let attacker = Extra::start(NAME, &participant.plan)?;
        attacker.link.send(event.handle()?.as_bytes())?;
        attacker.link.send_number(attack as u64)?;
        attacker.link.receive_number()?;
        // Signals that never come: nobody submits them.
        let sample = |way| -> Result<f64> {
            let began = Instant::now();
            wait(way, &event)?;
            let elapsed = began.elapsed();
            ensure!(elapsed >= TIMEOUT, "a wait ended early");
            Ok(nanoseconds(elapsed - TIMEOUT))
        };
        let end = Instant::now() + ATTACK_LIMIT;
        let met = || -> Result<u64> {
            attacker.link.send_number(0)?;
            attacker.link.receive_number()
        };
        while met()? == 0 {
            ensure!(Instant::now() < end, "the attack meets no sleeper");
            sample(0)?;
        }
        let before = met()?;
        for _ in 0..rounds {
            for way in 0..WAYS {
                recorder.push(row, Side::Ours, sample(way)?);
            }
        }
        let met = met()?;
        // A lock stays once it is there; the others must be seen to go on.
        ensure!(
            met > before || matches!(attack, Attack::LockWithPriority),
            "the attack has ended"
        );
        recorder.note(row, format!("the attack met {met} sleepers"));
    }
    Ok(recorder.finish())
}

/// Waits in one way until the wait is over.
fn wait(way: usize, event: &Event) -> Result<()> {
    let result = match way {
        0 => event.wait_value_timeout(1, TIMEOUT),
        1 => Event::wait_any_value(&[(event, 1), (event, 2)], Some(TIMEOUT)).map(drop),
        _ => event.wait_value_timeout(30, TIMEOUT),
    };
    match result {
        Err(error) if error.is_timeout() => Ok(()),
        other => bail!("the wait was to be too long, and ended with {other:?}"),
    }
}

/// Attacks until the leader kills this process, and says how many sleepers it has met when asked.
fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let context = ours::context()?;
    let event = ours::open_event(&context, &link.receive()?.bytes, Waiters::Default)?;
    let attack = Attack::from_number(link.receive_number()?).context("no such attack")?;
    // The page of an event is in memory once it was looked at.
    drop(event.status());
    let mut attacker = Attacker::start(attack)?;
    let met = attacker.met();
    thread::spawn(move || {
        loop {
            attacker.strike();
            thread::sleep(ATTACK_PAUSE);
        }
    });
    link.send_number(0)?;
    loop {
        link.receive_number()?;
        link.send_number(met.get())?;
    }
}
