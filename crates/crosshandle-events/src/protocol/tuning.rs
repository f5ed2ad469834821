//! Times and counts of the event protocol that are not part of the layout of a slot.

use std::time::Duration;

/// Longest time that a waiter spins before it sleeps, if hosts signal the event. It is about the
/// cost of waking a sleeper. A shorter time causes more wake-ups, and a longer time wastes more of
/// a core.
pub(super) const SPIN_TIME: Duration = Duration::from_micros(50);

/// Longest time that a waiter spins before it sleeps, if devices signal the event. It is about the
/// duration of the shortest sleep, because a device wakes no sleeper.
pub(super) const SPIN_TIME_FOR_DEVICE: Duration = Duration::from_micros(100);

/// Number of polls of a word between two readings of the clock. Reading the clock takes about as
/// long as a peer takes to reply. Frequent readings delay the waiter, and rare readings prolong the
/// spin.
pub(super) const POLLS_PER_CLOCK_READ: u32 = 64;

/// Longest sleep of a waiter before it polls the word and checks whether the awaited process is
/// alive. It limits how late a waiter notices an unreported death, or a signal whose wake a hostile
/// peer suppresses. In the fault harness it is so long that a missing wake-up shows.
pub(super) const LIVENESS_INTERVAL: Duration = match cfg!(fault_steps) {
    false => Duration::from_millis(40),
    true => Duration::from_secs(3),
};

/// Longest sleep of a waiter after the exporter has ended, because deaths are no longer reported.
/// A waiter then uses about 1 % of a core.
pub(super) const ORPHAN_INTERVAL: Duration = Duration::from_millis(1);

/// Ratio of the time waited so far to the next sleep, for a waiter whose event is signaled by
/// devices. The waiter notices a signal late by at most 1/8 of its waiting time.
pub(super) const STEPS: u32 = 8;

/// Shortest sleep of a waiter whose event is signaled by devices. The kernel cannot sleep for much
/// less.
pub(super) const SHORTEST_STEP: Duration = Duration::from_micros(20);

/// Longest sleep of a waiter whose event is signaled by devices. A waiter then uses less than 1 %
/// of a core.
pub(super) const LONGEST_STEP: Duration = Duration::from_millis(1);

/// Time between two sweeps over an await set. A sweep wakes the thread, which costs about 50 µs, or
/// 0.1 % of a core with this value. The interval limits how late a suppressed wake and an
/// unreported death are noticed.
pub(super) const SWEEP_INTERVAL: Duration = match cfg!(fault_steps) {
    false => Duration::from_millis(160),
    true => Duration::from_secs(3),
};

/// Number of words of an await set that one sweep polls. Each poll takes about 0.4 µs, because the
/// words are in no cache by then. In larger sets it takes several sweeps to find a signal with a
/// suppressed wake.
pub(super) const SWEEP_LOOKS: usize = 96;

/// Number of words of an await set for which one sweep checks whether their processes are alive.
/// Each check is a system call. In larger sets it takes several sweeps to find an unreported death.
pub(super) const SWEEP_CHECKS: usize = 16;

/// Shortest step of an await set per word that it polls in steps. A poll takes about 20 ns, so even
/// many such words take only about 5 % of a core. If there are more than 50 of them, short commands
/// are noticed later.
pub(super) const STEP_TIME_PER_WORD: Duration = Duration::from_nanos(400);

/// Maximum number of attempts to sleep on a word that keeps changing. Further attempts are left to
/// the next step, so that a hostile process cannot hold up the thread.
pub(super) const SETTLE_ATTEMPTS: usize = 8;

/// Maximum number of sleeps of an await set that reports include. Every sleep uses room in the
/// process's ledger that other threads could use.
pub(super) const MAX_TOLD: usize = 16;
