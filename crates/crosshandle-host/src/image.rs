//! Images and samplers of the runtime. The runtime decides where the pixels are stored, so commands
//! copy them. Kernels use them in place.

use super::program::{Units, error};
use crosshandle_hal::{BackendImage, BackendImages, BackendSampler, ImageCopy, ImageSide};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{
    Addressing, ChannelOrder, ChannelType, Filter, ImageDescription, ImageKind, ImageLimits,
    SamplerDescription,
};
use opencl_cpu::{Completion, ImageObject, Part, Queue, Runtime, SamplerObject};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// Returns the limits of images, or the reason why there are none.
pub(super) fn limits() -> std::result::Result<&'static ImageLimits, String> {
    static LIMITS: OnceLock<Option<ImageLimits>> = OnceLock::new();
    let runtime = Runtime::get()?;
    let describe = || runtime.limits().images.as_ref().map(describe);
    let limits = LIMITS.get_or_init(describe).as_ref();
    limits.ok_or_else(|| {
        format!(
            "the OpenCL runtime {} has no images",
            runtime.platform_name()
        )
    })
}

fn describe(limits: &opencl_cpu::ImageLimits) -> ImageLimits {
    ImageLimits {
        size_1d: limits.size_2d[0],
        size_2d: limits.size_2d,
        size_3d: limits.size_3d,
        layers: limits.layers,
        layer_1d: limits.size_2d[0],
        layer_2d: limits.size_2d,
        read_arguments: limits.read_arguments,
        write_arguments: limits.write_arguments,
        read_write_arguments: limits.read_write_arguments,
        samplers: limits.samplers,
        views: None,
    }
}

/// The factory of images for a set of compute units.
pub(crate) struct HostImages(Units);

struct HostImage(ImageObject);

struct HostSampler(SamplerObject);

impl HostImages {
    pub(crate) fn new(units: &Units) -> Self {
        Self(units.clone())
    }
}

impl BackendImages for HostImages {
    fn create(&self, image: &ImageDescription) -> Result<Arc<dyn BackendImage>> {
        let translated = translate(image).ok_or_else(|| unsupported(image))?;
        let made = ImageObject::new(&self.0.device()?, &translated);
        let made = made.map_err(|failure| match failure.is_unsupported_format() {
            true => unsupported(image),
            false => error(failure),
        })?;
        // Copies rely on this size.
        match made.pixel_bytes().map_err(error)? == image.format.pixel_bytes() {
            true => Ok(Arc::new(HostImage(made))),
            false => Err(unsupported(image)),
        }
    }

    fn create_sampler(&self, sampler: &SamplerDescription) -> Result<Arc<dyn BackendSampler>> {
        let description = opencl_cpu::SamplerDescription {
            is_normalized: sampler.is_normalized,
            addressing: match sampler.addressing {
                Addressing::None => opencl_cpu::Addressing::None,
                Addressing::ClampToEdge => opencl_cpu::Addressing::ClampToEdge,
                Addressing::Clamp => opencl_cpu::Addressing::Clamp,
                Addressing::Repeat => opencl_cpu::Addressing::Repeat,
                Addressing::MirroredRepeat => opencl_cpu::Addressing::MirroredRepeat,
            },
            is_linear: sampler.filter == Filter::Linear,
        };
        let made = SamplerObject::new(&self.0.device()?, &description).map_err(error)?;
        Ok(Arc::new(HostSampler(made)))
    }
}

impl BackendImage for HostImage {
    fn raw(&self) -> usize {
        self.0.raw()
    }
}

impl BackendSampler for HostSampler {
    fn raw(&self) -> usize {
        self.0.raw()
    }
}

fn unsupported(image: &ImageDescription) -> Error {
    Error::Unsupported(format!(
        "the OpenCL runtime has no images of {:?} pixels of {:?}",
        image.format.order, image.format.channel
    ))
}

/// Converts an image description for the runtime. Returns `None` for a cube, because the runtime
/// has none.
fn translate(image: &ImageDescription) -> Option<opencl_cpu::ImageDescription> {
    Some(opencl_cpu::ImageDescription {
        kind: match image.kind {
            ImageKind::OneD => opencl_cpu::ImageKind::OneD,
            ImageKind::TwoD => opencl_cpu::ImageKind::TwoD,
            ImageKind::ThreeD => opencl_cpu::ImageKind::ThreeD,
            ImageKind::OneDArray => opencl_cpu::ImageKind::OneDArray,
            ImageKind::TwoDArray => opencl_cpu::ImageKind::TwoDArray,
            ImageKind::Cube => return None,
        },
        order: order(image.format.order),
        channel: channel(image.format.channel),
        extent: image.extent,
    })
}

fn order(order: ChannelOrder) -> opencl_cpu::ChannelOrder {
    match order {
        ChannelOrder::A => opencl_cpu::ChannelOrder::A,
        ChannelOrder::R => opencl_cpu::ChannelOrder::R,
        ChannelOrder::Rg => opencl_cpu::ChannelOrder::Rg,
        ChannelOrder::Ra => opencl_cpu::ChannelOrder::Ra,
        ChannelOrder::Rgb => opencl_cpu::ChannelOrder::Rgb,
        ChannelOrder::Rgba => opencl_cpu::ChannelOrder::Rgba,
        ChannelOrder::Bgra => opencl_cpu::ChannelOrder::Bgra,
        ChannelOrder::Argb => opencl_cpu::ChannelOrder::Argb,
        ChannelOrder::Abgr => opencl_cpu::ChannelOrder::Abgr,
        ChannelOrder::Intensity => opencl_cpu::ChannelOrder::Intensity,
        ChannelOrder::Luminance => opencl_cpu::ChannelOrder::Luminance,
        ChannelOrder::Rx => opencl_cpu::ChannelOrder::Rx,
        ChannelOrder::Rgx => opencl_cpu::ChannelOrder::Rgx,
        ChannelOrder::Rgbx => opencl_cpu::ChannelOrder::Rgbx,
        ChannelOrder::Srgba => opencl_cpu::ChannelOrder::Srgba,
    }
}

fn channel(channel: ChannelType) -> opencl_cpu::ChannelType {
    match channel {
        ChannelType::SnormInt8 => opencl_cpu::ChannelType::SnormInt8,
        ChannelType::SnormInt16 => opencl_cpu::ChannelType::SnormInt16,
        ChannelType::UnormInt8 => opencl_cpu::ChannelType::UnormInt8,
        ChannelType::UnormInt16 => opencl_cpu::ChannelType::UnormInt16,
        ChannelType::UnormShort565 => opencl_cpu::ChannelType::UnormShort565,
        ChannelType::UnormShort555 => opencl_cpu::ChannelType::UnormShort555,
        ChannelType::UnormInt101010 => opencl_cpu::ChannelType::UnormInt101010,
        ChannelType::SignedInt8 => opencl_cpu::ChannelType::SignedInt8,
        ChannelType::SignedInt16 => opencl_cpu::ChannelType::SignedInt16,
        ChannelType::SignedInt32 => opencl_cpu::ChannelType::SignedInt32,
        ChannelType::UnsignedInt8 => opencl_cpu::ChannelType::UnsignedInt8,
        ChannelType::UnsignedInt16 => opencl_cpu::ChannelType::UnsignedInt16,
        ChannelType::UnsignedInt32 => opencl_cpu::ChannelType::UnsignedInt32,
        ChannelType::HalfFloat => opencl_cpu::ChannelType::HalfFloat,
        ChannelType::Float => opencl_cpu::ChannelType::Float,
    }
}

fn inner(image: &Arc<dyn BackendImage>) -> Result<&ImageObject> {
    let image: &dyn Any = &**image;
    let image = image.downcast_ref::<HostImage>();
    image
        .map(|image| &image.0)
        .ok_or_else(|| Error::invalid("this image is not the host's"))
}

/// Copies pixels, and returns when the copy is complete.
pub(super) fn copy(queue: &Queue, copy: &ImageCopy) -> Result<()> {
    let submitted = submit(queue, copy)?;
    queue.flush().map_err(error)?;
    submitted.wait().map_err(error)
}

fn submit(queue: &Queue, copy: &ImageCopy) -> Result<Completion> {
    let part = |origin: [usize; 3]| Part {
        origin,
        extent: copy.extent,
    };
    // SAFETY: the object layer checked that the rows and slices lie in their memory. Until the copy
    // is complete, the operand keeps the memory mapped, or the caller of an unsafe method promised
    // to.
    let submitted = unsafe {
        match (&copy.to, &copy.from) {
            (ImageSide::Image { image, origin }, ImageSide::Memory { place, pitches }) => {
                let from = place.address.pointer().as_ptr().cast_const();
                let from = (from, pitches.row, pitches.slice);
                queue.write_image(inner(image)?, &part(*origin), from)
            }
            (ImageSide::Memory { place, pitches }, ImageSide::Image { image, origin }) => {
                let to = (place.address.pointer().as_ptr(), pitches.row, pitches.slice);
                queue.read_image(inner(image)?, &part(*origin), to)
            }
            (
                ImageSide::Image {
                    image: to,
                    origin: to_origin,
                },
                ImageSide::Image { image, origin },
            ) => queue.copy_image(
                (inner(image)?, *origin),
                (inner(to)?, *to_origin),
                copy.extent,
            ),
            (ImageSide::Memory { .. }, ImageSide::Memory { .. }) => {
                return Err(Error::invalid("a copy of pixels has an image on one side"));
            }
        }
    };
    submitted.map_err(error)
}
