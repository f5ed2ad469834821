//! Views of images, and images of several levels.

use super::{Image, maker};
use crate::api::context::Context;
use crate::api::core::ContextCore;
use crate::api::memory::MemoryRange;
use crosshandle_hal::{BackendLevels, BackendView, BackendViews, ViewSource};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{ImageDescription, ImageKind, NativeObject, Region, Sampling, ViewLimits};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A number by which kernels access an image ("bindless images"). The number is passed as an
/// argument, or stored in memory that the kernel reads. Any number of views can be used at once.
///
/// A view keeps the image or memory that it shows. If the number is passed with
/// [`KernelArguments::with`], the command keeps the view. A program that stores the number in
/// memory must keep the view itself, until the kernels that read the number are complete.
///
/// Cloning is cheap, and any thread may use it.
///
/// [`KernelArguments::with`]: crate::kernel::KernelArguments::with
#[derive(Clone)]
pub struct ImageView {
    inner: Arc<dyn BackendView>,
    /// The memory that the view shows, if it does not show an image.
    _keep: Option<Arc<dyn Any + Send + Sync>>,
}

/// An image with several levels (mipmaps). The first level has the full size, and each further
/// level has half the size of the one before. Cloning is cheap, and any thread may use it.
#[derive(Clone)]
pub struct LevelledImage {
    core: Arc<ContextCore>,
    inner: Arc<dyn BackendLevels>,
    description: ImageDescription,
    levels: u32,
}

/// Returns the backend's interface for views, and their limits. Fails if the device has no views.
pub(super) fn views(core: &ContextCore) -> Result<(&dyn BackendViews, ViewLimits)> {
    let maker = maker(core)?.views();
    let limits = core.device().images()?.views;
    maker.zip(limits).ok_or_else(|| {
        Error::Unsupported(format!(
            "{} has no views of images: its kernels take the images themselves",
            core.device().info().name
        ))
    })
}

impl ImageView {
    fn new(inner: Arc<dyn BackendView>) -> Self {
        Self { inner, _keep: None }
    }

    /// Checks that an image with this number of levels could have views, without creating it.
    ///
    /// # Errors
    /// As [`LevelledImage::new`], except errors of the driver,
    /// which is not called.
    pub fn check(context: &Context, description: &ImageDescription, levels: u32) -> Result<()> {
        let (views, limits) = views(context.core())?;
        description.check(context.device().images()?)?;
        if levels != 1 {
            check_levels(description, levels, &limits)?;
        }
        views.check_format(description.format)
    }

    /// Checks that memory with this row pitch could be viewed as an image, at some address.
    ///
    /// # Errors
    /// As [`of_memory`](Self::of_memory).
    pub fn check_memory(
        context: &Context,
        description: &ImageDescription,
        row_pitch: usize,
    ) -> Result<()> {
        let (views, limits) = views(context.core())?;
        check_rows(description, row_pitch, usize::MAX, &limits)?;
        views.check_format(description.format)
    }

    /// Creates a view through which kernels sample memory as an image of one or two dimensions. The
    /// rows start every `row_pitch` bytes. The view keeps the memory alive.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no views of images, or
    ///   no images of this format.
    /// - [`Error::InvalidArgument`] for another kind of image, for
    ///   rows that do not fit into the memory, and for a size, a pitch or a start that
    ///   [`ViewLimits`](crate::image::ViewLimits) excludes.
    pub fn of_memory(
        context: &Context,
        memory: &MemoryRange,
        description: &ImageDescription,
        row_pitch: usize,
        sampling: &Sampling,
    ) -> Result<Self> {
        let (views, limits) = views(context.core())?;
        sampling.check(description.format, &limits)?;
        let pitch = check_rows(description, row_pitch, memory.len(), &limits)?;
        let operand = memory.clone().into_operand();
        let start = operand.address;
        if !start.get().is_multiple_of(limits.start_alignment.max(1)) {
            return Err(Error::invalid(format!(
                "memory that is viewed as an image starts at a multiple of {} bytes",
                limits.start_alignment
            )));
        }
        let source = ViewSource::Memory { start, pitch };
        Ok(Self {
            inner: views.sampled(&source, description, sampling)?,
            _keep: operand.keep,
        })
    }

    /// Returns the number that kernels use for the view. On CUDA it is a texture object for a
    /// sampled view, and a surface object for an unsampled view.
    pub fn number(&self) -> u64 {
        self.inner.number()
    }
}

impl Image {
    /// Creates a view through which kernels sample the image.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no views
    ///   ([`ImageLimits::views`](crate::image::ImageLimits::views)).
    /// - [`Error::InvalidArgument`] for a linear filter on integers, an invalid range of levels, or
    ///   more anisotropy than the device supports.
    /// - Other errors of the driver.
    pub fn sampled_view(&self, sampling: &Sampling) -> Result<ImageView> {
        let (views, limits) = views(&self.core)?;
        sampling.check(self.description.format, &limits)?;
        let source = ViewSource::Image(&self.inner);
        let view = views.sampled(&source, &self.description, sampling)?;
        Ok(ImageView::new(view))
    }

    /// Creates a view through which kernels read and write single pixels without sampling.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no views.
    pub fn unsampled_view(&self) -> Result<ImageView> {
        let (views, _) = views(&self.core)?;
        Ok(ImageView::new(views.unsampled(&self.inner)?))
    }
}

impl LevelledImage {
    /// Creates an image of several mipmap levels, whose pixels are arbitrary.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no views of images
    ///   ([`ImageLimits::views`](crate::image::ImageLimits::views)), or no images of this format.
    /// - [`Error::InvalidArgument`] for a size that the device does
    ///   not support, or for more levels than an image of this size can have
    ///   ([`ImageDescription::most_levels`]).
    pub fn new(context: &Context, description: &ImageDescription, levels: u32) -> Result<Self> {
        let core = context.core();
        let (views, limits) = views(core)?;
        description.check(core.device().images()?)?;
        check_levels(description, levels, &limits)?;
        let inner = views.create_levelled(description, levels)?;
        Ok(Self::of(core, inner, description, levels))
    }

    pub(super) fn of(
        core: &Arc<ContextCore>,
        inner: Arc<dyn BackendLevels>,
        description: &ImageDescription,
        levels: u32,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            inner,
            description: *description,
            levels,
        }
    }

    /// Returns the description of the first level, as the image was created.
    pub fn description(&self) -> &ImageDescription {
        &self.description
    }

    /// Returns the number of levels.
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// Returns level `number`, counted from 0, as an image. That image keeps all levels.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such level.
    pub fn level(&self, number: u32) -> Result<Image> {
        if number >= self.levels {
            return Err(Error::invalid(format!(
                "there is no level {number} of {}: the first has number 0",
                self.levels
            )));
        }
        Ok(Image {
            core: Arc::clone(&self.core),
            inner: Arc::clone(&self.inner).level(number)?,
            description: self.description.level(number),
        })
    }

    /// Creates a view through which kernels sample all levels.
    ///
    /// # Errors
    /// The errors of [`Image::sampled_view`].
    pub fn sampled_view(&self, sampling: &Sampling) -> Result<ImageView> {
        let (views, limits) = views(&self.core)?;
        sampling.check(self.description.format, &limits)?;
        let source = ViewSource::Levels(&self.inner);
        let view = views.sampled(&source, &self.description, sampling)?;
        Ok(ImageView::new(view))
    }

    /// Returns the driver's own image (a `CUmipmappedArray`), which lives as long as `self`.
    pub fn native(&self) -> NativeObject {
        NativeObject::new(self.core.device().info().backend, self.inner.raw())
    }
}

/// Checks that an image can have this number of levels.
pub(super) fn check_levels(
    image: &ImageDescription,
    levels: u32,
    limits: &ViewLimits,
) -> Result<()> {
    let most = image.most_levels();
    if levels == 0 || levels > most {
        return Err(Error::invalid(format!(
            "an image of {:?} pixels has 1 to {most} levels, not {levels}",
            image.extent
        )));
    }
    let largest = match image.kind {
        ImageKind::OneD | ImageKind::OneDArray => [limits.levels_1d, usize::MAX],
        ImageKind::TwoD | ImageKind::TwoDArray => limits.levels_2d,
        ImageKind::ThreeD | ImageKind::Cube => [usize::MAX; 2],
    };
    if image.extent[0] > largest[0] || image.extent[1] > largest[1] {
        return Err(Error::invalid(format!(
            "images of several levels have at most {} pixels, or {:?}",
            limits.levels_1d, limits.levels_2d
        )));
    }
    Ok(())
}

/// Checks that the rows fit into `len` bytes of memory and can be viewed as an image. Returns the
/// row pitch.
fn check_rows(
    image: &ImageDescription,
    row_pitch: usize,
    len: usize,
    limits: &ViewLimits,
) -> Result<usize> {
    let [width, height, depth] = image.extent;
    let most = match image.kind {
        ImageKind::OneD => [limits.linear_1d, 1],
        ImageKind::TwoD => limits.linear_2d,
        kind => {
            return Err(Error::invalid(format!(
                "memory is viewed as an image of one or two dimensions, not of {kind:?}"
            )));
        }
    };
    if !(1..=most[0]).contains(&width) || !(1..=most[1]).contains(&height) || depth != 1 {
        return Err(Error::invalid(format!(
            "memory is viewed as an image of at most {most:?} pixels, not of {:?}",
            image.extent
        )));
    }
    let row = width.saturating_mul(image.format.pixel_bytes());
    let pitch = if height == 1 {
        row.max(row_pitch)
    } else {
        row_pitch
    };
    let is_aligned = image.kind == ImageKind::OneD
        || pitch <= limits.linear_pitch && pitch.is_multiple_of(limits.pitch_alignment.max(1));
    if !is_aligned || pitch < row {
        return Err(Error::invalid(format!(
            "rows of {row} bytes that are viewed as an image are a multiple of {} bytes apart, and at most {}, \
             not {pitch}",
            limits.pitch_alignment, limits.linear_pitch
        )));
    }
    let region = Region::new_2d(row, height);
    let pitches = crosshandle_types::Pitches {
        row: pitch,
        slice: pitch.saturating_mul(height),
    };
    region.check(pitches, "viewed memory", len)?;
    Ok(pitch)
}

impl fmt::Debug for ImageView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ImageView").field(&self.number()).finish()
    }
}

impl fmt::Debug for LevelledImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelledImage")
            .field("description", &self.description)
            .field("levels", &self.levels)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_types::{ChannelOrder, ChannelType, ImageFormat};

    const LIMITS: ViewLimits = ViewLimits {
        linear_1d: 1000,
        linear_2d: [100, 50],
        linear_pitch: 4096,
        pitch_alignment: 32,
        start_alignment: 512,
        levels_1d: 500,
        levels_2d: [60, 40],
        cube: 10,
        anisotropy: 16,
    };

    fn image(kind: ImageKind, extent: [usize; 3]) -> ImageDescription {
        let format = ImageFormat {
            order: ChannelOrder::Rgba,
            channel: ChannelType::UnsignedInt8,
        };
        ImageDescription::new(kind, format, extent)
    }

    #[test]
    fn viewed_rows_are_in_their_memory() {
        let flat = image(ImageKind::TwoD, [10, 3, 1]);
        let check = |image: &ImageDescription, pitch, len| check_rows(image, pitch, len, &LIMITS);
        assert_eq!(check(&flat, 64, 2 * 64 + 40).unwrap(), 64);
        for (pitch, len) in [
            (64, 2 * 64 + 39),
            (32, 1000),
            (63, 1000),
            (8192, 1 << 20),
            (0, 1000),
        ] {
            assert!(check(&flat, pitch, len).is_err(), "{pitch}, {len}");
        }
        // The driver also requires a valid pitch for an image with a single row.
        let single = image(ImageKind::TwoD, [10, 1, 1]);
        assert_eq!(check(&single, 64, 40).unwrap(), 64);
        assert!(check(&single, 0, 40).is_err() && check(&single, 8192, 40).is_err());
        let row = image(ImageKind::OneD, [1000, 1, 1]);
        assert_eq!(check(&row, 0, 4000).unwrap(), 4000);
        assert!(check(&row, 0, 3999).is_err());
        for (kind, extent) in [
            (ImageKind::OneD, [1001, 1, 1]),
            (ImageKind::OneD, [0, 1, 1]),
            (ImageKind::TwoD, [101, 1, 1]),
            (ImageKind::TwoD, [10, 51, 1]),
            (ImageKind::ThreeD, [1; 3]),
            (ImageKind::TwoDArray, [1; 3]),
        ] {
            assert!(
                check(&image(kind, extent), 512, 1 << 20).is_err(),
                "{kind:?} {extent:?}"
            );
        }
    }

    #[test]
    fn images_have_as_many_levels_as_their_size_allows() {
        let check =
            |kind, extent, levels| check_levels(&image(kind, extent), levels, &LIMITS).is_ok();
        assert!(check(ImageKind::TwoD, [16, 16, 1], 5) && check(ImageKind::OneD, [500, 1, 1], 9));
        assert!(!check(ImageKind::TwoD, [16, 16, 1], 6) && !check(ImageKind::TwoD, [16, 16, 1], 0));
        assert!(!check(ImageKind::OneD, [501, 1, 1], 2) && !check(ImageKind::TwoD, [60, 41, 1], 2));
    }
}
