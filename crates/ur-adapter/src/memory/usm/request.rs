//! The descriptions of requested allocations.

use crate::abi::boundary::{Argument, Call};
use crate::abi::chain;
use crate::abi::failure::{Failure, Result};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_USM_ADVICE_FLAGS_MASK, UR_USM_DEVICE_MEM_FLAGS_MASK, UR_USM_HOST_MEM_FLAGS_MASK,
    ur_structure_type_t, ur_usm_desc_t, ur_usm_device_desc_t, ur_usm_host_desc_t,
};

/// An argument of an entry point: the description of an allocation, from which the alignment is
/// read.
///
/// If there is no description, or if its alignment is 0, the default alignment is used. Hints are
/// ignored, because they control migration, and this memory does not migrate.
///
/// The call fails with `INVALID_ENUMERATION` for unknown flags, and with `INVALID_VALUE` if the
/// alignment is not a power of two.
pub(super) struct Alignment;

impl Argument for Alignment {
    type C = *const ur_usm_desc_t;
    type Value<'a> = usize;

    unsafe fn read(desc: *const ur_usm_desc_t, _call: &Call) -> Result<usize> {
        // SAFETY: the caller ensures that the pointer is null or refers to a valid description.
        let Some(desc) = (unsafe { desc.as_ref() }) else {
            return Ok(0);
        };
        if desc.hints & UR_USM_ADVICE_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        // SAFETY: the caller ensures that the chain of structures is valid.
        for (stype, desc) in unsafe { chain::each(desc.pNext) } {
            // SAFETY: the caller ensures that each structure in the chain matches its type.
            unsafe { check_flags(stype, desc) }?;
        }
        if desc.align != 0 && !desc.align.is_power_of_two() {
            return Err(Failure::VALUE);
        }
        Ok(desc.align as usize)
    }
}

/// Returns `INVALID_ENUMERATION` for unknown flags in a structure. Ignores structures that have no
/// flags, and structures of unknown extensions.
///
/// # Safety
/// The caller must ensure that `desc` points to a valid structure of the type `stype`.
unsafe fn check_flags(stype: ur_structure_type_t, desc: *const c_void) -> Result<()> {
    // SAFETY: the caller ensures that `desc` points to a valid structure of the type `stype`.
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
