//! Copies between images and memory.
//!
//! In the first dimension, positions and sizes of a copy are in bytes. In the other dimensions,
//! they are in rows, slices or layers. The caller specifies for each side whether it is an image or
//! memory. The driver determines the device of each side.

use super::submission::{Submission, WaitList};
use crate::abi::boundary::{In, InMut, MaybeOut, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::memory::bindless::image::describe;
use crate::queue::Queue;
use crate::queue::destination::Destination;
use crosshandle::{
    Access, Command, Error, MemoryRange,
    image::{Image, ImageDescription, ImageKind, ImagePart},
    memory::{Pitches, Region},
};
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_EXP_IMAGE_COPY_FLAG_DEVICE_TO_DEVICE, UR_EXP_IMAGE_COPY_FLAG_DEVICE_TO_HOST,
    UR_EXP_IMAGE_COPY_FLAG_HOST_TO_DEVICE, UR_EXP_IMAGE_COPY_FLAG_HOST_TO_HOST, ur_command_t,
    ur_event_handle_t, ur_exp_image_copy_flags_t, ur_exp_image_copy_input_types_t as inputs,
    ur_exp_image_copy_input_types_t, ur_exp_image_copy_region_t, ur_image_desc_t,
    ur_image_format_t, ur_rect_offset_t, ur_result_t,
};

fn wrong_size(message: &'static str) -> Failure {
    Failure::new(ur_result_t::UR_RESULT_ERROR_INVALID_SIZE, message)
}

/// A position or a size: bytes in the first dimension, then rows, then slices or layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bytes([usize; 3]);

impl Bytes {
    fn of_offset(offset: ur_rect_offset_t) -> Result<Self> {
        let numbers = [offset.x, offset.y, offset.z].map(usize::try_from);
        let [Ok(x), Ok(y), Ok(z)] = numbers else {
            return Err(wrong_size("an offset exceeds the address space"));
        };
        Ok(Self([x, y, z]))
    }

    /// Converts the size of a copy. Unused dimensions may be 0, and become 1.
    fn of_extent(region: &ur_exp_image_copy_region_t) -> Result<Self> {
        let extent = region.copyExtent;
        let numbers = [extent.width, extent.height, extent.depth].map(usize::try_from);
        let [Ok(x), Ok(y), Ok(z)] = numbers else {
            return Err(wrong_size("the region exceeds the address space"));
        };
        if x == 0 {
            return Err(wrong_size("the region has no pixels"));
        }
        Ok(Self([x, y.max(1), z.max(1)]))
    }

    /// Converts the position or size to pixels of an image. In an array of one-dimensional images,
    /// the layer is the second number.
    fn in_pixels(self, image: &ImageDescription) -> Result<[usize; 3]> {
        let Self([x, y, z]) = self;
        let pixel = image.format.pixel_bytes();
        if !x.is_multiple_of(pixel) {
            return Err(wrong_size("the region starts or ends inside a pixel"));
        }
        Ok(match image.kind {
            ImageKind::OneDArray => [x / pixel, z, 0],
            _ => [x / pixel, y, z],
        })
    }
}

/// Returns the part of an image that starts at `offset` and has the size `extent`.
fn part(image: &ImageDescription, offset: Bytes, extent: Bytes) -> Result<ImagePart> {
    if image.kind == ImageKind::OneDArray && extent.0[1] > 1 {
        return Err(wrong_size("each layer of this image has only one row"));
    }
    let extent = extent.in_pixels(image)?;
    Ok(ImagePart {
        origin: offset.in_pixels(image)?,
        extent: extent.map(|size| size.max(1)),
    })
}

/// The layout of the rows and slices on a memory side of a copy.
struct Rows {
    /// The offset in bytes from the caller's pointer to the first copied byte.
    start: usize,
    pitches: Pitches,
    /// The distance in bytes from the first copied byte to the end of the last copied byte.
    span: usize,
}

impl Rows {
    /// Returns the layout of a region in memory that is described as an image. If the description
    /// has no row pitch, rows are adjacent.
    fn new(
        format: &ur_image_format_t,
        desc: &ur_image_desc_t,
        offset: Bytes,
        extent: Bytes,
    ) -> Result<Self> {
        let (image, _) = describe(format, desc)?;
        let wrong = || wrong_size("the region exceeds the pitch");
        let tight = image.extent[0].checked_mul(image.format.pixel_bytes());
        let row = match desc.rowPitch {
            0 => tight.ok_or_else(wrong)?,
            row => row,
        };
        let height = match image.kind {
            ImageKind::OneD | ImageKind::OneDArray => 1,
            _ => image.extent[1],
        };
        let slice = match desc.slicePitch {
            0 => row.checked_mul(height).ok_or_else(wrong)?,
            slice => slice,
        };
        let (Bytes([x, y, z]), Bytes([width, rows, slices])) = (offset, extent);
        let is_inside = x.checked_add(width).is_some_and(|end| end <= row)
            && (slices == 1
                || y.checked_add(rows)
                    .is_some_and(|end| end <= slice / row.max(1)));
        if !is_inside {
            return Err(wrong());
        }
        let place = |slices: usize, rows: usize, bytes: usize| {
            let slices = slices.checked_mul(slice)?;
            slices
                .checked_add(rows.checked_mul(row)?)?
                .checked_add(bytes)
        };
        Ok(Self {
            start: place(z, y, x).ok_or_else(wrong)?,
            span: place(slices - 1, rows - 1, width).ok_or_else(wrong)?,
            pitches: Pitches { row, slice },
        })
    }

    /// Returns the pitches for a copy between this memory and an image. In an array of
    /// one-dimensional images, each layer is one row, so the row pitch is the slice pitch.
    fn pitches_beside(&self, image: &ImageDescription) -> Pitches {
        match image.kind {
            ImageKind::OneDArray => Pitches {
                row: self.pitches.slice,
                slice: self.pitches.slice,
            },
            _ => self.pitches,
        }
    }

    /// Returns the memory range that contains the rows.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_POINTER` if `pointer` is null, and `INVALID_SIZE` if the rows exceed
    /// an allocation.
    ///
    /// # Safety
    /// If the context did not allocate the memory, the caller must ensure that it is valid until
    /// the command is complete.
    unsafe fn memory(
        &self,
        submission: &Submission<'_>,
        pointer: *const c_void,
        access: Access,
    ) -> Result<MemoryRange> {
        not_null(pointer)?;
        let state = submission.context().state();
        // The check starts at the caller's pointer, because the first copied byte could be in
        // another allocation.
        let end = self.start.checked_add(self.span).ok_or(Failure::SIZE)?;
        state.usm.check(pointer, end)?;
        let start = pointer.wrapping_byte_add(self.start);
        let is_recording = submission.is_recording();
        // SAFETY: the caller upholds this function's contract.
        unsafe { state.usm.range(start, self.span, access, is_recording) }
    }
}

/// Looks up an image by its handle, for a command on a queue.
fn image(submission: &Submission<'_>, number: *const c_void) -> Result<Image> {
    not_null(number)?;
    let bindless = &submission.context().state().bindless;
    bindless.find_flat(number.addr())
}

/// Returns `INVALID_ARGUMENT` if the image does not have the described pixel format.
fn check_format(image: &Image, format: &ur_image_format_t) -> Result<()> {
    match crate::memory::image::format::format(format)? == image.description().format {
        true => Ok(()),
        false => Err(Failure::argument(
            "the image has another pixel format than the description",
        )),
    }
}

/// Converts an error that `crosshandle` returns for a copy.
fn refusal(error: Error) -> Failure {
    match error {
        Error::InvalidArgument(_) => {
            Failure::from(error).with_result(ur_result_t::UR_RESULT_ERROR_INVALID_SIZE)
        }
        error => error.into(),
    }
}

/// One side of a copy, as the caller describes it.
struct Side<'a> {
    place: *const c_void,
    desc: &'a ur_image_desc_t,
    format: &'a ur_image_format_t,
    offset: Bytes,
}

/// Creates the command for a copy.
///
/// # Safety
/// If the context did not allocate a memory side of the copy, the caller must ensure that its
/// memory is valid until the command is complete.
unsafe fn command(
    submission: &Submission<'_>,
    to: &Side<'_>,
    from: &Side<'_>,
    extent: Bytes,
    kinds: ur_exp_image_copy_input_types_t,
) -> Result<Command> {
    let rows = |side: &Side<'_>| Rows::new(side.format, side.desc, side.offset, extent);
    let pixels = |side: &Side<'_>| {
        let image = image(submission, side.place)?;
        check_format(&image, side.format)?;
        let part = part(image.description(), side.offset, extent)?;
        Ok::<_, Failure>((image, part))
    };
    // SAFETY: the caller upholds this function's contract.
    let memory = |side: &Side<'_>, rows: &Rows, access| unsafe {
        rows.memory(submission, side.place, access)
    };
    let command = match kinds {
        inputs::UR_EXP_IMAGE_COPY_INPUT_TYPES_MEM_TO_IMAGE => {
            let (rows, (image, part)) = (rows(from)?, pixels(to)?);
            let pitches = rows.pitches_beside(image.description());
            let memory = memory(from, &rows, Access::ReadOnly)?;
            Command::write_image(memory, pitches, &image, part)
        }
        inputs::UR_EXP_IMAGE_COPY_INPUT_TYPES_IMAGE_TO_MEM => {
            let (rows, (image, part)) = (rows(to)?, pixels(from)?);
            let pitches = rows.pitches_beside(image.description());
            let memory = memory(to, &rows, Access::ReadWrite)?;
            Command::read_image(&image, part, memory, pitches)
        }
        inputs::UR_EXP_IMAGE_COPY_INPUT_TYPES_MEM_TO_MEM => {
            let (to_rows, from_rows) = (rows(to)?, rows(from)?);
            let Bytes([width, height, slices]) = extent;
            let region = Region {
                width,
                rows: height,
                slices,
            };
            Command::copy_rect(
                memory(from, &from_rows, Access::ReadOnly)?,
                from_rows.pitches,
                memory(to, &to_rows, Access::ReadWrite)?,
                to_rows.pitches,
                region,
            )
        }
        inputs::UR_EXP_IMAGE_COPY_INPUT_TYPES_IMAGE_TO_IMAGE => {
            let ((to_image, to_part), (image, part)) = (pixels(to)?, pixels(from)?);
            Command::copy_image(&image, part, &to_image, to_part.origin)
        }
        _ => return Err(Failure::ENUMERATION),
    };
    command.map_err(refusal)
}

entry_points! {
    pub(crate) fn copy(
        queue: Handle<Queue>,
        from: *const c_void,
        to: *mut c_void,
        from_desc: In<ur_image_desc_t>,
        to_desc: In<ur_image_desc_t>,
        from_format: In<ur_image_format_t>,
        to_format: In<ur_image_format_t>,
        region: InMut<ur_exp_image_copy_region_t>,
        flags: ur_exp_image_copy_flags_t,
        kinds: ur_exp_image_copy_input_types_t,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        not_null(from)?;
        not_null(to)?;
        // The driver ignores the direction, but the specification requires exactly one direction
        // flag.
        if !matches!(
            flags,
            UR_EXP_IMAGE_COPY_FLAG_HOST_TO_DEVICE
                | UR_EXP_IMAGE_COPY_FLAG_DEVICE_TO_HOST
                | UR_EXP_IMAGE_COPY_FLAG_DEVICE_TO_DEVICE
                | UR_EXP_IMAGE_COPY_FLAG_HOST_TO_HOST
        ) {
            return Err(Failure::ENUMERATION);
        }
        let extent = Bytes::of_extent(region)?;
        let submission = Submission::new(queue, waits, event)?;
        let from = Side {
            place: from,
            desc: from_desc,
            format: from_format,
            offset: Bytes::of_offset(region.srcOffset)?,
        };
        let to = Side {
            place: to,
            desc: to_desc,
            format: to_format,
            offset: Bytes::of_offset(region.dstOffset)?,
        };
        // SAFETY: the caller guarantees that its own memory is valid until the command is complete.
        let command = unsafe { command(&submission, &to, &from, extent, kinds) }?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_IMAGE_COPY, command, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;
    use unified_runtime_sys::{
        ur_image_channel_order_t as orders, ur_image_channel_type_t as channels,
        ur_mem_type_t as kinds, ur_rect_region_t, ur_structure_type_t as types,
    };

    const FORMAT: ur_image_format_t = ur_image_format_t {
        channelOrder: orders::UR_IMAGE_CHANNEL_ORDER_RGBA,
        channelType: channels::UR_IMAGE_CHANNEL_TYPE_UNSIGNED_INT8,
    };

    fn desc(kind: kinds, [width, height, depth]: [usize; 3], row_pitch: usize) -> ur_image_desc_t {
        ur_image_desc_t {
            stype: types::UR_STRUCTURE_TYPE_IMAGE_DESC,
            pNext: null(),
            type_: kind,
            width,
            height,
            depth,
            arraySize: depth,
            rowPitch: row_pitch,
            slicePitch: 0,
            numMipLevel: 0,
            numSamples: 0,
        }
    }

    fn rows(desc: &ur_image_desc_t, offset: [usize; 3], extent: [usize; 3]) -> Option<[usize; 4]> {
        let rows = Rows::new(&FORMAT, desc, Bytes(offset), Bytes(extent)).ok()?;
        Some([rows.start, rows.span, rows.pitches.row, rows.pitches.slice])
    }

    #[test]
    fn bytes_count_in_the_first_dimension() {
        let region = ur_exp_image_copy_region_t {
            stype: types::UR_STRUCTURE_TYPE_EXP_IMAGE_COPY_REGION,
            pNext: null(),
            srcOffset: ur_rect_offset_t { x: 8, y: 1, z: 2 },
            dstOffset: ur_rect_offset_t { x: 0, y: 0, z: 0 },
            copyExtent: ur_rect_region_t {
                width: 12,
                height: 0,
                depth: 0,
            },
        };
        let extent = Bytes::of_extent(&region).unwrap();
        assert_eq!(extent, Bytes([12, 1, 1]));
        let offset = Bytes::of_offset(region.srcOffset).unwrap();
        let (flat, _) = describe(&FORMAT, &desc(kinds::UR_MEM_TYPE_IMAGE2D, [9, 9, 0], 0)).unwrap();
        let whole = part(&flat, offset, extent).unwrap();
        assert_eq!((whole.origin, whole.extent), ([2, 1, 2], [3, 1, 1]));
        let rows = desc(kinds::UR_MEM_TYPE_IMAGE1D_ARRAY, [9, 0, 5], 0);
        let (rows, _) = describe(&FORMAT, &rows).unwrap();
        let layers = part(&rows, offset, Bytes([12, 1, 3])).unwrap();
        assert_eq!((layers.origin, layers.extent), ([2, 2, 0], [3, 3, 1]));
        assert!(part(&rows, offset, Bytes([12, 2, 3])).is_err());
        assert!(part(&flat, Bytes([6, 0, 0]), extent).is_err());
        assert!(part(&flat, offset, Bytes([7, 1, 1])).is_err());
        let none = ur_exp_image_copy_region_t {
            copyExtent: ur_rect_region_t {
                width: 0,
                height: 1,
                depth: 1,
            },
            ..region
        };
        assert!(Bytes::of_extent(&none).is_err());
    }

    #[test]
    fn memory_has_rows_as_its_description_says() {
        let flat = |pitch| desc(kinds::UR_MEM_TYPE_IMAGE2D, [10, 6, 0], pitch);
        assert_eq!(rows(&flat(0), [0; 3], [40, 6, 1]), Some([0, 240, 40, 240]));
        assert_eq!(
            rows(&flat(64), [8, 2, 0], [16, 3, 1]),
            Some([136, 144, 64, 384])
        );
        // Invalid: a region that exceeds its row pitch, and rows that exceed the address space.
        assert_eq!(rows(&flat(64), [60, 0, 0], [8, 1, 1]), None);
        assert_eq!(rows(&flat(64), [0, usize::MAX, 0], [8, 2, 1]), None);
        assert_eq!(rows(&flat(8), [0; 3], [16, 2, 1]), None);
        assert_eq!(rows(&flat(usize::MAX), [0; 3], [16, 2, 1]), None);
        let deep = desc(kinds::UR_MEM_TYPE_IMAGE3D, [10, 6, 4], 0);
        assert_eq!(rows(&deep, [4, 1, 2], [8, 2, 2]), Some([524, 288, 40, 240]));
        // Invalid: the copied rows exceed the slice, so slices would overlap.
        assert_eq!(rows(&deep, [0, 5, 0], [8, 2, 2]), None);
        let layers = desc(kinds::UR_MEM_TYPE_IMAGE1D_ARRAY, [10, 0, 4], 0);
        let found = Rows::new(&FORMAT, &layers, Bytes([0; 3]), Bytes([40, 1, 4])).unwrap();
        let (image, _) = describe(&FORMAT, &layers).unwrap();
        assert_eq!(found.pitches_beside(&image).row, 40);
        assert_eq!(found.span, 160);
    }
}
