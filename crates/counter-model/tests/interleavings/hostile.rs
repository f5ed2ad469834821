//! A hostile process writes anything into the slot of one event, at any step. Waiters, late signals
//! and survivors of another event of the same process continue, and the hostile event's own waiters
//! end at their deadline.
//!
//! Unless a scenario allows timeouts, no sleep times out, so a waiter that is not woken is found.

use crate::check::check;
use crate::event_protocol::{
    Completion, FailureReason, Liveness, Owner, Slot, Target, Ticket, WaitMode, wait_any,
};
use crate::platform::{self, AtomicU32, Instant, Ordering, one_in, pick};
use crate::world::{Process, World};
use crosshandle_events::platform::Moment;
use shuttle::thread::{JoinHandle, spawn, yield_now};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// An event that a hostile process writes to. Its owners with an odd number are treated as dead,
/// because the hostile process may claim so.
pub(crate) struct Hostile {
    pub(crate) slot: Arc<Slot>,
    asked: AtomicU32,
}

impl Liveness for Hostile {
    fn is_dead(&self, owner: Owner) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        owner.get() % 2 == 1
    }

    fn is_known_abandoned(&self) -> bool {
        false
    }
}

impl Hostile {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            slot: Arc::new(Slot::new()),
            asked: AtomicU32::new(0),
        })
    }

    fn target(&self, number: u64) -> Target<'_> {
        Target {
            slot: &self.slot,
            number,
            liveness: self,
        }
    }

    /// Starts the process that writes to the event.
    pub(crate) fn start_writing(self: &Arc<Self>, writes: u64) -> JoinHandle<()> {
        let hostile = Arc::clone(self);
        spawn(move || (0..writes).for_each(|_| hostile.write()))
    }

    fn write(&self) {
        // The words and `issued` are written more often than all other fields.
        let field = match one_in(2) {
            true => [0, 3, 4, 5][pick(4) as usize],
            false => pick(Slot::FIELDS as u64) as usize,
        };
        let random = || pick(1 << 32) << 32 | pick(1 << 32);
        self.slot.overwrite(field, |value| match pick(8) {
            0 => 0,
            1 => u64::MAX,
            2 => random(),
            3 => value ^ 1 << pick(64),
            // This forges values of `issued`, `runs` and `failed_to`, complete or not, with any
            // owner.
            4 => pick(20) << 14 | pick(1 << 14),
            // This forges values of words, failed or not, with some sleepers.
            5 => pick(20) << 32 | pick(2) << 31 | pick(3),
            6 => value.wrapping_add(pick(3) << 32),
            _ => pick(30),
        });
    }
}

/// Signals once like an honest process, immediately or by submission.
fn signal_somehow(process: &Process) {
    let tickets = match one_in(2) {
        true => vec![process.submit()],
        false => process.signal(),
    };
    process.complete_all(tickets);
}

/// A waiter waits for an honest event and a hostile one. With `at_once` it uses one `wait_any`.
/// Otherwise it waits for one after the other, which is wrong.
fn waits_for_both(at_once: bool) {
    let (honest, hostile) = (World::new(), Hostile::new());
    let writer = hostile.start_writing(pick(12));
    let signaller = honest.start(1, signal_somehow);
    let waiter = {
        let hostile = Arc::clone(&hostile);
        honest.start(3, move |process| {
            let own = process.target(1);
            let mut targets = vec![hostile.target(1 + pick(9)), own];
            if !at_once {
                // The result does not matter.
                let Target {
                    number, liveness, ..
                } = targets.remove(0);
                let _ = hostile
                    .slot
                    .wait(number, WaitMode::LowPower, None, liveness);
            }
            loop {
                let waited = wait_any(&targets, None, WaitMode::LowPower, None);
                let (index, result) = waited.expect("nobody interrupts it");
                if index + 1 == targets.len() {
                    process.world.ledger.check(1, result, process.slot());
                    assert_eq!(result, Ok(()));
                    return;
                }
                targets.remove(index);
            }
        })
    };
    writer.join().unwrap();
    honest.finish([signaller, waiter]);
}

cases! {
    beside_an_honest_one_in_a_wait: 3000, waits_for_both(true);
}

cases! {
    /// The scenario detects waiters that a hostile event delays.
    #[should_panic = "deadlock"]
    beside_an_honest_one_in_a_wait_in_turn: 1000, waits_for_both(false);
}

/// A process has a late signal of an honest event and one of a hostile event, and one job for both,
/// as in `crates/crosshandle-ipc/src/event/late_completion.rs`. A hostile event can claim that the
/// earlier signal has finished while its word says otherwise. With `leaves_alone`, the job then
/// ignores the event for a while (here permanently). Otherwise it checks the event again at once,
/// which is wrong.
fn late_signals_of_both(leaves_alone: bool) {
    let (honest, hostile) = (World::new(), Hostile::new());
    let first = honest.process(2).submit();
    let process = honest.process(3);
    let mut late: Vec<Ticket> = (2..=8).map(|_| process.submit()).collect();
    let eighth = late.pop().expect("seven");
    process.complete_all(late);
    for _ in 0..8 {
        let _ = hostile.slot.issue(Owner::new(2).unwrap());
    }
    let writer = hostile.start_writing(pick(12));
    let has_slept = Arc::new(AtomicBool::new(false));
    let holder = {
        let has_slept = Arc::clone(&has_slept);
        honest.start(2, move |process| {
            // This process needs the processor, which a job that never sleeps occupies.
            while !leaves_alone && !has_slept.load(Relaxed) && platform::sleepers() == 0 {
                yield_now();
            }
            process.complete(first);
        })
    };
    let job = honest.start(3, move |process| {
        let mut is_forged_pending = true;
        while !process.try_complete(eighth) {
            let mut targets = vec![process.target(1)];
            targets.extend(is_forged_pending.then(|| hostile.target(1)));
            let (index, _) = wait_any(&targets, None, WaitMode::LowPower, None).unwrap();
            let forged = Ticket::single(8);
            is_forged_pending &= hostile.slot.complete(forged) == Completion::TooEarly;
            is_forged_pending &= index == 0 || !leaves_alone;
        }
        has_slept.store(true, Relaxed);
    });
    writer.join().unwrap();
    honest.finish([holder, job]);
}

cases! {
    beside_late_signals_of_an_honest_one: 3000, late_signals_of_both(true);
}

cases! {
    /// The scenario detects a job that a hostile event keeps from sleeping.
    #[should_panic = "exceeded max_steps"]
    beside_late_signals_of_an_honest_one_with_a_job_that_asks_again: 3000, late_signals_of_both(false);
}

/// A survivor fails the orphans of all events of an arena, those of the hostile event first, while
/// the hostile process writes. Waiters of the honest event learn of the death. Their sleeps never
/// time out.
fn survivors_of_both() {
    let (honest, hostile) = (World::new(), Hostile::new());
    let first = honest.process(2).submit();
    let writer = hostile.start_writing(pick(20));
    let waiter = honest.start(3, move |process| {
        assert!(process.wait(first.number).is_err());
    });
    let survivor = honest.start(1, move |process| {
        process.world.ledger.died(Owner::new(2).unwrap());
        hostile.slot.fail_orphans(&*hostile);
        process.slot().fail_orphans(&*process.world.ledger);
    });
    writer.join().unwrap();
    honest.finish([waiter, survivor]);
}

cases! {
    beside_an_honest_one_whose_signaller_died: 2000, survivors_of_both();
}

/// A process that shares the hostile event gets meaningless results, but gets them. Waits end by
/// their deadline, and no call takes forever.
#[test]
fn for_those_who_share_it() {
    check(3000, || {
        platform::allow_timeouts();
        let hostile = Hostile::new();
        let writer = hostile.start_writing(pick(20));
        let waiter = |number| {
            let hostile = Arc::clone(&hostile);
            spawn(move || {
                let deadline = Some(Instant::now() + Duration::from_millis(100));
                let _ = hostile
                    .slot
                    .wait(number, WaitMode::Spin, deadline, &*hostile);
                let targets = [hostile.target(number), hostile.target(number + 1)];
                let _ = wait_any(&targets, None, WaitMode::Spin, deadline);
            })
        };
        let signaller = {
            let hostile = Arc::clone(&hostile);
            spawn(move || {
                let owner = Owner::new(4).unwrap();
                let slot = &hostile.slot;
                for _ in 0..3 {
                    let latest = slot.issued();
                    if slot.try_signal_after(latest).is_none() {
                        let _ = slot.signal(owner);
                    }
                    if let Ok(ticket) = slot.issue(owner) {
                        let _ = match one_in(2) {
                            true => slot.complete(ticket),
                            false => slot.fail(ticket, FailureReason::CommandFailed),
                        };
                    }
                    let _ = slot.prepare_device_wait(latest + pick(9));
                    slot.help_device_wait(latest, &*hostile);
                    let _ = slot.completed();
                }
            })
        };
        let waiters = [waiter(1 + pick(9)), waiter(1 + pick(9))];
        for thread in waiters.into_iter().chain([signaller, writer]) {
            thread.join().unwrap();
        }
    });
}
