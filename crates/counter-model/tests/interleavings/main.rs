//! The event protocol under many interleavings (shuttle).

mod check;
mod dead_devices;
mod death;
mod devices;
mod ledger;
mod mirrors;
mod platform;
mod release;
mod reuse;
mod runs;
mod stream;
mod wake_ups;
mod world;
mod wrap;

#[path = "../../../crosshandle/src/event_protocol/mod.rs"]
#[allow(dead_code, unused_imports, reason = "all that the library uses of it")]
mod event_protocol;

#[path = "../../../crosshandle/src/ipc/open_count.rs"]
mod open_count;

/// Spinning adds steps and no transitions: the other test program has it.
pub(crate) const MAY_SPIN: bool = false;

/// How many of the schedules that a scenario asks for to try here.
pub(crate) const PERCENT: usize = 100;
