//! UR handles and their reference counts.
//!
//! A handle is the address of a [`Shared`] object, which [`Arc::into_raw`] returned when the object
//! was created. The first word of the object points to the adapter's table, which the loader reads.
//! `Retain` and `Release` change UR's reference count, which queries report. While this count is
//! above zero, UR holds one [`Ref`]. Objects also hold `Ref`s to each other. For example, a queue
//! keeps its context alive after UR has released the context.

use super::boundary::{Argument, Argument2, Call, enter};
use super::failure::{Failure, Result};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};
use unified_runtime_sys::{ur_dditable_t, ur_result_t};

/// The table to which the first word of each new object points.
static TABLE: OnceLock<&'static ur_dditable_t> = OnceLock::new();

/// Sets the table for new objects. Calls after the first one have no effect. The loader cannot use
/// objects that were created before the first call. Unit tests create such objects.
pub(crate) fn set_table(table: &'static ur_dditable_t) {
    TABLE.get_or_init(|| table);
}

/// The object behind a UR handle. Only [`Shared::new`] creates such objects, so each object is in
/// an [`Arc`].
#[repr(C)]
pub(crate) struct Shared<T> {
    /// The table that the loader reads. `None` if the loader had fetched no table when the object
    /// was created.
    table: Option<&'static ur_dditable_t>,
    /// The handle: the pointer that `Arc::into_raw` returned for this object. It is stored because
    /// `Arc` accepts only this pointer. A pointer derived from a reference would be unsound.
    raw: AtomicPtr<Self>,
    references: AtomicU32,
    value: T,
}

/// A reference that keeps an object alive, independently of UR's reference count.
pub(crate) type Ref<T> = Arc<Shared<T>>;

/// A kind of object that has UR handles.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    /// The opaque UR type to which the handle points.
    type Opaque;

    /// The result for a null handle in a list of these objects.
    const NULL_IN_LIST: ur_result_t = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
}

impl<T: Object> Shared<T> {
    /// Creates an object. UR does not hold a reference to it yet.
    pub(crate) fn new(value: T) -> Ref<T> {
        let raw = Arc::into_raw(Arc::new(Self {
            table: TABLE.get().copied(),
            raw: AtomicPtr::new(null_mut()),
            references: AtomicU32::new(0),
            value,
        }));
        // SAFETY: `raw` came from `Arc::into_raw` above, and that reference has not been used
        // since.
        let this = unsafe { Arc::from_raw(raw) };
        this.raw.store(raw.cast_mut(), Ordering::Relaxed);
        this
    }

    /// Adds one to UR's reference count, and returns the handle for the caller.
    pub(crate) fn hand_out(this: Ref<T>) -> *mut T::Opaque {
        let handle = this.handle();
        if this.references.fetch_add(1, Ordering::Relaxed) == 0 {
            // UR owns this `Ref` until the count returns to 0.
            let _ = Arc::into_raw(this);
        }
        handle
    }

    /// Returns the handle. The reference count does not change.
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
    /// Returns `INVALID_NULL_HANDLE` if the handle is null.
    ///
    /// # Safety
    /// The handle must be null or refer to an object of this type that stays alive during `'a`.
    #[inline]
    pub(crate) unsafe fn from_handle<'a>(handle: *mut T::Opaque) -> Result<&'a Self> {
        // SAFETY: the caller ensures that the handle is null or the address of an object of this
        // type that lives during `'a`.
        unsafe { handle.cast::<Self>().as_ref() }.ok_or(Failure::NULL_HANDLE)
    }

    /// Returns a new `Ref` to this object.
    #[inline]
    pub(crate) fn to_ref(&self) -> Ref<T> {
        let raw = self.raw.load(Ordering::Relaxed).cast_const();
        // SAFETY: `new` creates every object, and stores the pointer from `Arc::into_raw` in `raw`.
        // The object is borrowed, so its strong count is not 0. The new `Ref` owns the count that
        // is added here.
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

/// The target of a handle argument: any object of a type, or only objects of a particular kind.
pub(crate) trait Referent {
    /// The opaque UR type to which the handle points.
    type Handle;
    /// The type of the reference that the body of an entry point receives.
    type Reference<'a>;

    /// Returns the target of a handle.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_HANDLE` if the handle is null. If the object is of the wrong kind,
    /// returns the result that the implementation defines for that case.
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

/// A handle argument of an entry point.
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

/// A handle argument of an entry point that may be null.
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

/// A list of handles, which the caller passes as the number of handles and the address of the first
/// handle.
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

/// A list of handles like [`Handles`] whose address is a mutable pointer.
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

/// A list of non-null handles, whose objects live during `'a`.
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
        // SAFETY: only `read` creates lists with handles. It has checked that no handle is null.
        // Its caller guarantees that the objects behind the handles live during `'a`.
        self.handles
            .iter()
            .map(|handle| unsafe { &*handle.cast::<Shared<T>>() })
    }
}

/// The entry point `Retain` for one type of object.
pub(crate) unsafe extern "C" fn retain<T: Object>(handle: *mut T::Opaque) -> ur_result_t {
    enter(|_| {
        // SAFETY: the caller passes null or the handle of a living object of type `T`.
        unsafe { retain_once::<T>(handle) }
    })
}

/// Adds one to UR's reference count of an object.
///
/// # Errors
/// Returns `INVALID_NULL_HANDLE` if the handle is null.
///
/// # Safety
/// The caller must uphold the contract of [`Shared::from_handle`].
pub(crate) unsafe fn retain_once<T: Object>(handle: *mut T::Opaque) -> Result<()> {
    // SAFETY: the caller upholds this function's contract.
    let object = unsafe { Shared::<T>::from_handle(handle) }?;
    if object.references.fetch_add(1, Ordering::Relaxed) == 0 {
        // UR's count was 0, so only another object kept this object alive. For example, an event
        // keeps its queue alive. Now UR holds a `Ref` again.
        let _ = Arc::into_raw(object.to_ref());
    }
    Ok(())
}

/// The entry point `Release` for one type of object.
pub(crate) unsafe extern "C" fn release<T: Object>(handle: *mut T::Opaque) -> ur_result_t {
    enter(|_| {
        // SAFETY: the caller passes null or a handle to which UR has a reference, of type `T`.
        unsafe { release_once::<T>(handle) }
    })
}

/// Subtracts one from UR's reference count of an object. When the count becomes 0, UR's `Ref` is
/// dropped.
///
/// # Errors
/// Returns `INVALID_NULL_HANDLE` if the handle is null.
///
/// # Safety
/// The handle must be null, or refer to an object of this type on which UR holds a reference.
pub(crate) unsafe fn release_once<T: Object>(handle: *mut T::Opaque) -> Result<()> {
    // SAFETY: the caller upholds this function's contract. The reference to the object is not used
    // after UR's last reference is dropped.
    let object = unsafe { Shared::<T>::from_handle(handle) }?;
    if object.references.fetch_sub(1, Ordering::Release) == 1 {
        fence(Ordering::Acquire);
        let raw = object.raw.load(Ordering::Relaxed).cast_const();
        // SAFETY: `Arc::into_raw` returned this pointer when the object was created. The count that
        // is removed here belongs to UR's `Ref`, which `hand_out` or `retain_once` stored.
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
        // UR holds a reference again, for example because a query returned the handle of an object
        // that only another object keeps alive.
        // SAFETY: `kept` keeps the object alive.
        assert_eq!(unsafe { retain::<Counted>(kept.handle()) }, OK);
        drop(kept);
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        // SAFETY: UR holds one reference to the object.
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
                // SAFETY: the list contains at least `count` handles. Each is null or refers to a
                // living object.
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
