//! Devices signal and wait, on the same words as hosts.

use crate::check::check;
use crate::event_protocol::{DeviceWait, Liveness, Outcome, WaitError, WaitMode, wait_any};
use crate::platform::{self, Instant, one_in, pick};
use crate::stream::{device_wait, reached, stream};
use crate::world::{Process, World};
use shuttle::thread::yield_now;
use std::time::Duration;

/// Lets a device of `process` wait for a signal: what its queue does, and then the device.
fn wait_on_device(process: &Process, number: u64) {
    match process.slot().prepare_device_wait(number) {
        DeviceWait::Finished => {}
        DeviceWait::Ready => {
            // Later, when the device gets there.
            if one_in(2) {
                yield_now();
            }
            device_wait(process, number);
        }
        DeviceWait::TooFarAhead => panic!("{number} is not that far"),
    }
    assert_ne!(process.look(number), Outcome::Pending, "released early");
}

/// Streams of two processes and signals of the host, more than the ring holds, with waits of the
/// host and of devices for all of them.
pub(crate) fn mixed(start: u64) {
    platform::naps_end();
    let world = World::starting_at(start);
    let signaller = |owner| {
        world.start(owner, |process| {
            for _ in 0..2 {
                let stream = stream(process, 1 + pick(4));
                let tickets = process.signal();
                process.complete_all(tickets);
                stream.join().unwrap();
            }
        })
    };
    let first = world.number(1);
    let waiters = [4, 5].map(|owner| {
        world.start(owner, move |process| {
            for _ in 0..2 {
                process.wait(first + pick(6)).unwrap();
                wait_on_device(process, first + pick(6));
            }
        })
    });
    let processes = [signaller(1), signaller(2)];
    world.end(processes.into_iter().chain(waiters));
}

#[test]
fn signal_and_wait() {
    check(1000, || mixed(0));
}

/// Signals at once write the words for a device, whatever it waits for, and nobody's time is ever
/// up: a sleeper is woken besides.
pub(crate) fn signals_at_once(start: u64) {
    let world = World::starting_at(start);
    let first = world.number(1);
    let signaller = |owner, signals| {
        world.start(owner, move |process| {
            for _ in 0..signals {
                assert!(process.signal().is_empty());
            }
        })
    };
    let device = |owner| {
        world.start(owner, move |process| {
            wait_on_device(process, first + pick(9));
            wait_on_device(process, first + pick(9));
        })
    };
    let sleeper = world.start(6, move |process| {
        process.wait(first + pick(9)).unwrap();
    });
    let processes = [
        signaller(1, 6),
        signaller(2, 3),
        device(3),
        device(4),
        sleeper,
    ];
    world.end(processes);
}

#[test]
fn wait_for_signals_at_once() {
    check(1500, || signals_at_once(0));
}

/// The same with jumps, and signals that are taken and completed later in between.
#[test]
fn wait_for_values() {
    check(1000, || {
        let world = World::new();
        let last = 12;
        let signaller = |owner| {
            world.start(owner, move |process| {
                while process.slot().issued() < last {
                    let early = one_in(3).then(|| process.submit());
                    let value = (process.slot().issued() + 1 + pick(9)).min(last);
                    let jump = process.signal_up_to(value);
                    process.complete_all(early.into_iter().chain(jump).collect());
                }
            })
        };
        let device = |owner| {
            world.start(owner, move |process| {
                wait_on_device(process, 1 + pick(last));
                wait_on_device(process, last);
            })
        };
        let processes = [signaller(1), signaller(2), device(3), device(4)];
        world.end(processes);
    });
}

/// A host that signals at once is killed at any step, after its number and before the words, say.
#[test]
fn wait_for_the_dead() {
    check(2000, || {
        let world = World::new();
        let device = |owner| {
            world.start(owner, move |process| {
                let number = 1 + pick(3);
                wait_on_device(process, number);
                wait_on_device(process, 4);
            })
        };
        let mortal = world.start_mortal(2, pick(60) as u32, |process| {
            for _ in 0..3 {
                let tickets = process.signal();
                process.complete_all(tickets);
            }
        });
        let steady = world.start(1, |process| {
            for _ in 0..4 {
                let tickets = process.signal();
                process.complete_all(tickets);
            }
        });
        let processes = [device(3), device(4), mortal, steady];
        world.end(processes);
    });
}

/// The exporter ends, and nobody else signals: who lets a device wait takes the number itself.
#[test]
fn give_up() {
    check(1500, || {
        platform::naps_end();
        let world = World::new();
        let exporter = world.start_mortal(1, pick(40) as u32, |process| {
            let stream = stream(process, 2);
            let tickets = process.signal();
            stream.join().unwrap();
            process.complete_all(tickets);
        });
        let device = |owner| {
            world.start(owner, move |process| {
                let number = 1 + pick(12);
                let ledger = &*process.world.ledger;
                let arming = process.slot().prepare_device_wait(number);
                while arming == DeviceWait::Ready && !reached(process, number as u32, number) {
                    if number > process.slot().issued() && ledger.is_abandoned() {
                        process.give_up(number);
                    } else if ledger.anybody_died() {
                        process.slot().help_device_wait(number, ledger);
                    }
                    yield_now();
                }
                assert_ne!(process.look(number), Outcome::Pending);
            })
        };
        let processes = [device(2), device(3), exporter];
        world.end(processes);
    });
}

/// A device is not told to wait for what it would take for the past.
#[test]
fn not_too_far() {
    check(10, || {
        let world = World::starting_at((1 << 31) - 3);
        let start = world.number(0);
        let arm = |ahead, wanted| {
            world.start(1, move |process| {
                assert_eq!(process.slot().prepare_device_wait(start + ahead), wanted);
            })
        };
        let processes = [
            arm(0, DeviceWait::Finished),
            arm(1, DeviceWait::Ready),
            arm((1 << 30) - 7, DeviceWait::Ready),
            arm((1 << 30) + 1, DeviceWait::TooFarAhead),
        ];
        world.end(processes);
    });
}

/// Who sleeps already when a device signals for the first time is told, and sleeps in steps.
#[test]
fn wake_nobody() {
    check(1000, || {
        platform::naps_end_up_to(Duration::from_millis(1));
        let world = World::new();
        let waiters = [2, 3].map(|owner| {
            world.start(owner, |process| {
                if one_in(2) {
                    process.wait(1).unwrap();
                } else {
                    let targets = [process.target(2), process.target(1)];
                    let mode = WaitMode::LowPower;
                    assert_eq!(wait_any(&targets, None, mode, None), Some((1, Ok(()))));
                }
            })
        });
        let device = world.start(1, |process| {
            while platform::sleepers() < 2 {
                yield_now();
            }
            stream(process, 1).join().unwrap();
        });
        world.end(waiters.into_iter().chain([device]));
    });
}

/// Waiters wake up at most an eighth of their time late, and not too often.
#[test]
fn steps() {
    check(100, || {
        platform::naps_end();
        let world = World::new();
        let waiter = world.start(2, |process| {
            process.slot().mark_device_signals();
            let start = Instant::now();
            let deadline = start + Duration::from_millis(40);
            let late = process.wait_until(1, Some(deadline));
            assert_eq!(late, Err(WaitError::TimedOut));
            let naps = platform::naps();
            assert!((60..120).contains(&naps.len()), "{} looks", naps.len());
            for (begun, limit) in naps {
                let waited = begun.saturating_duration_since(start);
                let share = (waited / 8).max(Duration::from_micros(20));
                assert!(limit <= share.min(Duration::from_millis(1)));
            }
        });
        let other = world.start(3, |process| {
            process.slot().prepare_device_wait(1);
        });
        world.end([waiter, other]);
    });
}
