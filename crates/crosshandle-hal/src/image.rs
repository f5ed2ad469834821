//! Images: memory whose layout the driver chooses, and the ways in which kernels read them.

use super::Operand;
use crosshandle_types::error::Result;
use crosshandle_types::{
    Address, ImageDescription, ImageFormat, Pitches, SamplerDescription, Sampling,
};
use smallvec::SmallVec;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A factory of images and samplers for one device.
pub trait BackendImages {
    /// Creates an image with arbitrary pixels. The object layer has checked its size. Returns
    /// [`Error::Unsupported`](crosshandle_types::error::Error::Unsupported) for a format that the
    /// device does not have.
    fn create(&self, image: &ImageDescription) -> Result<Arc<dyn BackendImage>>;

    /// Creates a sampler.
    fn create_sampler(&self, sampler: &SamplerDescription) -> Result<Arc<dyn BackendSampler>>;

    /// Returns the factory of views, if the device's limits say that it has views.
    fn views(&self) -> Option<&dyn BackendViews> {
        None
    }
}

/// A factory of image views, which are numbers by which kernels access images. The object layer has
/// checked sizes and [`Sampling::check`].
pub trait BackendViews {
    /// Returns an error if the device has no images of this format.
    fn check_format(&self, format: ImageFormat) -> Result<()>;

    /// Creates an image of several levels, at most as many as its size allows. Fails like
    /// [`BackendImages::create`].
    fn create_levelled(
        &self,
        image: &ImageDescription,
        levels: u32,
    ) -> Result<Arc<dyn BackendLevels>>;

    /// Creates a view through which kernels sample.
    fn sampled(
        &self,
        source: &ViewSource<'_>,
        image: &ImageDescription,
        sampling: &Sampling,
    ) -> Result<Arc<dyn BackendView>>;

    /// Creates a view through which kernels read and write unchanged pixels.
    fn unsampled(&self, image: &Arc<dyn BackendImage>) -> Result<Arc<dyn BackendView>>;

    /// Imports memory of another interface to the same device, by the descriptor that the other
    /// interface exported.
    fn import_external(&self, file: OwnedFd, len: u64) -> Result<Arc<dyn BackendExternalMemory>>;
}

/// Memory of another interface, such as a graphics API.
pub trait BackendExternalMemory: Any + Send + Sync {
    /// Maps a part, which lies inside the memory.
    fn map(self: Arc<Self>, offset: u64, len: u64) -> Result<Arc<dyn BackendExternalMapping>>;

    /// Maps the memory as an image that the other interface has placed there.
    fn levels(
        self: Arc<Self>,
        image: &ImageDescription,
        levels: u32,
    ) -> Result<Arc<dyn BackendLevels>>;
}

/// A mapped part of another interface's memory. It keeps the memory alive.
pub trait BackendExternalMapping: Any + Send + Sync {
    /// Returns the start: a device address.
    fn start(&self) -> Address;
}

/// The source of a view.
pub enum ViewSource<'a> {
    Image(&'a Arc<dyn BackendImage>),
    Levels(&'a Arc<dyn BackendLevels>),
    /// Rows of memory, whose starts are `pitch` bytes apart. The object layer keeps the memory
    /// alive, and has checked that the rows are inside it.
    Memory {
        start: Address,
        pitch: usize,
    },
}

/// An image of several levels on a device.
pub trait BackendLevels: Any + Send + Sync {
    /// Returns one level. The level keeps the image alive.
    fn level(self: Arc<Self>, number: u32) -> Result<Arc<dyn BackendImage>>;

    /// Returns the driver's own image as an integer. On CUDA, for example, it is a
    /// `CUmipmappedArray`.
    fn raw(&self) -> usize;
}

/// A view of an image on a device. It keeps the image alive.
pub trait BackendView: Any + Send + Sync {
    /// Returns the number by which kernels know the view.
    fn number(&self) -> u64;
}

/// An image on a device.
pub trait BackendImage: Any + Send + Sync {
    /// Returns the driver's own image as an integer. On CUDA, for example, it is a `CUarray`.
    fn raw(&self) -> usize;

    /// Returns the kernel argument that stands for the image.
    fn argument(&self) -> usize {
        self.raw()
    }
}

/// A sampler on a device.
pub trait BackendSampler: Any + Send + Sync {
    /// Returns the driver's own sampler as an integer, or 0 if the driver has no sampler objects.
    fn raw(&self) -> usize;

    /// Returns the bytes of the kernel argument that stands for the sampler.
    fn argument(&self) -> SmallVec<[u8; 8]> {
        SmallVec::from_slice(&self.raw().to_ne_bytes())
    }
}

/// A copy of at least one pixel to an image, from an image, or both. Parts of images lie inside
/// them. Rows and slices lie inside their memory and do not overlap.
pub struct ImageCopy {
    pub to: ImageSide,
    pub from: ImageSide,
    /// The size of the copied part, in pixels.
    pub extent: [usize; 3],
    /// The number of bytes of all copied pixels.
    pub bytes: usize,
    /// The counter of copied bytes of the images' context.
    pub counter: Arc<AtomicU64>,
}

/// The source or the destination of a copy.
pub enum ImageSide {
    /// A part of an image.
    Image {
        image: Arc<dyn BackendImage>,
        /// The part's first pixel.
        origin: [usize; 3],
    },
    /// Rows and slices of memory.
    Memory { place: Operand, pitches: Pitches },
}

impl ImageSide {
    /// Returns the operand, if this side is memory.
    pub fn operand(&self) -> Option<&Operand> {
        match self {
            Self::Image { .. } => None,
            Self::Memory { place, .. } => Some(place),
        }
    }

    /// Returns the image, if this side is an image.
    pub fn image(&self) -> Option<&Arc<dyn BackendImage>> {
        match self {
            Self::Image { image, .. } => Some(image),
            Self::Memory { .. } => None,
        }
    }
}
