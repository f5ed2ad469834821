//! Images: memory whose layout is the driver's affair, and how kernels read it.

use super::Operand;
use crate::error::Result;
use crate::types::{Address, ImageDescription, ImageFormat, Pitches, SamplerDescription, Sampling};
use smallvec::SmallVec;
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

    /// Returns the maker of views, if the device's limits say that there are any.
    fn views(&self) -> Option<&dyn Views> {
        None
    }
}

/// The maker of views of images: numbers by which kernels reach them. The object layer has checked sizes and
/// [`Sampling::check`].
pub(crate) trait Views {
    /// Refuses pixels of which there are no images.
    fn check_format(&self, format: ImageFormat) -> Result<()>;

    /// Makes an image of several levels, at most as many as it can have. Errors as for one level.
    fn create_levelled(
        &self,
        image: &ImageDescription,
        levels: u32,
    ) -> Result<Arc<dyn DeviceLevels>>;

    /// Makes a view through which kernels sample.
    fn sampled(
        &self,
        source: &ViewSource<'_>,
        image: &ImageDescription,
        sampling: &Sampling,
    ) -> Result<Arc<dyn DeviceView>>;

    /// Makes a view through which kernels read and write pixels as they are.
    fn unsampled(&self, image: &Arc<dyn DeviceImage>) -> Result<Arc<dyn DeviceView>>;
}

/// What a view shows.
pub(crate) enum ViewSource<'a> {
    Image(&'a Arc<dyn DeviceImage>),
    Levels(&'a Arc<dyn DeviceLevels>),
    /// Rows of memory that start so many bytes one after the other. The object layer keeps it, and has checked
    /// that they are inside.
    Memory {
        start: Address,
        pitch: usize,
    },
}

/// An image of several levels on a device.
pub(crate) trait DeviceLevels: Any + Send + Sync {
    /// Returns a level, which keeps the image.
    fn level(self: Arc<Self>, number: u32) -> Result<Arc<dyn DeviceImage>>;

    /// Returns the driver's own image.
    fn raw(&self) -> usize;
}

/// A view of an image on a device. It keeps the image.
pub(crate) trait DeviceView: Any + Send + Sync {
    /// Returns the number by which kernels know the view.
    fn number(&self) -> u64;
}

/// An image on a device.
pub(crate) trait DeviceImage: Any + Send + Sync {
    /// Returns the driver's own image.
    fn raw(&self) -> usize;

    /// Returns the number that is the argument for a kernel that takes the image.
    fn argument(&self) -> usize {
        self.raw()
    }
}

/// A sampler on a device.
pub(crate) trait DeviceSampler: Any + Send + Sync {
    /// Returns the driver's own sampler; 0 where samplers are none of its objects.
    fn raw(&self) -> usize;

    /// Returns the bytes that are the argument for a kernel that takes the sampler.
    fn argument(&self) -> SmallVec<[u8; 8]> {
        SmallVec::from_slice(&self.raw().to_ne_bytes())
    }
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
