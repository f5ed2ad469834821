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

/// The event protocol on this program's platform.
mod event_protocol {
    pub(crate) use crosshandle_events::*;

    pub(crate) type Slot = crosshandle_events::Slot<crate::platform::Shuttle>;
    pub(crate) type Target<'a> = crosshandle_events::Target<'a, crate::platform::Shuttle>;
}

/// Whether waiters spin before they sleep.
pub(crate) const MAY_SPIN: bool = true;
/// Percentage of each scenario's schedules that this program tries. `interleavings` runs the same
/// scenarios in full.
pub(crate) const PERCENT: usize = 20;
