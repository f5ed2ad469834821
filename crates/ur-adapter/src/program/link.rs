//! Linking, which combines images of several programs into one program on devices.
//!
//! The driver compiles and links in one step, so images are kept unchanged until they are linked. A
//! dynamic link makes one loaded program from several programs. Each of these programs then refers
//! to the loaded program.

use super::build::{
    Build, Constants, failure, image_of, is_left_open, no_image, options_of, options_text,
};
use super::metadata::Metadata;
use super::{DeviceImage, Program, enter_with_kernels};
use crate::abi::boundary::{MaybeText, Out, entry_points};
use crate::abi::description;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Handles, HandlesMut, Shared};
use crate::context::Context;
use crate::discovery::Device;
use std::ptr;
use std::sync::Arc;
use unified_runtime_sys::{ur_exp_program_flags_t, ur_program_handle_t, ur_result_t};

/// An image for linking, with its compiler options and constants.
#[derive(Clone, PartialEq)]
pub(super) struct Part {
    bytes: Arc<[u8]>,
    options: String,
    constants: Constants,
}

impl DeviceImage {
    /// Returns the parts of the image for linking.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` for a program that was already linked, or was loaded from a
    /// native handle.
    fn parts(&self, program: &Program) -> Result<Vec<Part>> {
        if !self.bytes.is_empty() {
            return Ok(vec![Part {
                bytes: Arc::clone(&self.bytes),
                options: self.build().options.clone(),
                constants: program.constants.lock().clone(),
            }]);
        }
        match &self.parts[..] {
            [] => Err(no_image()),
            parts => Ok(parts.to_vec()),
        }
    }

    /// Creates the image of a program that was linked with unresolved symbols, so that it can be
    /// linked again.
    fn left_open(device: &Shared<Device>, parts: Vec<Part>, options: &str) -> Self {
        Self {
            parts,
            ..Self::of_loaded(&device.to_ref(), Build::left_open(options))
        }
    }
}

/// Links several parts into one loaded program.
///
/// # Errors
/// Returns `PROGRAM_LINK_FAILURE` if the driver cannot link the parts.
fn link_parts(
    context: &Shared<Context>,
    device: &Shared<Device>,
    parts: &[Part],
    options: &str,
) -> Result<crosshandle::kernel::Program> {
    let images = parts.iter().map(|part| {
        // SAFETY: the creator of the program guaranteed that bytes that are not text are
        // well-formed.
        unsafe { image_of(&part.bytes, &part.constants) }.compiled_with(&part.options)
    });
    let images: Vec<_> = images.collect();
    let linked = crosshandle::kernel::Program::with_options(
        context.on(device)?,
        &images,
        &options_of(&link_options(parts, options)),
    );
    linked.map_err(|error| failure(error, ur_result_t::UR_RESULT_ERROR_PROGRAM_LINK_FAILURE))
}

/// The linked programs, with their parts and devices.
#[derive(Default)]
struct Linked<'a>(Vec<(&'a Shared<Device>, Vec<Part>, crosshandle::kernel::Program)>);

impl<'a> Linked<'a> {
    /// Links parts for a device. Reuses the program of another device if it has the same parts and
    /// also runs here.
    ///
    /// # Errors
    /// Returns the errors of [`link_parts`].
    fn link(
        &mut self,
        context: &Shared<Context>,
        device: &'a Shared<Device>,
        parts: Vec<Part>,
        options: &str,
    ) -> Result<crosshandle::kernel::Program> {
        let mut earlier = self.0.iter();
        let same =
            earlier.find(|(other, known, _)| *known == parts && other.shares_programs_with(device));
        if let Some((.., linked)) = same {
            return Ok(linked.clone());
        }
        let linked = link_parts(context, device, &parts, options)?;
        self.0.push((device, parts, linked.clone()));
        Ok(linked)
    }
}

/// Links programs into one, for the named devices or for all devices of the first program.
///
/// # Errors
/// Returns `INVALID_SIZE` if there are no programs, `INVALID_DEVICE` if a program has no image for
/// a device, and `PROGRAM_LINK_FAILURE`.
fn link_all(
    context: &Shared<Context>,
    programs: &[&Shared<Program>],
    devices: Option<Vec<&Shared<Device>>>,
    options: &str,
    is_left_open: bool,
) -> Result<Program> {
    let devices = match devices {
        Some(devices) => devices,
        None => devices_of(programs)?,
    };
    let (mut images, mut linked) = (Vec::new(), Linked::default());
    for device in devices {
        let parts = parts_of(programs, device)?;
        if is_left_open {
            images.push(DeviceImage::left_open(device, parts, options));
            continue;
        }
        let build = Build::done(linked.link(context, device, parts, options)?, options);
        images.push(DeviceImage::of_loaded(&device.to_ref(), build));
    }
    let metadata = Metadata::merged(programs.iter().map(|program| &program.metadata));
    Ok(Program::new(context.to_ref(), images, metadata))
}

/// Returns the devices of the first program.
///
/// # Errors
/// Returns `INVALID_SIZE` if there are no programs.
fn devices_of<'a>(programs: &[&'a Shared<Program>]) -> Result<Vec<&'a Shared<Device>>> {
    let first = programs.first().ok_or(Failure::SIZE)?;
    let images = first.images.iter();
    Ok(images.map(|image| &*image.device).collect())
}

/// Returns the parts of all programs for a device.
///
/// # Errors
/// Returns `INVALID_SIZE` for no programs, `INVALID_DEVICE` if a program has no image for the
/// device, and `INVALID_OPERATION` if one was already linked.
fn parts_of(programs: &[&Shared<Program>], device: &Shared<Device>) -> Result<Vec<Part>> {
    if programs.is_empty() {
        return Err(Failure::SIZE);
    }
    let mut all = Vec::new();
    for program in programs {
        all.extend(program.image(device)?.parts(program)?);
    }
    Ok(all)
}

/// Returns the options for a linked program.
///
/// Drivers that accept options for each image get the compiler options with the images. For other
/// drivers, all options are combined, and the last one of each kind applies.
fn link_options(parts: &[Part], options: &str) -> String {
    if description::get().takes_spirv {
        return options.to_owned();
    }
    let of_images = parts.iter().map(|part| &*part.options);
    of_images.chain([options]).collect::<Vec<_>>().join(" ")
}

/// Makes one loaded program from several, for all devices of the first program.
///
/// Each program then refers to the loaded one. Changes nothing on failure. Existing kernels keep
/// their previously loaded programs.
fn link_dynamically(context: &Shared<Context>, programs: &[&Shared<Program>]) -> Result<()> {
    let (mut made, mut linked) = (Vec::new(), Linked::default());
    for device in devices_of(programs)? {
        let parts = parts_of(programs, device)?;
        made.push((device, linked.link(context, device, parts, "")?));
    }
    for program in programs {
        let constants = program.constants.lock().clone();
        for (device, linked) in &made {
            let mut build = program.image(device)?.build();
            let options = std::mem::take(&mut build.options);
            *build = Build::done(linked.clone(), &options).with_constants(constants.clone());
        }
    }
    Ok(())
}

entry_points! {
    in enter_with_kernels;

    pub(super) fn link(
        context: Handle<Context>,
        programs(count, first): Handles<Program>,
        options: MaybeText,
        created: Out<ur_program_handle_t>,
    ) {
        // If linking fails, the caller gets no program, and so cannot query a log.
        created.put(ptr::null_mut())?;
        let programs: Vec<_> = programs.iter().collect();
        let program = link_all(context, &programs, None, &options_text(options), false)?;
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
        let is_left_open = is_left_open(flags)?;
        created.put(ptr::null_mut())?;
        let (devices, programs) = (devices.iter().collect(), programs.iter().collect::<Vec<_>>());
        let options = options_text(options);
        let program = link_all(context, &programs, Some(devices), &options, is_left_open)?;
        created.put(Shared::hand_out(Shared::new(program)))
    }

    pub(super) fn dynamic_link(context: Handle<Context>, programs(count, first): Handles<Program>) {
        let mut different = Vec::<&Shared<Program>>::new();
        for program in programs.iter() {
            if !different.iter().any(|known| ptr::eq(*known, program)) {
                different.push(program);
            }
        }
        link_dynamically(context, &different)
    }
}
