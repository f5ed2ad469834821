//! Functions and variables of programs, by their names.

use super::{Program, enter_with_kernels};
use crate::boundary::{not_null, put, put_optional};
use crate::device::Device;
use crate::failure::Failure;
use crate::kernel::name_of;
use crate::object::Shared;
use crosshandle::Error;
use std::ffi::{c_char, c_void};
use std::ptr;
use unified_runtime_sys::{ur_device_handle_t, ur_program_handle_t, ur_result_t};

/// The function's pointer is the driver's handle of it.
pub(super) unsafe extern "C" fn get_function_pointer(
    device: ur_device_handle_t,
    program: ur_program_handle_t,
    name: *const c_char,
    pointer: *mut *mut c_void,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles, and null or a text.
        let (device, program, name) = unsafe {
            (
                Shared::<Device>::from_handle(device)?,
                Shared::<Program>::from_handle(program)?,
                name_of(name)?,
            )
        };
        // SAFETY: the caller passes null or a valid pointer.
        unsafe { put(pointer, ptr::null_mut()) }?;
        let kernel = program.on(device)?.kernel(&name);
        let kernel = kernel.map_err(|error| match error {
            Error::NoSymbol(_) => {
                Failure::from(error).with_result(ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL_NAME)
            }
            error => error.into(),
        })?;
        let address = ptr::with_exposed_provenance_mut(kernel.native().raw());
        // SAFETY: as above.
        unsafe { put(pointer, address) }
    })
}

pub(super) unsafe extern "C" fn get_global_variable_pointer(
    device: ur_device_handle_t,
    program: ur_program_handle_t,
    name: *const c_char,
    size: *mut usize,
    pointer: *mut *mut c_void,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles, and null or a text.
        let (device, program, name) = unsafe {
            (
                Shared::<Device>::from_handle(device)?,
                Shared::<Program>::from_handle(program)?,
                name_of(name)?,
            )
        };
        not_null(pointer)?;
        let variable = program.variable(device, &name)?;
        // SAFETY: the caller passes valid pointers, or null for the size.
        unsafe {
            put_optional(size, variable.len());
            put(pointer, variable.as_ptr().cast())
        }
    })
}
