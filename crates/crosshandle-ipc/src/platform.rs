//! The machine that this process runs on, as the event protocol sees it.

#[cfg(fault_steps)]
mod fault_steps;

#[cfg(fault_steps)]
pub use fault_steps::{AtomicU32, AtomicU64};
pub use std::sync::atomic::Ordering;
#[cfg(not(fault_steps))]
pub use std::sync::atomic::{AtomicU32, AtomicU64};
pub use std::time::Instant;

use crosshandle_events::{Awaited, Platform};
#[cfg(not(fault_steps))]
use crosshandle_os::futex;
use crosshandle_os::{process, sleepers, yields};
#[cfg(fault_steps)]
use fault_steps as futex;
use std::time::Duration;

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug)]
pub enum Os {}

/// An event in shared memory.
pub type Slot = crosshandle_events::Slot<Os>;
pub type Target<'a> = crosshandle_events::Target<'a, Os>;
pub type Interrupt<'a> = crosshandle_events::Interrupt<'a, Os>;

const _: () = assert!(size_of::<Slot>() == 384 && align_of::<Slot>() == 128);

impl Platform for Os {
    type AtomicU32 = AtomicU32;
    type AtomicU64 = AtomicU64;
    type Instant = Instant;
    type Entry = Option<sleepers::Entry>;

    #[inline(always)]
    fn may_spin() -> bool {
        true
    }

    #[inline(always)]
    fn spin_hint() {
        std::hint::spin_loop();
    }

    #[inline]
    fn yield_cpu() -> bool {
        yields::yield_cpu()
    }

    #[inline]
    fn yielded(is_signalled: bool) {
        yields::note(is_signalled);
    }

    #[inline(always)]
    fn current_cpu() -> u32 {
        process::current_cpu()
    }

    #[inline]
    fn sleep(word: &AtomicU64, expected: u32, limit: Duration) {
        futex::sleep(word, expected, limit);
    }

    #[inline]
    fn sleep_any(words: &[(&AtomicU64, u32)], limit: Duration) {
        futex::sleep_any(words, limit);
    }

    #[inline]
    fn wake_all(word: &AtomicU64) {
        futex::wake_all(word);
    }

    #[inline]
    fn enter(awaited: impl IntoIterator<Item = Awaited>) -> Self::Entry {
        let awaited = awaited.into_iter();
        sleepers::enter(
            awaited.map(|Awaited { word, slot, number }| sleepers::Awaited { word, slot, number }),
        )
    }
}

/// Wakes all sleepers of a word in every process.
#[inline]
pub fn wake_all(word: &AtomicU64) {
    Os::wake_all(word);
}
