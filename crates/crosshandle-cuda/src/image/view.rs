//! Views of images: texture and surface objects.

use super::copy::inner;
use super::format;
use super::object::{CudaImage, CudaLevels};
use crate::device::Gpu;
use crate::driver::sys::{CUaddress_mode as addressings, CUfilter_mode as filters};
use crate::driver::{DeviceAddress, TextureRules, TextureSource};
use crate::scheduler::Urgency;
use crosshandle_hal::{BackendImage, BackendLevels, BackendView, ViewSource};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Addressing, Filter, ImageDescription, ImageFormat, ImageKind, Sampling};
use std::any::Any;
use std::sync::Arc;

/// A texture object. A deferred call destroys it when no stream waits, as with images.
struct Texture {
    gpu: Arc<Gpu>,
    number: u64,
    /// The image that the texture reads, unless it reads memory.
    _keep: Option<Arc<dyn Any + Send + Sync>>,
}

/// The surface object of an image.
struct Surface {
    number: u64,
    _image: Arc<dyn BackendImage>,
}

/// Creates a view that samples. The caller holds no lock, because the driver may wait for streams.
pub(super) fn sampled(
    gpu: &Arc<Gpu>,
    source: &ViewSource<'_>,
    image: &ImageDescription,
    sampling: &Sampling,
) -> Result<Arc<dyn BackendView>> {
    let pixel = format::pixel(image.format)?;
    let (texture, keep): (_, Option<Arc<dyn Any + Send + Sync>>) = match *source {
        ViewSource::Image(shown) => {
            let own: &CudaImage = inner(shown)?;
            check_context(gpu, own.gpu())?;
            let keep = Arc::clone(shown);
            (TextureSource::Array(own.array()), Some(keep as _))
        }
        ViewSource::Levels(shown) => {
            let own = levels(shown)?;
            check_context(gpu, own.gpu())?;
            let keep = Arc::clone(shown);
            (TextureSource::Levels(own.handle()), Some(keep as _))
        }
        ViewSource::Memory { start, pitch } => {
            let start = start.get() as DeviceAddress;
            let [width, height, _] = image.extent;
            let rows = match image.kind {
                ImageKind::OneD => TextureSource::Row(start, width),
                _ => TextureSource::Rows(start, [width, height], pitch),
            };
            (rows, None)
        }
    };
    let rules = rules(sampling, image);
    let _current = gpu.enter()?;
    let driver = gpu.driver();
    // SAFETY: kernels that use the texture keep the view, which keeps its image. A texture of
    // memory is kept valid by the owner of that memory. The object layer has checked that the
    // memory is aligned and large enough for the pixels.
    let create = || unsafe { driver.create_texture(texture, pixel, &rules) };
    Ok(Arc::new(Texture {
        gpu: Arc::clone(gpu),
        number: driver.beside_captures(create)?,
        _keep: keep,
    }))
}

/// Returns a view through which kernels read and write pixels without conversion.
pub(super) fn unsampled(image: &Arc<dyn BackendImage>) -> Result<Arc<dyn BackendView>> {
    Ok(Arc::new(Surface {
        number: inner(image)?.surface(),
        _image: Arc::clone(image),
    }))
}

fn check_context(gpu: &Arc<Gpu>, own: &Arc<Gpu>) -> Result<()> {
    match Arc::ptr_eq(gpu, own) || gpu.is_in_context_of(own) {
        true => Ok(()),
        false => Err(Error::invalid(
            "this image was created in another context of the driver",
        )),
    }
}

fn levels(levels: &Arc<dyn BackendLevels>) -> Result<&CudaLevels> {
    let levels: &dyn Any = &**levels;
    let levels = levels.downcast_ref();
    levels.ok_or_else(|| Error::invalid("this image does not belong to the CUDA backend"))
}

fn rules(sampling: &Sampling, image: &ImageDescription) -> TextureRules {
    let filter = |filter| match filter {
        Filter::Nearest => filters::CU_TR_FILTER_MODE_POINT,
        Filter::Linear => filters::CU_TR_FILTER_MODE_LINEAR,
    };
    // The modes of dimensions that an image lacks can change how the other dimensions are read.
    let dimensions = match image.kind {
        ImageKind::OneD | ImageKind::OneDArray => 1,
        ImageKind::TwoD | ImageKind::TwoDArray => 2,
        ImageKind::ThreeD | ImageKind::Cube => 3,
    };
    let mut addressing = [addressings::CU_TR_ADDRESS_MODE_WRAP; 3];
    for (mode, wanted) in addressing
        .iter_mut()
        .zip(sampling.addressing)
        .take(dimensions)
    {
        *mode = match wanted {
            // The kernel reads nothing outside the image.
            Addressing::None | Addressing::ClampToEdge => addressings::CU_TR_ADDRESS_MODE_CLAMP,
            Addressing::Clamp => addressings::CU_TR_ADDRESS_MODE_BORDER,
            Addressing::Repeat => addressings::CU_TR_ADDRESS_MODE_WRAP,
            Addressing::MirroredRepeat => addressings::CU_TR_ADDRESS_MODE_MIRROR,
        };
    }
    TextureRules {
        addressing,
        filter: filter(sampling.filter),
        level_filter: filter(sampling.level_filter),
        levels: sampling.levels,
        anisotropy: sampling.anisotropy,
        is_normalized: sampling.is_normalized,
        reads_integers: reads_integers(image.format),
        is_seamless: sampling.is_seamless,
    }
}

/// Returns whether a texture reads pixels of this format as integers. Otherwise, the driver reads
/// them as fractions, which is right for normalised numbers. For floats, this makes no difference.
fn reads_integers(format: ImageFormat) -> bool {
    format.channel.is_integer()
}

impl Drop for Texture {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let number = self.number;
        let destroy = self
            .gpu
            .later("destroying a view of an image", move |driver| {
                // SAFETY: this object created the texture and destroys it once. The commands that
                // used the texture kept this object until they finished.
                unsafe { driver?.destroy_texture(number) }
            });
        let scheduler = self.gpu.scheduler();
        scheduler.call(Urgency::WhenQuiet, 0, destroy);
    }
}

impl BackendView for Texture {
    fn number(&self) -> u64 {
        self.number
    }
}

impl BackendView for Surface {
    fn number(&self) -> u64 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_types::{ChannelOrder, ChannelType, SamplerDescription};

    #[test]
    fn rules_are_those_of_the_image() {
        let sampling = Sampling {
            addressing: [
                Addressing::Clamp,
                Addressing::MirroredRepeat,
                Addressing::ClampToEdge,
            ],
            ..Sampling::from(SamplerDescription {
                is_normalized: true,
                addressing: Addressing::Repeat,
                filter: Filter::Linear,
            })
        };
        let rules = |kind, channel| {
            let order = ChannelOrder::R;
            let format = ImageFormat { order, channel };
            rules(&sampling, &ImageDescription::new(kind, format, [4; 3]))
        };
        let row = rules(ImageKind::OneD, ChannelType::UnormInt8);
        assert_eq!(row.addressing[0], addressings::CU_TR_ADDRESS_MODE_BORDER);
        assert_eq!(row.addressing[1], addressings::CU_TR_ADDRESS_MODE_WRAP);
        assert!(row.is_normalized && !row.reads_integers);
        let flat = rules(ImageKind::TwoD, ChannelType::SignedInt16);
        assert_eq!(flat.addressing[1], addressings::CU_TR_ADDRESS_MODE_MIRROR);
        assert!(flat.reads_integers);
    }
}
