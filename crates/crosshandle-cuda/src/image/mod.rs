//! Images as arrays of the driver, and the ways in which kernels access them.
//!
//! A CUDA kernel takes no image. It takes the number of a *surface object*, which loads and stores
//! unchanged pixels, or of a *texture object*, which samples an image by the rules in that object.
//! An image that is a kernel argument is therefore its surface, as in SYCL's backend for CUDA. A
//! sampler is a word that describes it, for code that does its own sampling. To have the device
//! sample, a program creates a view.

mod copy;
mod external;
mod format;
mod object;
mod view;

pub(super) use copy::{calls, copies};

use super::context::CudaContext;
use crosshandle_hal::{
    BackendExternalMemory, BackendImage, BackendImages, BackendLevels, BackendSampler, BackendView,
    BackendViews, ViewSource,
};
use crosshandle_types::error::Result;
use crosshandle_types::{ImageDescription, ImageFormat, SamplerDescription, Sampling};
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl BackendImages for CudaContext {
    fn create(&self, description: &ImageDescription) -> Result<Arc<dyn BackendImage>> {
        object::create(self.gpu(), description)
    }

    fn create_sampler(&self, sampler: &SamplerDescription) -> Result<Arc<dyn BackendSampler>> {
        Ok(object::create_sampler(sampler))
    }

    fn views(&self) -> Option<&dyn BackendViews> {
        Some(self)
    }
}

impl BackendViews for CudaContext {
    fn check_format(&self, format: ImageFormat) -> Result<()> {
        format::pixel(format).map(drop)
    }

    fn create_levelled(
        &self,
        description: &ImageDescription,
        levels: u32,
    ) -> Result<Arc<dyn BackendLevels>> {
        object::create_levels(self.gpu(), description, levels)
    }

    fn sampled(
        &self,
        source: &ViewSource<'_>,
        description: &ImageDescription,
        sampling: &Sampling,
    ) -> Result<Arc<dyn BackendView>> {
        view::sampled(self.gpu(), source, description, sampling)
    }

    fn unsampled(&self, image: &Arc<dyn BackendImage>) -> Result<Arc<dyn BackendView>> {
        view::unsampled(image)
    }

    fn import_external(&self, file: OwnedFd, len: u64) -> Result<Arc<dyn BackendExternalMemory>> {
        external::import(self.gpu(), file, len)
    }
}
