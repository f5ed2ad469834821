//! Cases about queues and events: many pending signals, several queues, failures, and functions
//! that wait.

use crate::failure::{Failure, Verdict};
use crate::harness::{Harness, deadline};
use crate::suite::{Outcome, PASSED};
use crosshandle::{Command, Context, Error, Event, EventOptions, Queue, QueueOrder};
use std::sync::Arc;
use std::time::Instant;

fn events(context: &Context, count: usize) -> Result<Vec<Event>, Error> {
    (0..count).map(|_| context.create_event()).collect()
}

/// Blocks a queue until an event is signalled.
fn hold(queue: &Queue, gate: &Event) -> Result<(), Error> {
    queue.submit(Command::barrier().after_value(gate, 1))
}

/// A queue has more pending signals of one event than the event has words.
pub(crate) fn many_signals_are_unfinished(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let (gate, event) = (context.create_event()?, context.create_event()?);
    peer.ask(format!("open-event e {}", event.handle()?))?;
    let queue = context.create_queue()?;
    hold(&queue, &gate)?;
    for number in 1..=30 {
        queue.signal(&event)?;
        assert_eq!(event.submitted(), number);
    }
    assert!(!event.try_wait_value(1)?);
    let waiter = peer.begin_and_sleep("wait-value e 30")?;
    gate.signal()?;
    for number in [8, 1, 15, 30, 29] {
        event.wait_value_timeout(number, deadline())?;
    }
    waiter.reply(deadline())?;
    // The host's signal takes the next number.
    assert_eq!(event.signal()?, 31);
    peer.ask("wait-value e 31 10000")?;
    queue.finish_timeout(deadline())?;
    PASSED
}

/// Two queues signal one event alternately, and run one after the other.
pub(crate) fn queues_signal_in_turns(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let event = context.create_event()?;
    let gates = events(&context, 2)?;
    let queues = [context.create_queue()?, context.create_queue()?];
    for (queue, gate) in queues.iter().zip(&gates) {
        hold(queue, gate)?;
    }
    for _ in 0..10 {
        for queue in &queues {
            queue.signal(&event)?;
        }
    }
    // The second queue's signals 2, 4 and 6 complete. Signal 8 shares a word with signal 1, which
    // is pending, so it must wait.
    gates[1].signal()?;
    for number in [2, 4, 6] {
        event.wait_value_timeout(number, deadline())?;
    }
    assert!(!event.try_wait_value(1)?, "its queue has not begun");
    gates[0].signal()?;
    for number in 1..=20 {
        event.wait_value_timeout(number, deadline())?;
    }
    assert_eq!(event.status().completed, 20);
    for queue in &queues {
        queue.finish_timeout(deadline())?;
    }
    PASSED
}

/// A waiter that already sleeps learns of a queue's first signal.
pub(crate) fn sleepers_learn_of_queues(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let event = context.create_event()?;
    peer.ask(format!("open-event e {}", event.handle()?))?;
    let queue = context.create_queue()?;
    let mut slowest = None;
    for number in 1..=3 {
        let waiter = peer.begin_and_sleep(format!("wait-value e {number}"))?;
        let sent = Instant::now();
        queue.signal(&event)?;
        waiter.reply(deadline())?;
        slowest = slowest.max(Some(sent.elapsed()));
    }
    let notes = slowest.map(|time| format!("known after {time:?}"));
    Ok(Outcome::Passed(notes.unwrap_or_default()))
}

/// In an out-of-order queue, a waiting command does not block the commands that it waits for,
/// however many wait.
pub(crate) fn free_order_untangles(harness: &Harness) -> Verdict {
    const COUNT: usize = 12;
    let context = harness.context()?;
    let memory = context.allocate(4096)?;
    let queue = context.create_queue_with(QueueOrder::OutOfOrder)?;
    let (gates, done) = (events(&context, COUNT)?, events(&context, COUNT)?);
    for (index, (gate, done)) in gates.iter().zip(&done).enumerate() {
        let command = if index % 2 == 0 {
            Command::call(|| Ok::<_, Error>(()))
        } else {
            Command::fill(memory.range(index * 8..index * 8 + 8)?, &[1])?
        };
        queue.submit(command.after_value(gate, 1).signal(done))?;
    }
    for gate in gates.iter().rev() {
        let command = Command::fill(memory.range(2048..2056)?, &[2])?;
        queue.submit(command.signal(gate))?;
    }
    for done in &done {
        done.wait_timeout(deadline())?;
    }
    queue.finish_timeout(deadline())?;
    PASSED
}

/// Any number of queues can wait for each other, even if the last one is submitted first.
pub(crate) fn any_number_waits(harness: &Harness) -> Verdict {
    const COUNT: usize = 40;
    let context = harness.context()?;
    let memory = context.allocate(4096)?;
    let (gates, done) = (events(&context, COUNT)?, events(&context, COUNT)?);
    let mut queues = Vec::new();
    for (index, (gate, done)) in gates.iter().zip(&done).enumerate() {
        let queue = context.create_queue()?;
        let fill = Command::fill(memory.range(index * 8..index * 8 + 8)?, &[1])?;
        queue.submit(fill.after_value(gate, 1))?;
        queue.submit(Command::barrier().signal(done))?;
        queues.push(queue);
    }
    let queue = context.create_queue()?;
    for (gate, done) in gates.iter().zip(&done).rev() {
        let fill = Command::fill(memory.range(2048..2056)?, &[2])?;
        queue.submit(fill.signal(gate))?;
        queue.submit(Command::barrier().after(done))?;
    }
    queue.finish_timeout(deadline())?;
    for (queue, done) in queues.iter().zip(&done) {
        done.wait_timeout(deadline())?;
        queue.finish_timeout(deadline())?;
    }
    PASSED
}

/// A chain of commands alternates between an in-order and an out-of-order queue. Each command waits
/// for the previous one, whenever the signals arrive.
pub(crate) fn orders_wait_for_each_other(harness: &Harness) -> Verdict {
    const ROUNDS: usize = 300;
    /// Length in bytes that is too large for a host queue to copy at once.
    const LEN: usize = 100_000;
    let context = harness.context()?;
    let memory = context.allocate(2 * LEN)?;
    let queues = [
        context.create_queue()?,
        context.create_queue_with(QueueOrder::OutOfOrder)?,
    ];
    for _ in 0..ROUNDS {
        let mut last = context.create_event()?;
        last.signal()?;
        for step in 0..20 {
            let copy = Command::copy(memory.range(..LEN)?, memory.range(LEN..)?)?;
            let next = context.create_event()?;
            queues[step % 2].submit(copy.after(&last).signal(&next))?;
            last = next;
        }
        last.wait_timeout(deadline())?;
    }
    for queue in &queues {
        queue.finish_timeout(deadline())?;
    }
    PASSED
}

/// A host function may wait for other queues, and allocate and free memory of the device.
pub(crate) fn functions_may_use_the_device(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let queue = context.create_queue()?;
    let other = Arc::new(context.create_queue()?);
    let (done, inner) = (context.create_event()?, context.create_event()?);
    let own = context.clone();
    let function = {
        let (other, inner) = (Arc::clone(&other), inner.clone());
        move || -> Result<(), Error> {
            let memory = own.allocate(10_000)?;
            other.submit(Command::fill(memory.all(), &[7])?.signal(&inner))?;
            inner.wait_timeout(deadline())?;
            let called = own.create_event()?;
            other.submit(Command::call(|| Ok::<_, Error>(())).signal(&called))?;
            called.wait_timeout(deadline())
        }
    };
    queue.submit(Command::call(function).signal(&done))?;
    done.wait_timeout(deadline())?;
    queue.finish_timeout(deadline())?;
    assert_eq!((inner.submitted(), done.submitted()), (1, 1));
    PASSED
}

/// The failure of a host function reaches all commands that depend on it through events, in every
/// process.
pub(crate) fn failures_go_on(harness: &Harness) -> Verdict {
    let (context, peer) = harness.with_peer()?;
    let memory = context.allocate(64)?;
    let (one, two) = (context.create_queue()?, context.create_queue()?);
    let chain = events(&context, 4)?;
    let [gate, first, second, third] = &chain[..] else {
        return Err(Failure::new("four events"));
    };
    for (name, event) in [("second", second), ("third", third)] {
        peer.ask(format!("open-event {name} {}", event.handle()?))?;
    }
    peer.ask("queue q")?;
    hold(&one, gate)?;
    one.submit(Command::call(|| Err::<(), _>("no ink")).signal(first))?;
    let fill = Command::fill(memory.all(), &[1])?;
    two.submit(fill.after(first).signal(second))?;
    peer.ask("submit q barrier after=second signal=third")?;
    two.submit(Command::barrier().after(third))?;
    gate.signal()?;
    for event in [first, second, third] {
        fails!(event.wait_timeout(deadline()), CommandFailed);
    }
    // The last command has no event, so its queue reports the error.
    fails!(two.finish_timeout(deadline()), CommandFailed);
    one.finish_timeout(deadline())?;
    two.finish_timeout(deadline())?;
    PASSED
}

/// The timestamps of a command are in order, on the clock that the host reads.
pub(crate) fn commands_have_times(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let queue = context.create_queue()?;
    let memory = context.allocate(1 << 20)?;
    let options = EventOptions::new().profiling(true).shareable(false);
    let event = context.create_event_with(options)?;
    for round in 0..3 {
        let command = match round {
            0 => Command::fill(memory.all(), &[1])?,
            1 => Command::call(|| Ok::<_, Error>(())),
            _ => Command::barrier(),
        };
        queue.submit(command.signal(&event))?;
        event.wait_timeout(deadline())?;
        queue.finish_timeout(deadline())?;
        let times = event.profile()?;
        let in_order = times.submitted <= times.started && times.started <= times.ended;
        assert!(times.submitted.is_some() && in_order, "{round}: {times:?}");
    }
    PASSED
}

/// Profiling may be enabled and disabled while commands are pending.
pub(crate) fn times_may_be_switched(harness: &Harness) -> Verdict {
    let context = harness.context()?;
    let queue = context.create_queue()?;
    let memory = context.allocate(1 << 12)?;
    let gate = context.create_event()?;
    let options = EventOptions::new().profiling(true).shareable(false);
    let event = context.create_event_with(options)?;
    for round in 1..=4 {
        let is_timed = |step: u64| (round + step).is_multiple_of(2);
        queue.submit(Command::barrier().after_value(&gate, round))?;
        for step in 0..3 {
            event.set_profiling(is_timed(step));
            queue.submit(Command::fill(memory.all(), &[1])?.signal(&event))?;
        }
        // No command has ended yet.
        event.set_profiling(is_timed(3));
        gate.signal()?;
        event.wait_timeout(deadline())?;
        queue.finish_timeout(deadline())?;
    }
    event.set_profiling(true);
    queue.submit(Command::fill(memory.all(), &[1])?.signal(&event))?;
    queue.finish_timeout(deadline())?;
    let times = event.profile()?;
    assert!(times.started <= times.ended, "{times:?}");
    PASSED
}
