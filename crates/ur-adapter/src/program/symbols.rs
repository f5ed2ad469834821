//! Entry points that look up functions and variables in a program by name.

use super::{Program, enter_with_kernels};
use crate::abi::boundary::{MaybeOut, Out, Text, entry_points};
use crate::abi::failure::Failure;
use crate::abi::object::Handle;
use crate::discovery::Device;
use crosshandle::Error;
use std::ffi::c_void;
use std::ptr;
use unified_runtime_sys::ur_result_t;

entry_points! {
    in enter_with_kernels;

    /// Returns the pointer to a function, which is the driver's handle of the kernel.
    pub(super) fn get_function_pointer(
        device: Handle<Device>,
        program: Handle<Program>,
        name: Text,
        pointer: Out<*mut c_void>,
    ) {
        pointer.put(ptr::null_mut())?;
        let kernel = program.on(device)?.kernel(&name.to_string_lossy());
        let kernel = kernel.map_err(|error| match error {
            Error::NoSymbol(_) => {
                Failure::from(error).with_result(ur_result_t::UR_RESULT_ERROR_INVALID_KERNEL_NAME)
            }
            error => error.into(),
        })?;
        pointer.put(ptr::with_exposed_provenance_mut(kernel.native().raw()))
    }

    pub(super) fn get_global_variable_pointer(
        device: Handle<Device>,
        program: Handle<Program>,
        name: Text,
        size: MaybeOut<usize>,
        pointer: Out<*mut c_void>,
    ) {
        let variable = program.variable(device, &name.to_string_lossy())?;
        size.map_or(Ok(()), |place| place.put(variable.len()))?;
        pointer.put(variable.as_ptr().cast())
    }
}
