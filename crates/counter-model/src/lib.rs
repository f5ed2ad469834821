//! The model checker of the event protocol.
//!
//! Events are counters in memory that several processes share, and the protocol on them
//! (`crates/crosshandle/src/event_protocol/`) must hold whoever runs when, and whoever dies when. The
//! test programs of this package compile *the library's own files* against machines of their own,
//! on which a checker decides who runs next:
//!
//! | program | checker | what it looks for |
//! |---|---|---|
//! | `tests/interleavings` | shuttle: many random and PCT schedules, the same ones every time | lost wake-ups, early releases, signals failed that were not, hangs after a death at any step, counting past 2³², slots reused while they are open; devices that wait for ever, are released early or undo what others did |
//! | `tests/spinning` | the same, with waiters that spin first | the same, without deaths |
//! | `tests/orderings` | loom: all executions of small scenarios, up to some preemptions | what the memory orderings allow: data not visible after a wait, failures taken for successes |
//!
//! Threads stand for processes, and for devices, which write and compare upper halves of words and
//! can do nothing else (`tests/interleavings/stream.rs`). A ledger beside the event keeps what really happened, and every
//! answer of the protocol is compared with it. Where nobody dies, nobody's sleep ends by itself,
//! so that a wake-up that is lost is a deadlock, which the checker reports.
//!
//! Shuttle takes all memory orderings for sequentially consistent, and loom takes sequentially
//! consistent for acquire and release: neither replaces the other.
//!
//! # Running them
//! `cargo test -p crosshandle-counter-model`. `COUNTER_MODEL_EFFORT=100` tries a hundred times
//! the schedules, and `SHUTTLE_RANDOM_SEED=…` others. A failure prints its seed and its schedule;
//! `shuttle::replay` repeats it.
//!
//! # Changing the protocol
//! Whoever adds a rule to the protocol adds a scenario that fails without it: break the rule in a
//! copy, and see that the checker notices. The files of the protocol may use nothing but
//! `crate::platform`, and their unit tests belong outside their folder, since these programs
//! would compile them too.
