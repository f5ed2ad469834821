//! The event protocol with waiters that spin before they sleep (shuttle).

#[path = "../interleavings/check.rs"]
mod check;
#[path = "../interleavings/ledger.rs"]
mod ledger;
#[path = "../interleavings/platform/mod.rs"]
#[allow(dead_code, unused_imports, reason = "used in part")]
mod platform;
#[path = "../interleavings/release.rs"]
#[allow(dead_code, reason = "used in part")]
mod release;
#[path = "../interleavings/wake_ups.rs"]
mod wake_ups;
#[path = "../interleavings/world.rs"]
#[allow(dead_code, reason = "used in part")]
mod world;

#[path = "../../../crosshandle-events/src/protocol/mod.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the library uses all of it"
)]
mod event_protocol;

/// Whether waiters spin before they sleep.
pub(crate) const MAY_SPIN: bool = true;
/// Percentage of each scenario's schedules that this program tries. `interleavings` runs the same
/// scenarios in full.
pub(crate) const PERCENT: usize = 20;
