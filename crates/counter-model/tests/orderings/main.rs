//! The event protocol under every execution that its memory orderings allow (loom).
//!
//! Scenarios are small, because loom tries everything: two or three processes, and one or two
//! signals. Loom treats sequentially consistent operations as acquire-release ones, which is
//! weaker. The program `interleavings` covers what depends on more. That is waking a sleeper that
//! finds `WATCHED` already set, and the reuse of slots.

mod atomics;
mod platform;

use crosshandle_events::{
    Completion, DeviceWait, FailureReason, Liveness, Outcome, Owner, Signalled, Ticket, WaitError,
    WaitMode,
};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use platform::{AtomicU32, Loom, Ordering};

type Slot = crosshandle_events::Slot<Loom>;

const EXPORTER: Owner = Owner::EXPORTER;

/// An event, and data that one process writes before a signal and others read after it. Loom fails
/// a scenario in which a read does not happen after the write.
struct World {
    slot: Slot,
    data: UnsafeCell<u32>,
    dead: AtomicU32,
}

// SAFETY: only the protocol under test synchronises accesses to the data, and loom checks every one
// of them.
unsafe impl Sync for World {}
// SAFETY: no field is tied to the thread that made it.
unsafe impl Send for World {}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            slot: Slot::new(),
            data: UnsafeCell::new(0),
            dead: AtomicU32::new(0),
        })
    }

    fn write(&self) {
        // SAFETY: loom checks that no other access is concurrent.
        self.data.with_mut(|data| unsafe { *data = 1 });
    }

    fn read(&self) {
        // SAFETY: loom checks that no write is concurrent.
        assert_eq!(self.data.with(|data| unsafe { *data }), 1);
    }

    fn wait(&self, number: u64) -> Result<(), WaitError> {
        self.slot.wait(number, WaitMode::LowPower, None, self)
    }

    fn signal(&self, owner: Owner) -> Vec<Ticket> {
        match self.slot.signal(owner).unwrap() {
            Signalled::Complete(_) => Vec::new(),
            Signalled::Submitted(tickets) => tickets,
        }
    }
}

impl Liveness for World {
    fn is_dead(&self, owner: Owner) -> bool {
        self.dead.load(Ordering::Acquire) == u32::from(owner.get())
    }
}

/// Runs `scenario` with a new world, in every execution with at most this many preemptions.
fn check(preemptions: usize, scenario: impl Fn(Arc<World>) + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(move || scenario(World::new()));
}

/// Checks a scenario as [`check`] does. Some execution must call the scenario's second argument,
/// which shows that it reaches the point that it is about.
fn check_reached(
    preemptions: usize,
    scenario: impl Fn(Arc<World>, &dyn Fn()) + Sync + Send + 'static,
) {
    let is_reached = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = is_reached.clone();
    check(preemptions, move |world| {
        scenario(world, &|| seen.store(true, Ordering::Relaxed));
    });
    assert!(
        is_reached.load(Ordering::Relaxed),
        "the scenario tests nothing"
    );
}

fn start(world: &Arc<World>, life: impl FnOnce(&World) + 'static) -> loom::thread::JoinHandle<()> {
    let world = world.clone();
    loom::thread::spawn(move || life(&world))
}

/// Starts a process that writes data and completes a signal.
fn write_and_complete(world: &Arc<World>, ticket: Ticket) -> loom::thread::JoinHandle<()> {
    start(world, move |world| {
        world.write();
        assert_eq!(world.slot.complete(ticket), Completion::Done);
    })
}

/// Data written before a completion is visible after the wait, whether or not the waiter slept.
#[test]
fn completing_and_waiting() {
    check(3, |world| {
        let ticket = world.slot.issue(EXPORTER).unwrap();
        let signaller = write_and_complete(&world, ticket);
        world.wait(1).unwrap();
        world.read();
        signaller.join().unwrap();
    });
}

/// Data is visible after a wait for a number that is taken during the wait.
#[test]
fn submitting_and_waiting() {
    check(3, |world| {
        let signaller = start(&world, move |world| {
            let ticket = world.slot.issue(EXPORTER).unwrap();
            world.write();
            assert_eq!(world.slot.complete(ticket), Completion::Done);
        });
        world.wait(1).unwrap();
        world.read();
        signaller.join().unwrap();
    });
}

/// Data written before an immediate signal is visible after the wait.
#[test]
fn signalling_at_once() {
    check(3, |world| {
        let signaller = start(&world, |world| {
            world.write();
            assert!(world.signal(EXPORTER).is_empty());
        });
        world.wait(1).unwrap();
        world.read();
        signaller.join().unwrap();
    });
}

/// Writes a ticket's number like a device: only the upper half of the word, with release ordering
/// after all earlier writes of the device.
fn device_write(world: &World, ticket: Ticket) {
    let step = u64::from((ticket.number as u32).wrapping_sub(ticket.previous));
    let word = world.slot.word_of(ticket.number);
    word.fetch_add(step << 32, Ordering::Release);
}

/// Data that a device wrote before its signal is visible after the signal.
#[test]
fn signalling_by_a_device() {
    check_reached(3, move |world, reach| {
        world.slot.mark_device_signals();
        let ticket = world.slot.issue(EXPORTER).unwrap();
        let device = start(&world, move |world| {
            world.write();
            device_write(world, ticket);
        });
        if world.slot.outcome(1) == Outcome::Complete {
            world.read();
            reach();
        }
        device.join().unwrap();
        assert!(world.signal(EXPORTER).is_empty());
        assert_eq!(world.slot.outcome(1), Outcome::Complete);
    });
}

/// A waiting device finds its word written, and sees data written before the signal.
#[test]
fn waiting_by_a_device() {
    check_reached(3, move |world, reach| {
        let signaller = start(&world, |world| {
            world.write();
            assert!(world.signal(EXPORTER).is_empty());
            assert!(world.signal(EXPORTER).is_empty());
        });
        let wait = world.slot.prepare_device_wait(1);
        if wait == DeviceWait::Ready {
            let word = world.slot.word_of(1).load(Ordering::Acquire);
            if (word >> 32) as u32 == 1 {
                world.read();
                reach();
            }
        }
        signaller.join().unwrap();
        if wait == DeviceWait::Ready {
            let word = world.slot.word_of(1).load(Ordering::Acquire);
            assert_eq!(word >> 32, 1, "the device waits for ever");
        }
    });
}

/// Data is visible after a poll that finds a signal complete, or the latest signal no longer
/// pending.
#[test]
fn looking() {
    let looks: [fn(&World) -> bool; 2] = [
        |world| world.slot.outcome(1) == Outcome::Complete,
        |world| world.slot.latest_pending().is_none(),
    ];
    for look in looks {
        check_reached(3, move |world, reach| {
            let ticket = world.slot.issue(EXPORTER).unwrap();
            let signaller = write_and_complete(&world, ticket);
            if look(&world) {
                world.read();
                reach();
            }
            signaller.join().unwrap();
            assert!(look(&world));
        });
    }
}

/// Data written before a signal of the native mirror is visible after a wait for the mirror.
#[test]
fn waiting_for_a_drivers_event() {
    check_reached(3, move |world, reach| {
        let signaller = start(&world, |world| {
            assert!(world.slot.begin_mirror_signal());
            world.write();
            world.slot.end_mirror_signal(1);
        });
        if world.slot.begin_mirror_wait(1).is_some() {
            world.read();
            world.slot.end_mirror_wait();
            reach();
        }
        signaller.join().unwrap();
        assert!(world.slot.has_mirror_signal(1));
    });
}

/// An immediate signaller has seen all earlier signals, and makes their signallers' writes visible
/// too.
#[test]
fn moving_on() {
    check_reached(2, move |world, reach| {
        let ticket = world.slot.issue(EXPORTER).unwrap();
        let signaller = write_and_complete(&world, ticket);
        let second = start(&world, |world| {
            for ticket in world.signal(Owner::new(2).unwrap()) {
                assert_eq!(world.slot.complete(ticket), Completion::Done);
            }
        });
        // If number 2 was taken as a ticket, it may complete before number 1.
        let unfinished = world.slot.unfinished();
        if world.slot.issued() == 2 && unfinished.is_none() {
            world.read();
            reach();
        }
        signaller.join().unwrap();
        second.join().unwrap();
    });
}

/// The waiter for the second signal of a word sees what the first signal's submitter wrote.
#[test]
fn one_word() {
    check_reached(3, move |world, reach| {
        let first = world.slot.issue(EXPORTER).unwrap();
        let Ok(Signalled::Submitted(jump)) = world.slot.signal_up_to(EXPORTER, 8) else {
            panic!("number 1 is unfinished");
        };
        let eighth = *jump.last().unwrap();
        let signaller = write_and_complete(&world, first);
        if world.slot.complete(eighth) == Completion::Done {
            world.read();
            reach();
        }
        signaller.join().unwrap();
    });
}

/// A failure is never reported as a success, even after later signals.
#[test]
fn failing() {
    check(2, |world| {
        let ticket = world.slot.issue(EXPORTER).unwrap();
        let signaller = start(&world, move |world| {
            let failed = world.slot.fail(ticket, FailureReason::CommandFailed);
            assert_eq!(failed, Completion::Done);
            assert!(world.signal(EXPORTER).is_empty());
        });
        assert_ne!(world.slot.outcome(1), Outcome::Complete);
        let failed = WaitError::Failed(FailureReason::CommandFailed);
        assert_eq!(world.wait(1), Err(failed));
        signaller.join().unwrap();
    });
}

/// A success between two failures on its word stays a success while the second failure is recorded.
#[test]
fn failing_around_a_success() {
    check(3, |world| {
        let reason = FailureReason::CommandFailed;
        let first = world.slot.issue(EXPORTER).unwrap();
        // Numbers 8, 15 and 22 follow number 1 on its word. The other numbers keep the words in
        // use.
        let jump = |value| match world.slot.signal_up_to(EXPORTER, value) {
            Ok(Signalled::Submitted(tickets)) => *tickets.last().unwrap(),
            _ => panic!("number 1 is unfinished, or 2"),
        };
        let [second, third, fourth] = [8, 15, 22].map(jump);
        assert_eq!(world.slot.fail(first, reason), Completion::Done);
        assert_eq!(world.slot.complete(second), Completion::Done);
        assert_eq!(world.slot.complete(third), Completion::Done);
        let signaller = start(&world, move |world| {
            assert_eq!(world.slot.fail(fourth, reason), Completion::Done);
        });
        assert_eq!(world.slot.outcome(8), Outcome::Complete);
        signaller.join().unwrap();
    });
}

/// Two survivors fail orphans at the same time, while a third process submits a signal.
#[test]
fn failing_orphans() {
    check(1, |world| {
        let dead = Owner::new(2).unwrap();
        let _ = world.slot.issue(dead).unwrap();
        world.dead.store(2, Ordering::Release);
        let other = start(&world, |world| world.slot.fail_orphans(world));
        let ticket = world.slot.issue(EXPORTER).unwrap();
        world.slot.fail_orphans(&*world);
        let failed = Outcome::Failed(FailureReason::OwnerDied(Some(dead)));
        assert_eq!(world.slot.outcome(1), failed);
        assert_eq!(world.slot.complete(ticket), Completion::Done);
        other.join().unwrap();
        assert_eq!(world.slot.outcome(1), failed);
        assert_eq!(world.slot.outcome(2), Outcome::Complete);
    });
}

/// A survivor reads the right owner of a signal while the next owner takes a number.
#[test]
fn changing_owners() {
    check(2, |world| {
        let ticket = world.slot.issue(EXPORTER).unwrap();
        world.dead.store(2, Ordering::Release);
        let other = start(&world, |world| {
            let _ = world.slot.issue(Owner::new(2).unwrap()).unwrap();
        });
        world.slot.fail_orphans(&*world);
        assert_eq!(world.slot.complete(ticket), Completion::Done);
        other.join().unwrap();
    });
}
