//! The event protocol: counters in shared memory, and nothing else.
//!
//! An event is one [`Slot`]. `issued` counts the signals that were submitted. A waiter takes the
//! number of the latest signal and is released when that signal has completed. So every wait
//! belongs to one signal, and signals of several queues and processes complete independently.
//! The layout of a slot, with every bit's meaning, is at the top of `slot.rs`.
//!
//! # Roles
//! - A **submitter** is the process that takes a signal's number.
//! - A **signaller** is the host thread or the device that completes the signal. It belongs to
//!   the submitter.
//! - A **waiter** is a host thread that waits for a number. A **sleeper** is a waiter in a futex.
//! - A **device** writes and compares 32-bit words on behalf of the process that submitted to it.
//! - A **survivor** is a process that finds the submitter of an unfinished signal dead.
//! - An **owner** is the 12-bit number by which an attached process is known in a slot.
//!
//! # Two ways to signal
//! *Immediately*: while no earlier signal is unfinished, a host signaller moves `issued` on with
//! its `COMPLETE` bit set: all signals up to that number are complete. This is one atomic
//! operation, so a process that is killed at any point leaves nothing half done.
//!
//! *By submission*: the submitter of a command takes number *n* (`COMPLETE` clear), and the
//! command's signaller stores *n* in completion word `n mod 7` when the command is done. A GPU can
//! do that with a plain 32-bit write, and wait with one compare, on the words that the host uses.
//! Before the first such number is taken, the words catch up with `issued` ([`Slot::issue`]), so
//! that they are exact whenever `COMPLETE` is clear.
//!
//! # Words
//! `issued` holds the latest number in its upper 50 bits. Below it are `WATCHED` (a waiter sleeps
//! or a device waits until a number that no submitter has taken yet), `COMPLETE`, and the owner in
//! 12 bits. Taking a number and recording its owner are therefore one atomic operation.
//!
//! A completion word holds the lower 32 bits of its latest finished number in the upper half,
//! compared cyclically. The lower half holds the number of sleepers and the `FAILED` bit. A host
//! signaller completes by one compare-and-swap that also sets the number of sleepers to zero. The
//! old value says whether to wake anyone, so a sleeper that was killed costs one needless wake
//! call and is then forgotten.
//!
//! # Order
//! Signals that share a word complete in order: *n + 7* is stored only after *n*. An attempt to
//! complete *n + 7* earlier returns [`Completion::TooEarly`], and its submitter retries later on a
//! thread of its own, so that no caller is ever blocked by another process's signal.
//!
//! # Death
//! `runs` records where the owner changed: a submitter that takes a number after another owner's
//! unfinished one first writes down where that owner's run of numbers ended. From `runs` a
//! survivor learns the owner of an unfinished signal, and completes a dead process's signals with
//! the `FAILED` bit set ([`Slot::fail_orphans`]).
//!
//! A number that no submitter has taken is *abandoned* when no other process is left to take it
//! ([`Liveness::is_abandoned`]). The exporter notes in `flags` which process ended last with the event
//! open (`deaths.rs`).
//!
//! # Devices
//! A device writes the upper half of a word, waits for the upper half of a word, and does nothing
//! else ([`device`]). Four fields make up for that:
//! - A device's wait for a number that no submitter has taken is recorded in `max_device_wait`, so
//!   that immediate signals write the words then.
//! - A device wakes no sleeper. A bit in `flags` says that devices signal the event; its sleepers
//!   then sleep in short steps.
//! - A device must write the words in order, so its submitter lets it wait first until the word
//!   has reached the number before ([`Slot::may_write`]).
//! - The device of a process that was killed goes on for a moment, and may set a word back.
//!   `finished` keeps how far the word had been.
//!
//! # What this module may use
//! Atomics, futexes, the clock and the CPU number come from `crate::platform` alone. The model
//! checker (`crates/counter-model`) compiles these same files against platforms of its own.

mod await_set;
mod backoff;
mod deaths;
mod device;
mod native_mirror;
mod recovery;
mod signal;
mod slot;
mod ticket;
mod tuning;
mod wait;

pub(crate) use await_set::{AwaitKey, AwaitSet, Settled, Sleeps, Subject};
pub(crate) use device::DeviceWait;
pub(crate) use native_mirror::Promise;
pub(crate) use recovery::{Liveness, Unfinished};
pub(crate) use signal::{Completion, IssueError, Signalled};
pub(crate) use slot::{FailureReason, Owner, RING, Slot, WINDOW};
pub(crate) use ticket::Ticket;
pub(crate) use wait::{Interrupt, Outcome, Target, WaitError, WaitMode, wait_any};
