//! Descriptions of what to allocate.

use crate::chain;
use crate::failure::{Failure, Result};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_USM_ADVICE_FLAGS_MASK, UR_USM_DEVICE_MEM_FLAGS_MASK, UR_USM_HOST_MEM_FLAGS_MASK,
    ur_structure_type_t, ur_usm_desc_t, ur_usm_device_desc_t, ur_usm_host_desc_t,
};

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
    for (stype, desc) in unsafe { chain::each(desc.pNext) } {
        // SAFETY: the type says which structure it is.
        unsafe { check_flags(stype, desc) }?;
    }
    if desc.align != 0 && !desc.align.is_power_of_two() {
        return Err(Failure::VALUE);
    }
    Ok(desc.align as usize)
}

/// # Safety
/// The description is of the type that is named.
unsafe fn check_flags(stype: ur_structure_type_t, desc: *const c_void) -> Result<()> {
    // SAFETY: as promised to this function. What has no flags to check, or belongs to extensions
    // that we don't know, changes nothing here.
    let unknown = unsafe {
        match stype {
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
