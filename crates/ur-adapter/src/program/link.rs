//! Linking: images of several programs become one that is loaded on devices.

use super::build::{Build, check_flags, failure, image_of, no_image, options_of, options_text};
use super::metadata::Metadata;
use super::{DeviceImage, Program, enter_with_kernels};
use crate::boundary::{not_null, put};
use crate::context::Context;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::{Shared, from_handles};
use std::ffi::c_char;
use std::sync::Mutex;
use unified_runtime_sys::{
    ur_context_handle_t, ur_device_handle_t, ur_exp_program_flags_t, ur_program_handle_t,
    ur_result_t,
};

/// Links programs into one, for all devices of the first or for those named.
///
/// # Errors
/// `INVALID_SIZE` for no programs, `INVALID_DEVICE` where one has no image for a device,
/// `PROGRAM_LINK_FAILURE`.
fn link_all(
    context: &Shared<Context>,
    programs: &[&Shared<Program>],
    devices: Option<Vec<&Shared<Device>>>,
    options: &str,
) -> Result<Program> {
    let first = programs.first().ok_or(Failure::SIZE)?;
    let devices = devices.unwrap_or_else(|| {
        let images = first.images.iter();
        images.map(|image| &*image.device).collect()
    });
    let mut images = Vec::new();
    for device in devices {
        let mut parts = Vec::new();
        for program in programs {
            let image = program.image(device)?;
            if image.bytes.is_empty() {
                return Err(no_image());
            }
            // SAFETY: who created the program vouched for what is no text.
            parts.push(unsafe { image_of(&image.bytes) });
        }
        let linked = context
            .on(device)?
            .load_program_with(&parts, &options_of(options));
        let linked = linked
            .map_err(|error| failure(error, ur_result_t::UR_RESULT_ERROR_PROGRAM_LINK_FAILURE))?;
        images.push(DeviceImage {
            device: device.to_ref(),
            bytes: Box::default(),
            build: Mutex::new(Build::done(linked, options)),
        });
    }
    Ok(Program {
        context: context.to_ref(),
        images,
        metadata: Metadata::merged(programs.iter().map(|program| &program.metadata)),
    })
}

pub(super) unsafe extern "C" fn link(
    context: ur_context_handle_t,
    count: u32,
    programs: *const ur_program_handle_t,
    options: *const c_char,
    created: *mut ur_program_handle_t,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: as promised to this function.
        unsafe { link_for(context, None, (count, programs), options, created) }
    })
}

pub(super) unsafe extern "C" fn link_exp(
    context: ur_context_handle_t,
    device_count: u32,
    devices: *mut ur_device_handle_t,
    flags: ur_exp_program_flags_t,
    count: u32,
    programs: *const ur_program_handle_t,
    options: *const c_char,
    created: *mut ur_program_handle_t,
) -> ur_result_t {
    enter_with_kernels(|| {
        check_flags(flags)?;
        let devices = Some((device_count, devices.cast_const()));
        // SAFETY: as promised to this function.
        unsafe { link_for(context, devices, (count, programs), options, created) }
    })
}

/// # Safety
/// Handles, lists of as many handles as they say, null or a text, and null or a place for a handle.
unsafe fn link_for(
    context: ur_context_handle_t,
    devices: Option<(u32, *const ur_device_handle_t)>,
    (count, programs): (u32, *const ur_program_handle_t),
    options: *const c_char,
    created: *mut ur_program_handle_t,
) -> Result<()> {
    let missing = ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE;
    // SAFETY: as promised to this function.
    let context = unsafe { Shared::<Context>::from_handle(context) }?;
    not_null(programs)?;
    // SAFETY: as promised to this function. There is no program for its log if linking fails.
    unsafe { put(created, std::ptr::null_mut()) }?;
    let devices = match devices {
        Some((count, first)) => {
            not_null(first)?;
            // SAFETY: as promised to this function.
            Some(unsafe { from_handles::<Device>(first, count, missing) }?.collect())
        }
        None => None,
    };
    // SAFETY: as promised to this function.
    let (programs, options) = unsafe {
        (
            from_handles::<Program>(programs, count, missing)?.collect::<Vec<_>>(),
            options_text(options),
        )
    };
    let program = link_all(context, &programs, devices, &options)?;
    // SAFETY: as promised to this function.
    unsafe { put(created, Shared::hand_out(Shared::new(program))) }
}
