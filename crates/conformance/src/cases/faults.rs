//! Processes die at any point. No other process hangs, and all of them continue.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline, eventually};
use crate::suite::PASSED;
use crate::{Outcome, Peer, Transfer};
use crosshandle::{Command, Device, Error, EventHandle, MemoryHandle};
use std::fmt::Debug;
use std::time::{Duration, Instant};

pub(super) fn event_of(peer: &Peer, name: &str) -> Result<EventHandle, Failure> {
    peer.ask(format!("event {name}"))?;
    Ok(peer
        .ask(format!("event-handle {name}"))?
        .remove(0)
        .parse()?)
}

pub(super) fn memory_of(peer: &Peer, name: &str, seed: u64) -> Result<MemoryHandle, Failure> {
    peer.ask(format!("allocate {name} 100000"))?;
    peer.ask(format!("write {name} 0 {seed} 100000"))?;
    Ok(peer
        .ask(format!("memory-handle {name}"))?
        .remove(0)
        .parse()?)
}

/// Submits a signal of `event` in the peer that never completes.
pub(super) fn leave_unfinished(peer: &Peer, event: &str) -> Result<(), Failure> {
    peer.ask(format!("event gate-{event}"))?;
    peer.ask(format!("queue queue-{event}"))?;
    peer.ask(format!(
        "submit queue-{event} barrier after-value=gate-{event}:1 signal={event}"
    ))?;
    Ok(())
}

/// Checks the result of a device's command whose awaited signal failed later. The command ends with
/// this kind of error, or succeeds if the device cannot notice the failure.
#[track_caller]
pub(super) fn failed_late(
    device: &Device,
    kind: &str,
    result: Result<(), impl Debug>,
) -> Result<(), Failure> {
    match result {
        Ok(()) if !device.info().capabilities.late_failures => Ok(()),
        Err(error) if format!("{error:#?}").contains(kind) => Ok(()),
        other => Err(Failure::new(format!("{kind} expected, but {other:?}"))),
    }
}

/// Opening a handle of a dead process returns an error that says so.
pub(crate) fn exporter_killed_before_open(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let (exporter, importer) = (harness.peer()?, harness.peer()?);
    let event = event_of(&exporter, "e")?;
    let memory = memory_of(&exporter, "m", 1)?;
    exporter.kill();
    let gone = |result: crosshandle::Result<()>| match result {
        Err(error @ Error::ExporterGone { .. }) => {
            assert!(error.is_peer_dead());
            Ok(())
        }
        other => Err(Failure::new(format!("{other:?}"))),
    };
    gone(context.open_event(&event).map(drop))?;
    gone(context.open_memory(&memory).map(drop))?;
    importer.refused(format!("open-event e {event}"), "ExporterGone")?;
    importer.refused(format!("open-memory m {memory}"), "ExporterGone")?;
    PASSED
}

/// The exporter is killed while its handles are being opened. Each open either succeeds with usable
/// memory, or reports that the exporter has ended.
pub(crate) fn exporter_killed_during_open(harness: &Harness) -> Verdict {
    const DELAYS: [u64; 7] = [0, 100, 400, 2_000, 10_000, 50_000, 200_000];
    // The first context initialises the device.
    let _context = harness.context()?;
    let mut opens = 0;
    for delay in DELAYS.map(Duration::from_micros) {
        let exporter = harness.peer()?;
        let event = event_of(&exporter, "e")?;
        let memory = memory_of(&exporter, "m", 1)?;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(delay);
                exporter.kill();
            });
            let start = Instant::now();
            while start.elapsed() < deadline() {
                // A new context connects and maps again.
                let context = harness.context()?;
                let opened = context
                    .open_memory(&memory)
                    .and_then(|memory| Ok((memory, context.open_event(&event)?)));
                match opened {
                    Ok((memory, event)) => {
                        opens += 1;
                        event.signal()?;
                        Transfer::new(&context)?.check(&memory, 0, 1, 1_000)?;
                    }
                    Err(error) if error.is_peer_dead() => return Ok(()),
                    Err(error) => return Err(Failure::from(error)),
                }
            }
            Err(Failure::new("a death is not noticed"))
        })?;
    }
    Ok(Outcome::Passed(format!("{opens} opens before")))
}

/// Open objects stay open. The memory can be read and written, and completed signals stay
/// completed.
pub(crate) fn exporter_killed_after_open(harness: &Harness) -> Verdict {
    let (exporter, one, two) = (harness.peer()?, harness.peer()?, harness.peer()?);
    let event = event_of(&exporter, "e")?;
    let memory = memory_of(&exporter, "m", 1)?;
    for importer in [&one, &two] {
        importer.ask(format!("open-event e {event}"))?;
        importer.ask(format!("open-memory m {memory}"))?;
    }
    exporter.ask("signal e 5")?;
    exporter.kill();
    one.ask("check m 0 1 100000")?;
    one.ask("write m 0 2 100000")?;
    two.ask("check m 0 2 100000")?;
    // The surviving processes still signal each other.
    assert_eq!(two.ask("status e")?, ["5", "5", "ok"]);
    assert_eq!(one.ask("signal e")?, ["6"]);
    two.ask("wait e 10000")?;
    two.ask("wait-value e 6 10000")?;
    eventually("a hang-up is noticed", || {
        match one.ask(format!("open-event f {event}")) {
            Err(refused) if refused.kind == "ExporterGone" => Ok(true),
            Err(refused) => Err(refused.into()),
            Ok(_) => Ok(false),
        }
    })?;
    one.refused(format!("open-memory n {memory}"), "ExporterGone")?;
    one.ask("check m 0 2 100000")?;
    PASSED
}

/// The pending signals of a dead process fail promptly in every process. Other processes continue.
pub(crate) fn death_fails_unfinished_signals(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let mut slowest = Duration::ZERO;
    // The victim is an importer of an event of this process.
    for _ in 0..5 {
        let (victim, witness) = (harness.peer()?, harness.peer()?);
        let (event, other) = (context.create_event()?, context.create_event()?);
        for peer in [&victim, &witness] {
            peer.ask(format!("open-event e {}", event.handle()?))?;
            peer.ask(format!("open-event other {}", other.handle()?))?;
        }
        leave_unfinished(&victim, "e")?;
        let waiters = [
            witness.begin_and_sleep("wait e")?,
            witness.begin_and_sleep("wait-value e 1")?,
            witness.begin_and_sleep("wait-any 30000 e")?,
        ];
        let (sent, own) = std::thread::scope(|scope| {
            let own = scope.spawn(|| event.wait());
            let sent = victim.kill();
            (sent, own.join())
        });
        fails!(own.expect("it doesn't panic"), PeerDied);
        for waiter in waiters {
            let refused = waiter.reply(deadline()).expect_err("no process signalled");
            assert_eq!(refused.kind, "PeerDied", "{refused}");
        }
        slowest = slowest.max(sent.elapsed());
        assert_eq!(witness.ask("status e")?, ["1", "1", "PeerDied"]);
        // Other events are not affected, and the event itself can still be used.
        assert_eq!(witness.ask("signal other")?, ["1"]);
        other.wait_value_timeout(1, deadline())?;
        assert_eq!(event.signal()?, 2);
        witness.ask("wait e 10000")?;
        witness.refused("wait-value e 1 1000", "PeerDied")?;
    }
    // The victim is the exporter.
    for _ in 0..5 {
        let (victim, witness) = (harness.peer()?, harness.peer()?);
        let handle = event_of(&victim, "e")?;
        witness.ask(format!("open-event e {handle}"))?;
        let event = context.open_event(&handle)?;
        leave_unfinished(&victim, "e")?;
        let waiter = witness.begin_and_sleep("wait e")?;
        let sent = victim.kill();
        fails!(event.wait(), PeerDied);
        let refused = waiter.reply(deadline()).expect_err("no process signalled");
        assert_eq!(refused.kind, "PeerDied", "{refused}");
        slowest = slowest.max(sent.elapsed());
        assert_eq!(event.signal()?, 2);
        witness.ask("wait e 10000")?;
    }
    assert!(
        slowest < harness.promptness(),
        "the slowest waiter knew after {slowest:?}"
    );
    Ok(Outcome::Passed(format!(
        "slowest notice of a death: {slowest:?}"
    )))
}

/// A process that only polls also learns of deaths.
pub(crate) fn polling_learns_of_deaths(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let (victim, witness, exporter) = (harness.peer()?, harness.peer()?, harness.peer()?);
    let event = context.create_event()?;
    for peer in [&victim, &witness] {
        peer.ask(format!("open-event e {}", event.handle()?))?;
    }
    let theirs = event_of(&exporter, "theirs")?;
    witness.ask(format!("open-event theirs {theirs}"))?;
    leave_unfinished(&victim, "e")?;
    leave_unfinished(&exporter, "theirs")?;
    assert!(!event.try_wait()?);
    assert_eq!(witness.ask("try-wait theirs")?, ["false"]);
    victim.kill();
    exporter.kill();
    for question in ["try-wait e", "try-wait theirs"] {
        eventually("a death shows", || match witness.ask(question) {
            Ok(_) => Ok(false),
            Err(refused) if refused.kind == "PeerDied" => Ok(true),
            Err(refused) => Err(refused.into()),
        })?;
    }
    fails!(event.try_wait(), PeerDied);
    PASSED
}

/// A new process may get a dead process's owner number, but does not take over its pending signals.
pub(crate) fn newcomers_inherit_nothing(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let event = context.create_event()?;
    let handle = event.handle()?;
    for _ in 0..5 {
        let victim = harness.peer()?;
        let before = crate::Usage::of_self()?.descriptors;
        victim.ask(format!("open-event e {handle}"))?;
        leave_unfinished(&victim, "e")?;
        victim.kill();
        eventually("its connection is closed", || {
            Ok(crate::Usage::of_self()?.descriptors <= before)
        })?;
        let newcomer = harness.peer()?;
        newcomer.ask(format!("open-event e {handle}"))?;
        newcomer.refused("wait e 5000", "PeerDied")?;
        newcomer.ask("signal e")?;
        event.wait_timeout(deadline())?;
    }
    PASSED
}

/// A queue that waits for a dead process's signal fails that command and continues.
pub(crate) fn queues_go_on_after_a_death(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let queue = context.create_queue()?;
    let (victim, witness) = (harness.peer()?, harness.peer()?);
    let (unfinished, dependent, after) = (
        context.create_event()?,
        context.create_event()?,
        context.create_event()?,
    );
    for peer in [&victim, &witness] {
        peer.ask(format!("open-event unfinished {}", unfinished.handle()?))?;
    }
    witness.ask(format!("open-event dependent {}", dependent.handle()?))?;
    witness.ask(format!("open-event after {}", after.handle()?))?;
    leave_unfinished(&victim, "unfinished")?;
    queue.submit(Command::barrier().after(&unfinished).signal(&dependent))?;
    queue.submit(Command::barrier().signal(&after))?;
    witness.ask("queue q")?;
    witness.ask("event own")?;
    witness.ask("submit q barrier after=unfinished signal=own")?;
    let waiter = witness.begin_and_sleep("wait dependent")?;
    victim.kill();
    let (here, there) = (harness.device(), harness.peer_device());
    let failed = "CommandFailed";
    failed_late(here, failed, waiter.reply(deadline()).map(drop))?;
    failed_late(here, failed, dependent.wait_timeout(deadline()))?;
    after.wait_timeout(deadline())?;
    witness.ask("wait after 10000")?;
    failed_late(there, failed, witness.ask("wait own 10000").map(drop))?;
    queue.finish_timeout(deadline())?;
    witness.ask("finish q 10000")?;
    // `finish` returns the error of a command without an event.
    let second = harness.peer()?;
    second.ask(format!("open-event unfinished {}", unfinished.handle()?))?;
    leave_unfinished(&second, "unfinished")?;
    queue.submit(Command::barrier().after(&unfinished))?;
    second.kill();
    failed_late(here, "PeerDied", queue.finish_timeout(deadline()))?;
    queue.finish_timeout(deadline())?;
    PASSED
}

/// A process that is killed while it sleeps disturbs neither signals nor other sleepers.
pub(crate) fn dead_sleepers_disturb_nobody(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let event = context.create_event()?;
    let witness = harness.peer()?;
    witness.ask(format!("open-event e {}", event.handle()?))?;
    for round in 0..5 {
        let victim = harness.peer()?;
        victim.ask(format!("open-event e {}", event.handle()?))?;
        let value = event.submitted() + 1;
        let asleep = [
            victim.begin_and_sleep(format!("wait-value e {value}"))?,
            victim.begin_and_sleep(format!("wait-value e {}", value + 7))?,
            victim.begin_and_sleep(format!("wait-value e {}", value + 1))?,
        ];
        let living = witness.begin_and_sleep(format!("wait-value e {value}"))?;
        victim.kill();
        drop(asleep);
        assert_eq!(event.signal()?, value, "round {round}");
        living.reply(deadline())?;
        assert_eq!(witness.ask("signal e 20")?, [(value + 20).to_string()]);
        event.wait_timeout(deadline())?;
    }
    PASSED
}

/// Waits for values that were never submitted end when the event's exporter dies.
pub(crate) fn future_values_end_with_the_exporter(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let queue = context.create_queue()?;
    let (exporter, witness) = (harness.peer()?, harness.peer()?);
    let handle = event_of(&exporter, "e")?;
    let event = context.open_event(&handle)?;
    witness.ask(format!("open-event e {handle}"))?;
    witness.ask("event done")?;
    witness.ask("queue q")?;
    witness.ask("submit q barrier after-value=e:5 signal=done")?;
    let own = context.create_event()?;
    queue.submit(Command::barrier().after_value(&event, 9).signal(&own))?;
    let waiters = [
        witness.begin_and_sleep("wait-value e 1")?,
        witness.begin_and_sleep("wait-value e 100")?,
    ];
    let sent = exporter.kill();
    fails!(event.wait_value(1), PeerDied);
    for waiter in waiters {
        let refused = waiter.reply(deadline()).expect_err("no process signalled");
        assert_eq!(refused.kind, "PeerDied", "{refused}");
    }
    let taken = sent.elapsed();
    assert!(taken < harness.promptness(), "known after {taken:?}");
    let failed = "CommandFailed";
    let there = witness.ask("wait done 10000").map(drop);
    failed_late(harness.peer_device(), failed, there)?;
    failed_late(harness.device(), failed, own.wait_timeout(deadline()))?;
    // The remaining processes can still use the event. A number that a device waited for is used up
    // by then.
    let number = event.signal()?;
    witness.ask(format!("wait-value e {number} 10000"))?;
    Ok(Outcome::Passed(format!("known after {taken:?}")))
}

/// Processes learn of each other's deaths even after the exporter's death.
pub(crate) fn second_death_after_the_exporters(harness: &Harness) -> Verdict {
    let (exporter, second, third) = (harness.peer()?, harness.peer()?, harness.peer()?);
    let handle = event_of(&exporter, "e")?;
    for peer in [&second, &third] {
        peer.ask(format!("open-event e {handle}"))?;
    }
    exporter.kill();
    leave_unfinished(&second, "e")?;
    let waiter = third.begin_and_sleep("wait e")?;
    assert_eq!(third.ask("try-wait e")?, ["false"], "its signaller lives");
    let sent = second.kill();
    let refused = waiter.reply(deadline()).expect_err("no process signalled");
    let taken = sent.elapsed();
    assert_eq!(refused.kind, "PeerDied", "{refused}");
    assert!(taken < harness.promptness(), "known after {taken:?}");
    assert_eq!(third.ask("signal e")?, ["2"]);
    third.ask("wait e 1000")?;
    Ok(Outcome::Passed(format!("known after {taken:?}")))
}
