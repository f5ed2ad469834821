//! A process that has an event's handle may manipulate the threads that sleep on the event's words.
//! Their waits must still end at their deadlines, and on signals and deaths.

use super::faults::event_of;
use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::suite::PASSED;
use crate::{Outcome, Peer};
use std::time::{Duration, Instant};

/// The signal number of the attacked event, by which the attacker finds it. No other event has it.
const NUMBER: u64 = 0x1234_5678;

/// An event, its exporter, a process that waits for it, and a process that attacks the waiting
/// threads.
struct Scene {
    exporter: Peer,
    waiter: Peer,
    attacker: Peer,
}

impl Scene {
    fn new(harness: &Harness, attack: &str) -> Result<Self, Failure> {
        let (exporter, waiter, attacker) = (harness.peer()?, harness.peer()?, harness.peer()?);
        let handle = event_of(&exporter, "e")?;
        exporter.ask(format!("signal-value e {NUMBER}"))?;
        for peer in [&waiter, &attacker] {
            peer.ask(format!("open-event e {handle}"))?;
            peer.ask(format!("wait-value e {NUMBER} 10000"))?;
        }
        attacker.ask(format!("divert e {attack}"))?;
        Ok(Self {
            exporter,
            waiter,
            attacker,
        })
    }

    /// Returns the number of sleepers that the attack has met.
    fn met(&self) -> Result<u64, Failure> {
        Ok(self.attacker.ask("diverted")?.remove(0).parse()?)
    }

    /// Makes the waiter wait without a deadline, until it sleeps and the attack has met it. Then
    /// `end` ends the wait. Expects an error of the kind `kind`, or success if it is `None`.
    fn check_wait(
        &self,
        question: &str,
        is_met: bool,
        kind: Option<&str>,
        end: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let met = self.met()?;
        let waiting = self.waiter.begin_and_sleep(question)?;
        if is_met {
            eventually("the attack meets a sleeper", || Ok(self.met()? > met))?;
        }
        end()?;
        match (waiting.reply(deadline()), kind) {
            (Ok(_), None) => Ok(()),
            (Err(refused), Some(kind)) if refused.kind == kind => Ok(()),
            (other, _) => Err(Failure::new(format!(
                "{question}: {kind:?} expected, but {other:?}"
            ))),
        }
    }
}

/// Checks waits with and without a deadline during an attack. `is_met` says whether the attack
/// counts sleepers.
fn check(harness: &Harness, attack: &str, is_met: bool) -> Verdict {
    let scene = Scene::new(harness, attack)?;
    const TIMEOUT: Duration = Duration::from_millis(300);
    let mut latest = Duration::ZERO;
    for question in ["wait-value e 305419897 300", "wait-any 300 pending e"] {
        if question.starts_with("wait-any") {
            // The event's latest signal stays pending.
            scene.waiter.ask("event pending")?;
            super::faults::leave_unfinished(&scene.waiter, "pending")?;
            super::faults::leave_unfinished(&scene.exporter, "e")?;
        }
        for _ in 0..3 {
            let began = Instant::now();
            let ended = scene.waiter.begin_and_sleep(question)?.reply(deadline());
            match ended {
                Err(refused) if refused.kind == "TimedOut" => {}
                other => return Err(Failure::new(format!("{attack}, {question}: {other:?}"))),
            }
            latest = latest.max(began.elapsed());
        }
    }
    let bound = TIMEOUT + harness.promptness();
    assert!(latest < bound, "a wait ended after {latest:?}");
    // `leave_unfinished` has used one number, and the gate will complete it.
    let number = NUMBER + 1;
    scene.check_wait(&format!("wait-value e {number}"), is_met, None, || {
        scene.exporter.ask("signal gate-e")?;
        Ok(())
    })?;
    for number in number + 1..number + 4 {
        scene.check_wait(&format!("wait-value e {number}"), is_met, None, || {
            scene.exporter.ask("signal e")?;
            Ok(())
        })?;
    }
    // The signal is never submitted, and the event's exporter is killed.
    let question = format!("wait-value e {}", number + 100);
    scene.check_wait(&question, is_met, Some("PeerDied"), || {
        scene.exporter.kill();
        Ok(())
    })?;
    Ok(Outcome::Passed(format!("the latest after {latest:?}")))
}

/// Sleepers wake up after an attacker moved them to another futex.
pub(crate) fn requeued_sleepers_wake_up(harness: &Harness) -> Verdict {
    check(harness, "requeue", true)
}

/// Sleepers wake up on a word that another thread waits for with a priority-inheritance lock.
pub(crate) fn sleepers_beside_a_lock_wake_up(harness: &Harness) -> Verdict {
    check(harness, "lock-pi", false)
}

/// Sleepers wake up even if signallers do not see them.
pub(crate) fn uncounted_sleepers_wake_up(harness: &Harness) -> Verdict {
    check(harness, "zero-counts", true)
}

/// An attack on one event's sleepers does not affect sleepers of another context.
pub(crate) fn bystanders_sleep_well(harness: &Harness) -> Verdict {
    let witness = harness.peer()?;
    let other = event_of(&witness, "apart")?;
    for attack in ["requeue", "lock-pi", "zero-counts"] {
        let scene = Scene::new(harness, attack)?;
        scene
            .waiter
            .ask(format!("open-event apart-{attack} {other}"))?;
        let number = witness.ask("value apart")?.remove(0).parse::<u64>()? + 1;
        let waiting = scene
            .waiter
            .begin_and_sleep(format!("wait-value apart-{attack} {number}"))?;
        witness.ask("signal apart")?;
        waiting.reply(deadline())?;
    }
    PASSED
}
