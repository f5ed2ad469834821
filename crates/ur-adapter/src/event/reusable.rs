//! The handles of events that commands may signal again.
//!
//! `urEnqueueEventsWaitWithBarrierExt` takes a pointer to such a handle, or to memory for a new
//! handle. In the second case, callers may leave an old value there, such as the handle of an event
//! that they have released. So the handle is looked up before it is dereferenced. If the address of
//! a released event is reused for a newer reusable event, the two cannot be distinguished. Callers
//! must not leave such a handle there.

use super::Event;
use crate::abi::boundary::{Argument, Call, MaybeOut, OutPointer};
use crate::abi::failure::Result;
use crate::abi::lock::Lock;
use crate::abi::object::Shared;
use crate::tuning::REUSABLE_EVENT_PLACE_BITS as PLACE_BITS;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use unified_runtime_sys::ur_event_handle_t;

/// The addresses of living reusable events.
///
/// The slot of an event follows from its address, so one load finds the event. Every signal on
/// every thread reads this table. `docs/unified-runtime.md` says how much a set behind a lock would
/// cost.
static PLACES: [AtomicUsize; 1 << PLACE_BITS] = [const { AtomicUsize::new(0) }; 1 << PLACE_BITS];

/// The addresses of living events whose slot was taken.
static OTHERS: Lock<BTreeSet<usize>> = Lock::new(BTreeSet::new());

/// Returns the slot that an address belongs to.
#[inline]
fn place_of(address: usize) -> &'static AtomicUsize {
    // Fibonacci hashing makes the upper bits depend on the whole address.
    let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &PLACES[(hash >> (u64::BITS - PLACE_BITS)) as usize]
}

/// Replaces `old` by `new` in a slot, and returns whether the slot contained `old`. The operation
/// does not order accesses to the event, so the caller must order them.
fn replace(place: &AtomicUsize, old: usize, new: usize) -> bool {
    place
        .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// The registration of an event's address, which ends on drop.
#[derive(Default)]
pub(super) struct Registration(AtomicUsize);

impl Drop for Registration {
    fn drop(&mut self) {
        let address = *self.0.get_mut();
        if address == 0 || replace(place_of(address), address, 0) {
            return;
        }
        let mut others = OTHERS.lock();
        // A thread that searched for the event may have moved it to its slot before this thread got
        // the lock.
        if !others.remove(&address) {
            replace(place_of(address), address, 0);
        }
    }
}

impl Registration {
    /// Stores an address in its slot, or in `OTHERS` if the slot is taken.
    fn enter(&self, address: usize) {
        self.0.store(address, Ordering::Relaxed);
        if !replace(place_of(address), 0, address) {
            OTHERS.lock().insert(address);
        }
    }
}

/// Adds an event to the set of living reusable events.
pub(super) fn register(event: &Shared<Event>) {
    event.registration.enter(event.handle().addr());
}

/// An argument of an entry point: null, or a pointer to null, to a handle, or to an old value. If
/// the value is the handle of a reusable event, that event stays alive during the call.
pub(crate) struct SignalledAgain;

impl Argument for SignalledAgain {
    type C = *mut ur_event_handle_t;
    type Value<'a> = (
        Option<OutPointer<'a, ur_event_handle_t>>,
        Option<&'a Shared<Event>>,
    );

    #[inline]
    unsafe fn read<'a>(place: Self::C, call: &'a Call) -> Result<Self::Value<'a>> {
        // SAFETY: the caller ensures that the pointer is null or valid for reads and writes.
        let (handle, place) = unsafe { (place.as_ref().copied(), MaybeOut::read(place, call)?) };
        let handle = handle.filter(|handle| is_live(handle.addr()));
        // SAFETY: the handle is the address of a living event. The caller ensures that the event
        // stays alive during the call.
        let event = handle.map(|handle| unsafe { &*handle.cast::<Shared<Event>>() });
        Ok((place, event))
    }
}

#[inline]
fn is_live(address: usize) -> bool {
    address != 0 && (place_of(address).load(Ordering::Relaxed) == address || is_other(address))
}

/// Returns whether an address belongs to a living event whose slot was taken.
#[cold]
fn is_other(address: usize) -> bool {
    let mut others = OTHERS.lock();
    let is_other = others.contains(&address);
    // The slot may have become free since the event was registered.
    if is_other && replace(place_of(address), 0, address) {
        others.remove(&address);
    }
    // Another thread may have moved the event to its slot before this thread got the lock.
    is_other || place_of(address).load(Ordering::Relaxed) == address
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::{ptr, thread};

    #[test]
    fn each_is_found_until_it_goes() {
        // The addresses are never dereferenced. There are more addresses than slots.
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

    /// Checks that a removed address is not found while another thread looks up an address with the
    /// same slot. The test above calls this function, because both of them count all entries.
    fn none_stays_that_goes_while_it_is_looked_for() {
        let address = 64;
        let same_place = |other: &usize| ptr::eq(place_of(*other), place_of(address));
        let other = (2..).map(|number| number * 64).find(same_place);
        let other = other.expect("there are more addresses than places");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // This thread acts like a program that keeps passing the handle of an event after the
            // event has ended.
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
