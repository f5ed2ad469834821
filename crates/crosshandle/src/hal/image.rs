//! Images: memory whose layout is the driver's affair, and how kernels read it.

use super::Operand;
use crate::error::Result;
use crate::types::{ImageDescription, Pitches, SamplerDescription};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The maker of images and samplers for one device.
pub(crate) trait Images {
    /// Makes an image, whose pixels are arbitrary. The object layer has checked its size;
    /// [`Error::Unsupported`](crate::Error::Unsupported) for a format that the device does not have.
    fn create(&self, image: &ImageDescription) -> Result<Arc<dyn DeviceImage>>;

    /// Makes a sampler.
    fn create_sampler(&self, sampler: &SamplerDescription) -> Result<Arc<dyn DeviceSampler>>;
}

/// An image on a device.
pub(crate) trait DeviceImage: Any + Send + Sync {
    /// Returns the driver's own image, whose bytes are the argument for a kernel that takes it.
    fn raw(&self) -> usize;
}

/// A sampler on a device.
pub(crate) trait DeviceSampler: Any + Send + Sync {
    /// Returns the driver's own sampler, whose bytes are the argument for a kernel that takes it.
    fn raw(&self) -> usize;
}

/// A copy of at least one pixel to an image, from an image, or both. Parts of images are inside them; rows
/// and slices in memory are inside that and apart.
pub(crate) struct ImageCopy {
    pub(crate) to: ImageSide,
    pub(crate) from: ImageSide,
    /// In pixels.
    pub(crate) extent: [usize; 3],
    /// The bytes of all pixels.
    pub(crate) bytes: usize,
    /// The counter of the bytes that commands of the images' context copy: each context has its own.
    pub(crate) counter: Arc<AtomicU64>,
}

/// One side of a copy.
pub(crate) enum ImageSide {
    /// A part of an image.
    Image {
        image: Arc<dyn DeviceImage>,
        /// The part's first pixel.
        origin: [usize; 3],
    },
    /// Rows and slices of memory.
    Memory { place: Operand, pitches: Pitches },
}

impl ImageSide {
    /// Returns the memory, if it is that.
    pub(crate) fn operand(&self) -> Option<&Operand> {
        match self {
            Self::Image { .. } => None,
            Self::Memory { place, .. } => Some(place),
        }
    }

    /// Returns the image, if it is one.
    pub(crate) fn image(&self) -> Option<&Arc<dyn DeviceImage>> {
        match self {
            Self::Image { image, .. } => Some(image),
            Self::Memory { .. } => None,
        }
    }
}
