//! The device of a killed process runs for a while longer, and may write numbers that survivors
//! have already failed and passed.

use crate::check::check;
use crate::event_protocol::DeviceWait;
use crate::platform::{self, pick};
use crate::stream::{Stream, device_wait, stream};
use crate::world::World;
use shuttle::thread::spawn;

/// A process dies at any step of submitting. Its device runs for a while longer, and even writes
/// numbers that survivors have already failed and passed. The survivors continue and lose nothing.
pub(crate) fn go_on(start: u64) {
    platform::allow_timeouts();
    let world = World::starting_at(start);
    let written = pick(4) as usize;
    let mortal = {
        let mut stream = Stream::of(world.process(2));
        spawn(move || {
            let _ = platform::live_for(pick(150) as u32, || {
                for _ in 0..9 {
                    stream.submit();
                }
            });
            stream.process.world.ledger.died(stream.process.owner);
            stream.tickets.truncate(written);
            stream.run();
        })
    };
    let by_device = world.start(1, |process| {
        let stream = stream(process, 1 + pick(8));
        let issued = process.slot().issued();
        let wait = process.slot().prepare_device_wait(issued);
        assert_ne!(wait, DeviceWait::TooFarAhead);
        if wait == DeviceWait::Ready {
            device_wait(process, issued);
        }
        stream.join().unwrap();
    });
    let by_host = world.start(4, |process| {
        let ticket = process.submit();
        let more = process.signal();
        process.complete(ticket);
        process.complete_all(more);
    });
    let watchful = world.start(3, |process| {
        for _ in 0..2 {
            let (start, issued) = (process.world.number(0), process.slot().issued());
            if issued > start {
                let _ = process.wait(start + 1 + pick(issued - start));
            }
        }
    });
    world.finish([mortal, by_device, by_host, watchful]);
}

#[test]
fn at_any_step() {
    check(3000, || go_on(0));
}

/// Returns the stream of a dead process with this many signals, which its device has not written
/// and a survivor has failed.
fn left_behind(world: &World, signals: u64) -> Stream {
    let mut stream = Stream::of(world.process(2));
    for _ in 0..signals {
        stream.submit();
    }
    world.ledger.died(stream.process.owner);
    world.slot.fail_orphans(&*world.ledger);
    stream
}

/// Immediate signals after a death are not lost either.
#[test]
fn behind_signals_at_once() {
    check(1000, || {
        let world = World::new();
        let mut stream = left_behind(&world, 1);
        let value = 8 + pick(7);
        assert!(world.process(3).signal_up_to(value).is_empty());
        let late = spawn(move || stream.run());
        let next = world.start(4, |process| {
            let tickets = (0..8).map(|_| process.submit());
            process.complete_all(tickets.collect());
        });
        world.finish([late, next]);
    });
}

/// Failures are not lost either, even after the record of the dead owner's run is overwritten.
#[test]
fn and_are_forgotten() {
    check(1000, || {
        let world = World::new();
        let mut stream = left_behind(&world, 9);
        stream.tickets.truncate(2);
        // The end of this run is recorded in the place of the dead process's run.
        let first = world.process(4).submit();
        let tickets = world.process(3).signal_up_to(25);
        let late = spawn(move || stream.run());
        let jumper = world.start(3, |process| process.complete_all(tickets));
        let next = world.start(4, move |process| {
            let ticket = process.submit();
            process.complete(first);
            process.complete(ticket);
        });
        world.finish([late, jumper, next]);
    });
}
