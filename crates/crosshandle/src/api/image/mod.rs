//! Images and samplers.

mod command;
mod external;
mod view;

pub use external::ExternalMemory;
pub use view::{ImageView, LevelledImage};

use crate::api::core::ContextCore;
use crate::api::program::kernel::check_fork;
use crate::error::{Error, Result};
use crate::hal::{DeviceImage, DeviceSampler, Images};
use crate::types::{ImageDescription, KernelArguments, NativeObject, SamplerDescription};
use std::fmt;
use std::sync::Arc;

/// An image on a device. Kernels read and write its pixels by their coordinates in one, two or
/// three dimensions.
///
/// Only the driver knows how the pixels lie in memory. Therefore an image has no address and cannot
/// be shared with other processes. Commands such as [`Command::read_image`] copy parts of an image
/// to memory that can be shared.
///
/// Cloning is cheap, and any thread may use it. Commands keep the image until they are complete.
///
/// [`Command::read_image`]: crate::Command::read_image
#[derive(Clone)]
pub struct Image {
    core: Arc<ContextCore>,
    inner: Arc<dyn DeviceImage>,
    description: ImageDescription,
}

/// A sampler, which defines how a kernel reads images. Cloning is cheap, and any thread may use it.
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

    /// Returns the description that the image was created with.
    pub fn description(&self) -> &ImageDescription {
        &self.description
    }

    /// Returns the driver's own image, which lives as long as `self`. It is a `CUarray` on CUDA, a
    /// `ze_image_handle_t` on Level Zero and a `cl_mem` on the host.
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

    /// Returns the description that the sampler was created with.
    pub fn description(&self) -> &SamplerDescription {
        &self.description
    }

    /// Returns the driver's own sampler, which lives as long as `self`. It is a
    /// `ze_sampler_handle_t` on Level Zero and a `cl_sampler` on the host. It is 0 on CUDA, whose
    /// driver has no samplers.
    pub fn native(&self) -> NativeObject {
        NativeObject::new(self.core.device().info().backend, self.inner.raw())
    }
}

impl KernelArguments {
    /// Adds an image for a kernel of the same context. The kernel's command keeps the image until
    /// it is complete.
    ///
    /// Kernels of CUDA receive the image as the 64 bits of a surface object. To sample an image,
    /// they need a [view](Self::view).
    pub fn image(self, image: &Image) -> Self {
        let mut this = self.object(&image.inner.argument().to_ne_bytes());
        this.keep(Arc::new(Arc::clone(&image.inner)));
        this
    }

    /// Adds a sampler for a kernel of the same context. The kernel's command keeps the sampler
    /// until it is complete.
    ///
    /// Kernels of CUDA receive 32 bits that describe the sampler, in the format of the SYCL
    /// compiler. Bit 0 stands for normalised coordinates and bit 1 for the linear filter. Bits 2 to
    /// 4 contain the addressing mode as Unified Runtime numbers it.
    pub fn sampler(self, sampler: &Sampler) -> Self {
        let mut this = self.object(&sampler.inner.argument());
        this.keep(Arc::new(Arc::clone(&sampler.inner)));
        this
    }

    /// Adds the number of a view. The kernel's command keeps the view until it is complete.
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
