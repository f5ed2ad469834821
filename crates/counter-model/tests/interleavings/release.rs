//! No waiter is released early. A wait succeeds only after the signal's submitter completes it.

use crate::check::check;
use crate::platform::{self, one_in, pick};
use crate::world::{Process, World};
use crosshandle_events::platform::Moment;

/// Submits more signals than there are words, singly and in jumps. Completes them in any order that
/// the words allow.
fn submit_and_complete(process: &Process) {
    let mut tickets = Vec::new();
    for _ in 0..3 {
        match pick(4) {
            0 => {
                let value = process.slot().issued() + 1 + pick(9);
                tickets.extend(process.signal_up_to(value));
            }
            1 => tickets.extend(process.signal()),
            _ => tickets.push(process.submit()),
        }
        if one_in(2) && !tickets.is_empty() {
            let index = pick(tickets.len() as u64) as usize;
            if process.try_complete(tickets[index]) {
                let _ = tickets.swap_remove(index);
            }
        }
    }
    process.complete_all(tickets);
}

/// Waits for the latest signal, and polls some earlier signals.
fn wait_and_look(process: &Process) {
    for _ in 0..3 {
        let issued = process.slot().issued();
        if issued > process.world.number(0) {
            process.wait(issued).unwrap();
            let earlier = issued - pick(issued - process.world.number(0));
            process.poll(earlier);
            process.poll(earlier + 7);
        }
    }
}

pub(crate) fn ring_reuse(start: u64) {
    let world = World::starting_at(start);
    let processes = [
        world.start(1, submit_and_complete),
        world.start(2, submit_and_complete),
        world.start(3, submit_and_complete),
        world.start(4, wait_and_look),
        world.start(5, wait_and_look),
    ];
    world.finish(processes);
}

#[test]
fn from_zero() {
    check(1500, || ring_reuse(0));
}

/// Waits for values that are not submitted yet, with and without a deadline.
pub(crate) fn future_values(start: u64) {
    let world = World::starting_at(start);
    let last = world.number(10);
    platform::allow_timeouts();
    let signaller = |owner| {
        world.start(owner, move |process| {
            while process.slot().issued() < last {
                let value = process.slot().issued() + 1 + pick(8);
                let early =
                    (one_in(3) && process.slot().issued() + 7 < last).then(|| process.submit());
                let tickets = process.signal_up_to(value.min(last));
                process.complete_all(early.into_iter().chain(tickets).collect());
            }
        })
    };
    let waiter = |owner| {
        world.start(owner, move |process| {
            let number = process.world.number(1 + pick(10));
            let deadline = platform::Instant::now() + std::time::Duration::from_millis(60);
            let _ = process.wait_until(number, Some(deadline));
            process.wait(number).unwrap();
            process.wait(last).unwrap();
        })
    };
    let processes = [signaller(1), signaller(2), waiter(3), waiter(4)];
    world.finish(processes);
}

#[test]
fn values_of_the_future() {
    check(1500, || future_values(0));
}

/// A failed signal is reported as failed to every process, and its neighbours on the word are not.
pub(crate) fn failures(start: u64) {
    let world = World::starting_at(start);
    let word = world.number(1) % 7;
    let signaller = |owner| {
        world.start(owner, move |process| {
            for _ in 0..2 {
                let value = process.slot().issued() + 8;
                let first = process.submit();
                for ticket in [first].into_iter().chain(process.signal_up_to(value)) {
                    // It is enough to fail signals of one word.
                    if ticket.number % 7 == word && one_in(2) {
                        process.fail(ticket);
                    } else {
                        process.complete(ticket);
                    }
                }
            }
        })
    };
    let observer = |owner| {
        world.start(owner, move |process| {
            for _ in 0..4 {
                let issued = process.slot().issued();
                for number in process.world.number(1)..=issued {
                    if number % 7 == word {
                        process.poll(number);
                    }
                }
            }
            let number = process.world.number(1);
            if process.slot().issued() >= number {
                let _ = process.wait(number);
            }
        })
    };
    let processes = [signaller(1), signaller(2), observer(3)];
    world.finish(processes);
}

#[test]
fn failures_stay_with_their_signals() {
    check(1000, || failures(0));
}

/// A signal fails while the signal before it on its word completes.
#[test]
fn failing_behind_another() {
    check(1500, || {
        let world = World::new();
        let first = world.process(1).submit();
        let jump = world.process(2).signal_up_to(8);
        let processes = [
            world.start(1, move |process| process.complete(first)),
            world.start(2, move |process| {
                for ticket in jump {
                    process.fail(ticket);
                }
            }),
            world.start(3, |process| assert!(process.wait(8).is_err())),
        ];
        world.finish(processes);
    });
}
