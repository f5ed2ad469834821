//! No wake-up is lost. No sleep times out here, so a waiter that is not woken sleeps forever, and
//! the checker reports a deadlock.

use crate::check::check;
use crate::event_protocol::{Interrupt, WaitError, WaitMode, wait_any};
use crate::platform::{self, AtomicU64, Instant, Ordering, one_in, pick, wake_all};
use crate::world::{Process, World};
use crosshandle_events::platform::Moment;
use std::sync::Arc;
use std::time::Duration;

/// Signals once, immediately or by submission.
pub(crate) fn signal_somehow(process: &Process) {
    let tickets = if one_in(2) {
        vec![process.submit()]
    } else {
        process.signal()
    };
    process.complete_all(tickets);
}

#[test]
fn several_waiters_and_signallers() {
    check(1500, || {
        let world = World::new();
        let signaller = |owner| {
            world.start(owner, |process| {
                for _ in 0..2 {
                    signal_somehow(process);
                }
            })
        };
        let waiter = |owner| {
            world.start(owner, |process| {
                // The signals may not be submitted yet, and are not always in order.
                let last = 1 + pick(4);
                process.wait(last).unwrap();
                process.wait(1 + pick(4)).unwrap();
                process.wait(4).unwrap();
            })
        };
        let processes = [signaller(1), signaller(2), waiter(3), waiter(4)];
        world.finish(processes);
    });
}

/// All signals are immediate, so only `WATCHED` shows their signallers the sleepers.
#[test]
fn signals_at_once() {
    check(2000, || {
        let world = World::new();
        let signaller = |owner, signals| {
            world.start(owner, move |process| {
                for _ in 0..signals {
                    assert!(process.signal().is_empty());
                }
            })
        };
        let waiter =
            |owner, number| world.start(owner, move |process| process.wait(number).unwrap());
        let processes = [
            signaller(1, 2),
            signaller(2, 1),
            waiter(3, 2 + pick(2)),
            waiter(4, 3),
        ];
        world.finish(processes);
    });
}

/// Waiters sleep on one word for different signals. A wake-up for the first signal does not release
/// waiters for the second.
#[test]
fn one_word_twice() {
    check(1500, || {
        let world = World::new();
        let signaller = world.start(1, |process| {
            // The signals are immediate, behind an unfinished signal, or some of each.
            let early = one_in(2).then(|| process.submit());
            let jump = process.signal_up_to(8);
            process.complete_all(early.into_iter().chain(jump).collect());
        });
        let waiter = |owner| {
            world.start(owner, |process| {
                process.wait(1 + 7 * pick(2)).unwrap();
                process.wait(8).unwrap();
            })
        };
        let processes = [signaller, waiter(2), waiter(3), waiter(4)];
        world.finish(processes);
    });
}

/// A waiter waits for any of several signals, on two events.
#[test]
fn any_of_several() {
    check(1500, || {
        let (one, two) = (World::new(), World::new());
        let signal = |world: &World, owner| {
            world.start(owner, |process| {
                signal_somehow(process);
            })
        };
        let waiter = {
            let two = two.clone();
            one.start(3, move |process| {
                let other = two.process(3);
                let numbers = [(process, 2), (process, 1), (&other, 1), (&other, 2)];
                let mut targets = numbers
                    .map(|(process, number)| process.target(number))
                    .to_vec();
                let mut left = numbers.to_vec();
                while !targets.is_empty() {
                    let (index, result) =
                        wait_any(&targets, None, WaitMode::LowPower, None).unwrap();
                    let (process, number) = left.swap_remove(index);
                    targets.swap_remove(index);
                    process.world.ledger.check(number, result, process.slot());
                    assert_eq!(result, Ok(()));
                }
            })
        };
        let own = [signal(&one, 1), signal(&one, 2), waiter];
        let others = [signal(&two, 1), signal(&two, 2)];
        one.finish(own);
        two.finish(others);
    });
}

/// Waiters whose deadline has passed are no longer counted, so a signal makes no wake call for
/// them.
#[test]
fn giving_up() {
    check(500, || {
        platform::allow_timeouts();
        let world = World::new();
        let first = world.process(1).submit();
        let waiter = |owner, number| {
            world.start(owner, move |process| {
                let deadline = Instant::now() + Duration::from_millis(50);
                let result = process.wait_until(number, Some(deadline));
                assert_eq!(result, Err(WaitError::TimedOut));
            })
        };
        for waiter in [waiter(2, 1), waiter(3, 1), waiter(4, 8)] {
            waiter.join().unwrap();
        }
        world.process(1).complete(first);
        assert_eq!(platform::wakes(), 0);
        world.finish([]);
    });
}

/// An interrupt ends a `wait_any` whose signals never come, and does not hide a signal that came.
#[test]
fn interrupts() {
    check(1500, || {
        let world = World::new();
        let interrupt = Arc::new(AtomicU64::new(0));
        let signals = pick(2) == 0;
        let signaller = world.start(1, move |process| {
            if signals {
                signal_somehow(process);
            }
        });
        let interrupter = {
            let word = interrupt.clone();
            world.start(2, move |_| {
                word.store(1 << 32, Ordering::Release);
                wake_all(&word);
            })
        };
        let waiter = world.start(3, move |process| {
            let targets = [process.target(1), process.target(2)];
            let wait = |expected| {
                let interrupt = Interrupt {
                    word: &*interrupt,
                    expected,
                };
                wait_any(&targets, Some(interrupt), WaitMode::LowPower, None)
            };
            match wait(0) {
                Some((index, result)) => {
                    assert_eq!((index, result), (0, Ok(())));
                    process.world.ledger.check(1, result, process.slot());
                }
                None => {
                    assert_eq!(interrupt.load(Ordering::Acquire) >> 32, 1);
                    // The interrupt consumed no signal, so the next wait still finds it.
                    if signals {
                        assert_eq!(wait(1), Some((0, Ok(()))));
                    }
                }
            }
        });
        world.finish([signaller, interrupter, waiter]);
    });
}
