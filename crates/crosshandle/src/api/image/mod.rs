//! Images and samplers.

mod command;
mod view;

pub use view::{ImageView, LevelledImage};

use crate::api::core::ContextCore;
use crate::api::program::kernel::check_fork;
use crate::error::{Error, Result};
use crate::hal::{DeviceImage, DeviceSampler, Images};
use crate::types::{ImageDescription, KernelArguments, NativeObject, SamplerDescription};
use std::fmt;
use std::sync::Arc;

/// An image on a device: pixels of one, two or three dimensions, which kernels read and write by their
/// coordinates. How they lie in memory is the driver's affair, so an image has no address and is not shared with
/// other processes; commands copy parts of it to memory that is ([`Command::read_image`] and its
/// neighbours).
///
/// Cheap to clone; any thread may use it. Commands keep it until they are done.
///
/// [`Command::read_image`]: crate::Command::read_image
#[derive(Clone)]
pub struct Image {
    core: Arc<ContextCore>,
    inner: Arc<dyn DeviceImage>,
    description: ImageDescription,
}

/// A sampler: how a kernel reads images. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct Sampler {
    core: Arc<ContextCore>,
    inner: Arc<dyn DeviceSampler>,
    description: SamplerDescription,
}

fn maker(core: &ContextCore) -> Result<&dyn Images> {
    check_fork()?;
    let device = core.device();
    device.images()?;
    core.backend()
        .images()
        .ok_or_else(|| Error::Unsupported(format!("{} has no images", device.info().name)))
}

impl Image {
    pub(crate) fn create(core: &Arc<ContextCore>, description: &ImageDescription) -> Result<Self> {
        let maker = maker(core)?;
        description.check(core.device().images()?)?;
        Ok(Self {
            core: Arc::clone(core),
            inner: maker.create(description)?,
            description: *description,
        })
    }

    /// Returns what the image was made as.
    pub fn description(&self) -> &ImageDescription {
        &self.description
    }

    /// Returns the driver's own image (a `CUarray`, a `ze_image_handle_t` of Level Zero, a `cl_mem` on the host),
    /// which lives as long as `self`.
    pub fn native(&self) -> NativeObject {
        NativeObject::new(self.core.device().info().backend, self.inner.raw())
    }
}

impl Sampler {
    pub(crate) fn create(
        core: &Arc<ContextCore>,
        description: &SamplerDescription,
    ) -> Result<Self> {
        Ok(Self {
            core: Arc::clone(core),
            inner: maker(core)?.create_sampler(description)?,
            description: *description,
        })
    }

    /// Returns what the sampler was made as.
    pub fn description(&self) -> &SamplerDescription {
        &self.description
    }

    /// Returns the driver's own sampler (a `ze_sampler_handle_t` of Level Zero, a `cl_sampler` on the host; 0 on
    /// CUDA, whose driver has none), which lives as long as `self`.
    pub fn native(&self) -> NativeObject {
        NativeObject::new(self.core.device().info().backend, self.inner.raw())
    }
}

impl KernelArguments {
    /// Adds an image, which is kept until the kernel is done. Kernels of its context take it; those of CUDA as the
    /// 64 bits of a surface object, and to sample they take a [view](Self::view).
    pub fn image(self, image: &Image) -> Self {
        let mut this = self.object(&image.inner.argument().to_ne_bytes());
        this.keep(Arc::new(Arc::clone(&image.inner)));
        this
    }

    /// Adds a sampler, which is kept until the kernel is done. Kernels of its context take it; those of CUDA as
    /// 32 bits that describe it, as SYCL's compiler has them: bit 0 for normalised coordinates, bit 1 for the
    /// linear filter, bits 2 to 4 for the addressing mode as Unified Runtime numbers it.
    pub fn sampler(self, sampler: &Sampler) -> Self {
        let mut this = self.object(&sampler.inner.argument());
        this.keep(Arc::new(Arc::clone(&sampler.inner)));
        this
    }

    /// Adds the number of a view, which is kept until the kernel is done.
    pub fn view(self, view: &ImageView) -> Self {
        let mut this = self.value(view.number());
        this.keep(Arc::new(view.clone()));
        this
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Image").field(&self.description).finish()
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sampler").field(&self.description).finish()
    }
}
