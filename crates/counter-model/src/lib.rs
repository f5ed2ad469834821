//! The model checker of the event protocol.
//!
//! Events are counters in memory that several processes share. The protocol on them
//! (`crates/crosshandle/src/event_protocol/`) must hold in every order of the processes' steps, and
//! whichever process dies at any step. The test programs of this package compile *the library's own
//! files* against platforms of their own, on which a checker decides which process runs next:
//!
//! | program | checker | what it looks for |
//! |---|---|---|
//! | `tests/interleavings` | shuttle: many random and PCT schedules, the same ones every time | lost wake-ups; early releases; completed signals reported as failed; hangs after a death at any step; counting past 2³²; slots reused while they are open; devices that wait for ever, are released early or undo other processes' signals; writes of anything to an event's slot that hang or misdirect those who wait for another event, complete its late signals or fail its orphans; half words that a device writes beside sleepers, completions and survivors; awaited signals (`awaiting/`) that the thread which sleeps for many never tells of, tells of twice or after they were cancelled, or never lets go of |
//! | `tests/spinning` | shuttle, with waiters that spin before they sleep | lost wake-ups and early releases, without deaths |
//! | `tests/orderings` | loom: all executions of small scenarios, up to some preemptions | what the memory orderings allow: data not visible after a wait, failures taken for successes |
//!
//! Threads stand for processes, and for devices, which write and compare upper halves of words and
//! do nothing else (`tests/interleavings/stream.rs`). A ledger beside the event records what really
//! happened, and every answer of the protocol is compared with it. In scenarios without deaths no
//! sleep times out, so that a lost wake-up is a deadlock, which the checker reports. Some scenarios have a
//! variant that breaks a rule, and a test that the checker finds it.
//!
//! Shuttle treats all memory orderings as sequentially consistent, and loom treats sequentially
//! consistent operations as acquire and release: neither replaces the other.
//!
//! # Running them
//! `cargo test -p crosshandle-counter-model`. `COUNTER_MODEL_EFFORT=100` tries a hundred times
//! the schedules, and `SHUTTLE_RANDOM_SEED=…` tries others. A failure prints its seed and its
//! schedule; `shuttle::replay` repeats it.
//!
//! # Changing the protocol
//! For every new rule of the protocol, add a scenario that fails without the rule: break the rule
//! in a copy, and see that the checker notices. The files of the protocol may use nothing but
//! `crate::platform`, and their unit tests belong outside their folder, since these programs
//! would compile them too.
