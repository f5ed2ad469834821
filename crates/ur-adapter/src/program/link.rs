//! Linking: images of several programs become one that is loaded on devices.

use super::build::{Build, check_flags, failure, image_of, no_image, options_of, options_text};
use super::metadata::Metadata;
use super::{DeviceImage, Program, enter_with_kernels, not_built};
use crate::abi::boundary::{MaybeText, Out, entry_points};
use crate::abi::description;
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::object::{Handle, Handles, HandlesMut, Shared};
use crate::context::Context;
use crate::discovery::Device;
use unified_runtime_sys::{ur_exp_program_flags_t, ur_program_handle_t, ur_result_t};

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
    let set = programs
        .iter()
        .map(|program| program.constants.lock().clone());
    let constants: Vec<_> = set.collect();
    let mut images = Vec::<DeviceImage>::new();
    for device in devices {
        let mut earlier = images.iter();
        if let Some(image) = earlier.find(|image| image.device.shares_programs_with(device)) {
            let linked = image.build().program().cloned().ok_or_else(not_built)?;
            images.push(DeviceImage::linked(device, linked, options));
            continue;
        }
        let mut compiled = Vec::new();
        for program in programs {
            let image = program.image(device)?;
            if image.bytes.is_empty() {
                return Err(no_image());
            }
            // Nothing was compiled yet: the driver compiles as it links.
            compiled.push((image, image.build().options.clone()));
        }
        let parts = compiled.iter().zip(&constants);
        let parts = parts.map(|((image, options), constants)| {
            // SAFETY: the creator of the program vouched for what is no text.
            unsafe { image_of(&image.bytes, constants) }.compiled_with(options)
        });
        let parts: Vec<_> = parts.collect();
        let linked = context
            .on(device)?
            .load_program_with(&parts, &options_of(&link_options(&compiled, options)));
        let linked = linked
            .map_err(|error| failure(error, ur_result_t::UR_RESULT_ERROR_PROGRAM_LINK_FAILURE))?;
        images.push(DeviceImage::linked(device, linked, options));
    }
    let metadata = Metadata::merged(programs.iter().map(|program| &program.metadata));
    Ok(Program::new(context.to_ref(), images, metadata))
}

impl DeviceImage {
    /// Returns what was linked for a device.
    fn linked(device: &Shared<Device>, linked: crosshandle::Program, options: &str) -> Self {
        Self {
            device: device.to_ref(),
            bytes: Box::default(),
            build: Lock::new(Build::done(linked, options)),
        }
    }
}

/// Returns the options of a program that is linked. Drivers that take options of each image get those of
/// compilers with the images; others find what concerns them in all together, of which the last counts.
fn link_options(compiled: &[(&DeviceImage, String)], options: &str) -> String {
    if description::get().takes_spirv {
        return options.to_owned();
    }
    let of_images = compiled.iter().map(|(_, options)| &**options);
    of_images.chain([options]).collect::<Vec<_>>().join(" ")
}

entry_points! {
    in enter_with_kernels;

    pub(super) fn link(
        context: Handle<Context>,
        programs(count, first): Handles<Program>,
        options: MaybeText,
        created: Out<ur_program_handle_t>,
    ) {
        // There is no program to ask for a log if linking fails.
        created.put(std::ptr::null_mut())?;
        let programs: Vec<_> = programs.iter().collect();
        let program = link_all(context, &programs, None, &options_text(options))?;
        created.put(Shared::hand_out(Shared::new(program)))
    }

    pub(super) fn link_exp(
        context: Handle<Context>,
        devices(device_count, first_device): HandlesMut<Device>,
        flags: ur_exp_program_flags_t,
        programs(count, first): Handles<Program>,
        options: MaybeText,
        created: Out<ur_program_handle_t>,
    ) {
        check_flags(flags)?;
        created.put(std::ptr::null_mut())?;
        let (devices, programs) = (devices.iter().collect(), programs.iter().collect::<Vec<_>>());
        let program = link_all(context, &programs, Some(devices), &options_text(options))?;
        created.put(Shared::hand_out(Shared::new(program)))
    }
}
