//! Structures that are linked to another one by `pNext`.

use std::ffi::c_void;
use unified_runtime_sys::ur_structure_type_t;

/// The first members of all structures that can be linked.
#[repr(C)]
#[derive(Clone, Copy)]
struct Link {
    stype: ur_structure_type_t,
    next: *const c_void,
}

/// Returns the structures of a chain, each as its type and its address.
///
/// # Safety
/// `first` must be null or point to a structure that begins with its type and a pointer to the next
/// one. The same must hold for each next structure. All must be valid for reads while the result is
/// used.
pub(crate) unsafe fn each(
    first: *const c_void,
) -> impl Iterator<Item = (ur_structure_type_t, *const c_void)> {
    let mut next = first.cast::<Link>();
    std::iter::from_fn(move || {
        // SAFETY: the pointer is null or points to such a structure, which is valid for reads, by
        // the caller's promise.
        let link = *unsafe { next.as_ref() }?;
        let this = next.cast();
        next = link.next.cast();
        Some((link.stype, this))
    })
}

/// Returns the first structure of a type in a chain.
///
/// # Safety
/// The caller must uphold the contract of [`each`], during `'a`. `T` must be the structure with
/// this type.
pub(crate) unsafe fn find<'a, T>(
    first: *const c_void,
    stype: ur_structure_type_t,
) -> Option<&'a T> {
    // SAFETY: the caller upholds this function's contract.
    let mut chain = unsafe { each(first) };
    let (_, found) = chain.find(|(own, _)| *own == stype)?;
    // SAFETY: it has the type that belongs to `T`, and is valid during `'a`, by the caller's
    // promise.
    Some(unsafe { &*found.cast::<T>() })
}
