//! Whose an unfinished signal is: the records that owners leave for each other.

use crate::check::check;
use crate::counter::IssueError;
use crate::platform::{self, pick};
use crate::world::World;

/// Records that share a place: numbers 1 and 17, with one process slow to write about the first.
/// Either owner of the second may die, and only the dead one's signals may be failed.
pub(crate) fn records_of_one_place(start: u64) {
    platform::naps_end();
    let world = World::starting_at(start);
    let (first, jump) = (world.number(1), world.number(17));
    let early = world.process(2).submit();
    assert_eq!(early.number, first);
    let dies = pick(3) as u16 + 2;
    let submitter = |owner| {
        world.start(owner, move |process| {
            let tickets = if owner == 2 {
                let mut tickets = process.signal_up_to(jump);
                tickets.push(early);
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
    let waiter = world.start(5, move |process| {
        if process.slot().issued() >= jump {
            let _ = process.wait(jump);
        }
    });
    let processes = [submitter(2), submitter(3), submitter(4), waiter];
    world.end(processes);
}

#[test]
fn no_record_is_lost() {
    check(3000, || records_of_one_place(0));
}

/// As many owners as there are, one signal each, more changes than can be remembered.
#[test]
fn many_changes_of_owner() {
    check(500, || {
        platform::naps_end();
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
        world.end(processes);
    });
}
