//! Handles: what UR passes around, and how often it is referred to.
//!
//! A handle is the address of a [`Shared`] object: the pointer that [`Arc::into_raw`] returned when
//! the object was made. The loader finds the adapter's table behind the handle's first word. UR's
//! reference count is what `Retain` and `Release` change and queries report; while it is above zero,
//! UR as a whole holds one [`Ref`]. Objects refer to each other by further `Ref`s, so that a queue
//! keeps its context however often UR released that.

use super::boundary::{Argument, Argument2, Call, enter};
use super::failure::{Failure, Result};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};
use unified_runtime_sys::{ur_dditable_t, ur_result_t};

/// The table that new objects begin with.
static TABLE: OnceLock<&'static ur_dditable_t> = OnceLock::new();

/// Says which table objects begin with; the first one counts. Objects made before, as tests of this
/// crate do, are none for the loader.
pub(crate) fn set_table(table: &'static ur_dditable_t) {
    TABLE.get_or_init(|| table);
}

/// An object behind a handle. It is made by [`Shared::new`] alone, so every one is in an [`Arc`].
#[repr(C)]
pub(crate) struct Shared<T> {
    /// The table that the loader looks for; null where no loader took the tables.
    table: Option<&'static ur_dditable_t>,
    /// The handle: what `Arc::into_raw` returned for this object. Kept since such a pointer, unlike
    /// one made of a reference, may be given back to the `Arc`.
    raw: AtomicPtr<Self>,
    references: AtomicU32,
    value: T,
}

/// Keeps an object, whatever UR's reference count says.
pub(crate) type Ref<T> = Arc<Shared<T>>;

/// A kind of object that UR has handles for.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    /// UR's type for the object behind a handle.
    type Opaque;

    /// The result for a null handle in a list of such objects.
    const NULL_IN_LIST: ur_result_t = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
}

impl<T: Object> Shared<T> {
    /// Makes an object to which UR does not refer yet.
    pub(crate) fn new(value: T) -> Ref<T> {
        let raw = Arc::into_raw(Arc::new(Self {
            table: TABLE.get().copied(),
            raw: AtomicPtr::new(null_mut()),
            references: AtomicU32::new(0),
            value,
        }));
        // SAFETY: the line above gave the object's only `Ref` for this pointer.
        let this = unsafe { Arc::from_raw(raw) };
        this.raw.store(raw.cast_mut(), Ordering::Relaxed);
        this
    }

    /// Returns a handle for the caller, who refers to the object once more.
    pub(crate) fn hand_out(this: Ref<T>) -> *mut T::Opaque {
        let handle = this.handle();
        if this.references.fetch_add(1, Ordering::Relaxed) == 0 {
            // UR's own `Ref`, taken back by the last release.
            let _ = Arc::into_raw(this);
        }
        handle
    }

    /// Returns the handle, without a further reference.
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
    /// `INVALID_NULL_HANDLE`.
    ///
    /// # Safety
    /// The handle must be null or refer to an object of this type that stays alive during `'a`.
    #[inline]
    pub(crate) unsafe fn from_handle<'a>(handle: *mut T::Opaque) -> Result<&'a Self> {
        // SAFETY: by the caller's promise it is null or the address of such an object.
        unsafe { handle.cast::<Self>().as_ref() }.ok_or(Failure::NULL_HANDLE)
    }

    /// Returns one more `Ref` to this object.
    #[inline]
    pub(crate) fn to_ref(&self) -> Ref<T> {
        let raw = self.raw.load(Ordering::Relaxed).cast_const();
        // SAFETY: `new`, which made this object as every one, got the pointer from `Arc::into_raw`.
        // The borrow shows that the object is alive, so that some `Ref` to it exists. The `Ref`
        // that is made takes over the count that is added.
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

/// What a handle of an entry point refers to: an object, or one of the kinds of an object.
pub(crate) trait Referent {
    /// UR's type for what is behind the handle.
    type Handle;
    /// The reference that bodies get.
    type Reference<'a>;

    /// Returns what is behind a handle.
    ///
    /// # Errors
    /// `INVALID_NULL_HANDLE`; the object's own result for one of another kind.
    ///
    /// # Safety
    /// As [`Shared::from_handle`].
    unsafe fn behind<'a>(handle: *mut Self::Handle) -> Result<Self::Reference<'a>>;
}

impl<T: Object> Referent for T {
    type Handle = T::Opaque;
    type Reference<'a> = &'a Shared<T>;

    #[inline]
    unsafe fn behind<'a>(handle: *mut T::Opaque) -> Result<&'a Shared<T>> {
        // SAFETY: as promised to this function.
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
        // SAFETY: as promised to this function.
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
        // SAFETY: as promised to this function.
        Ok(unsafe { Shared::from_handle(handle) }.ok())
    }
}

/// An argument of an entry point: how many handles, and where they are.
pub(crate) struct Handles<T>(PhantomData<T>);

impl<T: Object> Argument2 for Handles<T> {
    type A = u32;
    type B = *const *mut T::Opaque;
    type Value<'a> = HandleList<'a, T>;

    #[inline]
    unsafe fn read<'a>(count: u32, first: Self::B, _call: &'a Call) -> Result<HandleList<'a, T>> {
        // SAFETY: as promised to this function.
        let handles = unsafe { super::boundary::list(first, count as usize) }?;
        if handles.iter().any(|handle| handle.is_null()) {
            return Err(Failure::of(T::NULL_IN_LIST));
        }
        Ok(HandleList { handles })
    }
}

/// As [`Handles`], by a pointer for writing.
pub(crate) struct HandlesMut<T>(PhantomData<T>);

impl<T: Object> Argument2 for HandlesMut<T> {
    type A = u32;
    type B = *mut *mut T::Opaque;
    type Value<'a> = HandleList<'a, T>;

    unsafe fn read<'a>(count: u32, first: Self::B, call: &'a Call) -> Result<HandleList<'a, T>> {
        // SAFETY: as promised to this function.
        unsafe { Handles::read(count, first.cast_const(), call) }
    }
}

/// Handles that are not null, of objects that stay alive during `'a`.
pub(crate) struct HandleList<'a, T: Object> {
    handles: &'a [*mut T::Opaque],
}

impl<'a, T: Object> HandleList<'a, T> {
    /// Returns a list without handles.
    pub(crate) const fn empty() -> Self {
        Self { handles: &[] }
    }

    /// Returns whether there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// Returns the objects behind the handles.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a Shared<T>> + use<'a, T> {
        // SAFETY: `read`, the only maker of lists with handles, found none of them to be null, so
        // that they are objects that stay alive during `'a`, by its caller's promise.
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

/// Has UR refer to an object once more.
///
/// # Errors
/// `INVALID_NULL_HANDLE`.
///
/// # Safety
/// As [`Shared::from_handle`].
pub(crate) unsafe fn retain_once<T: Object>(handle: *mut T::Opaque) -> Result<()> {
    // SAFETY: as promised to this function.
    let object = unsafe { Shared::<T>::from_handle(handle) }?;
    if object.references.fetch_add(1, Ordering::Relaxed) == 0 {
        // Another object kept it, such as an event its queue: UR has a `Ref` again.
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

/// Takes one reference of UR's away, and UR's `Ref` with the last one.
///
/// # Errors
/// `INVALID_NULL_HANDLE`.
///
/// # Safety
/// The handle must be null or refer to an object of this type, to which UR refers.
pub(crate) unsafe fn release_once<T: Object>(handle: *mut T::Opaque) -> Result<()> {
    // SAFETY: as promised to this function; the object is not used after its last reference.
    let object = unsafe { Shared::<T>::from_handle(handle) }?;
    if object.references.fetch_sub(1, Ordering::Release) == 1 {
        fence(Ordering::Acquire);
        let raw = object.raw.load(Ordering::Relaxed).cast_const();
        // SAFETY: `Arc::into_raw` returned this pointer when the object was made, and the `Ref`
        // that `hand_out` or `retain` left to UR, which is given up here, keeps the object alive.
        unsafe { Arc::decrement_strong_count(raw) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    /// Counts in its drop.
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
        // UR refers to it again, as when a query answers with the handle of what an object keeps.
        // SAFETY: `kept` keeps it alive.
        assert_eq!(unsafe { retain::<Counted>(kept.handle()) }, OK);
        drop(kept);
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        // SAFETY: UR refers to it, once.
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
                        // SAFETY: `object` keeps it alive.
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
        // SAFETY: null is allowed.
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
                // SAFETY: there are as many handles, null or alive.
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
