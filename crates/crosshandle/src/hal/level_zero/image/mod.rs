//! Images and samplers of the driver.

mod copy;
mod format;

pub(super) use copy::append;

use super::device::LevelZeroContext;
use super::driver::{
    DeviceHandle, Driver, DriverImage, DriverSampler, ImageShape, check, description, small,
};
use crate::error::{Error, Result};
use crate::hal::{DeviceImage, DeviceSampler, Images};
use crate::types::{
    Addressing, Filter, ImageDescription, ImageKind, ImageLimits, SamplerDescription,
};
use level_zero_sys::{
    ze_image_type_t as kinds, ze_result_t, ze_sampler_address_mode_t as addressings,
    ze_sampler_filter_mode_t as filters,
};
use std::sync::Arc;

/// Asks the driver for the limits of images; returns why there are none.
pub(super) fn limits(
    driver: &Driver,
    device: DeviceHandle,
) -> std::result::Result<ImageLimits, String> {
    let mut found = description!(
        ze_device_image_properties_t,
        ZE_STRUCTURE_TYPE_DEVICE_IMAGE_PROPERTIES
    );
    // SAFETY: a device that the driver counted, and a live result.
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
        read_arguments: found.maxReadImageArgs,
        write_arguments: found.maxWriteImageArgs,
        // It does not say.
        read_write_arguments: 0,
        samplers: found.maxSamplers,
    })
}

struct LevelZeroImage {
    image: DriverImage,
    /// The size of a pixel, in bytes.
    pixel: usize,
}

struct LevelZeroSampler(DriverSampler);

impl Images for LevelZeroContext {
    fn create(&self, image: &ImageDescription) -> Result<Arc<dyn DeviceImage>> {
        let unsupported = || {
            Error::Unsupported(format!(
                "the Level Zero driver has no images of {:?} pixels of {:?}",
                image.format.order, image.format.channel
            ))
        };
        let format = format::translate(image.format).ok_or_else(unsupported)?;
        let [x, y, z] = image.extent.map(small);
        let [x, y, z] = [x?, y?, z?];
        let (kind, size, layers) = match image.kind {
            ImageKind::OneD => (kinds::ZE_IMAGE_TYPE_1D, [x, 1, 1], 0),
            ImageKind::TwoD => (kinds::ZE_IMAGE_TYPE_2D, [x, y, 1], 0),
            ImageKind::ThreeD => (kinds::ZE_IMAGE_TYPE_3D, [x, y, z], 0),
            ImageKind::OneDArray => (kinds::ZE_IMAGE_TYPE_1DARRAY, [x, 1, 1], y),
            ImageKind::TwoDArray => (kinds::ZE_IMAGE_TYPE_2DARRAY, [x, y, 1], z),
        };
        let shape = ImageShape {
            kind,
            format,
            size,
            layers,
        };
        let created = DriverImage::create(self.context(), self.gpu().handle(), &shape);
        Ok(Arc::new(LevelZeroImage {
            image: created.map_err(|error| match is_unsupported(&error) {
                true => unsupported(),
                false => error,
            })?,
            pixel: image.format.pixel_bytes(),
        }))
    }

    fn create_sampler(&self, sampler: &SamplerDescription) -> Result<Arc<dyn DeviceSampler>> {
        let addressing = match sampler.addressing {
            Addressing::None => addressings::ZE_SAMPLER_ADDRESS_MODE_NONE,
            Addressing::ClampToEdge => addressings::ZE_SAMPLER_ADDRESS_MODE_CLAMP,
            Addressing::Clamp => addressings::ZE_SAMPLER_ADDRESS_MODE_CLAMP_TO_BORDER,
            Addressing::Repeat => addressings::ZE_SAMPLER_ADDRESS_MODE_REPEAT,
            Addressing::MirroredRepeat => addressings::ZE_SAMPLER_ADDRESS_MODE_MIRROR,
        };
        let filter = match sampler.filter {
            Filter::Nearest => filters::ZE_SAMPLER_FILTER_MODE_NEAREST,
            Filter::Linear => filters::ZE_SAMPLER_FILTER_MODE_LINEAR,
        };
        let (context, device) = (self.context(), self.gpu().handle());
        let created =
            DriverSampler::create(context, device, addressing, filter, sampler.is_normalized);
        Ok(Arc::new(LevelZeroSampler(created?)))
    }
}

/// Returns whether the driver has refused the format.
fn is_unsupported(error: &Error) -> bool {
    let codes = [
        ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT,
        ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION,
        ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
    ];
    match error {
        Error::Driver { code, .. } => codes.iter().any(|known| i64::from(known.0) == *code),
        _ => false,
    }
}

impl DeviceImage for LevelZeroImage {
    fn raw(&self) -> usize {
        self.image.handle().0.expose_provenance()
    }
}

impl DeviceSampler for LevelZeroSampler {
    fn raw(&self) -> usize {
        self.0.handle().0.expose_provenance()
    }
}
