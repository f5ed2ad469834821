//! The event protocol under many interleavings (shuttle).

/// Defines tests, each of which [checks](check::check) a scenario under a number of schedules.
macro_rules! cases {
    ($($(#[$meta:meta])* $name:ident: $schedules:literal, $scenario:expr;)*) => {$(
        $(#[$meta])*
        #[test]
        fn $name() {
            $crate::check::check($schedules, || $scenario);
        }
    )*};
}

mod awaiting;
mod channel;
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

/// The event protocol on this program's platform.
mod event_protocol {
    pub(crate) use crosshandle_events::*;

    pub(crate) type Slot = crosshandle_events::Slot<crate::platform::Shuttle>;
    pub(crate) type Target<'a> = crosshandle_events::Target<'a, crate::platform::Shuttle>;
}

/// Whether waiters spin before they sleep. Spinning adds steps but no transitions, and the program
/// `spinning` covers it.
pub(crate) const MAY_SPIN: bool = false;

/// Percentage of each scenario's schedules that this program tries.
pub(crate) const PERCENT: usize = 100;
