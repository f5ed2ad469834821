//! The handles of events that commands may signal again.
//!
//! `urEnqueueEventsWaitWithBarrierExt` takes a pointer to such a handle, or to wherever the caller
//! wants a new one. In the second case callers leave there what they had before, such as an event
//! that they have released. So the handle is looked up before it is followed. (Where the
//! handle of a released event is by now the address of a newer reusable event, the two cannot be told
//! apart: don't leave it there.)

use super::Event;
use crate::abi::boundary::{Argument, Call, MaybeOut, OutPointer};
use crate::abi::failure::Result;
use crate::abi::lock::Lock;
use crate::abi::object::Shared;
use crate::tuning::REUSABLE_EVENT_PLACE_BITS as PLACE_BITS;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use unified_runtime_sys::ur_event_handle_t;

/// The addresses of living events, each at the place that the address itself says, to be found with
/// one load: every signal looks here, in every thread. (`docs/unified-runtime.md` has what a set behind
/// a lock costs.)
static PLACES: [AtomicUsize; 1 << PLACE_BITS] = [const { AtomicUsize::new(0) }; 1 << PLACE_BITS];

/// The addresses of living events whose place was taken.
static OTHERS: Lock<BTreeSet<usize>> = Lock::new(BTreeSet::new());

/// Returns the place of an address.
#[inline]
fn place_of(address: usize) -> &'static AtomicUsize {
    // Fibonacci hashing: the upper bits depend on all of the address.
    let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &PLACES[(hash >> (u64::BITS - PLACE_BITS)) as usize]
}

/// Puts `new` where `old` is, and returns whether `old` was there. The contents of an event are
/// ordered by whatever orders the caller's uses of the event.
fn replace(place: &AtomicUsize, old: usize, new: usize) -> bool {
    place
        .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// The address at which an event is found, until it goes.
#[derive(Default)]
pub(super) struct Registration(AtomicUsize);

impl Drop for Registration {
    fn drop(&mut self) {
        let address = *self.0.get_mut();
        if address == 0 || replace(place_of(address), address, 0) {
            return;
        }
        let mut others = OTHERS.lock();
        // A thread that looked for the event may have given it its place before this thread had the
        // lock.
        if !others.remove(&address) {
            replace(place_of(address), address, 0);
        }
    }
}

impl Registration {
    /// Lets an address be found.
    fn enter(&self, address: usize) {
        self.0.store(address, Ordering::Relaxed);
        if !replace(place_of(address), 0, address) {
            OTHERS.lock().insert(address);
        }
    }
}

/// Lets an event be found.
pub(super) fn register(event: &Shared<Event>) {
    event.registration.enter(event.handle().addr());
}

/// An argument of an entry point: null, or a place with null, a handle, or what the caller had there
/// before; the event in it, if it is one that commands may signal again, stays alive during the call.
pub(crate) struct SignalledAgain;

impl Argument for SignalledAgain {
    type C = *mut ur_event_handle_t;
    type Value<'a> = (
        Option<OutPointer<'a, ur_event_handle_t>>,
        Option<&'a Shared<Event>>,
    );

    #[inline]
    unsafe fn read<'a>(place: Self::C, call: &'a Call) -> Result<Self::Value<'a>> {
        // SAFETY: null or valid for reads and writes, by the caller's promise.
        let (handle, place) = unsafe { (place.as_ref().copied(), MaybeOut::read(place, call)?) };
        let handle = handle.filter(|handle| is_live(handle.addr()));
        // SAFETY: it is the address of a living event, whose handle the caller therefore has, and
        // which stays alive during the call by his promise.
        let event = handle.map(|handle| unsafe { &*handle.cast::<Shared<Event>>() });
        Ok((place, event))
    }
}

/// Returns whether an address is one of a living event.
#[inline]
fn is_live(address: usize) -> bool {
    address != 0 && (place_of(address).load(Ordering::Relaxed) == address || is_other(address))
}

/// Returns whether an address is one of a living event whose place was taken.
#[cold]
fn is_other(address: usize) -> bool {
    let mut others = OTHERS.lock();
    let is_other = others.contains(&address);
    // The place may be free by now.
    if is_other && replace(place_of(address), 0, address) {
        others.remove(&address);
    }
    // Another thread may have moved it there before this one had the lock.
    is_other || place_of(address).load(Ordering::Relaxed) == address
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::{ptr, thread};

    #[test]
    fn each_is_found_until_it_goes() {
        // Never followed: only their addresses count. More than there are places.
        let addresses = (1..3 << PLACE_BITS).map(|number| number * 64);
        let is_found = |address: &usize| {
            place_of(*address).load(Ordering::Relaxed) == *address || is_other(*address)
        };
        let mut kept: Vec<(usize, Registration)> = addresses
            .map(|address| {
                let registration = Registration::default();
                registration.enter(address);
                (address, registration)
            })
            .collect();
        assert!(kept.iter().all(|(address, _)| is_found(address)));
        let gone: Vec<_> = kept.drain(..8000).map(|(address, _)| address).collect();
        assert!(!gone.iter().any(is_found), "one that went is found");
        assert!(
            kept.iter().all(|(address, _)| is_found(address)),
            "one is lost"
        );
        let all: Vec<_> = kept.drain(..).map(|(address, _)| address).collect();
        assert!(!all.iter().any(is_found));
        assert!(OTHERS.lock().is_empty());
        none_stays_that_goes_while_it_is_looked_for();
    }

    /// Part of the other test, since both count all that there are.
    fn none_stays_that_goes_while_it_is_looked_for() {
        let address = 64;
        let same_place = |other: &usize| ptr::eq(place_of(*other), place_of(address));
        let other = (2..).map(|number| number * 64).find(same_place);
        let other = other.expect("there are more addresses than places");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // A program passes the handle of an event again and again, also when it has gone.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    is_other(other);
                }
            });
            let stays = (0..200_000).any(|_| {
                let (first, second) = (Registration::default(), Registration::default());
                first.enter(address);
                second.enter(other);
                drop(first);
                drop(second);
                place_of(other).load(Ordering::Relaxed) != 0
            });
            is_over.store(true, Ordering::Relaxed);
            assert!(!stays, "one that went is found");
        });
        assert!(OTHERS.lock().is_empty());
    }
}
