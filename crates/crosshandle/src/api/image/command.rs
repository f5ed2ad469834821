//! Commands on images.

use super::Image;
use crate::api::command::Command;
use crate::api::memory::MemoryRange;
use crosshandle_hal::{ImageCopy, ImageSide, Work};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{ImageFormat, ImagePart, Pitches, Region};
use std::sync::Arc;

impl Image {
    /// Returns the part of the image that starts at a pixel, as one side of a copy.
    fn side(&self, origin: [usize; 3]) -> ImageSide {
        ImageSide::Image {
            image: Arc::clone(&self.inner),
            origin,
        }
    }

    /// Returns the work that copies a part of the image. `to` or `from` is that part.
    fn copy(&self, to: ImageSide, from: ImageSide, extent: [usize; 3]) -> Work {
        let region = region(self.description.format, extent);
        Work::CopyImage(Box::new(ImageCopy {
            to,
            from,
            extent,
            bytes: region.bytes(),
            counter: Arc::clone(self.core.exporter().copied()),
        }))
    }
}

/// Returns the size of a part of an image when it is copied to memory.
fn region(format: ImageFormat, [x, y, z]: [usize; 3]) -> Region {
    Region {
        width: x.saturating_mul(format.pixel_bytes()),
        rows: y,
        slices: z,
    }
}

/// Commands that access images. They run in queues of the images' context.
impl Command {
    /// Creates a command that copies a part of an image to memory. `pitches` gives the distances
    /// between rows and between slices in memory. [`Image::tight_pitches`] leaves no gaps.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for a part that is not inside the image, pitches that
    ///   [`Pitches`] does not allow, or rows that are not inside the range.
    /// - [`Error::ReadOnly`] for a destination that was opened read-only.
    pub fn read_image(
        source: &Image,
        part: ImagePart,
        destination: MemoryRange,
        pitches: Pitches,
    ) -> Result<Self> {
        destination.check_writable()?;
        let pitches = check_memory(source, &part, &destination, pitches, "destination")?;
        if part.is_empty() {
            return Ok(Self::marker());
        }
        let is_on_host = destination.is_on_host();
        let to = ImageSide::Memory {
            place: destination.into_operand(),
            pitches,
        };
        let work = source.copy(to, source.side(part.origin), part.extent);
        Ok(Self::with_memory(work, is_on_host))
    }

    /// Creates a command that copies memory to a part of an image. `pitches` gives the distances
    /// between rows and between slices in memory.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a part that is not inside the image, pitches that [`Pitches`]
    /// does not allow, or rows that are not inside the range.
    pub fn write_image(
        source: MemoryRange,
        pitches: Pitches,
        destination: &Image,
        part: ImagePart,
    ) -> Result<Self> {
        let pitches = check_memory(destination, &part, &source, pitches, "source")?;
        if part.is_empty() {
            return Ok(Self::marker());
        }
        let is_on_host = source.is_on_host();
        let from = ImageSide::Memory {
            place: source.into_operand(),
            pitches,
        };
        let work = destination.copy(destination.side(part.origin), from, part.extent);
        Ok(Self::with_memory(work, is_on_host))
    }

    /// Creates a command that copies a part of an image to another place in the same image, or to
    /// another image. Both images must have the same format and context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a part that is not inside both images, for different formats
    /// or contexts, and for parts of one image that overlap.
    pub fn copy_image(
        source: &Image,
        part: ImagePart,
        destination: &Image,
        origin: [usize; 3],
    ) -> Result<Self> {
        let ImagePart { extent, .. } = part;
        part.check(source.description.extent)?;
        ImagePart { origin, extent }.check(destination.description.extent)?;
        if source.description.format != destination.description.format {
            return Err(Error::invalid(
                "pixels are copied between images of one format",
            ));
        }
        if !Arc::ptr_eq(&source.core, &destination.core) {
            return Err(Error::invalid(
                "pixels are copied between images of one context",
            ));
        }
        if part.is_empty() {
            return Ok(Self::marker());
        }
        let meets = |index: usize| origin[index].abs_diff(part.origin[index]) < extent[index];
        // Two `Image`s of the same level share one image of the driver, so the driver's handles are
        // compared.
        if source.inner.raw() == destination.inner.raw() && (0..3).all(meets) {
            return Err(Error::invalid("the two parts of the image overlap"));
        }
        let (to, from) = (destination.side(origin), source.side(part.origin));
        Ok(Self::with_memory(source.copy(to, from, extent), true))
    }
}

impl Image {
    /// Returns the pitches of a part of the image in memory without gaps between rows and slices.
    pub fn tight_pitches(&self, part: &ImagePart) -> Pitches {
        Pitches::tight(region(self.description.format, part.extent))
    }
}

/// Checks that a copy can use this part of the image and this range of memory. Returns the pitches,
/// with a slice pitch even if there is only one slice.
fn check_memory(
    image: &Image,
    part: &ImagePart,
    memory: &MemoryRange,
    pitches: Pitches,
    what: &str,
) -> Result<Pitches> {
    part.check(image.description.extent)?;
    let region = region(image.description.format, part.extent);
    region.check(pitches, what, memory.len())?;
    let slice = match region.slices {
        1 => pitches.row.saturating_mul(region.rows),
        _ => pitches.slice,
    };
    Ok(Pitches { slice, ..pitches })
}
