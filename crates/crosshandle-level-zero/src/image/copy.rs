//! Copies of pixels, as calls of the driver.

use super::object::LevelZeroImage;
use crate::driver::{EventHandle, ImageHandle, ImageRegion, List, small};
use crosshandle_hal::{BackendImage, ImageCopy, ImageSide, Operand};
use crosshandle_types::Pitches;
use crosshandle_types::error::{Error, Result};
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

fn inner(image: &Arc<dyn BackendImage>) -> Result<&LevelZeroImage> {
    let image: &dyn Any = &**image;
    let image = image.downcast_ref();
    image.ok_or_else(|| Error::invalid("this image is not one of Level Zero's"))
}

/// Converts a region of an image to the driver's form. In both forms, the layer follows the pixel
/// coordinates.
fn region(origin: [usize; 3], extent: [usize; 3]) -> Result<ImageRegion> {
    let numbers = |numbers: [usize; 3]| -> Result<[u32; 3]> {
        let [x, y, z] = numbers.map(small);
        Ok([x?, y?, z?])
    };
    Ok(ImageRegion {
        origin: numbers(origin)?,
        extent: numbers(extent)?,
    })
}

/// The division of a region into as few pieces as possible that are tightly packed in memory.
struct Pieces {
    /// The size of a piece, in pixels.
    extent: [usize; 3],
    /// The number of pieces in the second and in the third dimension.
    count: [usize; 2],
}

impl Pieces {
    fn new(extent: [usize; 3], pixel: usize, pitches: Pitches) -> Self {
        let [x, y, z] = extent;
        let has_tight_rows = y == 1 || pitches.row == x * pixel;
        let has_tight_slices = z == 1 || pitches.slice == y * x * pixel;
        match (has_tight_rows, has_tight_slices) {
            (true, true) => Self {
                extent,
                count: [1, 1],
            },
            (true, false) => Self {
                extent: [x, y, 1],
                count: [1, z],
            },
            (false, _) => Self {
                extent: [x, 1, 1],
                count: [y, z],
            },
        }
    }
}

/// Appends a copy. Its last call signals an event.
///
/// # Safety
/// All objects that the command uses live until the list has passed the copy, including the event.
/// This also holds if the call fails.
pub(crate) unsafe fn append(
    list: &List,
    copy: &ImageCopy,
    signal: Option<EventHandle>,
    has_begun: &mut bool,
) -> Result<()> {
    // SAFETY: promised by the caller. The object layer checked that the regions lie inside their
    // images, and the rows and slices in their memory.
    unsafe {
        match (&copy.to, &copy.from) {
            (ImageSide::Image { image, origin }, ImageSide::Memory { place, pitches }) => {
                let side = (inner(image)?, *origin);
                each(
                    side,
                    copy.extent,
                    (place, *pitches),
                    |region, place, is_last| {
                        *has_begun = true;
                        list.write_image(region, place, signal.filter(|_| is_last))
                    },
                )
            }
            (ImageSide::Memory { place, pitches }, ImageSide::Image { image, origin }) => {
                let side = (inner(image)?, *origin);
                each(
                    side,
                    copy.extent,
                    (place, *pitches),
                    |region, place, is_last| {
                        *has_begun = true;
                        list.read_image(place, region, signal.filter(|_| is_last))
                    },
                )
            }
            (
                ImageSide::Image { image, origin },
                ImageSide::Image {
                    image: source,
                    origin: first,
                },
            ) => {
                let (image, source) = (inner(image)?, inner(source)?);
                let to = (image.handle(), region(*origin, copy.extent)?);
                let from = (source.handle(), region(*first, copy.extent)?);
                *has_begun = true;
                list.copy_image(to, from, signal)
            }
            (ImageSide::Memory { .. }, ImageSide::Memory { .. }) => {
                Err(Error::invalid("a copy of pixels has an image on one side"))
            }
        }
    }
}

/// Calls `copy` with each piece of a region: its position in the image and in memory, and whether
/// it is the last piece.
fn each(
    (image, origin): (&LevelZeroImage, [usize; 3]),
    extent: [usize; 3],
    (memory, pitches): (&Operand, Pitches),
    mut copy: impl FnMut((ImageHandle, ImageRegion), *mut c_void, bool) -> Result<()>,
) -> Result<()> {
    let pieces = Pieces::new(extent, image.pixel, pitches);
    let [rows, slices] = pieces.count;
    for slice in 0..slices {
        for row in 0..rows {
            let start = [origin[0], origin[1] + row, origin[2] + slice];
            let region = region(start, pieces.extent)?;
            let place = memory
                .address
                .offset(slice * pitches.slice + row * pitches.row);
            let is_last = (slice + 1, row + 1) == (slices, rows);
            copy(
                (image.handle(), region),
                place.pointer().as_ptr().cast(),
                is_last,
            )?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_as_few_as_can_be() {
        let pieces = |row, slice| {
            let pieces = Pieces::new([4, 3, 2], 2, Pitches { row, slice });
            (pieces.extent, pieces.count)
        };
        assert_eq!(pieces(8, 24), ([4, 3, 2], [1, 1]));
        assert_eq!(pieces(8, 32), ([4, 3, 1], [1, 2]));
        assert_eq!(pieces(10, 30), ([4, 1, 1], [3, 2]));
        let pieces = Pieces::new([4, 1, 1], 2, Pitches { row: 99, slice: 99 });
        assert_eq!((pieces.extent, pieces.count), ([4, 1, 1], [1, 1]));
    }
}
