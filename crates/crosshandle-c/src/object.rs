//! Objects that C programs own.
//!
//! A C program has a pointer to the *slot* of an object. A slot starts with a tag, which names the
//! kind of the object or says that the object is closed. Slots are reused, but their memory is
//! never returned. A function can therefore read the tag of a closed object, and return an error
//! instead of using freed memory. Objects of another kind are detected in the same way.
//!
//! A closed object is no longer detected when its slot has been reused. A slot is reused only when
//! more than [`KEPT_CLOSED`] slots of its kind are closed, the one that was closed first.

use crate::error::{Failure, Result};
use crosshandle::adapter_support::PerProcess;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of closed slots of one kind that are not reused, so that their use is detected.
const KEPT_CLOSED: usize = 64;

/// The tag of a slot whose object is closed. Tags of open objects are other numbers.
const CLOSED: u32 = 0x5848_0000;

/// A type that C programs know only as a pointer.
pub(crate) trait Object: Sized + 'static {
    /// The object of the library.
    type Value: Send + Sync + 'static;
    /// The tag of open objects of this kind.
    const TAG: u32;
    /// The name of the kind in messages.
    const NAME: &str;

    fn closed_slots() -> &'static ClosedSlots<Self::Value>;
}

/// Makes a type an [`Object`]. The number must be unique.
macro_rules! object {
    ($object:ty, $value:ty, $number:literal, $name:literal) => {
        impl $crate::object::Object for $object {
            type Value = $value;
            const TAG: u32 = 0x5848_0000 + $number;
            const NAME: &str = $name;

            fn closed_slots() -> &'static $crate::object::ClosedSlots<$value> {
                static CLOSED: $crate::object::ClosedSlots<$value> =
                    $crate::object::ClosedSlots::new();
                &CLOSED
            }
        }
    };
}

pub(crate) use object;

/// The memory of one object. The tag comes first, so that it can be read without knowing the kind.
#[repr(C)]
pub(crate) struct Slot<T> {
    tag: AtomicU32,
    /// Initialised while the tag is that of an open object.
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: threads access the value only as `open`, `get` and `close` allow: `open` has the only
// reference to the slot, `get` gives shared references, and the program lets no other thread use an
// object that it closes.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// The closed slots of one kind, the one that was closed first in front. A forked child starts
/// without any, because another thread of its parent may have held the lock.
pub(crate) struct ClosedSlots<T: Send + Sync + 'static>(
    PerProcess<Mutex<VecDeque<&'static Slot<T>>>>,
);

impl<T: Send + Sync> ClosedSlots<T> {
    pub(crate) const fn new() -> Self {
        Self(PerProcess::new(Mutex::default))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<&'static Slot<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for reuse.
    fn take(&self) -> Option<&'static Slot<T>> {
        let mut closed = self.lock();
        match closed.len() > KEPT_CLOSED {
            true => closed.pop_front(),
            false => None,
        }
    }

    fn add(&self, slot: &'static Slot<T>) {
        self.lock().push_back(slot);
    }
}

/// Moves a value into a slot, and returns the object for the program.
pub(crate) fn open<T: Object>(value: T::Value) -> *mut T {
    let slot = T::closed_slots().take().unwrap_or_else(|| {
        Box::leak(Box::new(Slot {
            tag: AtomicU32::new(CLOSED),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }))
    });
    // SAFETY: the slot is new or was taken from the closed slots, so nothing else uses its value.
    unsafe { (*slot.value.get()).write(value) };
    slot.tag.store(T::TAG, Ordering::Release);
    std::ptr::from_ref(slot).cast::<T>().cast_mut()
}

/// Returns the value of an object.
///
/// # Errors
/// Returns an error for null, a closed object, and an object of another kind.
///
/// # Safety
/// `object` is null or was returned by [`open`] for any kind of object. It is not closed during
/// `'a`.
#[inline]
pub(crate) unsafe fn get<'a, T: Object>(object: *const T) -> Result<&'a T::Value> {
    // SAFETY: promised by the caller.
    let slot = unsafe { slot(object, Ordering::Acquire) }?;
    // SAFETY: the tag is that of this kind, so the value is initialised.
    Ok(unsafe { (*slot.value.get()).assume_init_ref() })
}

#[inline]
unsafe fn slot<T: Object>(object: *const T, order: Ordering) -> Result<&'static Slot<T::Value>> {
    if object.is_null() {
        return Err(Failure::NULL);
    }
    // SAFETY: the pointer is not null, so it is that of a slot, which starts with a tag and is
    // never freed.
    let tag = unsafe { &*object.cast::<AtomicU32>() }.load(order);
    if tag != T::TAG {
        return Err(not_open::<T>(tag));
    }
    // SAFETY: the tag shows that this is a slot of this kind.
    Ok(unsafe { &*object.cast::<Slot<T::Value>>() })
}

#[cold]
fn not_open<T: Object>(tag: u32) -> Failure {
    match tag {
        CLOSED => Failure::closed(T::NAME),
        _ => Failure::wrong_object(T::NAME),
    }
}

/// Closes an object, and returns its value. Null is allowed, and has no value.
///
/// # Errors
/// Returns an error for a closed object, and an object of another kind.
///
/// # Safety
/// As for [`get`]. No other thread uses the object.
pub(crate) unsafe fn close<T: Object>(object: *mut T) -> Result<Option<T::Value>> {
    if object.is_null() {
        return Ok(None);
    }
    // SAFETY: promised by the caller.
    let slot = unsafe { slot(object.cast_const(), Ordering::Relaxed) }?;
    let swapped = slot
        .tag
        .compare_exchange(T::TAG, CLOSED, Ordering::AcqRel, Ordering::Relaxed);
    swapped.map_err(not_open::<T>)?;
    // SAFETY: this thread has changed the tag from that of an open object, so the value is
    // initialised, and no other thread reads it out.
    let value = unsafe { (*slot.value.get()).assume_init_read() };
    T::closed_slots().add(slot);
    Ok(Some(value))
}

/// A value that one thread at a time uses. A second thread gets an error, and does not wait.
pub(crate) struct Exclusive<T> {
    is_in_use: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the flag lets one thread at a time access the value.
unsafe impl<T: Send> Sync for Exclusive<T> {}

/// Access to the value of an [`Exclusive`], which ends on drop.
pub(crate) struct Entered<'a, T>(&'a Exclusive<T>);

impl<T> Exclusive<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            is_in_use: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    #[inline]
    pub(crate) fn enter(&self) -> Result<Entered<'_, T>> {
        match self.is_in_use.swap(true, Ordering::Acquire) {
            false => Ok(Entered(self)),
            true => Err(Failure::IN_USE),
        }
    }
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this value has set the flag, so nothing else accesses the value.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.is_in_use.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::thread;

    struct Number {}
    object!(Number, u64, 0xf001, "number");
    struct Text {}
    object!(Text, String, 0xf002, "text");

    #[test]
    fn closed_and_confused_objects_are_detected() {
        let number = open::<Number>(7);
        let text = open::<Text>("seven".into());
        // SAFETY: both objects are slots, and only this thread uses them.
        unsafe {
            assert_eq!(get(number.cast_const()).ok(), Some(&7));
            assert!(get(text.cast::<Number>().cast_const()).is_err());
            assert!(close(text.cast::<Number>()).is_err());
            assert_eq!(close(text).ok(), Some(Some("seven".into())));
            assert!(close(text).is_err());
            assert!(get(text.cast_const()).is_err());
            assert_eq!(close(number).ok(), Some(Some(7)));
            assert_eq!(close::<Number>(std::ptr::null_mut()).ok(), Some(None));
        }
    }

    #[test]
    fn threads_that_open_and_close_objects_lose_no_slots() {
        struct Shared {}
        object!(Shared, u64, 0xf004, "shared");
        const THREADS: usize = 8;
        let own = || -> BTreeSet<usize> {
            let slots = (0..5000).map(|number| {
                let object = open::<Shared>(number);
                // SAFETY: the object is a slot, and only this thread uses it.
                assert_eq!(unsafe { close(object) }.ok(), Some(Some(number)));
                object.addr()
            });
            slots.collect()
        };
        let slots: BTreeSet<_> = thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(own));
            let slots = threads.map(|thread| thread.join().expect("no panic"));
            slots.into_iter().flatten().collect()
        });
        // A thread makes a slot only while no more than the kept ones are closed.
        assert!(slots.len() <= KEPT_CLOSED + THREADS, "{}", slots.len());
    }

    #[test]
    fn slots_are_reused_late() {
        struct Other {}
        object!(Other, u64, 0xf003, "other");
        let first = open::<Other>(0);
        // SAFETY: the objects are slots, and only this thread uses them.
        unsafe {
            close(first).ok().expect("open");
            for count in 0..KEPT_CLOSED {
                let next = open::<Other>(count as u64);
                assert_ne!(next, first);
                close(next).ok().expect("open");
            }
            assert_eq!(open::<Other>(1), first);
        }
    }
}
