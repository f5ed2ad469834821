//! Iteration over chains of structures that are linked by `pNext`.

use std::ffi::c_void;
use unified_runtime_sys::ur_structure_type_t;

/// The first members of each structure that can be in a chain.
#[repr(C)]
#[derive(Clone, Copy)]
struct Link {
    stype: ur_structure_type_t,
    next: *const c_void,
}

/// Iterates over a chain, and returns the type and the address of each structure.
///
/// # Safety
/// `first` and each `pNext` must be null or point to a structure that begins with the members of
/// [`Link`]. All structures must be valid for reads while the result is used.
pub(crate) unsafe fn each(
    first: *const c_void,
) -> impl Iterator<Item = (ur_structure_type_t, *const c_void)> {
    let mut next = first.cast::<Link>();
    std::iter::from_fn(move || {
        // SAFETY: the caller ensures that the pointer is null or points to a readable structure
        // that begins with the members of `Link`.
        let link = *unsafe { next.as_ref() }?;
        let this = next.cast();
        next = link.next.cast();
        Some((link.stype, this))
    })
}

/// Returns the first structure in a chain that has the type `stype`.
///
/// # Safety
/// The caller must uphold the contract of [`each`] during `'a`. `T` must be the structure that
/// `stype` denotes.
pub(crate) unsafe fn find<'a, T>(
    first: *const c_void,
    stype: ur_structure_type_t,
) -> Option<&'a T> {
    // SAFETY: the caller upholds this function's contract.
    let mut chain = unsafe { each(first) };
    let (_, found) = chain.find(|(own, _)| *own == stype)?;
    // SAFETY: the structure has the type `stype`. The caller ensures that `stype` denotes `T`, and
    // that the structure is valid during `'a`.
    Some(unsafe { &*found.cast::<T>() })
}
