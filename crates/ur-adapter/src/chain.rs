//! Structures that follow another one by its `pNext`.

use std::ffi::c_void;
use unified_runtime_sys::ur_structure_type_t;

/// How all structures begin that can be chained.
#[repr(C)]
#[derive(Clone, Copy)]
struct Link {
    stype: ur_structure_type_t,
    next: *const c_void,
}

/// The structures of a chain, each as its type and where it is.
///
/// # Safety
/// `first` must be null or point to a structure that begins with its type and the pointer to the
/// next one, which must be the same, and so on; all valid for reads while the result is used.
pub(crate) unsafe fn each(
    first: *const c_void,
) -> impl Iterator<Item = (ur_structure_type_t, *const c_void)> {
    let mut place = first.cast::<Link>();
    std::iter::from_fn(move || {
        // SAFETY: by the caller's promise.
        let link = *unsafe { place.as_ref() }?;
        let this = place.cast();
        place = link.next.cast();
        Some((link.stype, this))
    })
}

/// The first structure of a type in a chain; what else is in there doesn't concern the caller.
///
/// # Safety
/// As [`each`], during `'a`. `T` must be what has that type.
pub(crate) unsafe fn find<'a, T>(
    first: *const c_void,
    stype: ur_structure_type_t,
) -> Option<&'a T> {
    // SAFETY: as promised to this function.
    let mut chain = unsafe { each(first) };
    let (_, found) = chain.find(|(own, _)| *own == stype)?;
    // SAFETY: it is of the type that the caller says.
    Some(unsafe { &*found.cast::<T>() })
}
