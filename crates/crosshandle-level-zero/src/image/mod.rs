//! The factory of images and samplers.

mod copy;
mod format;
mod object;

pub(super) use copy::append;

use super::context::LevelZeroContext;
use super::driver::{DriverImage, DriverSampler, ImageShape, small};
use crosshandle_hal::{BackendImage, BackendImages, BackendSampler};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Addressing, Filter, ImageDescription, ImageKind, SamplerDescription};
use level_zero_sys::{
    ze_image_type_t as kinds, ze_result_t, ze_sampler_address_mode_t as addressings,
    ze_sampler_filter_mode_t as filters,
};
use object::LevelZeroImage;
use std::sync::Arc;

struct LevelZeroSampler(DriverSampler);

impl BackendImages for LevelZeroContext {
    fn create(&self, image: &ImageDescription) -> Result<Arc<dyn BackendImage>> {
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
            ImageKind::Cube => return Err(unsupported()),
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

    fn create_sampler(&self, sampler: &SamplerDescription) -> Result<Arc<dyn BackendSampler>> {
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

/// Returns whether the driver has rejected the format.
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

impl BackendSampler for LevelZeroSampler {
    fn raw(&self) -> usize {
        self.0.handle().0.expose_provenance()
    }
}
