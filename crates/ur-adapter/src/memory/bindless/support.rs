//! Queries about supported bindless images.

use super::image::describe;
use crate::abi::boundary::{In, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Shared};
use crate::context::Context;
use crate::discovery::Device;
use crosshandle::image::ImageView;
use unified_runtime_sys::{
    ur_bool_t, ur_exp_image_mem_type_t as memory_type, ur_exp_image_mem_type_t, ur_image_desc_t,
    ur_image_format_t,
};

/// Returns whether a device supports an image in this type of memory.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` if the type of memory is unknown. Returns an error from
/// `crosshandle` if the driver fails.
fn supports(
    context: &Shared<Context>,
    device: &Shared<Device>,
    format: &ur_image_format_t,
    desc: &ur_image_desc_t,
    memory: ur_exp_image_mem_type_t,
) -> Result<bool> {
    let inner = context.on(device)?;
    let is_pointer = match memory {
        memory_type::UR_EXP_IMAGE_MEM_TYPE_OPAQUE_HANDLE => false,
        memory_type::UR_EXP_IMAGE_MEM_TYPE_USM_POINTER => true,
        _ => return Err(Failure::ENUMERATION),
    };
    let Ok((image, levels)) = describe(format, desc) else {
        return Ok(false);
    };
    let checked = match is_pointer {
        false => ImageView::check(inner, &image, levels),
        true if levels > 1 => return Ok(false),
        true => {
            let tight = image.extent[0].saturating_mul(image.format.pixel_bytes());
            let align = device
                .views()
                .map_or(1, |views| views.pitch_alignment.max(1));
            // If the caller specifies no pitch, use the smallest pitch that the device supports.
            let pitch = match desc.rowPitch {
                0 => tight.checked_next_multiple_of(align).unwrap_or(usize::MAX),
                pitch => pitch,
            };
            ImageView::check_memory(inner, &image, pitch)
        }
    };
    match checked {
        Ok(()) => Ok(true),
        Err(crosshandle::Error::Unsupported(_) | crosshandle::Error::InvalidArgument(_)) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

entry_points! {
    /// Returns whether an unsampled image can be created. It requires image memory, because kernels
    /// cannot write to plain memory through a view.
    pub(super) fn unsampled(
        context: Handle<Context>,
        device: Handle<Device>,
        desc: In<ur_image_desc_t>,
        format: In<ur_image_format_t>,
        memory: ur_exp_image_mem_type_t,
        supported: Out<ur_bool_t>,
    ) {
        let is_image = memory == memory_type::UR_EXP_IMAGE_MEM_TYPE_OPAQUE_HANDLE;
        let can = supports(context, device, format, desc, memory)?;
        supported.put((is_image && desc.numMipLevel <= 1 && can).into())
    }

    /// Returns whether image memory or a sampled image can be created.
    pub(super) fn sampled(
        context: Handle<Context>,
        device: Handle<Device>,
        desc: In<ur_image_desc_t>,
        format: In<ur_image_format_t>,
        memory: ur_exp_image_mem_type_t,
        supported: Out<ur_bool_t>,
    ) {
        supported.put(supports(context, device, format, desc, memory)?.into())
    }
}
