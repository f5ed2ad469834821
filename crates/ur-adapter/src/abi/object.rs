//! Handles of UR, and their reference counts.
//!
//! A handle is the address of a [`Shared`] object: the pointer that [`Arc::into_raw`] returned when
//! the object was created. The first word of the object points to the adapter's table, which the
//! loader needs. `Retain` and `Release` change UR's reference count, which queries report. While
//! this count is above zero, UR holds one [`Ref`]. Objects refer to each other by further `Ref`s.
//! So a queue keeps its context alive even after UR has released the context.

use super::boundary::{Argument, Argument2, Call, enter};
use super::failure::{Failure, Result};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};
use unified_runtime_sys::{ur_dditable_t, ur_result_t};

static TABLE: OnceLock<&'static ur_dditable_t> = OnceLock::new();

/// Sets the table of new objects. Only the first call has an effect. The loader cannot use objects
/// that were created before, as in unit tests.
pub(crate) fn set_table(table: &'static ur_dditable_t) {
    TABLE.get_or_init(|| table);
}

/// An object that a handle refers to. Only [`Shared::new`] creates such objects, so each object is
/// in an [`Arc`].
#[repr(C)]
pub(crate) struct Shared<T> {
    /// The table that the loader reads, or null if no loader has fetched the tables.
    table: Option<&'static ur_dditable_t>,
    /// The handle: the pointer that `Arc::into_raw` returned for this object. It is stored because
    /// only such a pointer may be given back to the `Arc`. A pointer made from a reference may not.
    raw: AtomicPtr<Self>,
    references: AtomicU32,
    value: T,
}

/// Keeps an object alive, independent of UR's reference count.
pub(crate) type Ref<T> = Arc<Shared<T>>;

/// A kind of object for which UR has handles.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    /// UR's type for the object behind a handle.
    type Opaque;

    const NULL_IN_LIST: ur_result_t = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
}

impl<T: Object> Shared<T> {
    /// Creates an object without a reference from UR.
    pub(crate) fn new(value: T) -> Ref<T> {
        let raw = Arc::into_raw(Arc::new(Self {
            table: TABLE.get().copied(),
            raw: AtomicPtr::new(null_mut()),
            references: AtomicU32::new(0),
            value,
        }));
        // SAFETY: the line above turned the object's only `Ref` into this pointer.
        let this = unsafe { Arc::from_raw(raw) };
        this.raw.store(raw.cast_mut(), Ordering::Relaxed);
        this
    }

    /// Returns a handle for the caller, and counts one more reference.
    pub(crate) fn hand_out(this: Ref<T>) -> *mut T::Opaque {
        let handle = this.handle();
        if this.references.fetch_add(1, Ordering::Relaxed) == 0 {
            // UR owns this `Ref` until the last release.
            let _ = Arc::into_raw(this);
        }
        handle
    }

    /// Returns the handle without counting a reference.
    #[inline]
    pub(crate) fn handle(&self) -> *mut T::Opaque {
        self.raw.load(Ordering::Relaxed).cast()
    }

    /// Returns UR's reference count.
    pub(crate) fn references(&self) -> u32 {
        self.references.load(Ordering::Relaxed)
    }

    /// Returns the object behind a handle.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_HANDLE`.
    ///
    /// # Safety
    /// The handle must be null or refer to an object of this type that stays alive during `'a`.
    #[inline]
    pub(crate) unsafe fn from_handle<'a>(handle: *mut T::Opaque) -> Result<&'a Self> {
        // SAFETY: the caller ensures that the handle is null or the address of such an object.
        unsafe { handle.cast::<Self>().as_ref() }.ok_or(Failure::NULL_HANDLE)
    }

    /// Returns one more `Ref` to this object.
    #[inline]
    pub(crate) fn to_ref(&self) -> Ref<T> {
        let raw = self.raw.load(Ordering::Relaxed).cast_const();
        // SAFETY: `new` creates all objects, and got the pointer from `Arc::into_raw`. The object
        // is borrowed, so a `Ref` keeps it alive. The new `Ref` owns the count that is added here.
        unsafe {
            Arc::increment_strong_count(raw);
            Arc::from_raw(raw)
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

/// The target of a handle argument: an object, or a particular kind of an object.
pub(crate) trait Referent {
    /// UR's type for the object behind the handle.
    type Handle;
    /// The reference that the body of an entry point gets.
    type Reference<'a>;

    /// Returns the target of a handle.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_HANDLE`, or the object's own result for the wrong kind.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`Shared::from_handle`].
    unsafe fn behind<'a>(handle: *mut Self::Handle) -> Result<Self::Reference<'a>>;
}

impl<T: Object> Referent for T {
    type Handle = T::Opaque;
    type Reference<'a> = &'a Shared<T>;

    #[inline]
    unsafe fn behind<'a>(handle: *mut T::Opaque) -> Result<&'a Shared<T>> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { Shared::from_handle(handle) }
    }
}

/// An argument of an entry point: a handle.
pub(crate) struct Handle<T>(PhantomData<T>);

impl<T: Referent> Argument for Handle<T> {
    type C = *mut T::Handle;
    type Value<'a> = T::Reference<'a>;

    #[inline]
    unsafe fn read<'a>(handle: Self::C, _call: &'a Call) -> Result<T::Reference<'a>> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { T::behind(handle) }
    }
}

/// An argument of an entry point: a handle, or null.
pub(crate) struct MaybeHandle<T>(PhantomData<T>);

impl<T: Object> Argument for MaybeHandle<T> {
    type C = *mut T::Opaque;
    type Value<'a> = Option<&'a Shared<T>>;

    #[inline]
    unsafe fn read(handle: Self::C, _call: &Call) -> Result<Option<&Shared<T>>> {
        // SAFETY: the caller upholds this function's contract.
        Ok(unsafe { Shared::from_handle(handle) }.ok())
    }
}

/// An argument of an entry point: the number of handles, and their address.
pub(crate) struct Handles<T>(PhantomData<T>);

impl<T: Object> Argument2 for Handles<T> {
    type A = u32;
    type B = *const *mut T::Opaque;
    type Value<'a> = HandleList<'a, T>;

    #[inline]
    unsafe fn read<'a>(count: u32, first: Self::B, _call: &'a Call) -> Result<HandleList<'a, T>> {
        // SAFETY: the caller upholds this function's contract.
        let handles = unsafe { super::boundary::list(first, count as usize) }?;
        if handles.iter().any(|handle| handle.is_null()) {
            return Err(Failure::of(T::NULL_IN_LIST));
        }
        Ok(HandleList { handles })
    }
}

/// The same argument as [`Handles`], passed by a mutable pointer.
pub(crate) struct HandlesMut<T>(PhantomData<T>);

impl<T: Object> Argument2 for HandlesMut<T> {
    type A = u32;
    type B = *mut *mut T::Opaque;
    type Value<'a> = HandleList<'a, T>;

    unsafe fn read<'a>(count: u32, first: Self::B, call: &'a Call) -> Result<HandleList<'a, T>> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { Handles::read(count, first.cast_const(), call) }
    }
}

/// Non-null handles of objects that live during `'a`.
pub(crate) struct HandleList<'a, T: Object> {
    handles: &'a [*mut T::Opaque],
}

impl<'a, T: Object> HandleList<'a, T> {
    pub(crate) const fn empty() -> Self {
        Self { handles: &[] }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// Returns the objects behind the handles.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a Shared<T>> + use<'a, T> {
        // SAFETY: only `read` creates lists with handles. It has checked that none of them is null,
        // and its caller promises that their objects live during `'a`.
        self.handles
            .iter()
            .map(|handle| unsafe { &*handle.cast::<Shared<T>>() })
    }
}

/// The entry point `Retain` of an object.
pub(crate) unsafe extern "C" fn retain<T: Object>(handle: *mut T::Opaque) -> ur_result_t {
    enter(|_| {
        // SAFETY: the caller passes null or a handle of this kind.
        unsafe { retain_once::<T>(handle) }
    })
}

/// Adds one to UR's references of an object.
///
/// # Errors
/// Returns `INVALID_NULL_HANDLE`.
///
/// # Safety
/// The caller must uphold the contract of [`Shared::from_handle`].
pub(crate) unsafe fn retain_once<T: Object>(handle: *mut T::Opaque) -> Result<()> {
    // SAFETY: the caller upholds this function's contract.
    let object = unsafe { Shared::<T>::from_handle(handle) }?;
    if object.references.fetch_add(1, Ordering::Relaxed) == 0 {
        // UR's count was 0, and only another object kept this object alive, as an event keeps its
        // queue. Now UR holds a `Ref` again.
        let _ = Arc::into_raw(object.to_ref());
    }
    Ok(())
}

/// The entry point `Release` of an object.
pub(crate) unsafe extern "C" fn release<T: Object>(handle: *mut T::Opaque) -> ur_result_t {
    enter(|_| {
        // SAFETY: the caller passes null or a handle of this kind.
        unsafe { release_once::<T>(handle) }
    })
}

/// Removes one of UR's references. With the last one, UR's `Ref` ends.
///
/// # Errors
/// Returns `INVALID_NULL_HANDLE`.
///
/// # Safety
/// The handle must be null, or refer to an object of this type to which UR has a reference.
pub(crate) unsafe fn release_once<T: Object>(handle: *mut T::Opaque) -> Result<()> {
    // SAFETY: the caller upholds this function's contract. The object is not used after its last
    // reference has ended.
    let object = unsafe { Shared::<T>::from_handle(handle) }?;
    if object.references.fetch_sub(1, Ordering::Release) == 1 {
        fence(Ordering::Acquire);
        let raw = object.raw.load(Ordering::Relaxed).cast_const();
        // SAFETY: `Arc::into_raw` returned this pointer when the object was created. UR's `Ref`,
        // which `hand_out` or `retain` made and which ends here, keeps the object alive.
        unsafe { Arc::decrement_strong_count(raw) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// An object that counts how often it is dropped.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Object for Counted {
        type Opaque = u8;
    }

    fn counted() -> (Ref<Counted>, Arc<AtomicUsize>) {
        let drops = Arc::new(AtomicUsize::new(0));
        (Shared::new(Counted(Arc::clone(&drops))), drops)
    }

    const OK: ur_result_t = ur_result_t::UR_RESULT_SUCCESS;

    #[test]
    fn an_object_goes_with_its_last_reference() {
        let (object, drops) = counted();
        let handle = Shared::hand_out(object);
        // SAFETY: the handle is alive until its last release.
        unsafe {
            assert_eq!(retain::<Counted>(handle), OK);
            let object = Shared::<Counted>::from_handle(handle).unwrap();
            assert_eq!((object.references(), object.handle()), (2, handle));
            assert_eq!(release::<Counted>(handle), OK);
            assert_eq!(drops.load(Ordering::Relaxed), 0);
            assert_eq!(release::<Counted>(handle), OK);
        }
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_ref_made_of_a_borrow_keeps_the_object() {
        let (object, drops) = counted();
        let handle = Shared::hand_out(object);
        // SAFETY: the handle is alive.
        let kept = unsafe { Shared::<Counted>::from_handle(handle) }
            .unwrap()
            .to_ref();
        // SAFETY: the handle is alive.
        assert_eq!(unsafe { release::<Counted>(handle) }, OK);
        assert_eq!((drops.load(Ordering::Relaxed), kept.references()), (0, 0));
        // UR gets a reference to the object again, as when a query returns the handle of an object
        // that only another object keeps. SAFETY: `kept` keeps the object alive.
        assert_eq!(unsafe { retain::<Counted>(kept.handle()) }, OK);
        drop(kept);
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        // SAFETY: UR has one reference to the object.
        assert_eq!(unsafe { release::<Counted>(handle) }, OK);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn threads_may_retain_and_release_at_once() {
        let (object, drops) = counted();
        thread::scope(|scope| {
            for _ in 0..4 {
                let object = &object;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let handle = Shared::hand_out(object.to_ref());
                        // SAFETY: `object` keeps the handle's object alive.
                        unsafe {
                            assert_eq!(retain::<Counted>(handle), OK);
                            assert_eq!(release::<Counted>(handle), OK);
                            assert_eq!(release::<Counted>(handle), OK);
                        }
                    }
                });
            }
        });
        assert_eq!((object.references(), Arc::strong_count(&object)), (0, 1));
        drop(object);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn null_is_no_handle() {
        let null = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
        // SAFETY: both functions accept null.
        unsafe {
            assert_eq!(retain::<Counted>(null_mut()), null);
            assert_eq!(release::<Counted>(null_mut()), null);
        }
    }

    #[test]
    fn lists_of_handles_are_checked() {
        let (object, _) = counted();
        let (handle, result) = (object.handle(), |list: Result<HandleList<'_, Counted>>| {
            list.map(|list| list.iter().count()).map_err(|f| f.result())
        });
        let enter_with = |handles: &[*mut u8], count: u32| {
            let mut found = Ok(0);
            enter(|call| {
                // SAFETY: the list has `count` handles. Each is null or belongs to a living object.
                found = result(unsafe { Handles::read(count, handles.as_ptr(), call) });
                Ok(())
            });
            found
        };
        assert_eq!(enter_with(&[handle, handle], 2), Ok(2));
        assert_eq!(enter_with(&[], 0), Ok(0));
        let null = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
        assert_eq!(enter_with(&[handle, null_mut()], 2), Err(null));
    }
}
