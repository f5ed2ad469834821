//! Beside each attacker, honest processes go on: opens and waits end as always, nothing of what the
//! attacker did remains.

use super::faults::{event_of, memory_of};
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::suite::Outcome;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Honest opens while an attack is under way.
const OPENS: u32 = 20;
/// Least time for which an attack is withstood.
const UNDER_WAY: Duration = Duration::from_secs(3);
/// Longest time of one of them: far more than it takes, far less than an attack could hold it up.
const SLOWEST: Duration = Duration::from_millis(1_000);

/// Time that an attacker may take to prepare itself: 50,000 locks take seconds.
const PREPARATION: Duration = Duration::from_secs(60);
/// Descriptors that the exporter may have, as is usual.
const DESCRIPTORS: u64 = 1024;

/// A process that attacks until it is dropped.
struct Attack(Child);

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an attacker, and waits until it has begun; or returns why it can't.
fn start(
    harness: &Harness,
    name: &str,
    handles: &[String],
) -> Result<Result<Attack, String>, Failure> {
    let program = harness.program().with_file_name("conformance");
    let mut child = Command::new(&program)
        .args(["attack", name])
        .arg(harness.directory())
        .args(handles)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::new(format!("starting {program:?}: {error}")))?;
    let output = child.stdout.take().ok_or(Failure::new("no output"))?;
    let attack = Attack(child);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = tell.send(line);
        }
    });
    match told.recv_timeout(PREPARATION * crate::slowdown())?.as_str() {
        "begun" => Ok(Ok(attack)),
        reason => Ok(Err(reason.to_owned())),
    }
}

fn withstand(harness: &Harness, name: &str) -> Verdict {
    let (exporter, waiter) = (harness.peer()?, harness.peer()?);
    // The attacker's handles are of objects of its own.
    let given = [
        memory_of(&exporter, "given", 1)?.to_string(),
        event_of(&exporter, "given-event")?.to_string(),
    ];
    let handles = match name {
        "record-locks" | "requeue" | "priority-locks" => &given[..],
        _ => &[],
    };
    exporter.ask(format!("limit-files {DESCRIPTORS}"))?;
    let (memory, event) = (memory_of(&exporter, "m", 2)?, event_of(&exporter, "e")?);
    waiter.ask(format!("open-event e {event}"))?;
    let before = exporter.usage()?;
    let attack = match start(harness, name, handles)? {
        Ok(attack) => attack,
        Err(reason) => return Ok(Outcome::Unavailable(reason)),
    };
    let (mut slowest, mut number) = (Duration::ZERO, 0);
    let end = Instant::now() + UNDER_WAY;
    while number < OPENS || Instant::now() < end {
        number += 1;
        // A newcomer, who has to be let in.
        let newcomer = harness.peer()?;
        newcomer.ask("pid")?;
        let began = Instant::now();
        newcomer.ask(format!("open-memory m {memory}"))?;
        newcomer.ask("check m 0 2 100000")?;
        let waiting = waiter.begin(format!("wait-value e {number} 60000"));
        waiting.begun()?;
        exporter.ask("signal e")?;
        waiting.reply(deadline())?;
        slowest = slowest.max(began.elapsed());
    }
    // The exporter's own needs are served, too.
    exporter.ask("allocate more 70000000")?;
    exporter.ask("memory-handle more")?;
    exporter.ask("close more")?;
    drop(attack);
    if slowest > SLOWEST * crate::slowdown() {
        return Err(Failure::new(format!("{name}: a round took {slowest:?}")));
    }
    // Bounded time for the exporter to let go of the attacker's connections.
    eventually("the exporter lets go of the attacker", || {
        Ok(exporter.usage()?.descriptors <= before.descriptors)
    })?;
    Ok(Outcome::Passed(format!("slowest round {slowest:?}")))
}

macro_rules! rules {
    ($($rule:ident $name:literal $what:literal)*) => {
        $(#[doc = $what]
        pub(crate) fn $rule(harness: &Harness) -> Verdict {
            withstand(harness, $name)
        })*
    };
}

rules! {
    by_idle_connections "idle-connections" "10,000 connections that say nothing."
    by_connection_floods "connection-flood" "Connecting and hanging up without a pause."
    by_garbage "garbage" "Messages without sense."
    by_slow_readers "slow-readers" "Requests whose answers nobody reads."
    by_nasty_descriptors "nasty-descriptors" "Descriptors that block whoever closes them."
    by_record_locks "record-locks" "50,000 locks on the files that a handle's holder gets."
    by_requeued_sleepers "requeue" "Sleepers moved away."
    by_priority_locks "priority-locks" "Locks with priority inheritance on the words of events."
}
