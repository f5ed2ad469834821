//! Answers of programs to queries.

use super::{Program, enter_with_kernels};
use crate::abi::boundary::entry_points;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Shared};
use crate::abi::query::{Answer, Query};
use crate::discovery::Device;
use unified_runtime_sys::{ur_program_build_info_t, ur_program_info_t, ur_result_t};

entry_points! {
    in enter_with_kernels;

    pub(super) fn get_info(
        program: Handle<Program>,
        name: ur_program_info_t,
        query(size, value, size_ret): Answer,
    ) {
        if name == ur_program_info_t::UR_PROGRAM_INFO_BINARIES
            && let Some((places, size)) = query.place()
        {
            // SAFETY: the caller passes as many bytes of a list of addresses, each null or valid for
            // writes of as many bytes as its image has.
            unsafe { write_binaries(program, size, places.cast()) }?;
        }
        answer(program, name, query)
    }

    pub(super) fn get_build_info(
        program: Handle<Program>,
        device: Handle<Device>,
        name: ur_program_build_info_t,
        query(size, value, size_ret): Answer,
    ) {
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
    }
}

/// Writes each image to the address that the list has for it, unless that is null.
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

/// Answers a query.
fn answer(program: &Shared<Program>, name: ur_program_info_t, query: Query<'_>) -> Result<()> {
    let images = &program.images;
    match name {
        ur_program_info_t::UR_PROGRAM_INFO_REFERENCE_COUNT => query.value(program.references()),
        ur_program_info_t::UR_PROGRAM_INFO_CONTEXT => query.value(program.context.handle()),
        ur_program_info_t::UR_PROGRAM_INFO_NUM_DEVICES => query.value(images.len() as u32),
        ur_program_info_t::UR_PROGRAM_INFO_DEVICES => {
            let devices: Vec<_> = images.iter().map(|image| image.device.handle()).collect();
            query.list(&devices)
        }
        // No program has any.
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
