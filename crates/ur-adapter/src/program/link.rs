//! Linking, which combines the images of several programs into one loaded program.
//!
//! The driver compiles and links in one step, so images are kept unchanged until they are linked. A
//! dynamic link combines several programs into one loaded program, to which all of them then refer.

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

/// A program image that can be linked, with its compiler options and specialization constants.
#[derive(Clone, PartialEq)]
pub(super) struct Part {
    bytes: Arc<[u8]>,
    options: String,
    constants: Constants,
}

impl DeviceImage {
    /// Returns the images that take part in linking.
    ///
    /// # Errors
    /// Returns `INVALID_OPERATION` if the program was completely linked before, or was created from
    /// a native handle.
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

    /// Creates the image of a program that was linked with unresolved symbols allowed. It keeps its
    /// parts, so that it can be linked again.
    fn left_open(device: &Shared<Device>, parts: Vec<Part>, options: &str) -> Self {
        Self {
            parts,
            ..Self::of_loaded(&device.to_ref(), Build::left_open(options))
        }
    }
}

/// Links several images into one loaded program.
///
/// # Errors
/// Returns `PROGRAM_LINK_FAILURE` if the driver cannot link the images.
fn link_parts(
    context: &Shared<Context>,
    device: &Shared<Device>,
    parts: &[Part],
    options: &str,
) -> Result<crosshandle::kernel::Program> {
    let images = parts.iter().map(|part| {
        // SAFETY: the creator of the program guaranteed that the bytes are text or a well-formed
        // image.
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

/// The programs that have been linked so far, each with its device and its images.
#[derive(Default)]
struct Linked<'a>(Vec<(&'a Shared<Device>, Vec<Part>, crosshandle::kernel::Program)>);

impl<'a> Linked<'a> {
    /// Links images for a device. Reuses the linked program of another device if it has the same
    /// images and also runs on this device.
    ///
    /// # Errors
    /// Returns the same errors as [`link_parts`].
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

/// Links several programs into one. The result is for `devices`, or for all devices of the first
/// program if `devices` is `None`.
///
/// # Errors
/// Returns `INVALID_SIZE` if `programs` is empty, and `INVALID_DEVICE` if a program has no image
/// for a device. Returns `PROGRAM_LINK_FAILURE` if the driver cannot link the images.
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
        for program in programs {
            program.image(device)?.check_linkable()?;
        }
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
/// Returns `INVALID_SIZE` if `programs` is empty.
fn devices_of<'a>(programs: &[&'a Shared<Program>]) -> Result<Vec<&'a Shared<Device>>> {
    let first = programs.first().ok_or(Failure::SIZE)?;
    let images = first.images.iter();
    Ok(images.map(|image| &*image.device).collect())
}

/// Returns the images of all programs for one device.
///
/// # Errors
/// Returns `INVALID_SIZE` if `programs` is empty. Returns `INVALID_DEVICE` if a program has no
/// image for the device, and `INVALID_OPERATION` if an image cannot be linked.
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
/// Some drivers accept compiler options for each image, and receive them with the image. For other
/// drivers, the options of all images are combined with the link options, and the last option of
/// each kind applies.
fn link_options(parts: &[Part], options: &str) -> String {
    if description::get().takes_spirv {
        return options.to_owned();
    }
    let of_images = parts.iter().map(|part| &*part.options);
    of_images.chain([options]).collect::<Vec<_>>().join(" ")
}

/// Links several programs into one loaded program for each device of the first program.
///
/// All of the programs then refer to the loaded program. If linking fails, nothing changes.
/// Existing kernels continue to use their previously loaded programs.
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
        // Null, because a caller receives no program if linking fails. It then cannot query a build
        // log.
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
