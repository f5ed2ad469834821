//! The table of events that commands may signal repeatedly.
//!
//! `urEnqueueEventsWaitWithBarrierExt` takes a pointer to the handle of a reusable event, or to
//! memory for a new handle. In the second case, the memory may contain an old value, such as the
//! handle of a released event. So the adapter looks up the value before dereferencing it. If a
//! newer reusable event has the same address as the released event, the adapter cannot distinguish
//! the two. Callers must not leave such a value in the memory.

use super::Event;
use crate::abi::boundary::{Argument, Call, MaybeOut, OutPointer};
use crate::abi::failure::Result;
use crate::abi::lock::Lock;
use crate::abi::object::Shared;
use REUSABLE_EVENT_PLACE_BITS as PLACE_BITS;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use unified_runtime_sys::ur_event_handle_t;

/// Base-2 logarithm of the number of slots in the table of reusable events. The table occupies 32
/// KiB in every process. Looking up an event that has no slot requires a lock.
const REUSABLE_EVENT_PLACE_BITS: u32 = 12;

/// The addresses of living reusable events.
///
/// The hash of an event's address selects its slot, so one load usually finds the event. Every
/// signal on every thread reads this table. `docs/unified-runtime.md` shows how much a set behind a
/// lock would cost.
static PLACES: [AtomicUsize; 1 << PLACE_BITS] = [const { AtomicUsize::new(0) }; 1 << PLACE_BITS];

/// The addresses of living events whose slots contained another event when they were registered.
static OTHERS: Lock<BTreeSet<usize>> = Lock::new(BTreeSet::new());

/// Returns the slot for an address.
#[inline]
fn place_of(address: usize) -> &'static AtomicUsize {
    // Fibonacci hashing makes the upper bits depend on the whole address.
    let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &PLACES[(hash >> (u64::BITS - PLACE_BITS)) as usize]
}

/// Replaces `old` by `new` in a slot if the slot contains `old`, and returns whether it did. The
/// operation does not order accesses to the event, so the caller must order them.
fn replace(place: &AtomicUsize, old: usize, new: usize) -> bool {
    place
        .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// The registration of an event's address. Dropping it removes the address from the table.
#[derive(Default)]
pub(super) struct Registration(AtomicUsize);

impl Drop for Registration {
    fn drop(&mut self) {
        let address = *self.0.get_mut();
        if address == 0 || replace(place_of(address), address, 0) {
            return;
        }
        let mut others = OTHERS.lock();
        // Before this thread acquired the lock, a thread that looked up the address may have moved
        // it to its slot.
        if !others.remove(&address) {
            replace(place_of(address), address, 0);
        }
    }
}

impl Registration {
    /// Stores an address in its slot. If the slot contains another address, stores it in `OTHERS`.
    fn enter(&self, address: usize) {
        self.0.store(address, Ordering::Relaxed);
        if !replace(place_of(address), 0, address) {
            OTHERS.lock().insert(address);
        }
    }
}

/// Adds an event to the table of living reusable events.
pub(super) fn register(event: &Shared<Event>) {
    event.registration.enter(event.handle().addr());
}

/// An argument of an entry point: null, or a pointer to a value that may be null, a handle, or
/// invalid. If the value is the handle of a reusable event, the caller keeps that event alive
/// during the call.
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

/// Returns whether an address belongs to a living reusable event.
#[inline]
fn is_live(address: usize) -> bool {
    address != 0 && (place_of(address).load(Ordering::Relaxed) == address || is_other(address))
}

/// Returns whether an address belongs to a living reusable event that was not found in its slot.
#[cold]
fn is_other(address: usize) -> bool {
    let mut others = OTHERS.lock();
    let is_other = others.contains(&address);
    // The slot may have become free since the event was registered.
    if is_other && replace(place_of(address), 0, address) {
        others.remove(&address);
    }
    // Before this thread acquired the lock, another thread may have moved the address to its slot.
    is_other || place_of(address).load(Ordering::Relaxed) == address
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::{ptr, thread};

    #[test]
    fn each_is_found_until_it_goes() {
        // The test never dereferences these addresses. It uses more addresses than slots.
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

    /// Checks that an ended registration is never found while another thread looks up an address
    /// with the same slot. The test above calls this function, because both of them require that no
    /// other thread uses the table.
    fn none_stays_that_goes_while_it_is_looked_for() {
        let address = 64;
        let same_place = |other: &usize| ptr::eq(place_of(*other), place_of(address));
        let other = (2..).map(|number| number * 64).find(same_place);
        let other = other.expect("there are more addresses than places");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // This thread acts like a program that keeps passing the handle of a released event.
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
