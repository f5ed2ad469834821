//! Devices signal and wait on the same words as hosts.

use crate::check::check;
use crate::event_protocol::{DeviceWait, Liveness, Outcome, WaitError, WaitMode, wait_any};
use crate::platform::{self, Instant, one_in, pick};
use crate::stream::{device_wait, reached, stream};
use crate::world::{Process, World};
use crosshandle_events::platform::Moment;
use shuttle::thread::yield_now;
use std::time::Duration;

/// Waits for a signal on a device of `process`, first like its queue and then like the device.
fn wait_on_device(process: &Process, number: u64) {
    match process.slot().prepare_device_wait(number) {
        DeviceWait::Finished => {}
        DeviceWait::Ready => {
            // The device may begin to wait later.
            if one_in(2) {
                yield_now();
            }
            device_wait(process, number);
        }
        DeviceWait::TooFarAhead => panic!("{number} is not that far"),
    }
    assert_ne!(process.poll(number), Outcome::Pending, "released early");
}

/// Streams of two processes and signals of their hosts, more than there are words. Hosts and
/// devices wait for all of them.
pub(crate) fn mixed(start: u64) {
    platform::allow_timeouts();
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
    world.finish(processes.into_iter().chain(waiters));
}

#[test]
fn signal_and_wait() {
    check(1000, || mixed(0));
}

/// Immediate signallers write the words for a device, whatever it waits for. They also wake a
/// sleeper, because no sleep times out here.
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
    world.finish(processes);
}

#[test]
fn wait_for_signals_at_once() {
    check(1500, || signals_at_once(0));
}

/// Devices wait while other processes jump, and submit and complete signals in between.
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
        world.finish(processes);
    });
}

/// An immediate signaller is killed at any step, for example between writing `issued` and the
/// words.
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
        world.finish(processes);
    });
}

/// The exporter ends and no other process signals. The submitter of a device wait takes the number
/// itself and fails it.
#[test]
fn the_submitter_fails_untaken_numbers() {
    check(1500, || {
        platform::allow_timeouts();
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
                let wait = process.slot().prepare_device_wait(number);
                while wait == DeviceWait::Ready && !reached(process, number as u32, number) {
                    if number > process.slot().issued() && ledger.is_abandoned() {
                        process.fail_untaken(number);
                    } else if ledger.any_process_died() {
                        process.slot().help_device_wait(number, ledger);
                    }
                    yield_now();
                }
                assert_ne!(process.poll(number), Outcome::Pending);
            })
        };
        let processes = [device(2), device(3), exporter];
        world.finish(processes);
    });
}

/// A device is not told to wait for a number that it could take for a past one.
#[test]
fn not_too_far() {
    check(10, || {
        let world = World::starting_at((1 << 31) - 3);
        let start = world.number(0);
        let prepare = |ahead, wanted| {
            world.start(1, move |process| {
                assert_eq!(process.slot().prepare_device_wait(start + ahead), wanted);
            })
        };
        let processes = [
            prepare(0, DeviceWait::Finished),
            prepare(1, DeviceWait::Ready),
            prepare((1 << 30) - 7, DeviceWait::Ready),
            prepare((1 << 30) + 1, DeviceWait::TooFarAhead),
        ];
        world.finish(processes);
    });
}

/// If a waiter already sleeps when a device signals for the first time, it is woken to sleep in
/// steps.
#[test]
fn wake_nobody() {
    check(1000, || {
        platform::allow_timeouts_up_to(Duration::from_millis(1));
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
        world.finish(waiters.into_iter().chain([device]));
    });
}

/// A waiter wakes up late by at most 1/8 of its waiting time, and not too often.
#[test]
fn steps() {
    check(100, || {
        platform::allow_timeouts();
        let world = World::new();
        let waiter = world.start(2, |process| {
            process.slot().mark_device_signals();
            let start = Instant::now();
            let deadline = start + Duration::from_millis(40);
            let late = process.wait_until(1, Some(deadline));
            assert_eq!(late, Err(WaitError::TimedOut));
            let sleeps = platform::sleeps();
            assert!((60..120).contains(&sleeps.len()), "{} sleeps", sleeps.len());
            for (begun, limit) in sleeps {
                let waited = begun.saturating_duration_since(start);
                let share = (waited / 8).max(Duration::from_micros(20));
                assert!(limit <= share.min(Duration::from_millis(1)));
            }
        });
        let other = world.start(3, |process| {
            process.slot().prepare_device_wait(1);
        });
        world.finish([waiter, other]);
    });
}
