//! Devices write the upper halves of words. At the same time, hosts count sleepers in the lower
//! halves, complete later signals, and fail signals of dead processes.

use crate::event_protocol::WaitError;
use crate::platform::{self, Ordering, one_in, pick};
use crate::stream::Stream;
use crate::world::{Process, World};
use shuttle::thread::{JoinHandle, spawn};
use std::time::Duration;

/// Longest sleep of a waiter of an event that devices signal, like `LONGEST_STEP` in the protocol.
const LONGEST_STEP: Duration = Duration::from_millis(1);

/// Starts a device that writes this many signals, which are submitted now. With `dies`, their
/// process has been killed before the device has written all of them. With `records`, their queue
/// finds them done and records that.
fn device(process: Process, signals: u64, dies: bool, records: bool) -> JoinHandle<()> {
    let mut stream = Stream::of(process);
    for _ in 0..signals {
        stream.submit();
    }
    spawn(move || {
        if dies {
            stream.process.world.ledger.died(stream.process.owner);
            stream.tickets.truncate(pick(1 + signals) as usize);
        }
        stream.run();
        if records {
            stream.record_finished();
        }
    })
}

/// Counts a sleeper by a load and a store of the whole word. This is wrong, because a device may
/// write the upper half in between.
fn count_carelessly(process: &Process, number: u64) {
    let word = process.slot().word_of(number);
    let value = word.load(Ordering::SeqCst);
    word.store(value + 1, Ordering::SeqCst);
}

/// Two words of an event, each with alternating signals of devices and of a host: *n* of a device,
/// then *n + 7* of a host. Only sleeps in steps time out, as for an event that devices signal.
/// Waiters that slept before the mark was set have longer sleeps and must be woken.
fn shared_words(dies: bool, careless: bool) {
    platform::allow_timeouts_up_to(LONGEST_STEP);
    let world = World::new();
    let waiters: Vec<_> = [4, 5]
        .into_iter()
        .map(|owner| {
            world.start(owner, move |process| {
                for _ in 0..2 {
                    let number = [1, 2, 8, 9][pick(4) as usize];
                    if careless {
                        count_carelessly(process, number);
                    }
                    let result = process.wait(number);
                    // Signals of the dead process may have failed.
                    let may_fail = dies && number <= 2;
                    assert!(may_fail || result == Ok(()), "{number}: {result:?}");
                    assert_ne!(result, Err(WaitError::Abandoned));
                }
            })
        })
        .collect();
    let signallers = world.start(1, move |process| {
        let devices = device(process.world.process(2), 2, dies, !careless);
        let host: Vec<_> = (3..=9).map(|_| process.submit()).collect();
        process.complete_all(host);
        if dies || one_in(2) {
            process.slot().fail_orphans(&*process.world.ledger);
        }
        devices.join().unwrap();
    });
    world.finish(waiters.into_iter().chain([signallers]));
}

cases! {
    with_sleepers_and_completions: 3000, shared_words(false, false);
    with_sleepers_completions_and_survivors: 3000, shared_words(true, false);
}

cases! {
    /// The scenario detects a host that undoes a device's write before the device's queue has
    /// recorded the signal. Survivors repair the word afterwards.
    #[should_panic = "exceeded max_steps"]
    with_sleepers_that_are_counted_carelessly: 3000, shared_words(false, true);
}
