//! The limits of images on a GPU.

use crate::driver::sys::CUdevice_attribute::{self as Attribute, *};
use crate::driver::{DeviceHandle, Driver};
use crosshandle_types::{ImageLimits, ViewLimits};

/// Maximum number of images that a kernel takes. Their numbers take 8 bytes each of a launch's
/// arguments, which are at least 4,096 bytes and also hold other arguments.
const ARGUMENTS: u32 = 128;
/// Maximum number of samplers that a kernel takes: the minimum that OpenCL requires. Samplers are
/// words like other arguments.
const SAMPLERS: u32 = 16;
/// The maximum anisotropy of all devices.
const ANISOTROPY: u32 = 16;

/// Returns the limits of images, or `None` if the driver lacks functions for images.
pub(crate) fn limits(driver: &Driver, device: DeviceHandle) -> Option<ImageLimits> {
    let number = |attribute| {
        let value = driver.device_attribute(device, attribute).unwrap_or(0);
        usize::try_from(value).unwrap_or(0)
    };
    driver.has_images().then(|| limits_of(number))
}

fn limits_of(number: impl Fn(Attribute) -> usize) -> ImageLimits {
    // Each image is both a surface and, in views, a texture.
    let both = |texture, surface| number(texture).min(number(surface));
    ImageLimits {
        size_1d: both(
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH,
        ),
        size_2d: [
            both(
                CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH,
                CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH,
            ),
            both(
                CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT,
                CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT,
            ),
        ],
        size_3d: [
            both(
                CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH,
                CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH,
            ),
            both(
                CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT,
                CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT,
            ),
            both(
                CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH,
                CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH,
            ),
        ],
        layers: both(
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS,
        )
        .min(both(
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS,
        )),
        layer_1d: both(
            CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH,
            CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH,
        ),
        layer_2d: [
            both(
                CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH,
                CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH,
            ),
            both(
                CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT,
                CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT,
            ),
        ],
        read_arguments: ARGUMENTS,
        write_arguments: ARGUMENTS,
        read_write_arguments: ARGUMENTS,
        samplers: SAMPLERS,
        views: Some(ViewLimits {
            linear_1d: number(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH),
            linear_2d: [
                number(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH),
                number(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT),
            ],
            linear_pitch: number(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH),
            pitch_alignment: number(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT),
            start_alignment: number(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
            levels_1d: number(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH),
            levels_2d: [
                number(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH),
                number(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT),
            ],
            cube: both(
                CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH,
                CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH,
            ),
            anisotropy: ANISOTROPY,
        }),
    }
}
