//! The model checker of the event protocol.
//!
//! Events are counters in memory that several processes share. The protocol on them
//! (`crates/crosshandle-events/src/protocol/`) must hold in every order of the processes' steps,
//! and if any process dies at any step. The test programs of this package run the
//! library's own crate `crosshandle-events` on their own platforms. On such a platform, a checker
//! decides which process runs next:
//!
//! - `tests/interleavings` runs under shuttle, with many random and PCT schedules that are the same
//!   on every run. It finds all faults in the list below.
//! - `tests/spinning` runs under shuttle, with waiters that spin before they sleep. It finds lost
//!   wake-ups and early releases, without deaths.
//! - `tests/orderings` runs under loom, with all executions of small scenarios up to some
//!   preemptions. It finds data that is not visible after a wait, and failures that are reported as
//!   successes.
//!
//! The program `interleavings` finds these faults:
//!
//! - lost wake-ups, early releases, and completed signals that are reported as failed
//! - hangs after a death at any step
//! - errors when a count passes 2³²
//! - slots that are reused while they are open
//! - devices that wait forever, are released early, or undo other processes' signals
//! - hostile writes to the slot of one event that affect another event's waiters, late signals or
//!   orphans
//! - half words that a device writes while hosts count sleepers, complete signals or fail orphans
//! - awaited signals (`awaiting/`) that are never reported, reported twice or after cancellation,
//!   or never released
//!
//! Threads stand for processes. They also stand for devices, which only write and compare upper
//! halves of words (`tests/interleavings/stream.rs`). A ledger records what really happened, and
//! every result of the protocol is compared with it. In scenarios without deaths no sleep times
//! out, so a lost wake-up is a deadlock, which the checker reports. Some scenarios have a variant
//! that breaks a rule, and a test that the checker detects it.
//!
//! Shuttle treats all memory orderings as sequentially consistent, and loom treats sequentially
//! consistent operations as acquire and release. Neither replaces the other.
//!
//! # Running the programs
//! Run `cargo test -p crosshandle-counter-model`. `COUNTER_MODEL_EFFORT=100` tries a hundred times
//! as many schedules, and `SHUTTLE_RANDOM_SEED=…` tries others. A failure prints its seed and its
//! schedule, which `shuttle::replay` repeats.
//!
//! # Changing the protocol
//! For every new rule of the protocol, add a scenario that fails without the rule. Break the rule
//! in a copy, and verify that the checker detects it.
