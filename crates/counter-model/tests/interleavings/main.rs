//! The event protocol under many interleavings (shuttle).

mod awaiting;
mod check;
mod dead_devices;
mod death;
mod deserted;
mod devices;
mod halves;
mod hostile;
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

#[path = "../../../crosshandle-events/src/protocol/mod.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the library uses all of it"
)]
mod event_protocol;

#[path = "../../../crosshandle-ipc/src/open_count.rs"]
#[allow(unreachable_pub, reason = "public in the library")]
mod open_count;

/// Whether waiters spin before they sleep. Spinning adds steps but no transitions, and the program
/// `spinning` covers it.
pub(crate) const MAY_SPIN: bool = false;

/// Percentage of each scenario's schedules that this program tries.
pub(crate) const PERCENT: usize = 100;
