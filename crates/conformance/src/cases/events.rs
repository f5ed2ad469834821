//! An event has one state, in all processes that have it open.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::suite::PASSED;
use crosshandle::event::EventSet;
use crosshandle::{Command, Context, Device, Error, EventHandle, EventOptions};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(20);

/// A wait for an event that was never signalled lasts until the first signal, in each way of
/// waiting.
pub(crate) fn fresh_ones_are_waited_for(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let event = context.create_event()?;
    let other = context.create_event()?;
    peer.ask(format!("open-event e {}", event.handle()?))?;
    assert!(!event.try_wait()?);
    assert_eq!((event.submitted(), event.latest_or_first()), (0, 1));
    assert!(event.status().latest.is_none());
    let both = EventSet::latest([&event, &other]);
    for late in [
        event.wait_timeout(Duration::ZERO),
        event.wait_timeout(SOON),
        both.wait_all_timeout(SOON),
        both.wait_any_timeout(SOON).map(drop),
    ] {
        assert!(matches!(late, Err(Error::TimedOut(_))), "{late:?}");
    }
    peer.refused("wait e 0", "TimedOut")?;
    assert_eq!(peer.ask("try-wait e")?, ["false"]);
    assert_eq!(peer.ask("status e")?, ["0", "0", "pending"]);
    let asleep = ["wait e", "wait-any 30000 e", "wait-all 30000 e"]
        .map(|question| peer.begin_and_sleep(question));
    assert_eq!(event.signal()?, 1);
    for waiting in asleep {
        waiting?.reply(deadline())?;
    }
    // A wait never misses a signal that was submitted before it.
    for round in 2..200 {
        assert_eq!(peer.ask("signal e")?, [round.to_string()]);
        event.wait_timeout(Duration::ZERO)?;
    }
    assert!(event.try_wait()?);
    assert_eq!(both.wait_any_timeout(SOON)?, 0);
    assert_eq!(both.try_wait_any()?, Some(0));
    assert!(!both.try_wait_all()?);
    PASSED
}

/// A command that waits for an event that was never signalled waits for the first signal. A command
/// never waits for its own signal.
pub(crate) fn commands_wait_for_the_first_signal(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let [event, by_command, by_queue, own] = [(); 4].map(|()| context.create_event());
    let (event, by_command, by_queue, own) = (event?, by_command?, by_queue?, own?);
    peer.ask(format!("open-event e {}", event.handle()?))?;
    let [first, second] = [(); 2].map(|()| context.create_queue());
    let (first, second) = (first?, second?);
    first.submit(Command::barrier().after(&event).signal(&by_command))?;
    second.wait(&event)?;
    second.signal(&by_queue)?;
    for waiting in [&by_command, &by_queue] {
        assert!(
            waiting
                .wait_timeout(SOON)
                .is_err_and(|late| late.is_timeout())
        );
    }
    peer.ask("signal e")?;
    by_command.wait_timeout(deadline())?;
    by_queue.wait_timeout(deadline())?;
    for _ in 0..3 {
        first.submit(Command::barrier().after(&own).signal(&own))?;
    }
    own.wait_value_timeout(3, deadline())?;
    PASSED
}

/// In Unified Runtime, a wait covers what was submitted so far, which may be nothing.
pub(crate) fn what_was_submitted_can_be_waited_for(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let (event, gate, done) = (
        context.create_event()?,
        context.create_event()?,
        context.create_event()?,
    );
    let queue = context.create_queue()?;
    assert!(event.try_wait_submitted()?);
    event.wait_submitted()?;
    event.wait_submitted_timeout(Duration::ZERO)?;
    queue.submit(Command::barrier().after_submitted(&event).signal(&done))?;
    done.wait_timeout(deadline())?;
    queue.submit(Command::barrier().after_value(&gate, 1).signal(&event))?;
    assert!(!event.try_wait_submitted()?);
    fails!(event.wait_submitted_timeout(SOON), TimedOut);
    gate.signal()?;
    event.wait_submitted_timeout(deadline())?;
    queue.submit(Command::barrier().after_submitted(&event).signal(&done))?;
    done.wait_value_timeout(2, deadline())?;
    PASSED
}

/// Any process may signal and any process may wait, and all see one state.
pub(crate) fn signals_cross_in_both_directions(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let (ping, pong) = (context.create_event()?, context.create_event()?);
    peer.ask(format!("open-event ping {}", ping.handle()?))?;
    peer.ask(format!("open-event pong {}", pong.handle()?))?;
    let answer = peer.begin("ping-pong ping pong 2000");
    for round in 1..=2000 {
        assert_eq!(ping.signal()?, round);
        pong.wait_value_timeout(round, deadline())?;
    }
    answer.reply(deadline())?;
    assert_eq!(pong.submitted(), 2000);
    // Both sides signal an event of the peer.
    peer.ask("event e")?;
    let handle: EventHandle = peer.ask("event-handle e")?.remove(0).parse()?;
    let event = context.open_event(&handle)?;
    assert_eq!(event.signal()?, 1);
    assert_eq!(peer.ask("signal e")?, ["2"]);
    assert_eq!(event.signal()?, 3);
    assert_eq!(peer.ask("status e")?, ["3", "3", "ok"]);
    let status = event.status();
    assert_eq!((status.submitted, status.completed), (3, 3));
    PASSED
}

/// Several processes signal and wait concurrently, and no signal is lost or counted twice.
pub(crate) fn many_signal_and_many_wait(harness: &Harness) -> Verdict {
    const PEERS: u64 = 4;
    const EACH: u64 = 5_000;
    let context = harness.context()?;
    let event = context.create_event()?;
    let handle = event.handle()?;
    let peers: Result<Vec<_>, Failure> = (0..PEERS).map(|_| harness.peer()).collect();
    let peers = peers?;
    for peer in &peers {
        peer.ask(format!("open-event e {handle}"))?;
    }
    let all = (PEERS + 1) * EACH;
    // The waits cover the whole range of values, and start before any signal.
    let waits: Vec<_> = peers
        .iter()
        .zip(1..)
        .flat_map(|(peer, place)| {
            let value = all * place / PEERS;
            [value, value.div_ceil(3), 1].map(|value| (peer, value))
        })
        .map(|(peer, value)| peer.begin(format!("wait-value e {value} 30000")))
        .collect();
    for wait in &waits {
        wait.begun()?;
    }
    let signals: Vec<_> = peers
        .iter()
        .map(|peer| peer.begin(format!("signal e {EACH}")))
        .collect();
    for _ in 0..EACH {
        event.signal()?;
    }
    for answer in waits.into_iter().chain(signals) {
        answer.reply(Duration::from_secs(30))?;
    }
    assert_eq!(event.submitted(), all);
    for peer in &peers {
        assert_eq!(
            peer.ask("status e")?,
            [&*all.to_string(), &*all.to_string(), "ok"]
        );
    }
    PASSED
}

/// A host's signal wakes the sleepers in every process.
pub(crate) fn a_signal_wakes_sleepers_elsewhere(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let event = context.create_event()?;
    let handle = event.handle()?;
    let (one, two) = (harness.peer()?, harness.peer()?);
    let mut taken = Vec::new();
    for peer in [&one, &two] {
        peer.ask(format!("open-event e {handle}"))?;
    }
    for round in 1..=50 {
        let question = format!("wait-value e {round}");
        let sleepers = [
            one.begin_and_sleep(&question)?,
            one.begin_and_sleep(&question)?,
            two.begin_and_sleep(&question)?,
        ];
        let sent = Instant::now();
        event.signal()?;
        for sleeper in sleepers {
            sleeper.reply(deadline())?;
        }
        taken.push(sent.elapsed());
    }
    // In the other direction, this process sleeps and a peer signals.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| event.wait_value_timeout(51, deadline()));
        one.ask("signal e")?;
        waiter.join().expect("it doesn't panic")?;
        Ok::<_, Failure>(())
    })?;
    // A sleeper also polls at intervals, so a lost wake-up is only visible as a long delay.
    taken.sort_unstable();
    let usual = taken[taken.len() / 2];
    assert!(usual < SOON, "usually awake after {usual:?} only");
    Ok(crate::Outcome::Passed(format!(
        "usually awake after {usual:?}"
    )))
}

/// Low-power waits sleep without spinning, and wake like all other waits.
pub(crate) fn low_power_waits(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let event = context.create_event_with(EventOptions::new().low_power(true))?;
    let peer = harness.peer()?;
    peer.ask(format!("open-event e {} low-power=yes", event.handle()?))?;
    for round in 1..=20 {
        let sleeper = peer.begin_and_sleep(format!("wait-value e {round}"))?;
        event.signal()?;
        sleeper.reply(deadline())?;
        let waited = peer.begin("wait-any 10000 e");
        waited.reply(deadline())?;
    }
    let began = Instant::now();
    fails!(event.wait_value_timeout(21, SOON), TimedOut);
    assert!(began.elapsed() >= SOON);
    PASSED
}

/// A try never blocks, timeouts are respected, and a wait can be repeated after its timeout.
pub(crate) fn timeouts_and_tries(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let (event, gate) = (context.create_event()?, context.create_event()?);
    let queue = context.create_queue()?;
    let peer = harness.peer()?;
    peer.ask(format!("open-event e {}", event.handle()?))?;
    queue.submit(
        crosshandle::Command::barrier()
            .after_value(&gate, 1)
            .signal(&event),
    )?;
    assert!(!event.try_wait()?);
    assert_eq!(peer.ask("try-wait e")?, ["false"]);
    assert_eq!(peer.ask("status e")?, ["1", "0", "pending"]);
    for millis in [0, 1, 30] {
        let timeout = Duration::from_millis(millis);
        let began = Instant::now();
        let late = event.wait_timeout(timeout).expect_err("not signalled");
        assert!(late.is_timeout() && began.elapsed() >= timeout, "{late}");
        peer.refused(format!("wait e {millis}"), "TimedOut")?;
        peer.refused(format!("wait-value e 2 {millis}"), "TimedOut")?;
    }
    gate.signal()?;
    event.wait_timeout(deadline())?;
    peer.ask("wait e 10000")?;
    assert!(event.try_wait()? && event.try_wait_value(1)?);
    assert!(!event.try_wait_value(2)? && !event.try_wait_value(u64::MAX)?);
    assert_eq!(peer.ask("try-wait e 1")?, ["true"]);
    // A timeout beyond the clock's range is no error.
    event.wait_timeout(Duration::MAX)?;
    PASSED
}

/// A waiter can wait for all or for any of several processes' events.
pub(crate) fn wait_all_and_any(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let (one, two) = (harness.peer()?, harness.peer()?);
    let mut events = vec![context.create_event()?];
    one.ask(format!("open-event a {}", events[0].handle()?))?;
    for (peer, name) in [(&one, "b"), (&two, "c")] {
        peer.ask(format!("event {name}"))?;
        let handle: EventHandle = peer
            .ask(format!("event-handle {name}"))?
            .remove(0)
            .parse()?;
        events.push(context.open_event(&handle)?);
    }
    let handle = two.ask("event-handle c")?.remove(0);
    one.ask(format!("open-event c {handle}"))?;
    let next = EventSet::values(events.iter().map(|event| (event, 1)));
    assert_eq!(next.try_wait_any()?, None);
    fails!(next.wait_any_timeout(SOON), TimedOut);
    assert!(EventSet::latest([]).wait_any().is_err());
    EventSet::latest([]).wait_all()?;

    let first = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| next.wait_any_timeout(deadline()));
        two.ask("signal c")?;
        Ok::<_, Failure>(waiter.join().expect("it doesn't panic")?)
    })?;
    assert_eq!(first, 2);
    // A wait for all lasts until the last event is signalled.
    one.ask("queue q")?;
    one.ask("event gate")?;
    for name in ["a", "b", "c"] {
        one.ask(format!("submit q barrier after-value=gate:1 signal={name}"))?;
    }
    let waiter = one.begin_and_sleep("wait-all 10000 a b c")?;
    let all = EventSet::latest(&events);
    assert_eq!(
        all.wait_any_timeout(SOON).map_err(|e| e.is_timeout()),
        Err(true)
    );
    fails!(all.wait_all_timeout(SOON), TimedOut);
    one.ask("signal gate")?;
    waiter.reply(deadline())?;
    all.wait_all_timeout(deadline())?;
    assert!(all.try_wait_all()?);
    PASSED
}

/// Only events that are not shared have timestamps.
pub(crate) fn profiling_excludes_sharing(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let both = EventOptions::new().profiling(true).shareable(true);
    let refused = context.create_event_with(both);
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    let event = context.create_event_with(EventOptions::new().profiling(true))?;
    assert!(matches!(event.handle(), Err(Error::InvalidArgument(_))));
    let fresh = event.profile()?;
    assert_eq!(
        (fresh.submitted, fresh.started, fresh.ended),
        (None, None, None)
    );
    let queue = context.create_queue()?;
    let pause = crosshandle::Command::call(|| {
        std::thread::sleep(Duration::from_millis(2));
        Ok::<_, Error>(())
    });
    queue.submit(pause.signal(&event))?;
    event.wait_timeout(deadline())?;
    let profile = event.profile()?;
    assert!(profile.submitted.is_some() && profile.submitted <= profile.started);
    // The comparison tolerates the resolution of the device's timer.
    let inexact = 10 * harness.capabilities().timer_resolution.as_nanos() as u64;
    let taken = profile.ended.unwrap_or(0) - profile.started.unwrap_or(0);
    assert!(taken + inexact >= 2_000_000, "{profile:?}");
    let plain = context.create_event()?;
    assert!(matches!(plain.profile(), Err(Error::Unsupported(_))));
    let private = context.create_event_with(EventOptions::new().shareable(false))?;
    assert!(matches!(private.handle(), Err(Error::InvalidArgument(_))));
    let peer = harness.peer()?;
    peer.refused("event e profiling=yes shareable=yes", "InvalidArgument")?;
    PASSED
}

/// Only the creator of an event can make handles of it. The handle itself may be passed on.
pub(crate) fn opened_events_make_no_handles(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let (one, two) = (harness.peer()?, harness.peer()?);
    let event = context.create_event()?;
    let handle = event.handle()?;
    one.ask(format!("open-event e {handle}"))?;
    one.refused("event-handle e", "InvalidArgument")?;
    two.ask(format!("open-event e {handle}"))?;
    one.ask("signal e")?;
    two.ask("wait-value e 1 10000")?;
    PASSED
}

/// Dropping the last clone closes an event, separately in each process.
pub(crate) fn clones_keep_it_open(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let event = context.create_event()?;
    let handle = event.handle()?;
    peer.ask(format!("open-event a {handle}"))?;
    peer.ask(format!("open-event b {handle}"))?;
    let clone = event.clone();
    drop(event);
    peer.ask("close a")?;
    peer.ask("signal b")?;
    clone.wait_value_timeout(1, deadline())?;
    // A process that has the event open may use it after its creator dropped it.
    let other = harness.context()?;
    let opened = other.open_event(&handle)?;
    drop(clone);
    peer.ask("signal b")?;
    opened.wait_value_timeout(2, deadline())?;
    opened.signal()?;
    peer.ask("wait-value b 3 10000")?;
    peer.refused(format!("open-event c {handle}"), "Stale")?;
    PASSED
}

/// A slot is reused when no process has its event open any more. Handles of its earlier events are
/// then refused.
pub(crate) fn stale_handles_of_reused_slots(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let mut old = Vec::new();
    for round in 0..20 {
        let event = context.create_event()?;
        let handle = event.handle()?;
        assert!(!old.contains(&handle), "a handle is never given twice");
        peer.ask(format!("open-event e {handle}"))?;
        assert_eq!(
            peer.ask("value e")?,
            ["0"],
            "round {round} gets a fresh event"
        );
        peer.ask("signal e 3")?;
        event.wait_value_timeout(3, deadline())?;
        drop(event);
        // The peer still has the event open, so later events must not disturb it.
        let others: Result<Vec<_>, _> = (0..5).map(|_| context.create_event()).collect();
        for other in &others? {
            other.signal_value(10)?;
        }
        assert_eq!(peer.ask("status e")?, ["3", "3", "ok"]);
        peer.ask("close e")?;
        old.push(handle);
    }
    for handle in &old {
        peer.refused(format!("open-event e {handle}"), "Stale")?;
        assert!(matches!(context.open_event(handle), Err(Error::Stale)));
    }
    PASSED
}

/// Contexts of every device can open one event; they and their queues signal it and wait for it.
pub(crate) fn every_device_opens_them(harness: &Harness) -> Verdict {
    let peer = harness.peer()?;
    peer.ask("event e")?;
    peer.ask("queue q")?;
    let handle: EventHandle = peer.ask("event-handle e")?.remove(0).parse()?;
    let mut value = 0;
    // More devices of one kind would add no information.
    let devices = Device::all().into_iter().take(3);
    for device in devices.filter(|device| device.info().capabilities.event_sharing) {
        let context = Context::with_options(&device, harness.options())?;
        let event = context.open_event(&handle)?;
        let queue = context.create_queue()?;
        assert_eq!(event.signal()?, value + 1, "{device}");
        peer.ask(format!("wait-value e {} 10000", value + 1))?;
        queue.signal(&event)?;
        peer.ask(format!("wait-value e {} 10000", value + 2))?;
        peer.ask("submit q barrier signal=e")?;
        event.wait_value_timeout(value + 3, deadline())?;
        // This event was never signalled.
        let done = context.create_event()?;
        queue.submit(
            Command::barrier()
                .after_value(&event, value + 4)
                .signal(&done),
        )?;
        assert!(!done.try_wait()?, "{device}");
        peer.ask("signal e")?;
        done.wait_timeout(deadline())?;
        queue.finish_timeout(deadline())?;
        value += 4;
    }
    PASSED
}
