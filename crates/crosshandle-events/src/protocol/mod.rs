//! The event protocol: counters in shared memory by which processes and devices signal and wait.
//!
//! An event is one [`Slot`]. `issued` counts the submitted signals. A waiter takes the number of
//! the latest signal, and is released when that signal is complete. So every wait belongs to one
//! signal, and signals of several queues and processes complete independently. The top of `slot.rs`
//! documents the layout of a slot and the meaning of every bit.
//!
//! # Roles
//! - A **submitter** is the process that takes a signal's number.
//! - A **signaller** is the host thread or the device that completes the signal. It belongs to the
//!   submitter.
//! - A **waiter** is a host thread that waits for a number. A **sleeper** is a waiter that sleeps
//!   in a futex.
//! - A **device** writes and compares 32-bit words on behalf of the process that submitted the
//!   command.
//! - A **survivor** is a process that finds the submitter of an unfinished signal dead.
//! - An **owner** is the 12-bit number that identifies an attached process in a slot.
//!
//! # Two ways to signal
//! *Immediately*: if no earlier signal is unfinished, a host signaller advances `issued` with its
//! `COMPLETE` bit set. All signals up to that number are then complete. The step is one atomic
//! operation, so a process that is killed at any point leaves nothing half done.
//!
//! *By submission*: the submitter of a command takes number *n* (`COMPLETE` is clear). When the
//! command is done, its signaller stores *n* in completion word `n mod 7`. A GPU can do that with a
//! plain 32-bit write, and can wait with one comparison, on the same words that the host uses.
//! Before the first such number is taken, the words catch up with `issued` ([`Slot::issue`]), so
//! they are exact whenever `COMPLETE` is clear.
//!
//! # Words
//! `issued` holds the latest number in its upper 50 bits. Below it are `WATCHED`, `COMPLETE`, and
//! the owner in 12 bits. `WATCHED` means that a waiter sleeps, or a device waits, until a number
//! that no submitter has taken yet. Taking a number and recording its owner is therefore one atomic
//! operation.
//!
//! The upper half of a completion word holds the lower 32 bits of its latest finished number, which
//! are compared cyclically. The lower half holds the number of sleepers and the `FAILED` bit. A
//! host signaller completes a signal with one compare-and-swap that also sets the number of
//! sleepers to zero. The old value shows whether the signaller must wake sleepers. A killed sleeper
//! therefore costs one needless wake call and is then forgotten.
//!
//! # Order
//! Signals that share a word complete in order: *n + 7* is stored only after *n*. An early attempt
//! to complete *n + 7* returns [`Completion::TooEarly`]. The submitter then retries later on its
//! own thread, so another process's signal never blocks a caller.
//!
//! # Death
//! `runs` records where the owner changed. A submitter may take a number after an unfinished number
//! of another owner. It first records where that owner's run of numbers ended. From `runs` a
//! survivor learns the owner of an unfinished signal, and completes a dead process's signals with
//! the `FAILED` bit set ([`Slot::fail_orphans`]).
//!
//! A number that no submitter has taken is *abandoned* when no other process is left that could
//! take it ([`Liveness::is_abandoned`]). The exporter records in `flags` which process was the
//! latest to end with the event open (`deaths.rs`).
//!
//! # Devices
//! A device can only write the upper half of a word, or wait for the upper half of a word
//! ([`device`]). Four fields make up for the rest:
//! - `max_device_wait` records a device's wait for a number that no submitter has taken yet.
//!   Immediate signals up to that number then also write the words.
//! - A device wakes no sleeper. A bit in `flags` says that devices signal the event, and its
//!   sleepers then sleep in short steps.
//! - A device must write the words in order, so its submitter first lets it wait until the word has
//!   reached the number before ([`Slot::may_write`]).
//! - The device of a killed process runs for a moment longer, and may set a word back. `finished`
//!   records how far the word had advanced.
//!
//! # Code on devices
//! A kernel can store a completion word, but it cannot take a number, because GPUs have no atomic
//! operation with the host. An event with a single signaller has numbers that its creator took
//! ahead ([`Slot::take_ahead`]), and the kernel counts by itself.
//!
//! # Allowed dependencies
//! Atomics, futexes, the clock and the CPU number come from a [`Platform`](crate::Platform) alone.
//! The model checkers (`crates/counter-model`) run the protocol on their own platforms.

mod await_set;
mod backoff;
mod deaths;
mod device;
mod native_mirror;
mod recovery;
mod signal;
mod single_signaller;
mod slot;
mod ticket;
mod tuning;
mod wait;

pub use await_set::{AwaitKey, AwaitSet, Settled, Sleeps, Subject};
pub use device::DeviceWait;
pub use native_mirror::Promise;
pub use recovery::{Liveness, MAX_SURVIVOR_ROUNDS, Unfinished};
pub use signal::{Completion, IssueError, Signalled};
pub use slot::{FailureReason, Owner, RING, Slot, WINDOW};
pub use ticket::Ticket;
pub use wait::{Interrupt, Outcome, Target, WaitError, WaitMode, wait_any};
