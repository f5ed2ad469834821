//! Images and samplers.

mod command;
mod external;
mod view;

pub use external::ExternalMemory;
pub use view::{ImageView, LevelledImage};

use crate::api::context::Context;
use crate::api::core::ContextCore;
use crate::api::program::kernel::check_fork;
use crosshandle_hal::{BackendImage, BackendImages, BackendSampler};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{
    ImageDescription, KernelArgument, KernelArguments, NativeObject, SamplerDescription,
};
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
    inner: Arc<dyn BackendImage>,
    description: ImageDescription,
}

/// A sampler, which defines how a kernel reads images. Cloning is cheap, and any thread may use it.
#[derive(Clone)]
pub struct Sampler {
    core: Arc<ContextCore>,
    inner: Arc<dyn BackendSampler>,
    description: SamplerDescription,
}

fn maker(core: &ContextCore) -> Result<&dyn BackendImages> {
    check_fork()?;
    let device = core.device();
    device.images()?;
    core.backend()
        .images()
        .ok_or_else(|| Error::Unsupported(format!("{} has no images", device.info().name)))
}

impl Image {
    /// Creates an image, whose pixels are arbitrary.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no images
    ///   ([`Device::images`](crate::Device::images)), or none of this format.
    /// - [`Error::InvalidArgument`] for a size that the device does
    ///   not support.
    /// - [`Error`](crate::Error) if a limit of the driver is reached.
    pub fn new(context: &Context, description: &ImageDescription) -> Result<Self> {
        let core = context.core();
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
    /// Creates a sampler.
    ///
    /// # Errors
    /// As [`Image::new`].
    pub fn new(context: &Context, description: &SamplerDescription) -> Result<Self> {
        let core = context.core();
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

impl KernelArgument for Image {
    fn add_to(&self, arguments: KernelArguments) -> KernelArguments {
        let mut arguments = arguments.object(&self.inner.argument().to_ne_bytes());
        arguments.keep(Arc::new(Arc::clone(&self.inner)));
        arguments
    }
}

impl KernelArgument for Sampler {
    fn add_to(&self, arguments: KernelArguments) -> KernelArguments {
        let mut arguments = arguments.object(&self.inner.argument());
        arguments.keep(Arc::new(Arc::clone(&self.inner)));
        arguments
    }
}

impl KernelArgument for ImageView {
    fn add_to(&self, arguments: KernelArguments) -> KernelArguments {
        let mut arguments = arguments.value(self.number());
        arguments.keep(Arc::new(self.clone()));
        arguments
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
