//! What a program answers to queries.

use super::{Program, enter_with_kernels};
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crate::query::Query;
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_device_handle_t, ur_program_build_info_t, ur_program_handle_t, ur_program_info_t,
    ur_result_t,
};

pub(super) unsafe extern "C" fn get_info(
    handle: ur_program_handle_t,
    name: ur_program_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes a program's handle and a place for the answer.
        let (program, query) = unsafe {
            (
                Shared::<Program>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        if name == ur_program_info_t::UR_PROGRAM_INFO_BINARIES && !value.is_null() {
            // SAFETY: the caller passes a list of places, whose size is checked.
            unsafe { write_binaries(program, size, value.cast()) }?;
        }
        answer(program, name, query)
    })
}

/// Writes each image where the list says, if it says so.
///
/// # Safety
/// `size` bytes at `places` are addresses, each null or valid for writes of as many bytes as the
/// image has.
unsafe fn write_binaries(program: &Program, size: usize, places: *mut *mut u8) -> Result<()> {
    if size < size_of::<*mut u8>() * program.images.len() {
        return Err(Failure::SIZE);
    }
    for (index, image) in program.images.iter().enumerate() {
        // SAFETY: inside the list, and valid as the caller promises; the image is ours.
        unsafe {
            let place = places.add(index).read();
            if !place.is_null() {
                place.copy_from_nonoverlapping(image.bytes.as_ptr(), image.bytes.len());
            }
        }
    }
    Ok(())
}

fn answer(program: &Shared<Program>, name: ur_program_info_t, query: Query) -> Result<()> {
    let images = &program.images;
    match name {
        ur_program_info_t::UR_PROGRAM_INFO_REFERENCE_COUNT => query.value(program.references()),
        ur_program_info_t::UR_PROGRAM_INFO_CONTEXT => query.value(program.context.handle()),
        ur_program_info_t::UR_PROGRAM_INFO_NUM_DEVICES => query.value(images.len() as u32),
        ur_program_info_t::UR_PROGRAM_INFO_DEVICES => {
            let devices: Vec<_> = images.iter().map(|image| image.device.handle()).collect();
            query.list(&devices)
        }
        // There never is one.
        ur_program_info_t::UR_PROGRAM_INFO_IL => query.list::<u8>(&[]),
        ur_program_info_t::UR_PROGRAM_INFO_BINARY_SIZES => {
            let sizes: Vec<_> = images.iter().map(|image| image.bytes.len()).collect();
            query.list(&sizes)
        }
        ur_program_info_t::UR_PROGRAM_INFO_BINARIES => {
            query.size(size_of::<*mut u8>() * images.len())
        }
        // Drivers don't tell.
        ur_program_info_t::UR_PROGRAM_INFO_NUM_KERNELS
        | ur_program_info_t::UR_PROGRAM_INFO_KERNEL_NAMES => {
            Err(ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION.into())
        }
        _ => Err(Failure::ENUMERATION),
    }
}

pub(super) unsafe extern "C" fn get_build_info(
    handle: ur_program_handle_t,
    device: ur_device_handle_t,
    name: ur_program_build_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles and a place for the answer.
        let (program, device, query) = unsafe {
            (
                Shared::<Program>::from_handle(handle)?,
                Shared::<Device>::from_handle(device)?,
                Query::new(size, value, size_ret)?,
            )
        };
        let build = program.image(device)?.build();
        match name {
            ur_program_build_info_t::UR_PROGRAM_BUILD_INFO_STATUS => query.value(build.status.0),
            ur_program_build_info_t::UR_PROGRAM_BUILD_INFO_OPTIONS => query.text(&build.options),
            ur_program_build_info_t::UR_PROGRAM_BUILD_INFO_LOG => query.text(&build.log),
            ur_program_build_info_t::UR_PROGRAM_BUILD_INFO_BINARY_TYPE => {
                query.value(build.binary_type.0)
            }
            _ => Err(Failure::ENUMERATION),
        }
    })
}
