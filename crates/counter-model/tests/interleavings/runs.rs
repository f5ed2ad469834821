//! The owners of unfinished signals: submitters record runs for survivors.

use crate::check::check;
use crate::event_protocol::IssueError;
use crate::platform::{self, pick};
use crate::world::World;

/// Two runs, which end with numbers 1 and 17, compete for one record, and some submitter is slow to
/// record the first run. Any owner may die, and only a dead owner's signals may be failed.
pub(crate) fn records_of_one_place(start: u64) {
    let world = World::starting_at(start);
    let jump = world.number(17);
    let first = world.process(2).submit();
    let dies = 2 + pick(2) as u16;
    let submitter = |owner| {
        world.start(owner, move |process| {
            let tickets = if owner == 2 {
                let mut tickets = process.signal_up_to(jump);
                tickets.push(first);
                tickets
            } else {
                vec![process.submit()]
            };
            if dies == owner {
                process.world.ledger.died(process.owner);
            } else {
                process.complete_all(tickets);
            }
        })
    };
    let processes = [2, 3, 4, 5].map(submitter);
    world.finish(processes);
}

#[test]
fn no_record_is_lost() {
    check(1500, || records_of_one_place(0));
}

/// A slow submitter records a run that ends with number 1, and is then killed. Meanwhile the next
/// submitter records a run that ends with number 17 in the same place.
#[test]
fn a_slow_writer() {
    check(6000, || {
        let world = World::new();
        let first = world.process(2).submit();
        assert_eq!(first.number, 1);
        let slow = world.start_mortal(3, 15 + pick(8) as u32, |process| {
            let _ = process.submit();
        });
        let jumper = world.start(2, |process| {
            let _ = process.signal_up_to(17);
            process.world.ledger.died(process.owner);
        });
        let next = world.start(4, move |process| {
            jumper.join().unwrap();
            let ticket = process.submit();
            process.complete(ticket);
        });
        world.finish([slow, next]);
    });
}

/// Three owners alternate and make more changes of owner than a slot can hold.
#[test]
fn many_changes_of_owner() {
    check(500, || {
        platform::allow_timeouts();
        let world = World::new();
        let submitter = |owner| {
            world.start(owner, move |process| {
                let mut tickets = Vec::new();
                for _ in 0..7 {
                    match process.try_submit() {
                        Ok(ticket) => tickets.push(ticket),
                        Err(error) => {
                            assert_eq!(error, IssueError::TooManyOwners);
                            break;
                        }
                    }
                }
                if owner == 3 {
                    process.world.ledger.died(process.owner);
                } else {
                    process.complete_all(tickets);
                }
            })
        };
        let processes = [submitter(1), submitter(2), submitter(3)];
        world.finish(processes);
    });
}
