//! Copies of pixels, which the driver makes as copies of rectangles.

use super::object::CudaImage;
use crate::driver::{DeviceAddress, RectCopy, Rows, Side};
use crosshandle_hal::{BackendImage, ImageCopy, ImageSide};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{ImageKind, Pitches};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::Arc;

pub(super) fn inner(image: &Arc<dyn BackendImage>) -> Result<&CudaImage> {
    let image: &dyn Any = &**image;
    let image = image.downcast_ref();
    image.ok_or_else(|| Error::invalid("this image does not belong to the CUDA backend"))
}

/// Returns whether an image has its layers in the second dimension, although the driver has them in
/// the third. Returns `None` for memory.
fn has_rows_as_layers(side: &ImageSide) -> Option<bool> {
    let image = inner(side.image()?).ok()?;
    Some(image.kind() == ImageKind::OneDArray)
}

/// How both sides of a copy number its pixels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// By rows and slices, as the driver does.
    Rows,
    /// By rows that are layers of an image.
    Layers,
    /// By rows that are layers of only one of the two images. Each row is a copy of its own.
    Mixed,
}

fn shape(copy: &ImageCopy) -> Shape {
    match (has_rows_as_layers(&copy.to), has_rows_as_layers(&copy.from)) {
        (Some(to), Some(from)) if to != from => Shape::Mixed,
        (Some(true), _) | (_, Some(true)) => Shape::Layers,
        _ => Shape::Rows,
    }
}

/// Returns the number of driver copies that make up a copy.
pub(crate) fn calls(copy: &ImageCopy) -> u32 {
    match shape(copy) {
        Shape::Mixed => u32::try_from(copy.extent[1]).unwrap_or(u32::MAX),
        Shape::Rows | Shape::Layers => 1,
    }
}

/// Returns the driver copies that make up a copy.
pub(crate) fn copies(copy: &ImageCopy) -> Result<SmallVec<[RectCopy; 1]>> {
    let pixel = [&copy.to, &copy.from]
        .into_iter()
        .find_map(ImageSide::image);
    let pixel =
        pixel.ok_or_else(|| Error::invalid("a copy of pixels needs an image on one side"))?;
    let bytes = inner(pixel)?.pixel_bytes();
    let shape = shape(copy);
    let one = |sizes: [usize; 3], row: usize| {
        Ok(RectCopy {
            to: side(&copy.to, bytes, shape, row)?,
            from: side(&copy.from, bytes, shape, row)?,
            sizes,
        })
    };
    let [x, y, z] = copy.extent;
    let width = x * bytes;
    match shape {
        Shape::Rows => Ok(SmallVec::from_buf([one([width, y, z], 0)?])),
        Shape::Layers => Ok(SmallVec::from_buf([one([width, 1, y], 0)?])),
        Shape::Mixed => (0..y).map(|row| one([width, 1, 1], row)).collect(),
    }
}

/// Returns one side of a copy, from row `row` on. A pixel has `bytes` bytes.
fn side(side: &ImageSide, bytes: usize, shape: Shape, row: usize) -> Result<Side> {
    Ok(match side {
        ImageSide::Image { image, origin } => {
            let image = inner(image)?;
            let [x, y, z] = *origin;
            let first = match image.kind() {
                ImageKind::OneDArray => [x * bytes, 0, y + row],
                _ => [x * bytes, y + row, z],
            };
            Side::Array(image.array(), first)
        }
        ImageSide::Memory { place, pitches } => {
            let (row_pitch, slice_rows) = rows(*pitches, shape);
            Side::Rows(Rows {
                start: place.address.get() as DeviceAddress,
                row_pitch,
                slice_rows,
                is_unknown: false,
            })
        }
    })
}

/// Returns the row pitch in bytes and the slice pitch in rows of pixels in memory.
fn rows(pitches: Pitches, shape: Shape) -> (usize, usize) {
    match shape {
        // Slice pitches are multiples of row pitches.
        Shape::Rows => (pitches.row, pitches.slice / pitches.row),
        // Each row is a slice of the driver.
        Shape::Layers | Shape::Mixed => (pitches.row, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_arrays_are_slices_of_the_driver() {
        let pitches = Pitches { row: 10, slice: 40 };
        assert_eq!(rows(pitches, Shape::Rows), (10, 4));
        assert_eq!(rows(pitches, Shape::Layers), (10, 1));
    }
}
