//! Images and samplers, which use the OpenCL runtime that also runs kernels.

mod append;
mod format;

pub(crate) use append::{
    ImageWork, zeCommandListAppendImageCopyFromMemory, zeCommandListAppendImageCopyRegion,
    zeCommandListAppendImageCopyToMemory,
};

use std::sync::Arc;

use level_zero_sys::*;
use opencl_cpu::{
    Addressing, Failure, ImageDescription, ImageKind, ImageLimits, ImageObject, Runtime,
    SamplerDescription, SamplerObject,
};

use crate::call::{
    DEPENDENCY_UNAVAILABLE, INVALID_ENUMERATION, INVALID_SIZE, Result, UNSUPPORTED_FEATURE, entry,
    present, read, write,
};
use crate::context::{Context, pair};
use crate::device::Device;
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::space::UseCount;
use crate::switches::switches;

/// Maximum number of images that a kernel reads, and that it writes. The OpenCL runtime allows
/// more.
const ARGUMENTS: u32 = 128;
/// Maximum number of samplers of a kernel. The OpenCL runtime allows more.
const SAMPLERS: u32 = 16;

pub(crate) struct Image {
    context: Arc<Context>,
    pub(crate) object: ImageObject,
    kind: ImageKind,
    /// The size in pixels. An array's number of layers is in the dimension after those of its
    /// images.
    extent: [usize; 3],
    /// The size of a pixel, in bytes.
    pixel: usize,
    pub(crate) use_count: UseCount,
}

pub(crate) struct Sampler {
    context: Arc<Context>,
    pub(crate) object: SamplerObject,
    /// Counts the commands that use the sampler.
    pub(crate) use_count: UseCount,
}

impl Object for Image {
    const NAME: &'static str = "image";

    fn resource(&self) -> Resource {
        Resource::Image
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

impl Object for Sampler {
    const NAME: &'static str = "sampler";

    fn resource(&self) -> Resource {
        Resource::Sampler
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

/// Returns the OpenCL runtime and its limits, if it supports images.
fn runtime() -> Result<(&'static Runtime, &'static ImageLimits)> {
    let missing = ["modules", "images"];
    if missing.iter().any(|name| switches().missing(name)) {
        return Err(UNSUPPORTED_FEATURE);
    }
    let runtime = Runtime::get().map_err(|_| DEPENDENCY_UNAVAILABLE)?;
    let limits = runtime.limits().images.as_ref();
    Ok((runtime, limits.ok_or(UNSUPPORTED_FEATURE)?))
}

/// Converts a refusal of the OpenCL runtime to a result code.
fn refused(failure: &Failure) -> ze_result_t {
    match failure.is_unsupported_format() {
        true => ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_IMAGE_FORMAT,
        false => INVALID_SIZE,
    }
}

fn kind_of(desc: &ze_image_desc_t) -> Result<(ImageKind, [usize; 3])> {
    let (width, height) = (desc.width as usize, desc.height as usize);
    let (depth, layers) = (desc.depth as usize, desc.arraylevels as usize);
    Ok(match desc.type_ {
        ze_image_type_t::ZE_IMAGE_TYPE_1D => (ImageKind::OneD, [width, 1, 1]),
        ze_image_type_t::ZE_IMAGE_TYPE_2D => (ImageKind::TwoD, [width, height, 1]),
        ze_image_type_t::ZE_IMAGE_TYPE_3D => (ImageKind::ThreeD, [width, height, depth]),
        ze_image_type_t::ZE_IMAGE_TYPE_1DARRAY => (ImageKind::OneDArray, [width, layers, 1]),
        ze_image_type_t::ZE_IMAGE_TYPE_2DARRAY => (ImageKind::TwoDArray, [width, height, layers]),
        _ => return Err(INVALID_ENUMERATION),
    })
}

entry! {
    fn zeDeviceGetImageProperties(
        device: ze_device_handle_t,
        properties: *mut ze_device_image_properties_t,
    ) {
        handles::get::<Device, _>(device)?;
        let old = read(properties.cast_const())?;
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut value = ze_device_image_properties_t {
            stype: old.stype,
            pNext: old.pNext,
            maxImageDims1D: 0,
            maxImageDims2D: 0,
            maxImageDims3D: 0,
            maxImageBufferSize: 0,
            maxImageArraySlices: 0,
            maxSamplers: 0,
            maxReadImageArgs: 0,
            maxWriteImageArgs: 0,
        };
        if let Ok((_, limits)) = runtime() {
            let flat = limits.size_2d[0].min(limits.size_2d[1]);
            let deep = limits.size_3d.iter().copied().min().unwrap_or(0);
            value.maxImageDims1D = small(flat);
            value.maxImageDims2D = small(flat);
            value.maxImageDims3D = small(deep);
            value.maxImageArraySlices = small(limits.layers);
            value.maxSamplers = SAMPLERS.min(limits.samplers);
            value.maxReadImageArgs = ARGUMENTS.min(limits.read_arguments);
            value.maxWriteImageArgs = ARGUMENTS.min(limits.write_arguments);
        }
        write(properties, value)
    }

    fn zeImageCreate(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        desc: *const ze_image_desc_t,
        image: *mut ze_image_handle_t,
    ) {
        let (context, _) = pair(context, device)?;
        let desc = read(desc)?;
        present(image)?;
        if desc.flags & !(ZE_IMAGE_FLAG_KERNEL_WRITE | ZE_IMAGE_FLAG_BIAS_UNCACHED) != 0 {
            return Err(INVALID_ENUMERATION);
        }
        let (runtime, _) = runtime()?;
        let (kind, extent) = kind_of(&desc)?;
        let (order, channel) = format::translate(&desc.format)?;
        let description = ImageDescription { kind, order, channel, extent };
        let object = ImageObject::new(&runtime.device(), &description);
        let object = object.map_err(|failure| refused(&failure))?;
        let pixel = object.pixel_bytes().map_err(|failure| refused(&failure))?;
        write(image, handles::create(Arc::new(Image {
            context,
            object,
            kind,
            extent,
            pixel,
            use_count: UseCount::default(),
        }))?)
    }

    fn zeImageDestroy(image: ze_image_handle_t) {
        let image = handles::take::<Image, _>(image, |_| Ok(()))?;
        image.use_count.check("the image");
        Ok(())
    }

    fn zeSamplerCreate(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        desc: *const ze_sampler_desc_t,
        sampler: *mut ze_sampler_handle_t,
    ) {
        let (context, _) = pair(context, device)?;
        let desc = read(desc)?;
        present(sampler)?;
        let (runtime, _) = runtime()?;
        let description = SamplerDescription {
            is_normalized: desc.isNormalized != 0,
            addressing: match desc.addressMode {
                ze_sampler_address_mode_t::ZE_SAMPLER_ADDRESS_MODE_NONE => Addressing::None,
                ze_sampler_address_mode_t::ZE_SAMPLER_ADDRESS_MODE_REPEAT => Addressing::Repeat,
                ze_sampler_address_mode_t::ZE_SAMPLER_ADDRESS_MODE_CLAMP => Addressing::ClampToEdge,
                ze_sampler_address_mode_t::ZE_SAMPLER_ADDRESS_MODE_CLAMP_TO_BORDER => {
                    Addressing::Clamp
                }
                ze_sampler_address_mode_t::ZE_SAMPLER_ADDRESS_MODE_MIRROR => {
                    Addressing::MirroredRepeat
                }
                _ => return Err(INVALID_ENUMERATION),
            },
            is_linear: match desc.filterMode {
                ze_sampler_filter_mode_t::ZE_SAMPLER_FILTER_MODE_NEAREST => false,
                ze_sampler_filter_mode_t::ZE_SAMPLER_FILTER_MODE_LINEAR => true,
                _ => return Err(INVALID_ENUMERATION),
            },
        };
        let object = SamplerObject::new(&runtime.device(), &description);
        let object = object.map_err(|failure| refused(&failure))?;
        write(sampler, handles::create(Arc::new(Sampler {
            context,
            object,
            use_count: UseCount::default(),
        }))?)
    }

    fn zeSamplerDestroy(sampler: ze_sampler_handle_t) {
        let sampler = handles::take::<Sampler, _>(sampler, |_| Ok(()))?;
        sampler.use_count.check("the sampler");
        Ok(())
    }
}
