//! Handles: what UR passes around, and how often it is referred to.
//!
//! A handle is the address of a [`Shared`] object. The loader finds the adapter's table behind the
//! handle's first word. UR's reference count is what `Retain` and `Release` change and queries
//! report; while it is above zero, UR as a whole holds one [`Ref`]. Objects refer to each other by
//! further `Ref`s, so that a queue keeps its context however often UR released that.

use crate::boundary::enter;
use crate::failure::{Failure, Result};
use crate::table::TABLE;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use unified_runtime_sys::{ur_dditable_t, ur_result_t};

/// An object behind a handle.
#[repr(C)]
pub(crate) struct Shared<T> {
    table: &'static ur_dditable_t,
    references: AtomicU32,
    value: T,
}

/// Keeps an object, whatever UR's reference count says.
pub(crate) type Ref<T> = Arc<Shared<T>>;

/// A kind of object that UR has handles for.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    /// What UR's handle points to.
    type Opaque;
}

impl<T: Object> Shared<T> {
    /// An object to which UR does not refer yet.
    pub(crate) fn new(value: T) -> Ref<T> {
        Arc::new(Self {
            table: &TABLE,
            references: AtomicU32::new(0),
            value,
        })
    }

    /// A handle for the caller, who refers to the object once more.
    pub(crate) fn hand_out(this: Ref<T>) -> *mut T::Opaque {
        if this.references.fetch_add(1, Ordering::Relaxed) == 0 {
            // UR's own `Ref`, taken back by the last release.
            return Arc::into_raw(this).cast_mut().cast();
        }
        this.handle()
    }

    /// The handle, without a further reference.
    pub(crate) fn handle(&self) -> *mut T::Opaque {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// UR's reference count.
    pub(crate) fn references(&self) -> u32 {
        self.references.load(Ordering::Relaxed)
    }

    /// The object behind a handle.
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

    /// One more `Ref` to this object.
    #[inline]
    pub(crate) fn to_ref(&self) -> Ref<T> {
        let this = std::ptr::from_ref(self);
        // SAFETY: objects are made by `new` alone, so this one lives in an `Arc`, and the borrow
        // shows that it is alive.
        unsafe {
            Arc::increment_strong_count(this);
            Arc::from_raw(this)
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

/// The objects behind a list of handles.
///
/// # Errors
/// `missing` for a list without a start or with a null handle in it.
///
/// # Safety
/// `first` must be null or point to `count` handles, each null or of an object of this type that
/// stays alive during `'a`.
pub(crate) unsafe fn from_handles<'a, T: Object>(
    first: *const *mut T::Opaque,
    count: u32,
    missing: ur_result_t,
) -> Result<impl Iterator<Item = &'a Shared<T>> + Clone> {
    // SAFETY: by the caller's promise.
    let handles = unsafe { crate::boundary::list(first, count as usize) };
    let handles = handles.map_err(|_| Failure::of(missing))?;
    if handles.iter().any(|handle| handle.is_null()) {
        return Err(Failure::of(missing));
    }
    // SAFETY: not null, so alive by the caller's promise.
    Ok(handles
        .iter()
        .map(|handle| unsafe { &*handle.cast::<Shared<T>>() }))
}

/// The entry point `Retain` of an object.
pub(crate) unsafe extern "C" fn retain<T: Object>(handle: *mut T::Opaque) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a handle of this kind.
        let object = unsafe { Shared::<T>::from_handle(handle) }?;
        if object.references.fetch_add(1, Ordering::Relaxed) == 0 {
            // Another object kept it, such as an event its queue: UR has a `Ref` again.
            std::mem::forget(object.to_ref());
        }
        Ok(())
    })
}

/// The entry point `Release` of an object.
pub(crate) unsafe extern "C" fn release<T: Object>(handle: *mut T::Opaque) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a handle of this kind.
        let object = unsafe { Shared::<T>::from_handle(handle) }?;
        if object.references.fetch_sub(1, Ordering::Release) == 1 {
            std::sync::atomic::fence(Ordering::Acquire);
            // SAFETY: this takes back the `Ref` that `hand_out` gave to UR.
            drop(unsafe { Arc::from_raw(std::ptr::from_ref(object)) });
        }
        Ok(())
    })
}
