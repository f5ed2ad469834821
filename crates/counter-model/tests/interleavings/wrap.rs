//! Scenarios with large numbers. The 32-bit sequences of the words wrap or change their sign, and
//! lagging words must catch up so that they compare correctly.

use crate::check::check;
use crate::event_protocol::IssueError;
use crate::platform::pick;
use crate::world::World;
use crate::{dead_devices, death, devices, release, runs};

/// Returns a number shortly before such a point.
fn start() -> u64 {
    [1 << 30, 1 << 31, 1 << 32, 3 << 31][pick(4) as usize] - 1 - pick(18)
}

cases! {
    ring_reuse: 700, release::ring_reuse(start());
    future_values: 700, release::future_values(start());
    failures: 700, release::failures(start());
    death: 800, death::one_dies(start());
    records: 500, runs::records_of_one_place(start());
    device_signals: 500, devices::mixed(start());
    device_waits: 700, devices::signals_at_once(start());
    dead_devices: 700, dead_devices::go_on(start());
}

/// Values are far apart and all unfinished. Each wait must be for its own signal.
#[test]
fn far_apart() {
    check(500, || {
        let world = World::new();
        let first = world.process(1).submit();
        let jumper = |owner| {
            world.start(owner, |process| {
                let mut tickets = Vec::new();
                for _ in 0..6 {
                    let far = process.slot().issued() + (1 << 29) - pick(3);
                    match process.try_signal_up_to(far) {
                        Ok(more) => tickets.extend(more),
                        Err(IssueError::TooFarAhead(limit)) => assert!(limit < far),
                        Err(IssueError::NotAhead(latest)) => assert!(latest >= far),
                        Err(error) => panic!("{error:?}"),
                    }
                    match process.try_submit() {
                        Ok(ticket) => tickets.push(ticket),
                        Err(error) => assert!(matches!(error, IssueError::TooFarAhead(_))),
                    }
                }
                process.complete_all(tickets);
            })
        };
        let (two, three) = (jumper(2), jumper(3));
        let last = world.start(1, move |process| {
            for _ in 0..10 {
                let issued = process.slot().issued();
                for number in [1, 2, issued / 2, issued - 1, issued] {
                    process.poll(number.max(1));
                }
            }
            process.complete(first);
        });
        world.finish([two, three, last]);
    });
}
