//! Tests late signals, which wait behind a pending signal of the same event. The tests check their
//! maximum number, how they complete, and how they fail.

#[allow(dead_code, reason = "each program uses a part of it")]
mod common;

use common::{DEADLINE, Directory, Parent, Process, alone, context, is};
use crosshandle::{Command, ContextOptions, Error, Event};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::thread;
use std::time::Duration;

/// Returns the processor time that this process has used on all processors.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("a positive time")
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = pages.split(' ').nth(1).expect("the second number");
    4096 * pages.parse::<usize>().expect("a number")
}

/// Runs in a separate process. Submits a signal of the event that the parent names, which completes
/// when the gate is signalled. Then reports the outcome of a wait for signal `value`.
fn hold(value: u64) {
    let context = context(ContextOptions::new());
    let mut parent = Parent::new();
    let mut next = || {
        let handle = parent.hear().expect("a handle").parse().expect("a handle");
        context.open_event(&handle).expect("opened")
    };
    let (event, gate) = (next(), next());
    let queue = context.create_queue().expect("a queue");
    let command = Command::barrier().after_value(&gate, 1).signal(&event);
    queue.submit(command).expect("submitted");
    parent.say("submitted");
    parent.say(match event.wait_value_timeout(value, DEADLINE) {
        Ok(()) => "complete".to_owned(),
        Err(Error::PeerDied(_)) => "dead".to_owned(),
        Err(error) => format!("{error}"),
    });
    parent.wait();
}

/// Starts a process that [delays](hold) the event's next signal.
fn start_holder(test: &str, directory: &Directory, event: &Event, gate: &Event) -> Process {
    let mut holder = Process::start(test, "holder", directory);
    for event in [event, gate] {
        holder.say(&event.handle().expect("a handle").to_string());
    }
    assert_eq!(holder.hear(), "submitted");
    holder
}

#[test]
fn signals_behind_one_that_never_completes_are_bounded_and_end_with_their_context() {
    const TEST: &str =
        "signals_behind_one_that_never_completes_are_bounded_and_end_with_their_context";
    if is("holder") {
        return hold(1 + 7 * 100);
    }
    alone(TEST, |directory| {
        // The gate belongs to a context that stays alive.
        let gates = directory.context();
        let gate = gates.create_event().expect("a gate");
        let context = directory.context();
        let event = context.create_event().expect("an event");
        let mut holder = start_holder(TEST, directory, &event, &gate);
        let before = resident();
        let refused = (0..300_000).find_map(|_| event.signal().err());
        assert!(
            matches!(refused, Some(Error::LimitReached { .. })),
            "{refused:?}"
        );
        // One signal in seven must wait.
        assert!(event.submitted() < 50_000, "{}", event.submitted());
        let grown = resident().saturating_sub(before);
        assert!(grown < 16 << 20, "{grown} bytes for the late signals");
        drop(event);
        drop(context);
        let before = processor_time();
        thread::sleep(Duration::from_secs(1));
        let taken = processor_time() - before;
        assert!(taken < Duration::from_millis(250), "{taken:?} in a second");
        // Waiters learn that the late signals fail as soon as the pending signal completes.
        gate.signal().expect("signalled");
        assert_eq!(holder.hear(), "dead");
    });
}

#[test]
fn a_dropped_event_completes_its_late_signals_when_their_turn_comes() {
    const TEST: &str = "a_dropped_event_completes_its_late_signals_when_their_turn_comes";
    if is("holder") {
        return hold(99);
    }
    let directory = Directory::new();
    let context = directory.context();
    let event = context.create_event().expect("an event");
    let gate = context.create_event().expect("a gate");
    let mut holder = start_holder(TEST, &directory, &event, &gate);
    // Every seventh signal shares the word of the first one.
    for number in 2..=99 {
        assert_eq!(event.signal().expect("signalled"), number);
    }
    assert_eq!(event.completed(), 0);
    drop(event);
    gate.signal().expect("signalled");
    assert_eq!(holder.hear(), "complete");
}

#[test]
fn signals_are_accepted_again_once_late_ones_have_completed() {
    const TEST: &str = "signals_are_accepted_again_once_late_ones_have_completed";
    if is("holder") {
        return hold(1);
    }
    let directory = Directory::new();
    let context = directory.context();
    let event = context.create_event().expect("an event");
    let gate = context.create_event().expect("a gate");
    let mut holder = start_holder(TEST, &directory, &event, &gate);
    let refused = (0..300_000).find_map(|_| event.signal().err());
    assert!(
        matches!(refused, Some(Error::LimitReached { .. })),
        "{refused:?}"
    );
    let queue = context.create_queue().expect("a queue");
    let refused = queue.submit(Command::barrier().signal(&event));
    assert!(
        matches!(refused, Err(Error::LimitReached { .. })),
        "{refused:?}"
    );
    gate.signal().expect("signalled");
    assert_eq!(holder.hear(), "complete");
    event.wait_timeout(DEADLINE).expect("complete");
    let last = event.signal().expect("accepted again");
    event.wait_value_timeout(last, DEADLINE).expect("complete");
    assert_eq!(event.completed(), last);
}

#[test]
fn an_openers_late_signals_end_with_its_last_use() {
    const TEST: &str = "an_openers_late_signals_end_with_its_last_use";
    if is("opener") {
        let mut parent = Parent::new();
        let handle = parent.hear().expect("a handle").parse().expect("a handle");
        let context = context(ContextOptions::new());
        let event = context.open_event(&handle).expect("opened");
        for _ in 2..=99 {
            event.signal().expect("signalled");
        }
        drop(event);
        drop(context);
        parent.say("dropped");
        return parent.wait();
    }
    let directory = Directory::new();
    let context = directory.context();
    let event = context.create_event().expect("an event");
    let gate = context.create_event().expect("a gate");
    let queue = context.create_queue().expect("a queue");
    let command = Command::barrier().after_value(&gate, 1).signal(&event);
    queue.submit(command).expect("submitted");
    let mut opener = Process::start(TEST, "opener", &directory);
    opener.say(&event.handle().expect("a handle").to_string());
    assert_eq!(opener.hear(), "dropped");
    assert_eq!(event.submitted(), 99);
    gate.signal().expect("signalled");
    let late = event.wait_value_timeout(99, DEADLINE);
    assert!(matches!(late, Err(Error::PeerDied(_))), "{late:?}");
    event.wait_value_timeout(1, DEADLINE).expect("our own");
}
