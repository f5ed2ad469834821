//! Waits for signals that were never submitted, after all processes that could submit them have
//! died.

use super::deaths::summary;
use super::faults::{event_of, failed_late};
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::suite::PASSED;
use crate::{Outcome, Peer};
use std::time::Instant;

/// Number of deaths on the host.
const ROUNDS: usize = 5;

/// Waits for signals of `e` that were never submitted, in each way of waiting.
const WAITS: [&str; 9] = [
    "wait e",
    "wait-value e 1",
    "wait-value e 30",
    "wait-any 30000 quiet e",
    "wait-all 30000 e quiet",
    "wait-any-value 30000 quiet:1 e:2",
    "await e 1",
    "await-callback e 9",
    "await-notified 30000 e:2",
];

/// When the last other process that has the event open ends, it ends the waits of the event's
/// creator. Later waits fail too.
pub(crate) fn makers_learn_that_the_last_process_died(harness: &Harness) -> Verdict {
    let mut times = Vec::new();
    for round in 0..super::deaths::rounds(harness, ROUNDS) {
        let isolated = ["", " isolated=yes"][round % 2];
        let (maker, signaller) = (harness.peer()?, harness.peer()?);
        maker.ask("event quiet")?;
        maker.ask(format!("event e{isolated}"))?;
        let handle = maker.ask("event-handle e")?.remove(0);
        signaller.ask(format!("open-event e {handle}"))?;
        maker.refused("wait e 30", "TimedOut")?;
        maker.ask("queue q")?;
        maker.ask("event done")?;
        maker.ask("submit q barrier after=e signal=done")?;
        let mut waits = Vec::new();
        for question in WAITS {
            waits.push((question, maker.begin_and_sleep(question)?));
        }
        let killed = signaller.kill();
        for (question, waiting) in waits {
            match waiting.reply(deadline()) {
                Err(refused) if refused.kind == "PeerDied" => {}
                other => return Err(Failure::new(format!("{question}: {other:?}"))),
            }
        }
        times.push(Instant::now().saturating_duration_since(killed));
        let done = maker.ask("wait done 10000").map(drop);
        failed_late(harness.peer_device(), "CommandFailed", done)?;
        maker.refused("wait-value e 100", "PeerDied")?;
        maker.refused("await e 100", "PeerDied")?;
        maker.refused("wait e 0", "PeerDied")?;
        maker.refused("wait-any 0 quiet e", "PeerDied")?;
        maker.refused("try-wait e", "PeerDied")?;
    }
    let note = summary(&mut times);
    let slowest = times.last().copied().unwrap_or_default();
    assert!(
        slowest < harness.promptness(),
        "the slowest round took {slowest:?}"
    );
    Ok(Outcome::Passed(note))
}

/// A wait continues while another process has the event open. That process may be a second importer
/// or, for an importer, the creator.
pub(crate) fn other_processes_keep_waits_going(harness: &Harness) -> Verdict {
    let (maker, first, second) = (harness.peer()?, harness.peer()?, harness.peer()?);
    let handle = event_of(&maker, "e")?;
    for peer in [&first, &second] {
        peer.ask(format!("open-event e {handle}"))?;
    }
    let wait = maker.begin_and_sleep("wait e 30000")?;
    let importers_wait = second.begin_and_sleep("wait-value e 2 30000")?;
    first.kill();
    maker.refused("wait e 100", "TimedOut")?;
    second.refused("wait e 100", "TimedOut")?;
    assert_eq!(second.ask("signal e")?, ["1"]);
    wait.reply(deadline())?;
    assert_eq!(maker.ask("signal e")?, ["2"]);
    importers_wait.reply(deadline())?;
    let wait = maker.begin_and_sleep("wait-value e 3")?;
    second.kill();
    died(wait.reply(deadline()).map(drop))
}

/// A process that closes the event before it ends does not end any wait. The event can be opened
/// again.
pub(crate) fn closing_ends_no_wait(harness: &Harness) -> Verdict {
    let (maker, signaller, next) = (harness.peer()?, harness.peer()?, harness.peer()?);
    let handle = event_of(&maker, "e")?;
    let open = format!("open-event e {handle}");
    signaller.ask(&open)?;
    let wait = maker.begin_and_sleep("wait-value e 2 30000")?;
    assert_eq!(signaller.ask("signal e")?, ["1"]);
    signaller.ask("close e")?;
    maker.refused("wait-value e 2 60", "TimedOut")?;
    signaller.kill();
    maker.refused("wait-value e 2 60", "TimedOut")?;
    next.ask(&open)?;
    assert_eq!(next.ask("signal e")?, ["2"]);
    wait.reply(deadline())?;
    PASSED
}

/// When the creator makes another handle, it expects another process. Earlier deaths then end no
/// wait.
pub(crate) fn a_new_handle_announces_a_process(harness: &Harness) -> Verdict {
    let (maker, first) = (harness.peer()?, harness.peer()?);
    let handle = event_of(&maker, "e")?;
    first.ask(format!("open-event e {handle}"))?;
    first.kill();
    maker.refused("wait e", "PeerDied")?;
    let again = maker.ask("event-handle e")?.remove(0);
    assert_eq!(again, handle.to_string());
    maker.refused("wait e 60", "TimedOut")?;
    let second = harness.peer()?;
    second.ask(format!("open-event e {handle}"))?;
    let wait = maker.begin_and_sleep("wait e")?;
    second.kill();
    died(wait.reply(deadline()).map(drop))?;
    // If the creator itself opens the handle, that is treated like an open by another process.
    maker.ask("event-handle e")?;
    let third = harness.peer()?;
    third.ask(format!("open-event e {handle}"))?;
    maker.ask(format!("open-event own {handle}"))?;
    third.kill();
    maker.refused("wait e 60", "TimedOut")?;
    assert_eq!(maker.ask("signal own")?, ["1"]);
    maker.ask("wait e 0")?;
    maker.ask("close own")?;
    maker.refused("wait-value e 2", "PeerDied")?;
    PASSED
}

/// If the creator has closed the event, the last importer learns that the other importers have
/// died.
pub(crate) fn the_last_importer_learns_it(harness: &Harness) -> Verdict {
    for isolated in ["", " isolated=yes"] {
        let (maker, signaller, waiter) = (harness.peer()?, harness.peer()?, harness.peer()?);
        maker.ask(format!("event e{isolated}"))?;
        let handle = maker.ask("event-handle e")?.remove(0);
        for peer in [&signaller, &waiter] {
            peer.ask(format!("open-event e {handle}"))?;
        }
        maker.ask("close e")?;
        waiter.refused("wait e 60", "TimedOut")?;
        let wait = waiter.begin_and_sleep("wait e")?;
        let awaited = waiter.begin_and_sleep("await e 7")?;
        signaller.kill();
        died(wait.reply(deadline()).map(drop))?;
        died(awaited.reply(deadline()).map(drop))?;
        // The result is the same if the creator closes the event after the death.
        let (signaller, waiter) = (harness.peer()?, harness.peer()?);
        maker.ask(format!("event e{isolated}"))?;
        let handle = maker.ask("event-handle e")?.remove(0);
        for peer in [&signaller, &waiter] {
            peer.ask(format!("open-event e {handle}"))?;
        }
        let before = maker.usage()?.descriptors;
        signaller.kill();
        eventually("the maker notes the death", || {
            Ok(maker.usage()?.descriptors < before)
        })?;
        waiter.refused("wait e 60", "TimedOut")?;
        let wait = waiter.begin_and_sleep("wait e")?;
        maker.ask("close e")?;
        died(wait.reply(deadline()).map(drop))?;
    }
    PASSED
}

/// Signals that a process submitted before its peers died still complete, and waits for them
/// succeed.
pub(crate) fn submitted_signals_are_unaffected(harness: &Harness) -> Verdict {
    let (maker, peer) = (harness.peer()?, harness.peer()?);
    let handle = event_of(&maker, "e")?;
    peer.ask(format!("open-event e {handle}"))?;
    assert_eq!(peer.ask("signal e 3")?, ["3"]);
    maker.ask("event gate")?;
    maker.ask("queue q")?;
    maker.ask("submit q barrier after-value=gate:1 signal=e")?;
    let waits =
        ["wait e", "wait-value e 4", "await e 4"].map(|question| maker.begin_and_sleep(question));
    peer.kill();
    eventually("the death shows", || is_over(&maker))?;
    for number in 1..=3 {
        maker.ask(format!("wait-value e {number} 0"))?;
    }
    maker.refused("wait e 60", "TimedOut")?;
    maker.ask("signal gate")?;
    for waiting in waits {
        waiting?.reply(deadline())?;
    }
    maker.ask("wait e 0")?;
    assert_eq!(maker.ask("signal e")?, ["5"]);
    maker.ask("wait-value e 5 0")?;
    PASSED
}

/// Returns whether a process knows that no other process has `e` open.
fn is_over(maker: &Peer) -> Result<bool, Failure> {
    match maker.ask("wait-value e 1000 0") {
        Err(refused) if refused.kind == "PeerDied" => Ok(true),
        Err(refused) if refused.kind == "TimedOut" => Ok(false),
        other => Err(Failure::new(format!("{other:?}"))),
    }
}

fn died(result: Result<(), crate::Refused>) -> Verdict {
    match result {
        Err(refused) if refused.kind == "PeerDied" => PASSED,
        other => Err(Failure::new(format!("PeerDied expected, but {other:?}"))),
    }
}
