//! Structures that follow another one by its `pNext`.

use std::ffi::c_void;
use unified_runtime_sys::ur_structure_type_t;

/// How all structures begin that can be chained.
#[repr(C)]
struct Link {
    stype: ur_structure_type_t,
    next: *const c_void,
}

/// The first structure of a type in a chain; what else is in there doesn't concern the caller.
///
/// # Safety
/// `first` must be null or point to a structure that begins with its type and the pointer to the
/// next one, which must be the same, and so on; all valid for reads during `'a`. `T` must be what
/// has that type.
pub(crate) unsafe fn find<'a, T>(
    first: *const c_void,
    stype: ur_structure_type_t,
) -> Option<&'a T> {
    let mut place = first;
    // SAFETY: by the caller's promise.
    while let Some(link) = unsafe { place.cast::<Link>().as_ref() } {
        if link.stype == stype {
            // SAFETY: it is of the type that the caller says.
            return Some(unsafe { &*place.cast::<T>() });
        }
        place = link.next;
    }
    None
}
