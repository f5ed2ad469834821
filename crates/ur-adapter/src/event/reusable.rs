//! Which handles are of events that commands may signal again.
//!
//! `urEnqueueEventsWaitWithBarrierExt` takes a pointer to such a handle, or to wherever the caller
//! wants a new one. In the second case callers leave there what they had before, such as an event
//! that they have released. So the handle is looked up before it is followed. (Where such a handle
//! is by now the address of a newer reusable event, nobody can tell: don't leave it there.)

use super::Event;
use crate::object::{Ref, Shared};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use unified_runtime_sys::ur_event_handle_t;

/// The addresses of the living ones, each at the place that it says itself, to be found with one
/// load: every signal looks here, in every thread. (`docs/unified-runtime.md` has what a set behind
/// a lock costs.)
static PLACES: [AtomicUsize; 1 << PLACE_BITS] = [const { AtomicUsize::new(0) }; 1 << PLACE_BITS];
const PLACE_BITS: u32 = 12;

/// Those whose place was taken.
static OTHERS: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn others() -> MutexGuard<'static, BTreeSet<usize>> {
    OTHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
fn place_of(address: usize) -> &'static AtomicUsize {
    // Fibonacci hashing: the upper bits depend on all of the address.
    let hash = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &PLACES[(hash >> (u64::BITS - PLACE_BITS)) as usize]
}

/// Puts `new` where `old` is, unless something else is there. What is at an address is ordered by
/// whatever orders the caller's uses of the event.
fn replace(place: &AtomicUsize, old: usize, new: usize) -> bool {
    place
        .compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// Takes an event out again when it goes.
#[derive(Default)]
pub(super) struct Registration(AtomicUsize);

impl Drop for Registration {
    fn drop(&mut self) {
        let address = *self.0.get_mut();
        if address == 0 || replace(place_of(address), address, 0) {
            return;
        }
        let mut others = others();
        // Who looked for it may have given it its place before this thread had the lock.
        if !others.remove(&address) {
            replace(place_of(address), address, 0);
        }
    }
}

impl Registration {
    fn enter(&self, address: usize) {
        self.0.store(address, Ordering::Relaxed);
        if !replace(place_of(address), 0, address) {
            others().insert(address);
        }
    }
}

/// Lets an event be found.
pub(super) fn register(event: &Ref<Event>) {
    event.registration.enter(event.handle().addr());
}

/// The event behind a handle, if it is one that commands may signal again.
///
/// # Safety
/// If it is, it stays alive during `'a`.
#[inline]
pub(crate) unsafe fn find<'a>(handle: ur_event_handle_t) -> Option<&'a Shared<Event>> {
    let address = handle.addr();
    let is_live =
        address != 0 && (place_of(address).load(Ordering::Relaxed) == address || is_other(address));
    // SAFETY: it is the address of an event, which lives on by the caller's promise.
    is_live.then(|| unsafe { &*handle.cast::<Shared<Event>>() })
}

#[cold]
fn is_other(address: usize) -> bool {
    let mut others = others();
    let is_other = others.contains(&address);
    // Its place may be free by now.
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
        assert!(others().is_empty());
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
            // Somebody passes the handle of an event again and again, also when it has gone.
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
        assert!(others().is_empty());
    }
}
