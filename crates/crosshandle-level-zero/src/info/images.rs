//! The limits of images on a device.

use crate::driver::{DeviceHandle, Driver, check, description};
use crosshandle_types::ImageLimits;

/// Queries the driver for the limits of images. The error is the reason why the device has none.
pub(crate) fn describe(
    driver: &Driver,
    device: DeviceHandle,
) -> std::result::Result<ImageLimits, String> {
    let mut found = description!(
        ze_device_image_properties_t,
        ZE_STRUCTURE_TYPE_DEVICE_IMAGE_PROPERTIES
    );
    // SAFETY: a device that the driver listed, with a live result.
    let code = unsafe { (driver.loader.zeDeviceGetImageProperties)(device.0, &mut found) };
    check("zeDeviceGetImageProperties", code).map_err(|error| error.to_string())?;
    if found.maxImageDims2D == 0 {
        return Err("this device has no images".into());
    }
    let (flat, deep) = (found.maxImageDims2D as usize, found.maxImageDims3D as usize);
    Ok(ImageLimits {
        size_1d: found.maxImageDims1D as usize,
        size_2d: [flat; 2],
        size_3d: [deep; 3],
        layers: found.maxImageArraySlices as usize,
        layer_1d: found.maxImageDims1D as usize,
        layer_2d: [flat; 2],
        read_arguments: found.maxReadImageArgs,
        write_arguments: found.maxWriteImageArgs,
        // The driver does not report this limit.
        read_write_arguments: 0,
        samplers: found.maxSamplers,
        views: None,
    })
}
