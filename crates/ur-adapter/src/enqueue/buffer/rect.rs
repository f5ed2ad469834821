//! Enqueue calls that copy rectangles between buffers, and between a buffer and the user's memory.

use super::user_memory;
use crate::abi::boundary::{MaybeOut, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::enqueue::submission::{Submission, WaitList};
use crate::memory::buffer::Buffer;
use crate::queue::Queue;
use crate::queue::destination::Destination;
use crosshandle::{
    Access, Command, MemoryRange,
    memory::{Pitches, Region},
};
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_bool_t, ur_command_t, ur_event_handle_t, ur_rect_offset_t, ur_rect_region_t, ur_result_t,
};

/// The layout of a rectangle in a buffer or in the user's memory.
pub(crate) struct Side {
    /// The offset in bytes of the rectangle's first byte. The field `span` is the distance in bytes
    /// from there to the end of the rectangle's last byte.
    start: usize,
    span: usize,
    pitches: Pitches,
}

impl Side {
    /// Computes the layout of a rectangle. Returns `None` if the specification forbids the
    /// arguments, or if the computation overflows.
    pub(crate) fn new(
        origin: ur_rect_offset_t,
        region: Region,
        row_pitch: usize,
        slice_pitch: usize,
    ) -> Option<Self> {
        let or_tight = |pitch: usize, tight: usize| if pitch == 0 { tight } else { pitch };
        let row = or_tight(row_pitch, region.width);
        let rows = region.rows.checked_mul(row)?;
        let slice = or_tight(slice_pitch, rows);
        if region.is_empty() || row < region.width || slice < rows || !slice.is_multiple_of(row) {
            return None;
        }
        let place = |slices: usize, rows: usize, bytes: usize| {
            let slices = slices.checked_mul(slice)?;
            slices
                .checked_add(rows.checked_mul(row)?)?
                .checked_add(bytes)
        };
        Some(Self {
            start: place(index(origin.z)?, index(origin.y)?, index(origin.x)?)?,
            span: place(region.slices - 1, region.rows - 1, region.width)?,
            pitches: Pitches { row, slice },
        })
    }

    pub(crate) fn pitches(&self) -> Pitches {
        self.pitches
    }

    /// Returns the memory range in a buffer that contains the rectangle.
    fn in_buffer(
        &self,
        buffer: &Buffer,
        destination: &dyn Destination,
        access: Access,
    ) -> Result<MemoryRange> {
        buffer.range(destination, self.start, self.span, access)
    }

    /// Returns the range of the user's memory that contains the rectangle.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`user_memory`] for all bytes of the range.
    pub(crate) unsafe fn in_user_memory(&self, pointer: *const c_void) -> Result<MemoryRange> {
        not_null(pointer)?;
        // SAFETY: the caller upholds this function's contract.
        unsafe { user_memory(pointer.wrapping_byte_add(self.start), self.span) }
    }
}

fn index(number: u64) -> Option<usize> {
    number.try_into().ok()
}

/// The placement of a rectangle: its origin, its row pitch and its slice pitch.
pub(crate) type Rect = (ur_rect_offset_t, usize, usize);

/// Validates a copy of a rectangle. Returns the size of the rectangle, and the layouts for both
/// positions.
fn sides(region: ur_rect_region_t, one: Rect, other: Rect) -> Result<(Region, Side, Side)> {
    let checked = || {
        let region = Region {
            width: index(region.width)?,
            rows: index(region.height)?,
            slices: index(region.depth)?,
        };
        let side = |(origin, row, slice)| Side::new(origin, region, row, slice);
        Some((region, side(one)?, side(other)?))
    };
    checked().ok_or_else(|| {
        Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
            "the region is empty, or a pitch does not fit it",
        )
    })
}

/// Creates a command that copies a rectangle between a buffer and the user's memory. The command
/// copies to the buffer if `writes` is true, and from the buffer otherwise.
///
/// # Errors
/// Returns `INVALID_NULL_POINTER` if the user's pointer is null. Returns `INVALID_SIZE` if the
/// region is empty, a pitch does not fit, or the rectangle is not inside the buffer.
///
/// # Safety
/// The caller must ensure that the bytes of the rectangle in the user's memory stay valid until the
/// command is complete.
pub(crate) unsafe fn user_rect_command(
    destination: &dyn Destination,
    writes: bool,
    (buffer, place): (&Buffer, Rect),
    (pointer, host): (*mut c_void, Rect),
    region: ur_rect_region_t,
) -> Result<Command> {
    let (region, place, host) = sides(region, place, host)?;
    // SAFETY: the caller upholds this function's contract.
    let memory = unsafe { host.in_user_memory(pointer) }?;
    let access = if writes {
        Access::ReadWrite
    } else {
        Access::ReadOnly
    };
    let range = place.in_buffer(buffer, destination, access)?;
    Ok(match writes {
        true => Command::copy_rect(memory, host.pitches, range, place.pitches, region)?,
        false => Command::copy_rect(range, place.pitches, memory, host.pitches, region)?,
    })
}

/// Creates a command that copies a rectangle from one buffer to another, or within a buffer.
///
/// # Errors
/// Returns `INVALID_SIZE` if the region is empty, a pitch does not fit, or a rectangle is not
/// inside its buffer.
pub(crate) fn copy_rect_command(
    destination: &dyn Destination,
    (from_buffer, from): (&Buffer, Rect),
    (to_buffer, to): (&Buffer, Rect),
    region: ur_rect_region_t,
) -> Result<Command> {
    let (region, to, from) = sides(region, to, from)?;
    let to_range = to.in_buffer(to_buffer, destination, Access::ReadWrite)?;
    let from_range = from.in_buffer(from_buffer, destination, Access::ReadOnly)?;
    Ok(Command::copy_rect(
        from_range,
        from.pitches,
        to_range,
        to.pitches,
        region,
    )?)
}

/// Defines the entry points that copy rectangles between a buffer and the user's memory.
macro_rules! user_rects {
    ($($name:ident: $into:literal, $command:ident;)*) => {
        entry_points! {$(
            pub(crate) fn $name(
                queue: Handle<Queue>,
                buffer: Handle<Buffer>,
                is_blocking: ur_bool_t,
                buffer_origin: ur_rect_offset_t,
                host_origin: ur_rect_offset_t,
                region: ur_rect_region_t,
                buffer_row_pitch: usize,
                buffer_slice_pitch: usize,
                host_row_pitch: usize,
                host_slice_pitch: usize,
                pointer: *mut c_void,
                waits(count, first): WaitList,
                event: MaybeOut<ur_event_handle_t>,
            ) {
                let submission = Submission::new(queue, waits, event)?;
                let part = (buffer, (buffer_origin, buffer_row_pitch, buffer_slice_pitch));
                let host = (pointer, (host_origin, host_row_pitch, host_slice_pitch));
                // SAFETY: the caller passes memory that stays valid until the command is complete.
                let command = unsafe { user_rect_command(&submission, $into, part, host, region) }?;
                submission.submit(ur_command_t::$command, command, is_blocking != 0)
            }
        )*}
    };
}

user_rects! {
    read_rect: false, UR_COMMAND_MEM_BUFFER_READ_RECT;
    write_rect: true, UR_COMMAND_MEM_BUFFER_WRITE_RECT;
}

entry_points! {
    pub(crate) fn copy_rect(
        queue: Handle<Queue>,
        from_buffer: Handle<Buffer>,
        to_buffer: Handle<Buffer>,
        from_origin: ur_rect_offset_t,
        to_origin: ur_rect_offset_t,
        region: ur_rect_region_t,
        from_row_pitch: usize,
        from_slice_pitch: usize,
        to_row_pitch: usize,
        to_slice_pitch: usize,
        waits(count, first): WaitList,
        event: MaybeOut<ur_event_handle_t>,
    ) {
        let submission = Submission::new(queue, waits, event)?;
        let to = (to_origin, to_row_pitch, to_slice_pitch);
        let from = (from_origin, from_row_pitch, from_slice_pitch);
        let command = copy_rect_command(&submission, (from_buffer, from), (to_buffer, to), region)?;
        submission.submit(ur_command_t::UR_COMMAND_MEM_BUFFER_COPY_RECT, command, false)
    }
}
