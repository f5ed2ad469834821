//! Copies of rectangles between buffers and host memory, recorded.

use super::{Appended, CommandBuffer, SyncPoints};
use crate::abi::boundary::{MaybeOut, entry_points};
use crate::abi::object::Handle;
use crate::enqueue::WaitList;
use crate::enqueue::buffer::{copy_rect_command, read_rect_command, write_rect_command};
use crate::memory::buffer::Buffer;
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_event_handle_t, ur_exp_command_buffer_command_handle_t, ur_exp_command_buffer_sync_point_t,
    ur_rect_offset_t, ur_rect_region_t,
};

entry_points! {
    pub(super) fn copy(
        buffer: Handle<CommandBuffer>,
        from_buffer: Handle<Buffer>,
        to_buffer: Handle<Buffer>,
        from_origin: ur_rect_offset_t,
        to_origin: ur_rect_offset_t,
        region: ur_rect_region_t,
        from_row_pitch: usize,
        from_slice_pitch: usize,
        to_row_pitch: usize,
        to_slice_pitch: usize,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        let from = (from_origin, from_row_pitch, from_slice_pitch);
        let to = (to_origin, to_row_pitch, to_slice_pitch);
        let copy = copy_rect_command(buffer, (from_buffer, from), (to_buffer, to), region)?;
        buffer.append(copy, None, &appended)
    }

    pub(super) fn write(
        buffer: Handle<CommandBuffer>,
        to: Handle<Buffer>,
        buffer_origin: ur_rect_offset_t,
        host_origin: ur_rect_offset_t,
        region: ur_rect_region_t,
        buffer_row_pitch: usize,
        buffer_slice_pitch: usize,
        host_row_pitch: usize,
        host_slice_pitch: usize,
        pointer: *mut c_void,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        let place = (buffer_origin, buffer_row_pitch, buffer_slice_pitch);
        let host = (host_origin, host_row_pitch, host_slice_pitch);
        // SAFETY: the caller vouches for the memory as long as he enqueues the command buffer.
        let copy = unsafe { write_rect_command(buffer, (to, place), (pointer, host), region) }?;
        buffer.append(copy, None, &appended)
    }

    pub(super) fn read(
        buffer: Handle<CommandBuffer>,
        from: Handle<Buffer>,
        buffer_origin: ur_rect_offset_t,
        host_origin: ur_rect_offset_t,
        region: ur_rect_region_t,
        buffer_row_pitch: usize,
        buffer_slice_pitch: usize,
        host_row_pitch: usize,
        host_slice_pitch: usize,
        pointer: *mut c_void,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        let place = (buffer_origin, buffer_row_pitch, buffer_slice_pitch);
        let host = (host_origin, host_row_pitch, host_slice_pitch);
        // SAFETY: the caller vouches for the memory as long as he enqueues the command buffer.
        let copy = unsafe { read_rect_command(buffer, (from, place), (pointer, host), region) }?;
        buffer.append(copy, None, &appended)
    }
}
