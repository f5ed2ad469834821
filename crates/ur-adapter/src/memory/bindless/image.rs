//! The memory of bindless images, and the queries about it.

use crate::abi::boundary::{In, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::context::Context;
use crate::context::bindless::Known;
use crate::discovery::Device;
use crate::memory::image::format;
use crosshandle::image::{Image, LevelledImage};
use crosshandle::{
    Error,
    image::{ImageDescription, ImageKind},
};
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_exp_image_mem_native_handle_t, ur_image_desc_t, ur_image_format_t, ur_image_info_t,
    ur_mem_type_t, ur_result_t, ur_structure_type_t,
};

/// Number of sides of a cube. Each side is a layer of the image.
const SIDES: usize = 6;

/// Converts an image description from UR. Returns the description and the number of mipmap levels.
/// Pitches are ignored, because they apply only to images in plain memory.
///
/// # Errors
/// Returns `INVALID_IMAGE_FORMAT_DESCRIPTOR` or `UNSUPPORTED_IMAGE_FORMAT` for a description or a
/// format that is wrong or not supported. Returns `UNSUPPORTED_FEATURE` for images with several
/// samples, and for images from which kernels gather.
pub(crate) fn describe(
    given: &ur_image_format_t,
    desc: &ur_image_desc_t,
) -> Result<(ImageDescription, u32)> {
    if desc.numSamples > 1 {
        return Err(Failure::unsupported(
            "images with several samples are not supported",
        ));
    }
    if desc.type_ == ur_mem_type_t::UR_MEM_TYPE_IMAGE_GATHER_EXP {
        return Err(Failure::unsupported("gather images are not supported"));
    }
    let levels = desc.numMipLevel.max(1);
    if desc.type_ == ur_mem_type_t::UR_MEM_TYPE_IMAGE_CUBEMAP_EXP {
        if desc.stype != ur_structure_type_t::UR_STRUCTURE_TYPE_IMAGE_DESC {
            return Err(format::wrong_description(
                "this structure is not an image description",
            ));
        }
        if !matches!(desc.arraySize, 0 | SIDES) {
            return Err(format::wrong_description(
                "a cube has six sides, and there are no arrays of cubes",
            ));
        }
        let extent = [desc.width, desc.height, SIDES];
        let image = ImageDescription::new(ImageKind::Cube, format::format(given)?, extent);
        return Ok((image, levels));
    }
    let one_level = ur_image_desc_t {
        numMipLevel: 0,
        numSamples: 0,
        rowPitch: 0,
        slicePitch: 0,
        ..*desc
    };
    Ok((format::description(given, &one_level, false)?, levels))
}

/// Converts an error that `crosshandle` returns when it creates an image.
pub(super) fn refusal(error: Error) -> Failure {
    let result = match error {
        Error::InvalidArgument(_) => ur_result_t::UR_RESULT_ERROR_INVALID_IMAGE_SIZE,
        error => return error.into(),
    };
    Failure::from(error).with_result(result)
}

entry_points! {
    pub(super) fn allocate(
        context: Handle<Context>,
        device: Handle<Device>,
        format: In<ur_image_format_t>,
        desc: In<ur_image_desc_t>,
        created: Out<ur_exp_image_mem_native_handle_t>,
    ) {
        let inner = context.on(device)?;
        let (image, levels) = describe(format, desc)?;
        // A device without bindless images and an unsupported format give different errors.
        if device.inner().images()?.views.is_none() {
            return Err(Failure::unsupported(
                "this device has no bindless images; use `urMemImageCreate` instead",
            ));
        }
        let known = match levels {
            1 => Image::new(inner, &image).map(Known::Image),
            levels => LevelledImage::new(inner, &image, levels).map(Known::Levels),
        };
        let known = known.map_err(|error| match error {
            Error::Unsupported(_) => Failure::from(error)
                .with_result(ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT),
            error => refusal(error),
        })?;
        created.put(context.state().bindless.add(known))
    }

    /// Frees an image and all its mipmap levels. Views and running commands keep the image alive.
    pub(super) fn free(
        context: Handle<Context>,
        device: Handle<Device>,
        image: ur_exp_image_mem_native_handle_t,
    ) {
        context.on(device)?;
        drop(context.state().bindless.remove(image)?);
        Ok(())
    }

    pub(super) fn get_level(
        context: Handle<Context>,
        device: Handle<Device>,
        image: ur_exp_image_mem_native_handle_t,
        level: u32,
        found: Out<ur_exp_image_mem_native_handle_t>,
    ) {
        context.on(device)?;
        found.put(context.state().bindless.add_level(image, level)?)
    }

    pub(super) fn free_levels(
        context: Handle<Context>,
        device: Handle<Device>,
        image: ur_exp_image_mem_native_handle_t,
    ) {
        context.on(device)?;
        let bindless = &context.state().bindless;
        match bindless.find(image)? {
            Known::Levels(_) => {}
            Known::Image(_) | Known::Level(..) => {
                return Err(Failure::argument("this image does not have several levels"));
            }
        }
        drop(bindless.remove(image)?);
        Ok(())
    }

    /// Writes a property of an image. The size of the caller's memory follows from the property's
    /// type.
    pub(super) fn get_info(
        context: Handle<Context>,
        image: ur_exp_image_mem_native_handle_t,
        name: ur_image_info_t,
        value: *mut c_void,
        size: *mut usize,
    ) {
        if value.is_null() && size.is_null() {
            return Err(Failure::NULL_POINTER);
        }
        let (image, levels) = match context.state().bindless.find(image)? {
            Known::Image(image) | Known::Level(image, _) => (*image.description(), 1),
            Known::Levels(levels) => (*levels.description(), levels.levels()),
        };
        // SAFETY: the caller passes null, or memory for a value of the property's type. The pointer
        // to the size is null or valid for a write.
        unsafe { answer(&image, levels, name, value, size) }
    }
}

/// Writes a property of an image to the caller's memory. Unused dimensions are 0, and the number of
/// layers is reported as the depth.
///
/// # Safety
/// The caller must ensure that `value` is null or valid for a write of the property's type, and
/// that `size` is null or valid for a write.
unsafe fn answer(
    image: &ImageDescription,
    levels: u32,
    name: ur_image_info_t,
    value: *mut c_void,
    size: *mut usize,
) -> Result<()> {
    let [x, y, z] = image.extent;
    let (height, depth) = match image.kind {
        ImageKind::OneD => (0, 0),
        ImageKind::TwoD => (y, 0),
        ImageKind::OneDArray => (0, y),
        _ => (y, z),
    };
    // SAFETY: the caller ensures that non-null pointers are valid for writes of the property's type
    // and of its size.
    unsafe {
        match name {
            ur_image_info_t::UR_IMAGE_INFO_WIDTH => write(value, size, x),
            ur_image_info_t::UR_IMAGE_INFO_HEIGHT => write(value, size, height),
            ur_image_info_t::UR_IMAGE_INFO_DEPTH => write(value, size, depth),
            ur_image_info_t::UR_IMAGE_INFO_NUM_MIP_LEVELS => write(value, size, levels),
            ur_image_info_t::UR_IMAGE_INFO_FORMAT => {
                write(value, size, format::name_of(image.format));
            }
            _ => return Err(Failure::ENUMERATION),
        }
    }
    Ok(())
}

/// Writes a result and its size. Skips null pointers.
///
/// # Safety
/// The caller must ensure that `value` is null or valid for a write of `T`, and that `size` is null
/// or valid for a write.
unsafe fn write<T>(value: *mut c_void, size: *mut usize, answer: T) {
    // SAFETY: the caller upholds this function's contract. `write_unaligned` requires no alignment.
    unsafe {
        if !size.is_null() {
            size.write(size_of::<T>());
        }
        if !value.is_null() {
            value.cast::<T>().write_unaligned(answer);
        }
    }
}
