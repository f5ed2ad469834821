//! Device properties for images. Only these queries load the runtime that supports images.

use super::Answer::{self, Size, Truth, U32};
use crate::discovery::Device;
use crosshandle::image::{ImageLimits, ViewLimits};
use unified_runtime_sys::ur_device_info_t as name;

pub(super) fn answer(device: &Device, asked: name) -> Option<Answer<'static>> {
    // If the device does not support images, all limits are 0.
    let Some(without) = without_images(asked) else {
        return bindless(device, asked);
    };
    let limits = device.inner().images().ok();
    Some(limits.map_or(without, |limits| with_images(limits, asked)))
}

/// Returns the value that a property has on a device without image support. Returns `None` if the
/// property is not in this list.
fn without_images(asked: name) -> Option<Answer<'static>> {
    Some(match asked {
        name::UR_DEVICE_INFO_IMAGE_SUPPORT => Truth(false),
        name::UR_DEVICE_INFO_MAX_READ_IMAGE_ARGS
        | name::UR_DEVICE_INFO_MAX_WRITE_IMAGE_ARGS
        | name::UR_DEVICE_INFO_MAX_READ_WRITE_IMAGE_ARGS
        | name::UR_DEVICE_INFO_MAX_SAMPLERS => U32(0),
        name::UR_DEVICE_INFO_IMAGE2D_MAX_WIDTH
        | name::UR_DEVICE_INFO_IMAGE2D_MAX_HEIGHT
        | name::UR_DEVICE_INFO_IMAGE3D_MAX_WIDTH
        | name::UR_DEVICE_INFO_IMAGE3D_MAX_HEIGHT
        | name::UR_DEVICE_INFO_IMAGE3D_MAX_DEPTH
        | name::UR_DEVICE_INFO_IMAGE_MAX_BUFFER_SIZE
        | name::UR_DEVICE_INFO_IMAGE_MAX_ARRAY_SIZE => Size(0),
        _ => return None,
    })
}

/// Returns the value that a property has on a device with image support. `asked` must be a property
/// for which [`without_images`] returns a value.
fn with_images(limits: &ImageLimits, asked: name) -> Answer<'static> {
    match asked {
        name::UR_DEVICE_INFO_MAX_READ_IMAGE_ARGS => U32(limits.read_arguments),
        name::UR_DEVICE_INFO_MAX_WRITE_IMAGE_ARGS => U32(limits.write_arguments),
        name::UR_DEVICE_INFO_MAX_READ_WRITE_IMAGE_ARGS => U32(limits.read_write_arguments),
        name::UR_DEVICE_INFO_MAX_SAMPLERS => U32(limits.samplers),
        name::UR_DEVICE_INFO_IMAGE2D_MAX_WIDTH => Size(limits.size_2d[0]),
        name::UR_DEVICE_INFO_IMAGE2D_MAX_HEIGHT => Size(limits.size_2d[1]),
        name::UR_DEVICE_INFO_IMAGE3D_MAX_WIDTH => Size(limits.size_3d[0]),
        name::UR_DEVICE_INFO_IMAGE3D_MAX_HEIGHT => Size(limits.size_3d[1]),
        name::UR_DEVICE_INFO_IMAGE3D_MAX_DEPTH => Size(limits.size_3d[2]),
        // The limit for images that are created from a buffer. UR has no call that creates such an
        // image.
        name::UR_DEVICE_INFO_IMAGE_MAX_BUFFER_SIZE => Size(limits.size_1d),
        name::UR_DEVICE_INFO_IMAGE_MAX_ARRAY_SIZE => Size(limits.layers),
        _ => Truth(true),
    }
}

/// Returns the value of a property for bindless images. If the device does not support them, all
/// limits are 0.
fn bindless(device: &Device, asked: name) -> Option<Answer<'static>> {
    let has = || Truth(device.views().is_some());
    let number = |of: fn(&ViewLimits) -> usize| device.views().as_ref().map_or(0, of);
    Some(match asked {
        name::UR_DEVICE_INFO_BINDLESS_IMAGES_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_IMAGES_SHARED_USM_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_IMAGES_1D_USM_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_IMAGES_2D_USM_SUPPORT_EXP
        | name::UR_DEVICE_INFO_MIPMAP_SUPPORT_EXP
        | name::UR_DEVICE_INFO_MIPMAP_ANISOTROPY_SUPPORT_EXP
        | name::UR_DEVICE_INFO_MIPMAP_LEVEL_REFERENCE_SUPPORT_EXP
        | name::UR_DEVICE_INFO_EXTERNAL_MEMORY_IMPORT_SUPPORT_EXP
        | name::UR_DEVICE_INFO_CUBEMAP_SUPPORT_EXP
        | name::UR_DEVICE_INFO_CUBEMAP_SEAMLESS_FILTERING_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_SAMPLED_IMAGE_FETCH_1D_USM_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_SAMPLED_IMAGE_FETCH_2D_USM_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_SAMPLED_IMAGE_FETCH_2D_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_SAMPLED_IMAGE_FETCH_3D_SUPPORT_EXP
        | name::UR_DEVICE_INFO_IMAGE_ARRAY_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_UNIQUE_ADDRESSING_PER_DIM_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_SAMPLE_2D_USM_SUPPORT_EXP => has(),

        // No device supports these features: sRGB images, fetching from sampled one-dimensional
        // images, sampling one-dimensional USM, gathering, and importing external semaphores.
        name::UR_DEVICE_INFO_IMAGE_SRGB
        | name::UR_DEVICE_INFO_EXTERNAL_SEMAPHORE_IMPORT_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_SAMPLED_IMAGE_FETCH_1D_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_SAMPLE_1D_USM_SUPPORT_EXP
        | name::UR_DEVICE_INFO_BINDLESS_IMAGES_GATHER_SUPPORT_EXP => Truth(false),

        name::UR_DEVICE_INFO_IMAGE_PITCH_ALIGN_EXP => U32(number(|views| views.pitch_alignment)
            .try_into()
            .unwrap_or(0)),
        name::UR_DEVICE_INFO_MIPMAP_MAX_ANISOTROPY_EXP => {
            U32(device.views().map_or(0, |views| views.anisotropy))
        }
        name::UR_DEVICE_INFO_MAX_IMAGE_LINEAR_WIDTH_EXP => Size(number(|views| views.linear_2d[0])),
        name::UR_DEVICE_INFO_MAX_IMAGE_LINEAR_HEIGHT_EXP => {
            Size(number(|views| views.linear_2d[1]))
        }
        name::UR_DEVICE_INFO_MAX_IMAGE_LINEAR_PITCH_EXP => Size(number(|views| views.linear_pitch)),
        _ => return None,
    })
}
