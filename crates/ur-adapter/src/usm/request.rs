//! Descriptions of what to allocate.

use crate::failure::{Failure, Result};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_USM_ADVICE_FLAGS_MASK, UR_USM_DEVICE_MEM_FLAGS_MASK, UR_USM_HOST_MEM_FLAGS_MASK,
    ur_base_desc_t, ur_structure_type_t, ur_usm_desc_t, ur_usm_device_desc_t, ur_usm_host_desc_t,
};

/// The structures chained to a description, one after the other.
///
/// # Safety
/// `next` is null or points to a structure that begins as all descriptions do, and so on; all of
/// them stay valid during `'a`.
pub(super) unsafe fn chain<'a>(next: *const c_void) -> impl Iterator<Item = &'a ur_base_desc_t> {
    // SAFETY: as promised to this function.
    let at = |next: *const c_void| unsafe { next.cast::<ur_base_desc_t>().as_ref() };
    std::iter::successors(at(next), move |desc| at(desc.pNext))
}

/// The alignment that a description asks for, 0 for the usual one. Hints change nothing: they are
/// about where memory shall move, and it does not.
///
/// # Errors
/// `INVALID_ENUMERATION` for flags that don't exist, `INVALID_VALUE` for an alignment that is no
/// power of two.
///
/// # Safety
/// `desc` is null or points to a description, with a valid chain.
pub(super) unsafe fn alignment(desc: *const ur_usm_desc_t) -> Result<usize> {
    // SAFETY: as promised to this function.
    let Some(desc) = (unsafe { desc.as_ref() }) else {
        return Ok(0);
    };
    if desc.hints & UR_USM_ADVICE_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    // SAFETY: as promised to this function.
    for desc in unsafe { chain(desc.pNext) } {
        // SAFETY: the type says which structure it is.
        unsafe { check_flags(desc) }?;
    }
    if desc.align != 0 && !desc.align.is_power_of_two() {
        return Err(Failure::VALUE);
    }
    Ok(desc.align as usize)
}

/// # Safety
/// The description is of the type that it says.
unsafe fn check_flags(desc: &ur_base_desc_t) -> Result<()> {
    let desc = std::ptr::from_ref(desc);
    // SAFETY: as promised to this function. What has no flags to check, or belongs to extensions
    // that we don't know, changes nothing here.
    let unknown = unsafe {
        match (*desc).stype {
            ur_structure_type_t::UR_STRUCTURE_TYPE_USM_DEVICE_DESC => {
                (*desc.cast::<ur_usm_device_desc_t>()).flags & UR_USM_DEVICE_MEM_FLAGS_MASK
            }
            ur_structure_type_t::UR_STRUCTURE_TYPE_USM_HOST_DESC => {
                (*desc.cast::<ur_usm_host_desc_t>()).flags & UR_USM_HOST_MEM_FLAGS_MASK
            }
            _ => 0,
        }
    };
    if unknown != 0 {
        return Err(Failure::ENUMERATION);
    }
    Ok(())
}
