//! The creator of an event waits for a signal that was never submitted, while another process that
//! has the event open dies at any step.

use crate::check::check;
use crate::event_protocol::{Liveness, Owner, Slot, WaitError, WaitMode};
use crate::ledger::Ledger;
use crate::platform::{self, AtomicU32, AtomicU64, Ordering, one_in, pick};
use crate::world::{Process, World};
use crosshandle_events::open_count;
use shuttle::thread::{JoinHandle, spawn, yield_now};
use std::sync::Arc;

const GENERATION: u64 = 4;

/// The opens of two importers, with the owners 2 and 3, and whether each importer has hung up.
struct Opens {
    counts: [AtomicU32; 2],
    hung_up: [AtomicU32; 2],
    generation: AtomicU64,
}

impl Opens {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            counts: [AtomicU32::new(0), AtomicU32::new(0)],
            hung_up: [AtomicU32::new(0), AtomicU32::new(0)],
            generation: AtomicU64::new(GENERATION),
        })
    }

    fn open(&self, owner: u16) {
        let count = &self.counts[usize::from(owner) - 2];
        assert!(open_count::try_open(count, &self.generation, GENERATION));
    }

    fn close(&self, owner: u16) {
        open_count::close(&self.counts[usize::from(owner) - 2]);
    }

    /// Does the exporter's work when an importer's connection hangs up.
    fn detach(&self, owner: u16, slot: &Slot) {
        let index = usize::from(owner) - 2;
        // This happens while the importer's opens still count.
        if open_count::is_open(&self.counts[index]) {
            slot.note_death(Owner::new(owner).unwrap());
        }
        self.hung_up[index].store(1, Ordering::SeqCst);
    }

    fn is_open(&self) -> bool {
        let mut importers = self.counts.iter().zip(&self.hung_up);
        importers.any(|(count, hung_up)| {
            hung_up.load(Ordering::SeqCst) == 0 && open_count::is_open(count)
        })
    }
}

/// What the creator knows about its peers.
struct Maker<'a> {
    slot: &'a Slot,
    ledger: &'a Ledger,
    opens: &'a Opens,
}

impl Liveness for Maker<'_> {
    fn is_dead(&self, owner: Owner) -> bool {
        self.ledger.is_dead(owner)
    }

    fn is_abandoned(&self) -> bool {
        self.slot.latest_death().is_some() && !self.opens.is_open()
    }

    fn is_known_abandoned(&self) -> bool {
        self.is_abandoned()
    }

    fn is_known_orphan(&self) -> bool {
        false
    }
}

/// Waits as the creator of the event. Checks that the wait reports abandonment only if the number
/// is not taken.
fn wait(process: &Process, opens: &Opens, number: u64) -> Result<(), WaitError> {
    let (slot, ledger) = (process.slot(), &process.world.ledger);
    let maker = Maker {
        slot,
        ledger,
        opens,
    };
    let result = slot.wait(number, WaitMode::Spin, None, &maker);
    if result == Err(WaitError::Abandoned) {
        assert!(slot.issued() < number, "{number} was submitted");
        assert_eq!(slot.latest_death(), Owner::new(2));
    }
    result
}

/// Starts an importer that is killed after some steps, and a thread that then does the exporter's
/// work.
fn start_mortal(
    world: &World,
    opens: &Arc<Opens>,
    steps: u32,
    life: impl FnOnce(&Process, &Opens) + Send + 'static,
) -> [JoinHandle<()>; 2] {
    let in_life = Arc::clone(opens);
    let dies = world.start_mortal(2, steps, move |process| life(process, &in_life));
    let (slot, ledger) = (Arc::clone(&world.slot), Arc::clone(&world.ledger));
    let opens = Arc::clone(opens);
    let notices = spawn(move || {
        let dead = Owner::new(2).unwrap();
        while !ledger.is_dead(dead) {
            yield_now();
        }
        slot.fail_orphans(&*ledger);
        opens.detach(2, &slot);
    });
    [dies, notices]
}

/// Every wait of the creator ends if the only other process dies, and no submitted signal is lost.
#[test]
fn the_only_other_process_dies() {
    check(600, || {
        platform::allow_timeouts();
        let (world, opens) = (World::new(), Opens::new());
        opens.open(2);
        let theirs = start_mortal(&world, &opens, pick(40) as u32, |process, _| {
            let first = process.submit();
            let second = process.signal();
            process.complete(first);
            process.complete_all(second);
        });
        let waiter = world.start(1, move |process| {
            let number = 1 + pick(4);
            let result = wait(process, &opens, number);
            if number > 2 {
                assert_eq!(result, Err(WaitError::Abandoned));
            }
        });
        world.finish(theirs.into_iter().chain([waiter]));
    });
}

/// A process signals and dies with the event open. The creator still notices the signal.
#[test]
fn the_other_process_signals_and_dies() {
    check(300, || {
        platform::allow_timeouts();
        let (world, opens) = (World::new(), Opens::new());
        opens.open(2);
        let theirs = start_mortal(&world, &opens, u32::MAX, |process, _| {
            let left = process.signal();
            process.complete_all(left);
        });
        let waiter = world.start(1, move |process| {
            let number = process.slot().awaited().unwrap_or(1);
            wait(process, &opens, number).unwrap();
        });
        world.finish(theirs.into_iter().chain([waiter]));
    });
}

/// While a second process has the event open, the first process's death ends no wait. A process
/// that closes the event before it ends leaves no trace.
#[test]
fn another_process_has_it_open() {
    check(300, || {
        platform::allow_timeouts();
        let (world, opens) = (World::new(), Opens::new());
        let closes = one_in(2);
        if !closes {
            opens.open(3);
        }
        opens.open(2);
        let steps = if closes { u32::MAX } else { pick(8) as u32 };
        let theirs = start_mortal(&world, &opens, steps, move |_, opens| {
            if closes {
                opens.close(2);
            }
        });
        let (in_life, of_waiter) = (Arc::clone(&opens), opens);
        let signaller = world.start(3, move |process| {
            if closes {
                in_life.open(3);
            }
            process.pause();
            let left = process.signal();
            process.complete_all(left);
        });
        let waiter = world.start(1, move |process| {
            wait(process, &of_waiter, 1).unwrap();
        });
        world.finish(theirs.into_iter().chain([signaller, waiter]));
    });
}
