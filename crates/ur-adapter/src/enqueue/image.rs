//! Enqueue calls on images.

use super::buffer::Side;
use super::submission::{Submission, WaitList};
use crate::abi::boundary::{MaybeOut, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::memory::image::Image;
use crate::queue::Queue;
use crosshandle::{
    Access, Command, Error, MemoryRange,
    image::{ImageKind, ImagePart},
    memory::{Pitches, Region},
};
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_bool_t, ur_command_t, ur_event_handle_t, ur_rect_offset_t, ur_rect_region_t, ur_result_t,
};

/// The layout of an image part in the user's memory.
pub(crate) struct PartLayout(Side);

impl PartLayout {
    /// Computes the layout for the given row and slice pitches. A pitch of 0 means that rows or
    /// slices are adjacent. In an array of one-dimensional images, each layer is one row, so the
    /// row pitch is `slice_pitch`.
    ///
    /// # Errors
    /// Returns `INVALID_SIZE` if the part is empty, or if a pitch is smaller than a row or slice.
    /// Returns it also if the slice pitch is not a multiple of the row pitch, because `crosshandle`
    /// does not support this.
    pub(crate) fn new(
        image: &Image,
        part: &ImagePart,
        row_pitch: usize,
        slice_pitch: usize,
    ) -> Result<Self> {
        let description = image.description();
        let [x, y, z] = part.extent;
        let width = x.checked_mul(description.format.pixel_bytes());
        let (row, slice) = match description.kind {
            ImageKind::OneDArray if slice_pitch != 0 => (slice_pitch, 0),
            _ => (row_pitch, slice_pitch),
        };
        let start = ur_rect_offset_t { x: 0, y: 0, z: 0 };
        let side = width.and_then(|width| {
            let region = Region {
                width,
                rows: y,
                slices: z,
            };
            Side::new(start, region, row, slice)
        });
        side.map(Self).ok_or_else(|| {
            Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
                "the part is empty, a pitch is smaller than a row or slice, or the slice pitch is not a multiple of \
                 the row pitch",
            )
        })
    }

    pub(crate) fn pitches(&self) -> Pitches {
        self.0.pitches()
    }

    /// Returns the range of the user's memory that contains the part.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_POINTER` if `pointer` is null.
    ///
    /// # Safety
    /// The caller must ensure that the bytes of the range are valid until the command that uses
    /// them is complete.
    pub(crate) unsafe fn in_user_memory(&self, pointer: *const c_void) -> Result<MemoryRange> {
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.0.in_user_memory(pointer) }
    }
}

fn origin(given: ur_rect_offset_t) -> [usize; 3] {
    [given.x, given.y, given.z].map(|at| usize::try_from(at).unwrap_or(usize::MAX))
}

fn extent(given: ur_rect_region_t) -> Result<[usize; 3]> {
    let extent = [given.width, given.height, given.depth];
    if extent.contains(&0) {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
            "the region has no pixels",
        ));
    }
    Ok(extent.map(|size| usize::try_from(size).unwrap_or(usize::MAX)))
}

/// Checks that a part of one image can be copied to a place in another image, or in the same one.
///
/// # Errors
/// Returns `INVALID_IMAGE_FORMAT_DESCRIPTOR` if the formats differ, and `OVERLAPPING_REGIONS` if
/// the two parts overlap in the same image.
fn check_copy(from: &Image, to: &Image, part: &ImagePart, place: [usize; 3]) -> Result<()> {
    if from.description().format != to.description().format {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_IMAGE_FORMAT_DESCRIPTOR,
            "pixels can only be copied between images of the same format",
        ));
    }
    let meets = |index: usize| part.origin[index].abs_diff(place[index]) < part.extent[index];
    if from.is_same(to) && (0..3).all(meets) {
        return Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_OVERLAPPING_REGIONS,
            "the two parts of the image overlap",
        ));
    }
    Ok(())
}

/// Converts an error that `crosshandle` returns for a copy. Only the bounds of the part have not
/// been checked before, so an invalid argument means that the part is outside the image.
fn refusal(error: Error) -> Failure {
    match error {
        Error::InvalidArgument(_) => {
            Failure::from(error).with_result(ur_result_t::UR_RESULT_ERROR_INVALID_SIZE)
        }
        error => error.into(),
    }
}

/// Defines the entry points that copy between an image and the user's memory.
macro_rules! user_parts {
    ($($name:ident: $kind:ident, $access:ident, $command:expr;)*) => {
        entry_points! {$(
            pub(super) fn $name(
                queue: Handle<Queue>,
                image: Handle<Image>,
                is_blocking: ur_bool_t,
                first: ur_rect_offset_t,
                region: ur_rect_region_t,
                row_pitch: usize,
                slice_pitch: usize,
                pointer: *mut c_void,
                waits(count, first_wait): WaitList,
                event: MaybeOut<ur_event_handle_t>,
            ) {
                let part = ImagePart { origin: origin(first), extent: extent(region)? };
                let place = PartLayout::new(image, &part, row_pitch, slice_pitch)?;
                // SAFETY: the caller passes memory that stays valid until the command is complete.
                let memory = unsafe { place.in_user_memory(pointer) }?;
                let submission = Submission::new(queue, waits, event)?;
                let image = image.for_command(&submission, Access::$access)?;
                let command = $command(&image, part, memory, place.pitches());
                let kind = ur_command_t::$kind;
                submission.submit(kind, command.map_err(refusal)?, is_blocking != 0)
            }
        )*}
    };
}

user_parts! {
    read: UR_COMMAND_MEM_IMAGE_READ, ReadOnly, Command::read_image;
    write: UR_COMMAND_MEM_IMAGE_WRITE, ReadWrite, |image, part, memory, pitches| {
        Command::write_image(memory, pitches, image, part)
    };
}

entry_points! {
    pub(super) fn copy(
        queue: Handle<Queue>,
        from: Handle<Image>,
        to: Handle<Image>,
        from_first: ur_rect_offset_t,
        to_first: ur_rect_offset_t,
        region: ur_rect_region_t,
        waits(count, first_wait): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let part = ImagePart { origin: origin(from_first), extent: extent(region)? };
        check_copy(from, to, &part, origin(to_first))?;
        let submission = Submission::new(queue, waits, event)?;
        let from = from.for_command(&submission, Access::ReadOnly)?;
        let to = to.for_command(&submission, Access::ReadWrite)?;
        let command = Command::copy_image(&from, part, &to, origin(to_first));
        let kind = ur_command_t::UR_COMMAND_MEM_IMAGE_COPY;
        submission.submit(kind, command.map_err(refusal)?, false)
    }
}
