//! How late timed waits end during an attack. The attacker has the event's handle and disturbs the
//! threads that sleep on its words.

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

/// Timeout of each wait.
const TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum time by which a wait may exceed its timeout, in nanoseconds.
const TARGET: f64 = 50e6;
/// Number of ways to wait: for one event, for several events, and for a signal that was never
/// submitted.
const WAYS: usize = 3;

const fn row(id: &'static str, what: &'static str) -> RowSpec {
    RowSpec {
        id,
        what,
        raw: "a thread that sleeps as long",
        unit: Unit::Nanoseconds,
        // With fewer than a hundred samples, this is the maximum.
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
        // No process submits these signals, so the waits always time out.
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
            let began = Instant::now();
            thread::sleep(TIMEOUT);
            recorder.push(row, Side::Raw, nanoseconds(began.elapsed() - TIMEOUT));
        }
        let met = met()?;
        // A lock stays in place, but the other attacks must be seen to continue.
        ensure!(
            met > before || matches!(attack, Attack::LockWithPriority),
            "the attack has ended"
        );
        recorder.note(row, format!("the attack met {met} sleepers"));
    }
    Ok(recorder.finish())
}

/// Waits in one way until the wait ends.
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

/// Attacks until the leader kills this process. On request, it replies with the number of sleepers
/// that it has met.
fn run_follower(participant: &Participant) -> Result<Outcome> {
    let link = participant.peer()?;
    let context = ours::context()?;
    let event = ours::open_event(&context, &link.receive()?.bytes, Waiters::Default)?;
    let attack = Attack::from_number(link.receive_number()?).context("no such attack")?;
    // Reading the status brings the event's page into memory.
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
