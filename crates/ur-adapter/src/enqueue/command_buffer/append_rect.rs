//! Entry points that record copies of rectangles between buffers, and between a buffer and the
//! user's memory.

use super::appended::appends;
use crate::abi::object::Handle;
use crate::enqueue::buffer::{copy_rect_command, user_rect_command};
use crate::memory::buffer::Buffer;
use std::ffi::c_void;
use unified_runtime_sys::{ur_rect_offset_t, ur_rect_region_t};

appends! {
    buffer;

    fn copy(
        from_buffer: Handle<Buffer>,
        to_buffer: Handle<Buffer>,
        from_origin: ur_rect_offset_t,
        to_origin: ur_rect_offset_t,
        region: ur_rect_region_t,
        from_row_pitch: usize,
        from_slice_pitch: usize,
        to_row_pitch: usize,
        to_slice_pitch: usize,
    ) {
        let from = (from_origin, from_row_pitch, from_slice_pitch);
        let to = (to_origin, to_row_pitch, to_slice_pitch);
        copy_rect_command(buffer, (from_buffer, from), (to_buffer, to), region)
    }
}

/// Defines the entry points that record copies of rectangles between a buffer and the user's
/// memory.
macro_rules! appends_user_rects {
    ($($name:ident: $writes:literal;)*) => {
        appends! {
            buffer;
            $(
                fn $name(
                    memory: Handle<Buffer>,
                    buffer_origin: ur_rect_offset_t,
                    host_origin: ur_rect_offset_t,
                    region: ur_rect_region_t,
                    buffer_row_pitch: usize,
                    buffer_slice_pitch: usize,
                    host_row_pitch: usize,
                    host_slice_pitch: usize,
                    pointer: *mut c_void,
                ) {
                    let place = (memory, (buffer_origin, buffer_row_pitch, buffer_slice_pitch));
                    let host = (pointer, (host_origin, host_row_pitch, host_slice_pitch));
                    // SAFETY: the caller guarantees that its memory is valid in every run of the
                    // command buffer.
                    unsafe { user_rect_command(buffer, $writes, place, host, region) }
                }
            )*
        }
    };
}

appends_user_rects! {
    write: true;
    read: false;
}
