//! Images, images of several levels, and samplers.

use super::format;
use crate::device::Gpu;
use crate::driver::{ArrayHandle, Driver, LevelsHandle, Pixel};
use crate::scheduler::{self, Urgency};
use crosshandle_hal::{BackendImage, BackendLevels, BackendSampler};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Addressing, Filter, ImageDescription, ImageKind, SamplerDescription};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

/// An array of the driver, with the surface by which kernels access it. After the drop, both are
/// destroyed when no stream waits, as programs are.
pub(super) struct CudaImage {
    gpu: Arc<Gpu>,
    array: ArrayHandle,
    surface: u64,
    kind: ImageKind,
    pixel: Pixel,
    bytes: usize,
    /// The image of several levels that owns the array, if the array is a level. Fields are dropped
    /// after `drop` has deferred the destruction of the surface. The order matters because deferred
    /// calls run in order, and keep nothing alive, not even a context of the program.
    levels: Option<Arc<CudaLevels>>,
}

/// An image of several levels.
pub(super) struct CudaLevels {
    gpu: Arc<Gpu>,
    levels: LevelsHandle,
    kind: ImageKind,
    pixel: Pixel,
    bytes: usize,
    /// The imported memory that contains the levels, if any. Fields are dropped after `drop` has
    /// deferred the destruction of the levels.
    _external: Option<Arc<dyn Any + Send + Sync>>,
}

/// A sampler, which kernels receive as a 32-bit word.
struct CudaSampler(u32);

/// Creates a driver object that uses device memory. If there is not enough memory, tries again
/// after releasing some.
fn make<T>(gpu: &Arc<Gpu>, make: impl Fn(&'static Driver) -> Result<T>) -> Result<T> {
    let driver = gpu.driver();
    match driver.beside_captures(|| make(driver)) {
        Err(Error::OutOfMemory { .. }) => {
            // Finished commands may still keep images, which this releases.
            scheduler::tend_every_queue();
            gpu.scheduler().make_room();
            driver.beside_captures(|| make(driver))
        }
        made => made,
    }
}

/// Creates an image. The caller holds no lock, because the driver may wait for streams.
pub(super) fn create(gpu: &Arc<Gpu>, image: &ImageDescription) -> Result<Arc<dyn BackendImage>> {
    let (pixel, shape) = (format::pixel(image.format)?, format::shape(image));
    let _current = gpu.enter()?;
    let array = make(gpu, |driver| driver.create_array(&shape, pixel))?;
    let mut image = CudaImage {
        gpu: Arc::clone(gpu),
        array,
        surface: 0,
        kind: image.kind,
        pixel,
        bytes: shape.bytes(pixel),
        levels: None,
    };
    image.make_surface()?;
    Ok(Arc::new(image))
}

/// Creates an image of several levels. The rules of [`create`] apply.
pub(super) fn create_levels(
    gpu: &Arc<Gpu>,
    image: &ImageDescription,
    levels: u32,
) -> Result<Arc<dyn BackendLevels>> {
    let (pixel, shape) = (format::pixel(image.format)?, format::shape(image));
    let _current = gpu.enter()?;
    let levels = make(gpu, |driver| driver.create_levels(&shape, pixel, levels))?;
    Ok(Arc::new(CudaLevels {
        gpu: Arc::clone(gpu),
        levels,
        kind: image.kind,
        pixel,
        bytes: 2 * shape.bytes(pixel),
        _external: None,
    }))
}

/// Creates a sampler.
pub(super) fn create_sampler(sampler: &SamplerDescription) -> Arc<dyn BackendSampler> {
    Arc::new(CudaSampler(word(sampler)))
}

/// Returns the word by which kernels of the SYCL compiler know a sampler. Bit 0 says whether
/// coordinates are normalised, and bit 1 is the filter. The bits from 2 on are the addressing mode,
/// with Unified Runtime's numbers.
fn word(sampler: &SamplerDescription) -> u32 {
    let addressing = match sampler.addressing {
        Addressing::None => 0,
        Addressing::ClampToEdge => 1,
        Addressing::Clamp => 2,
        Addressing::Repeat => 3,
        Addressing::MirroredRepeat => 4,
    };
    let filter = match sampler.filter {
        Filter::Nearest => 0,
        Filter::Linear => 1,
    };
    u32::from(sampler.is_normalized) | filter << 1 | addressing << 2
}

impl CudaImage {
    /// Creates the surface. The context is current.
    fn make_surface(&mut self) -> Result<()> {
        let driver = self.gpu.driver();
        // SAFETY: the array lives as long as the image, and commands that use the surface keep the
        // image.
        let surface =
            driver.beside_captures(|| unsafe { driver.create_surface(self.array, self.pixel) })?;
        self.surface = surface;
        Ok(())
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(super) fn array(&self) -> ArrayHandle {
        self.array
    }

    pub(super) fn surface(&self) -> u64 {
        self.surface
    }

    pub(super) fn kind(&self) -> ImageKind {
        self.kind
    }

    /// Returns the size of a pixel in bytes.
    pub(super) fn pixel_bytes(&self) -> usize {
        self.pixel.bytes()
    }
}

impl Drop for CudaImage {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let (array, surface, is_level) = (self.array, self.surface, self.levels.is_some());
        // A context of the program may end before this call, and everything created in it ends with
        // it.
        let destroy = self.gpu.later("destroying an image", move |driver| {
            let driver = driver?;
            // SAFETY: this image created both objects and destroys them once. The views and the
            // commands that used them kept the image.
            unsafe {
                let destroyed = match surface {
                    0 => Ok(()),
                    surface => driver.destroy_surface(surface),
                };
                match is_level {
                    true => destroyed,
                    false => driver.destroy_array(array).and(destroyed),
                }
            }
        });
        let scheduler = self.gpu.scheduler();
        scheduler.call(Urgency::WhenQuiet, self.bytes, destroy);
    }
}

impl BackendImage for CudaImage {
    fn raw(&self) -> usize {
        self.array.number()
    }

    fn argument(&self) -> usize {
        self.surface as usize
    }
}

impl CudaLevels {
    /// Wraps arrays in memory of another interface. The arrays are destroyed before that memory is
    /// released.
    pub(super) fn of_external(
        gpu: &Arc<Gpu>,
        levels: LevelsHandle,
        (kind, pixel): (ImageKind, Pixel),
        external: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            levels,
            kind,
            pixel,
            bytes: 0,
            _external: Some(external),
        }
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(super) fn handle(&self) -> LevelsHandle {
        self.levels
    }
}

impl Drop for CudaLevels {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        let levels = self.levels;
        let destroy = self.gpu.later("destroying an image", move |driver| {
            // SAFETY: this object created the levels and destroys them once. Its images and views,
            // and the commands that used them, kept this object.
            unsafe { driver?.destroy_levels(levels) }
        });
        let scheduler = self.gpu.scheduler();
        scheduler.call(Urgency::WhenQuiet, self.bytes, destroy);
    }
}

impl BackendLevels for CudaLevels {
    fn level(self: Arc<Self>, number: u32) -> Result<Arc<dyn BackendImage>> {
        let _current = self.gpu.enter()?;
        let array = self.gpu.driver().level(self.levels, number)?;
        let mut image = CudaImage {
            gpu: Arc::clone(&self.gpu),
            array,
            surface: 0,
            kind: self.kind,
            pixel: self.pixel,
            bytes: 0,
            levels: Some(Arc::clone(&self)),
        };
        image.make_surface()?;
        Ok(Arc::new(image))
    }

    fn raw(&self) -> usize {
        self.levels.number()
    }
}

impl BackendSampler for CudaSampler {
    fn raw(&self) -> usize {
        0
    }

    fn argument(&self) -> SmallVec<[u8; 8]> {
        SmallVec::from_slice(&self.0.to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_are_words_of_sycls_compiler() {
        let sampler = |is_normalized, addressing, filter| SamplerDescription {
            is_normalized,
            addressing,
            filter,
        };
        let nearest = Filter::Nearest;
        assert_eq!(word(&sampler(false, Addressing::None, nearest)), 0);
        assert_eq!(
            word(&sampler(true, Addressing::ClampToEdge, nearest)),
            0b101
        );
        let mirrored = sampler(false, Addressing::MirroredRepeat, Filter::Linear);
        assert_eq!(word(&mirrored), 0b10010);
        assert_eq!(create_sampler(&mirrored).argument().len(), 4);
    }
}
