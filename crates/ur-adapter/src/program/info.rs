//! Queries about programs.

use super::{DeviceImage, Program, enter_with_kernels, not_built};
use crate::abi::boundary::entry_points;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Shared};
use crate::abi::query::{Answer, Query};
use crate::discovery::Device;
use std::borrow::Cow;
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
            // SAFETY: the caller passes a list of addresses that occupies `size` bytes. Each
            // address is null, or valid for writes of as many bytes as the corresponding binary
            // has.
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

/// Writes the binary for each device to the corresponding address in a list. Skips null addresses.
///
/// # Safety
/// The caller must ensure that `places` points to a list of addresses that occupies `size` bytes.
/// Each address must be null, or valid for writes of as many bytes as the corresponding binary has.
unsafe fn write_binaries(program: &Program, size: usize, places: *mut *mut u8) -> Result<()> {
    if size < size_of::<*mut u8>() * program.images.len() {
        return Err(Failure::SIZE);
    }
    for (index, image) in program.images.iter().enumerate() {
        let binary = image.binary()?;
        // SAFETY: the index is inside the list. The caller ensures that a non-null address is valid
        // for writes of the whole binary. The binary belongs to this adapter, so it does not
        // overlap the caller's memory.
        unsafe {
            let place = places.add(index).read();
            if !place.is_null() {
                place.copy_from_nonoverlapping(binary.as_ptr(), binary.len());
            }
        }
    }
    Ok(())
}

/// Returns the names of the kernels in a program.
///
/// # Errors
/// Returns `INVALID_PROGRAM_EXECUTABLE` if the program is not built. Returns
/// `UNSUPPORTED_ENUMERATION` if the driver does not list kernels.
fn kernel_names(program: &Program) -> Result<Vec<String>> {
    let loaded = program.loaded();
    let (_, program) = loaded.first().ok_or_else(not_built)?;
    let names = program.kernel_names();
    names.ok_or_else(|| ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION.into())
}

impl DeviceImage {
    /// Returns the binary that the driver created for this device. If the driver does not provide a
    /// binary, returns the image. Returns no bytes for an intermediate language that was neither
    /// compiled nor built for this device.
    fn binary(&self) -> Result<Cow<'_, [u8]>> {
        if self.is_intermediate && self.is_new() {
            return Ok(Cow::Borrowed(&[]));
        }
        let loaded = self.build().program().cloned();
        let made = match loaded {
            Some(program) => program.binary()?,
            None => None,
        };
        Ok(made.map_or(Cow::Borrowed(&self.bytes), Cow::Owned))
    }
}

/// Writes a property of a program to the caller's memory.
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
        ur_program_info_t::UR_PROGRAM_INFO_IL => query.list(program.module().unwrap_or_default()),
        ur_program_info_t::UR_PROGRAM_INFO_BINARY_SIZES => {
            let sizes = images.iter().map(|image| Ok(image.binary()?.len()));
            query.list(&sizes.collect::<Result<Vec<_>>>()?)
        }
        ur_program_info_t::UR_PROGRAM_INFO_BINARIES => {
            query.size(size_of::<*mut u8>() * images.len())
        }
        ur_program_info_t::UR_PROGRAM_INFO_NUM_KERNELS => query.value(kernel_names(program)?.len()),
        ur_program_info_t::UR_PROGRAM_INFO_KERNEL_NAMES => {
            query.text(&kernel_names(program)?.join(";"))
        }
        _ => Err(Failure::ENUMERATION),
    }
}
