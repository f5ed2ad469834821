//! The time from a process's death until every waiter has its error.

use super::faults::{event_of, leave_unfinished};
use super::stopped::Stopped;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::{Outcome, Peer};
use std::thread;
use std::time::{Duration, Instant};

/// Number of deaths of each kind on the host.
const ROUNDS: usize = 25;

/// The process that dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    /// The event's exporter, with a pending signal.
    Exporter,
    /// The event's exporter, before any process has submitted the signal.
    Silent,
    /// An importer with a pending signal.
    Importer,
    /// An importer with a pending signal, after the exporter has died.
    Survivor,
    /// An importer with a pending signal, while the exporter is stopped.
    Unheard,
}

/// Waits for the latest signal, which is pending.
const FOR_THE_LATEST: [&str; 4] = [
    "wait e",
    "wait-value e 1",
    "wait-any 30000 pending e",
    "wait-all 30000 e pending",
];
/// Waits for signals that were not submitted.
const FOR_LATER_ONES: [&str; 3] = [
    "wait-value e 1",
    "wait-value e 30",
    "wait-any-value 30000 pending:1 e:2",
];

/// Kills a victim, and returns how long each of a witness's waits took to fail.
fn kill(harness: &Harness, victim: Victim) -> Result<Vec<Duration>, Failure> {
    let (exporter, importer, witness) = (harness.peer()?, harness.peer()?, harness.peer()?);
    let handle = event_of(&exporter, "e")?;
    for peer in [&importer, &witness] {
        peer.ask(format!("open-event e {handle}"))?;
    }
    witness.ask("event pending")?;
    leave_unfinished(&witness, "pending")?;
    let victim_is = |peer| -> Result<&Peer, Failure> {
        leave_unfinished(peer, "e")?;
        Ok(peer)
    };
    let (dies, questions) = match victim {
        Victim::Exporter => (victim_is(&exporter)?, &FOR_THE_LATEST[..]),
        Victim::Silent => (&exporter, &FOR_LATER_ONES[..]),
        Victim::Importer => (victim_is(&importer)?, &FOR_THE_LATEST[..]),
        Victim::Survivor => {
            exporter.kill();
            (victim_is(&importer)?, &FOR_THE_LATEST[..])
        }
        Victim::Unheard => (victim_is(&importer)?, &FOR_THE_LATEST[..]),
    };
    let mut waits = Vec::new();
    for question in questions {
        waits.push((question, witness.begin_and_sleep(question)?));
    }
    let _stopped = match victim {
        Victim::Unheard => Some(Stopped::new(&exporter)?),
        _ => None,
    };
    thread::scope(|scope| {
        let told = waits.into_iter().map(|(question, waiting)| {
            scope.spawn(move || match waiting.reply(deadline()) {
                Err(refused) if refused.kind == "PeerDied" => Ok(Instant::now()),
                other => Err(Failure::new(format!("{victim:?}, {question}: {other:?}"))),
            })
        });
        let told = Vec::from_iter(told);
        let killed = dies.kill();
        let told = told.into_iter().map(|told| told.join().expect("no panic"));
        told.map(|told| Ok(told?.saturating_duration_since(killed)))
            .collect()
    })
}

/// Returns the number of deaths of each kind. On the host it is `host`. On other devices it is
/// small, because each process first creates a driver's context, and the driver creates one at a
/// time.
pub(super) fn rounds(harness: &Harness, host: usize) -> usize {
    match harness.is_host() {
        true => host,
        false => 3,
    }
}

/// Every waiter gets its error soon after a death, whichever process dies and however the waiter
/// waits. Reports the time from before the kill until the suite has the witness's reply.
pub(crate) fn every_waiter_is_told(harness: &Harness) -> Verdict {
    let mut notes = Vec::new();
    let mut all = Vec::new();
    for victim in [
        Victim::Exporter,
        Victim::Silent,
        Victim::Importer,
        Victim::Survivor,
        Victim::Unheard,
    ] {
        let mut times = Vec::new();
        for _ in 0..rounds(harness, ROUNDS) {
            times.extend(kill(harness, victim)?);
        }
        notes.push(format!("{victim:?} {}", summary(&mut times)));
        all.extend(times);
    }
    notes.push(format!("all {}", summary(&mut all)));
    let slowest = all.last().copied().unwrap_or_default();
    assert!(
        slowest < harness.promptness(),
        "the slowest waiter knew after {slowest:?}"
    );
    Ok(Outcome::Passed(notes.join("; ")))
}

/// Sorts times, and formats their median, 99th percentile and maximum.
pub(super) fn summary(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    format!("p50 {:?}, p99 {:?}, max {:?}", at(50), at(99), at(100))
}
