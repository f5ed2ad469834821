//! Descriptions of what to allocate.

use crate::abi::boundary::{Argument, Call};
use crate::abi::chain;
use crate::abi::failure::{Failure, Result};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_USM_ADVICE_FLAGS_MASK, UR_USM_DEVICE_MEM_FLAGS_MASK, UR_USM_HOST_MEM_FLAGS_MASK,
    ur_structure_type_t, ur_usm_desc_t, ur_usm_device_desc_t, ur_usm_host_desc_t,
};

/// An argument of an entry point: the alignment that a description asks for, 0 for the usual one,
/// which is also that of no description. Hints change nothing: they are about where memory shall
/// move, and it does not.
///
/// It is `INVALID_ENUMERATION` for flags that don't exist, `INVALID_VALUE` for an alignment that is
/// no power of two.
pub(super) struct Alignment;

impl Argument for Alignment {
    type C = *const ur_usm_desc_t;
    type Value<'a> = usize;

    unsafe fn read(desc: *const ur_usm_desc_t, _call: &Call) -> Result<usize> {
        // SAFETY: null or a description, by the caller's promise.
        let Some(desc) = (unsafe { desc.as_ref() }) else {
            return Ok(0);
        };
        if desc.hints & UR_USM_ADVICE_FLAGS_MASK != 0 {
            return Err(Failure::ENUMERATION);
        }
        // SAFETY: a valid chain, by the caller's promise.
        for (stype, desc) in unsafe { chain::each(desc.pNext) } {
            // SAFETY: the type says which structure is there.
            unsafe { check_flags(stype, desc) }?;
        }
        if desc.align != 0 && !desc.align.is_power_of_two() {
            return Err(Failure::VALUE);
        }
        Ok(desc.align as usize)
    }
}

/// Refuses flags that don't exist. Structures without flags, and those of extensions that are not
/// known here, change nothing.
///
/// # Safety
/// The description is of the type that is named.
unsafe fn check_flags(stype: ur_structure_type_t, desc: *const c_void) -> Result<()> {
    // SAFETY: the structure is the one of its type, as promised to this function.
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
