//! The event protocol: counters in shared memory, and nothing else.
//!
//! An event is one [`Slot`]. `issued` counts the signals that were submitted. A wait takes the
//! number of the latest one and is satisfied when that signal has completed; every wait belongs
//! to one signal, and signals of several queues and processes complete independently.
//!
//! # Two ways to complete
//! *At once*: a signal of the host, while nothing before it is unfinished, moves `issued` on with
//! its `COMPLETE` bit set: all signals up to that number are complete. One atomic operation, and
//! nothing that a process killed at any point could leave behind.
//!
//! *Later*: a command's signal takes number *n* when it is submitted (`COMPLETE` clear) and
//! stores *n* in completion word `n mod 7` when it is done. A GPU can do that with a plain 32-bit
//! write, and wait with one compare, on the words that the host uses. Before the first such
//! number is taken, the words catch up with `issued` ([`Slot::issue`]), so that they are exact
//! whenever `COMPLETE` is clear.
//!
//! # Words
//! `issued`: the number in the upper 50 bits; below it `WATCHED` (somebody sleeps until a number
//! that nobody has taken yet), `COMPLETE`, and the owner (an attached process) in 12 bits. Taking
//! a number and recording whose it is are therefore one atomic operation.
//!
//! A completion word: the lower 32 bits of the number in the upper half, compared cyclically; the
//! number of sleeping waiters and the failure mark in the lower half. Completing is one
//! compare-and-swap that also takes the sleepers out: its old value says whether to wake anyone,
//! and a sleeper that was killed costs one needless wake call and is then forgotten.
//!
//! # Order
//! Signals that share a word complete in order: *n + 7* stores only after *n* has. A signal that
//! comes too early is [`Completion::TooEarly`], and its submitter retries later on its own
//! thread, so that no caller is ever blocked by somebody else's signal.
//!
//! # Death
//! `runs` remembers where the owner changed: whoever takes a number after somebody else's
//! unfinished one first writes down where that owner's run ended. From it a survivor learns whose
//! an unfinished signal is, and completes a dead process's with the failure mark
//! ([`Slot::fail_orphans`]).
//!
//! # Devices
//! A device writes the upper half of a word, and waits for the upper half of a word, and nothing
//! else ([`device`]). So a wait of a device for a number that nobody has taken is noted in
//! `armed`: signals at once write the words then. A device waits before it writes until the word
//! has reached the number before. It wakes nobody: `marks` says so, and who sleeps on such an
//! event sleeps in short steps. And the device of a process that was killed goes on for a moment,
//! and may take a word back: `settled` tells how far it had been.
//!
//! # What this module may use
//! Atomics, futexes, the clock and the CPU number come from `crate::platform` alone. The model
//! checker compiles these same files against a platform of its own.

mod device;
mod nap;
mod native_mirror;
mod recovery;
mod signal;
mod slot;
mod ticket;
mod wait;

pub(crate) use device::DeviceWait;
pub(crate) use native_mirror::Promise;
pub(crate) use recovery::Liveness;
pub(crate) use signal::{Completion, IssueError, Signalled};
pub(crate) use slot::{FailureReason, Owner, RING, Slot};
pub(crate) use ticket::Ticket;
pub(crate) use wait::{Interrupt, Outcome, Target, WaitError, WaitMode, wait_any};
