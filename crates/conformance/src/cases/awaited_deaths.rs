//! Cases about awaited signals of processes that die.

use super::awaited::{MANY, awaiting, begin, begin_there, end, events_of, take};
use super::deaths::{rounds, summary};
use super::faults::{event_of, leave_unfinished};
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::suite::{Outcome, PASSED};
use crate::{Peer, next};
use crosshandle::{Error, Notifier};
use std::time::{Duration, Instant};

/// Number of deaths of each kind on the host.
const ROUNDS: usize = 10;

/// The process that dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Victim {
    /// The event's exporter, with a pending signal.
    Exporter,
    /// The event's exporter, before any process has submitted the signal.
    Silent,
    /// An importer with a pending signal.
    Importer,
    /// An importer with a pending signal, after the exporter has died.
    Survivor,
}

pub(super) const VICTIMS: [Victim; 4] = [
    Victim::Exporter,
    Victim::Silent,
    Victim::Importer,
    Victim::Survivor,
];

/// Commands that await the signals of a victim.
const QUESTIONS: [&str; 4] = [
    "await e 1",
    "await-callback e 1",
    "await-notified 30000 pending:1 e:1",
    "await-stream e 0 9",
];
/// Commands that await signals that no process has submitted.
const LATER: [&str; 4] = [
    "await e 1",
    "await e 30",
    "await-callback e 9",
    "await-notified 30000 pending:1 e:2",
];

#[track_caller]
fn has_died(result: crosshandle::Result<()>) -> Result<(), Failure> {
    match result {
        Err(Error::PeerDied(_)) => Ok(()),
        other => Err(Failure::new(format!("{other:?}"))),
    }
}

/// Kills a victim. Returns how long each future, callback, notifier and stream of a witness and a
/// future of this process took to fail.
pub(super) fn die(
    harness: &Harness,
    victim: Victim,
    witness: Peer,
) -> Result<Vec<Duration>, Failure> {
    let context = harness.context()?;
    let (exporter, importer) = (harness.peer()?, harness.peer()?);
    let handle = event_of(&exporter, "e")?;
    for peer in [&importer, &witness] {
        peer.ask(format!("open-event e {handle}"))?;
    }
    let event = context.open_event(&handle)?;
    witness.ask("event pending")?;
    leave_unfinished(&witness, "pending")?;
    let (dies, questions) = match victim {
        Victim::Exporter => (&exporter, QUESTIONS),
        Victim::Silent => (&exporter, LATER),
        Victim::Importer => (&importer, QUESTIONS),
        Victim::Survivor => {
            exporter.kill();
            (&importer, QUESTIONS)
        }
    };
    if victim != Victim::Silent {
        leave_unfinished(dies, "e")?;
    }
    let here = begin(&event, 1)?;
    awaiting(std::process::id())?;
    let there = begin_there(&witness, &questions.map(str::to_owned))?;
    assert!(!there.iter().any(crate::Pending::is_answered));
    std::thread::scope(|scope| {
        let here = scope.spawn(|| -> Result<Instant, Failure> {
            has_died(end(here)?)?;
            Ok(Instant::now())
        });
        let there = there.into_iter().zip(questions).map(|(awaited, question)| {
            scope.spawn(move || match awaited.reply(deadline()) {
                Err(refused) if refused.kind == "PeerDied" => Ok(Instant::now()),
                other => Err(Failure::new(format!("{victim:?}, {question}: {other:?}"))),
            })
        });
        let told = Vec::from_iter(there.chain([here]));
        let killed = dies.kill();
        told.into_iter()
            .map(|told| {
                let told = told.join().expect("no panic")?;
                Ok(told.saturating_duration_since(killed))
            })
            .collect()
    })
}

/// Everything that awaits signals of a process fails soon after its death, whichever process dies.
/// Reports the time from before the kill until the suite has the witness's reply.
pub(crate) fn everything_awaited_fails(harness: &Harness) -> Verdict {
    let mut notes = Vec::new();
    let mut all = Vec::new();
    for victim in VICTIMS {
        let mut times = Vec::new();
        for _ in 0..rounds(harness, ROUNDS) {
            times.extend(die(harness, victim, harness.peer()?)?);
        }
        notes.push(format!("{victim:?} {}", summary(&mut times)));
        all.extend(times);
    }
    notes.push(format!("all {}", summary(&mut all)));
    let slowest = all.last().copied().unwrap_or_default();
    assert!(
        slowest < harness.promptness(),
        "the slowest knew after {slowest:?}"
    );
    Ok(Outcome::Passed(notes.join("; ")))
}

/// Submits signals of these events in a peer, through one queue. They complete when the peer's
/// event `gate` is signalled.
fn leave_all_unfinished<'a>(
    peer: &Peer,
    names: impl IntoIterator<Item = &'a String>,
) -> Result<(), Failure> {
    peer.ask("event gate")?;
    peer.ask("queue q")?;
    peer.ask("submit q barrier after-value=gate:1")?;
    for name in names {
        peer.ask(format!("submit q barrier signal={name}"))?;
    }
    Ok(())
}

/// Checks that a peer's waits fail because of a death, and returns how long they took.
fn all_fail(waits: Vec<crate::Pending<'_>>, killed: Instant) -> Result<Duration, Failure> {
    for wait in waits {
        match wait.reply(deadline()) {
            Err(refused) if refused.kind == "PeerDied" => {}
            other => return Err(Failure::new(format!("{other:?}"))),
        }
    }
    Ok(killed.elapsed())
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("e{index}")).collect()
}

/// All events of a dying process fail, however many are awaited. A notifier and futures of this
/// process await them, and waits for any and for all in another process.
pub(crate) fn many_events_of_a_dead_peer(harness: &Harness) -> Verdict {
    const COUNT: usize = 300;
    let context = harness.context()?;
    let (exporter, witness) = (harness.peer()?, harness.peer()?);
    let events = events_of(&exporter, &context, COUNT)?;
    let names = names(MANY);
    for name in &names {
        let handle = exporter.ask(format!("event-handle {name}"))?.remove(0);
        witness.ask(format!("open-event {name} {handle}"))?;
    }
    // No signal of the other events is submitted.
    leave_all_unfinished(&exporter, &names)?;
    let notifier = Notifier::new()?;
    let mut futures = Vec::new();
    for (token, event) in (0..).zip(&events) {
        notifier.add(event, 1, token)?;
        futures.push(begin(event, 1)?);
    }
    awaiting(std::process::id())?;
    let waits = begin_there(
        &witness,
        &[
            format!("wait-any-value 30000 {}:1", names.join(":1 ")),
            format!("wait-all 30000 {}", names.join(" ")),
        ],
    )?;
    let killed = exporter.kill();
    let mut count = 0;
    while count < COUNT {
        count += take(&notifier, &mut |_, result| has_died(result))?;
    }
    for future in futures {
        has_died(end(future)?)?;
    }
    let here = killed.elapsed();
    let there = all_fail(waits, killed)?;
    let slowest = here.max(there);
    assert!(slowest < harness.promptness(), "known after {slowest:?}");
    Ok(Outcome::Passed(format!(
        "{COUNT} known after {here:?}; waits for {MANY} ended after {there:?}"
    )))
}

/// The death of a process that submitted one of many signals ends a wait for any or all of them.
/// The other signals are not affected.
pub(crate) fn one_of_many_submitters_dies(harness: &Harness) -> Verdict {
    const ITS: usize = 137;
    let context = harness.context()?;
    let (living, dies, witness) = (harness.peer()?, harness.peer()?, harness.peer()?);
    let names = names(MANY);
    let mut events = Vec::new();
    for name in &names {
        let event = context.create_event()?;
        let handle = event.handle()?;
        for peer in [&living, &dies, &witness] {
            peer.ask(format!("open-event {name} {handle}"))?;
        }
        events.push(event);
    }
    leave_unfinished(&dies, &names[ITS])?;
    let others = names
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != ITS)
        .map(|(_, name)| name);
    leave_all_unfinished(&living, others.clone())?;
    let waits = begin_there(
        &witness,
        &[
            format!("wait-any-value 30000 {}:1", names.join(":1 ")),
            format!("wait-all 30000 {}", names.join(" ")),
        ],
    )?;
    let futures = events
        .iter()
        .map(|event| begin(event, 1))
        .collect::<Result<Vec<_>, _>>()?;
    awaiting(std::process::id())?;
    let rest = others.map(|name| format!(" {name}:1"));
    let rest = format!("await-notified 30000{}", String::from_iter(rest));
    let rest = begin_there(&witness, &[rest])?;
    let killed = dies.kill();
    let known = all_fail(waits, killed)?;
    assert!(known < harness.promptness(), "known after {known:?}");
    assert!(!rest.iter().any(crate::Pending::is_answered));
    living.ask("signal gate")?;
    for (index, future) in futures.into_iter().enumerate() {
        match index == ITS {
            true => has_died(end(future)?)?,
            false => end(future)??,
        }
    }
    for rest in rest {
        assert_eq!(rest.reply(deadline())?.len(), MANY - 1);
    }
    Ok(Outcome::Passed(format!("known after {known:?}")))
}

/// A stream of a dead exporter's signals returns the errors of the pending ones, then an error for
/// the missing ones, and then ends.
pub(crate) fn streams_end_with_the_exporter(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    for unfinished in [0, 3] {
        let exporter = harness.peer()?;
        let event = context.open_event(&event_of(&exporter, "e")?)?;
        let mut values = event.values(0);
        exporter.ask("signal e 5")?;
        let first = next(&mut values, deadline());
        assert!(matches!(first, Some(Some(Ok(5)))), "{first:?}");
        leave_all_unfinished(&exporter, &vec!["e".to_owned(); unfinished])?;
        exporter.kill();
        let mut errors = 0;
        loop {
            match next(&mut values, deadline()) {
                Some(Some(Err(Error::PeerDied(_)))) => errors += 1,
                Some(None) => break,
                other => return Err(Failure::new(format!("{unfinished} left: {other:?}"))),
            }
        }
        let expected = 1 + usize::from(unfinished > 0)..=1 + unfinished;
        assert!(expected.contains(&errors), "{unfinished} left: {errors}");
        // The stream has ended permanently.
        assert!(matches!(next(&mut values, deadline()), Some(None)));
    }
    PASSED
}
