//! The values of events only grow, and every wait belongs to one value.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::suite::PASSED;
use crosshandle::{Command, Error, Event, EventHandle};
use std::time::Duration;

/// `signal_value` completes all values up to its own, for waiters in any process.
pub(crate) fn values_complete_in_leaps(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let event = context.create_event()?;
    peer.ask(format!("open-event e {}", event.handle()?))?;
    let waiters = [
        peer.begin_and_sleep("wait-value e 1")?,
        peer.begin_and_sleep("wait-value e 500")?,
        peer.begin_and_sleep("wait-value e 1000")?,
    ];
    let beyond = peer.begin_and_sleep("wait-value e 1001")?;
    event.signal_value(1000)?;
    for waiter in waiters {
        waiter.reply(deadline())?;
    }
    assert!(!beyond.is_answered());
    assert_eq!(peer.ask("value e")?, ["1000"]);
    peer.ask("signal-value e 1001")?;
    beyond.reply(deadline())?;
    event.wait_value_timeout(1001, deadline())?;
    assert_eq!(event.signal()?, 1002);
    PASSED
}

/// Neither a value nor an earlier one can be signalled again.
pub(crate) fn values_only_grow(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let event = context.create_event()?;
    peer.ask(format!("open-event e {}", event.handle()?))?;
    event.signal_value(10)?;
    for value in [0, 1, 9, 10] {
        let refused = event.signal_value(value);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))), "{value}");
        peer.refused(format!("signal-value e {value}"), "InvalidArgument")?;
    }
    assert_eq!(event.submitted(), 10);
    let far = event.signal_value(10 + (1 << 31)).expect_err("too far");
    assert!(matches!(far, Error::InvalidArgument(_)), "{far:?}");
    let end = event.signal_value(u64::MAX).expect_err("beyond the end");
    assert!(!end.to_string().is_empty());
    // The values advance in large steps, so that the lower halves of the numbers wrap.
    let step = 1 << 28;
    for leap in 1..=40_u64 {
        event.signal_value(leap * step)?;
        peer.ask(format!("wait-value e {} 10000", leap * step))?;
        peer.ask("signal e")?;
        event.wait_value_timeout(leap * step + 1, deadline())?;
        assert!(!event.try_wait_value(leap * step + 2)?);
        assert!(event.try_wait_value(1)?);
    }
    PASSED
}

/// Several queues and processes have more pending signals than the event has words. The signals
/// complete in any order, and each wait ends with its own signal and not before.
pub(crate) fn signals_finish_in_any_order(harness: &Harness) -> Verdict {
    const PEERS: usize = 3;
    const QUEUES: usize = 5;
    let context = harness.context()?;
    let event = context.create_event()?;
    let handle = event.handle()?;
    let peers: Result<Vec<_>, Failure> = (0..PEERS).map(|_| harness.peer()).collect();
    let peers = peers?;
    let watcher = harness.peer()?;
    watcher.ask(format!("open-event e {handle}"))?;
    // Each queue delays one signal behind a gate of this process.
    let mut gates: Vec<(u64, Event)> = Vec::new();
    for queue in 0..QUEUES {
        for peer in &peers {
            let gate = context.create_event()?;
            if queue == 0 {
                peer.ask(format!("open-event e {handle}"))?;
            }
            peer.ask(format!("open-event gate{queue} {}", gate.handle()?))?;
            peer.ask(format!("queue q{queue}"))?;
            peer.ask(format!(
                "submit q{queue} barrier after-value=gate{queue}:1 signal=e"
            ))?;
            gates.push((event.submitted(), gate));
        }
    }
    let all = (PEERS * QUEUES) as u64;
    assert_eq!(event.submitted(), all);
    let waits: Result<Vec<_>, Failure> = (1..=all)
        .map(|value| watcher.begin_and_sleep(format!("wait-value e {value}")))
        .collect();
    let mut waits: Vec<_> = waits?.into_iter().map(Some).collect();
    // The gates open from the last to the first. Signals that share a word complete in order.
    let mut open = vec![false; gates.len()];
    for (value, gate) in gates.iter().rev() {
        gate.signal()?;
        open[*value as usize - 1] = true;
        std::thread::sleep(Duration::from_millis(1));
        for (place, wait) in waits.iter_mut().enumerate() {
            let turn_has_come = (0..=place).rev().step_by(7).all(|before| open[before]);
            if !turn_has_come {
                let waits = wait.as_ref().is_some_and(|wait| !wait.is_answered());
                assert!(waits, "signal {} ended too early", place + 1);
                assert!(!event.try_wait_value(place as u64 + 1)?);
            } else if let Some(wait) = wait.take() {
                wait.reply(deadline())?;
            }
        }
    }
    event.wait_timeout(deadline())?;
    let status = event.status();
    assert_eq!((status.submitted, status.completed), (all, all));
    PASSED
}

/// A queue waits for a value that is submitted later, in another process.
pub(crate) fn queues_wait_for_future_values(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    peer.ask("event e")?;
    let handle: EventHandle = peer.ask("event-handle e")?.remove(0).parse()?;
    let event = context.open_event(&handle)?;
    let (done, queue) = (context.create_event()?, context.create_queue()?);
    queue.submit(Command::barrier().after_value(&event, 3).signal(&done))?;
    for number in 1..=3 {
        assert!(!done.try_wait()?, "after {} signals", number - 1);
        peer.ask("signal e")?;
    }
    done.wait_timeout(deadline())?;
    PASSED
}

/// Many processes run a relay. Each waits for its own values and signals the next process.
pub(crate) fn relay(harness: &Harness) -> Verdict {
    const PEERS: usize = 4;
    const ROUNDS: u64 = 100;
    let context = harness.context()?;
    let events: Result<Vec<Event>, _> = (0..=PEERS).map(|_| context.create_event()).collect();
    let events = events?;
    let peers: Result<Vec<_>, Failure> = (0..PEERS).map(|_| harness.peer()).collect();
    let peers = peers?;
    for (peer, pair) in peers.iter().zip(events.windows(2)) {
        peer.ask(format!("open-event from {}", pair[0].handle()?))?;
        peer.ask(format!("open-event to {}", pair[1].handle()?))?;
    }
    // The relay starts when all peers are ready. Otherwise the first peer would time out before the
    // last one has found its device.
    let runners: Vec<_> = peers
        .iter()
        .map(|peer| peer.begin(format!("ping-pong from to {ROUNDS}")))
        .collect();
    let end = &events[PEERS];
    for round in 1..=ROUNDS {
        events[0].signal()?;
        end.wait_value_timeout(round, deadline())?;
    }
    for runner in runners {
        runner.reply(deadline())?;
    }
    assert_eq!(end.submitted(), ROUNDS);
    PASSED
}
