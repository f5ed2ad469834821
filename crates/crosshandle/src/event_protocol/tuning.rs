//! Times and counts of the event protocol. What is part of the layout is in `slot.rs` instead.

use std::time::Duration;

/// Longest time that a waiter spins before it sleeps, while hosts signal: about what it costs to
/// wake a sleeper. Halved: signals that come within 25 to 50 µs cost a wake-up. Doubled: every
/// longer wait burns 50 µs more of a core.
pub(super) const SPIN_TIME: Duration = Duration::from_micros(50);

/// Longest time that a waiter spins before it sleeps, once devices signal the event: about what
/// the shortest sleep takes, since a device wakes no sleeper. Halved: short commands are noticed
/// up to one sleep late. Doubled: every longer wait burns 100 µs more of a core.
pub(super) const SPIN_TIME_FOR_DEVICE: Duration = Duration::from_micros(100);

/// Polls of a word between two readings of the clock. Reading the clock takes as long as a peer
/// takes to answer. Halved: the clock delays twice as many answers. Doubled: the spin ends later
/// than its time, by some hundred nanoseconds more.
pub(super) const POLLS_PER_CLOCK_READ: u32 = 64;

/// Longest sleep of a waiter before it looks at the word and checks whether the process that it waits
/// for still lives. Halved: twice the system calls of every long wait. Doubled: a signal whose wake a
/// hostile peer keeps away, and a death that nothing else reports, are noticed 40 ms later. For the
/// fault harness it is so long that a wake-up that nobody sends shows.
pub(super) const LIVENESS_INTERVAL: Duration = match cfg!(feature = "fault-steps") {
    false => Duration::from_millis(40),
    true => Duration::from_secs(3),
};

/// The same once the event's exporter has ended, which told of other processes' deaths. Halved: a
/// waiter uses about 1 % of a core then. Doubled: a death is noticed up to 2 ms late.
pub(super) const ORPHAN_INTERVAL: Duration = Duration::from_millis(1);

/// Divisor of the time waited so far that gives the next step's length, for an event that devices
/// signal: a waiter wakes up at most an eighth of its time late. Halved: twice the lateness.
/// Doubled: twice the wake-ups.
pub(super) const STEPS: u32 = 8;

/// Shortest step: about what a sleep takes at least, so a shorter one would gain nothing. Doubled:
/// short commands are noticed 20 µs later.
pub(super) const SHORTEST_STEP: Duration = Duration::from_micros(20);

/// Longest step: a waiter uses less than 1 % of a core. Halved: twice that. Doubled: the end of a
/// long command is noticed up to 2 ms late.
pub(super) const LONGEST_STEP: Duration = Duration::from_millis(1);

/// Time between two sweeps over an await set. A sweep wakes the thread, which costs some 50 µs. Halved: twice
/// the processor time of a process that awaits anything, which is 0.1 % of a core now. Doubled: a
/// signal whose wake a hostile peer keeps away, and a death that nothing else reports, are
/// noticed 160 ms later.
pub(super) const SWEEP_INTERVAL: Duration = match cfg!(feature = "fault-steps") {
    false => Duration::from_millis(160),
    true => Duration::from_secs(3),
};

/// Words of an await set at which one sweep looks, at about 0.4 µs each, since none is in a cache by then.
/// Halved: with more words than this, a signal whose wake a hostile peer keeps away is found in twice the
/// time. Doubled: twice the processor time of the looks.
pub(super) const SWEEP_LOOKS: usize = 96;

/// Words of an await set of which one sweep asks whether their processes still live, at a system call
/// each. Halved: a death that nothing else reports is found in twice the time. Doubled: twice
/// the processor time of the questions.
pub(super) const SWEEP_CHECKS: usize = 16;

/// Least step of an await set for each word that it looks at in steps, at about 20 ns each. Halved: many
/// events that devices signal take up to 10 % of a core. Doubled: with more than 25 of them, short
/// commands are noticed later.
pub(super) const STEP_TIME_PER_WORD: Duration = Duration::from_nanos(400);

/// Attempts to sleep on a word that changes meanwhile. Halved: a word that an honest process signals
/// all the time is left to the next step more often. Doubled: a hostile process holds up the thread
/// twice as long, which is less than a microsecond.
pub(super) const SETTLE_ATTEMPTS: usize = 8;

/// Sleeps of an await set that tools show. Halved: they show fewer of them. Doubled: they leave half the
/// room in the process's ledger to other threads.
pub(super) const MAX_TOLD: usize = 16;
