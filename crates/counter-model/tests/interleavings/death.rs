//! Processes die at any step of any action. The survivors' waits end with correct results.

use crate::check::check;
use crate::event_protocol::{Owner, WaitError};
use crate::platform::{self, one_in, pick};
use crate::world::{Process, World};

/// Performs random actions until it is killed or done, and leaves its tickets unfinished.
fn busy(process: &Process) {
    let mut tickets = Vec::new();
    for _ in 0..4 {
        match pick(7) {
            0 | 1 => tickets.push(process.submit()),
            2 => {
                let value = process.slot().issued() + 1 + pick(9);
                tickets.extend(process.signal_up_to(value));
            }
            5 => tickets.extend(process.signal()),
            3 => process.slot().fail_orphans(&*process.world.ledger),
            4 => {
                let issued = process.slot().issued();
                let _ = process.wait(issued + pick(2));
            }
            _ => {}
        }
        if one_in(2) && !tickets.is_empty() {
            let ticket = tickets.swap_remove(pick(tickets.len() as u64) as usize);
            if one_in(3) {
                process.try_fail(ticket);
            } else {
                process.try_complete(ticket);
            }
        }
    }
}

/// Submits and completes signals, whichever process dies.
fn steady(process: &Process) {
    let mut tickets = vec![process.submit(), process.submit()];
    process.complete(tickets.remove(0));
    tickets.extend(process.signal());
    process.complete_all(tickets);
}

/// Waits for signals that other processes have submitted.
fn watchful(process: &Process) {
    for _ in 0..3 {
        let start = process.world.number(0);
        let issued = process.slot().issued();
        if issued > start {
            let _ = process.wait(issued);
            let _ = process.wait(start + 1 + pick(issued - start));
            process.poll(start + 1 + pick(issued - start));
        }
    }
}

/// One process dies at some step, and three survive.
pub(crate) fn one_dies(start: u64) {
    platform::allow_timeouts();
    let world = World::starting_at(start);
    let processes = [
        world.start(1, steady),
        world.start_mortal(2, pick(120) as u32, busy),
        world.start(3, watchful),
        world.start(4, watchful),
    ];
    world.finish(processes);
}

#[test]
fn at_every_step() {
    check(3000, || one_dies(0));
}

/// Several processes die, some of them while they fail the orphans of others.
#[test]
fn survivors_die_too() {
    check(1500, || {
        platform::allow_timeouts();
        let world = World::new();
        let leave_behind = |process: &Process| {
            let _ = process.submit();
            let _ = process.signal_up_to(process.slot().issued() + 8);
        };
        let fail_orphans = |process: &Process| {
            let _ = process.submit();
            for _ in 0..4 {
                process.slot().fail_orphans(&*process.world.ledger);
            }
        };
        let processes = [
            world.start(1, steady),
            world.start_mortal(2, pick(40) as u32, leave_behind),
            world.start_mortal(3, pick(100) as u32, fail_orphans),
            world.start_mortal(4, pick(100) as u32, fail_orphans),
            world.start(5, watchful),
        ];
        world.finish(processes);
    });
}

/// The exporter dies. Waits for signals that were never submitted end too.
#[test]
fn of_the_exporter() {
    check(2000, || {
        platform::allow_timeouts();
        let world = World::new();
        let waiter = |owner| {
            world.start(owner, move |process| {
                let number = 2 + pick(2);
                let result = process.wait(number);
                if number > 2 {
                    assert_eq!(result, Err(WaitError::Abandoned));
                }
                if result == Err(WaitError::Abandoned) {
                    assert!(process.slot().issued() < number, "{number} was submitted");
                }
            })
        };
        let processes = [
            world.start_mortal(1, pick(30) as u32, |process| {
                let first = process.submit();
                let second = process.signal();
                process.complete(first);
                process.complete_all(second);
            }),
            waiter(2),
        ];
        world.finish(processes);
    });
}

/// The exporter signals and dies. A waiter that finds it dead still notices its signal.
#[test]
fn of_the_exporter_after_its_signal() {
    check(1000, || {
        platform::allow_timeouts();
        let world = World::new();
        let exporter = world.start_mortal(1, u32::MAX, |process| {
            let left = process.signal();
            process.complete_all(left);
        });
        let waiter = world.start(2, |process| process.wait(1).unwrap());
        world.finish([exporter, waiter]);
    });
}

/// A survivor that fails a signal wakes its waiters. Their sleeps never time out here.
#[test]
fn failing_orphans_wakes_waiters() {
    check(1000, || {
        let world = World::new();
        let first = world.process(2).submit();
        let waiters = [3, 4].map(|owner| {
            world.start(owner, move |process| {
                assert!(process.wait(first.number).is_err());
            })
        });
        let survivor = world.start(1, |process| {
            process.world.ledger.died(Owner::new(2).unwrap());
            process.slot().fail_orphans(&*process.world.ledger);
        });
        world.finish(waiters.into_iter().chain([survivor]));
    });
}

/// A waiter that is killed in its sleep costs one needless wake call, and never a lost wake-up.
#[test]
fn of_a_sleeper() {
    check(1000, || {
        let world = World::new();
        let first = world.process(1).submit();
        let sleeper = world.start_mortal(2, pick(16) as u32, |process| {
            let _ = process.wait(1);
        });
        let others = [
            world.start(1, move |process| process.complete(first)),
            world.start(3, |process| process.wait(1).unwrap()),
        ];
        for process in others.into_iter().chain([sleeper]) {
            process.join().unwrap();
        }
        let exporter = world.process(1);
        let once_around = || {
            for _ in 0..7 {
                exporter.complete(exporter.submit());
            }
        };
        once_around();
        let before = platform::wakes();
        once_around();
        assert_eq!(platform::wakes(), before, "a sleeper is counted still");
        world.finish([]);
    });
}
