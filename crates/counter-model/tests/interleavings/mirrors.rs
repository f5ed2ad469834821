//! A native mirror is waited for only in place of the right signal, and never while it is
//! signalled.

use crate::check::check;
use crate::event_protocol::Slot;
use crate::platform::AtomicU64;
use shuttle::thread::{spawn, yield_now};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An event and its native mirror. The mirror is two words that the driver changes one after the
/// other, regardless of concurrent readers.
struct World {
    slot: Slot,
    words: [AtomicU64; 2],
}

impl World {
    fn signal(&self, number: u64) {
        if !self.slot.begin_mirror_signal() {
            return;
        }
        for word in &self.words {
            let before = word.load(Ordering::Relaxed);
            yield_now();
            assert_eq!(before, word.load(Ordering::Relaxed), "two signals at once");
            word.store(number, Ordering::Relaxed);
        }
        self.slot.end_mirror_signal(number);
    }

    fn wait(&self, number: u64) -> bool {
        if self.slot.begin_mirror_wait(number).is_none() {
            return false;
        }
        for word in &self.words {
            assert_eq!(word.load(Ordering::Relaxed), number, "another signal");
            yield_now();
        }
        self.slot.end_mirror_wait();
        true
    }
}

/// A waiter for a revoked signal notices the revocation, whenever it happens. A waiter for the next
/// signal notices none, unless two queues revoke at the same time.
#[test]
fn revocations_are_noticed() {
    for revokers in 1..=2 {
        let granted = Arc::new([0, 1].map(|_| AtomicBool::new(false)));
        let seen = Arc::clone(&granted);
        check(2000, move || {
            let slot = Arc::new(Slot::new());
            assert!(slot.begin_mirror_signal());
            slot.end_mirror_signal(1);
            let queues = [0, 1].map(|queue| {
                let slot = Arc::clone(&slot);
                spawn(move || {
                    if queue < revokers {
                        slot.revoke_mirror();
                    }
                    // This may happen before the other queue has finished its revocation.
                    if !slot.has_mirror_signal(1) && slot.begin_mirror_signal() {
                        slot.end_mirror_signal(2);
                    }
                })
            });
            let waits = [1, 2, 1, 2].map(|number| {
                let promise = slot.begin_mirror_wait(number)?;
                yield_now();
                slot.end_mirror_wait();
                Some((number, promise))
            });
            for queue in queues {
                queue.join().unwrap();
            }
            for (number, promise) in waits.into_iter().flatten() {
                let is_told = slot.is_revoked(promise);
                assert!(is_told == (number == 1) || number == 2 && revokers == 2);
                seen[number as usize - 1].store(true, Ordering::Relaxed);
            }
        });
        assert!(granted.iter().all(|seen| seen.load(Ordering::Relaxed)));
    }
}

#[test]
fn of_one_signal_at_a_time() {
    check(2000, || {
        let world = Arc::new(World {
            slot: Slot::new(),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let mut threads = Vec::new();
        for process in 0..2 {
            let world = Arc::clone(&world);
            threads.push(spawn(move || {
                (1..=2).for_each(|step| world.signal(2 * step - process))
            }));
        }
        for _ in 0..2 {
            let world = Arc::clone(&world);
            threads.push(spawn(move || {
                (1..=4).for_each(|number| {
                    world.wait(number);
                });
            }));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        // No process has left a bit set.
        world.signal(9);
        assert!(world.wait(9));
    });
}
