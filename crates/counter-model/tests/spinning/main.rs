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

#[path = "../../../crosshandle/src/event_protocol/mod.rs"]
#[allow(dead_code, unused_imports, reason = "all that the library uses of it")]
mod event_protocol;

pub(crate) const MAY_SPIN: bool = true;
/// The scenarios are those of the other test program.
pub(crate) const PERCENT: usize = 20;
