//! Copies, fills and hints, recorded.

use super::{Appended, CommandBuffer, SyncPoints};
use crate::abi::boundary::{MaybeOut, entry_points};
use crate::abi::object::Handle;
use crate::enqueue::WaitList;
use crate::enqueue::buffer::{copy_command, fill_command, read_command, write_command};
use crate::enqueue::usm;
use crate::memory::buffer::Buffer;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_USM_ADVICE_FLAGS_MASK, UR_USM_MIGRATION_FLAGS_MASK, ur_event_handle_t,
    ur_exp_command_buffer_command_handle_t, ur_exp_command_buffer_sync_point_t,
    ur_usm_advice_flags_t, ur_usm_migration_flags_t,
};

entry_points! {
    pub(super) fn usm_copy(
        buffer: Handle<CommandBuffer>,
        to: *mut c_void,
        from: *const c_void,
        size: usize,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        // SAFETY: the caller vouches for the memory as long as he enqueues the command buffer.
        let copy = unsafe { usm::copy_command(buffer, to, from, size) }?;
        buffer.append(copy, None, &appended)
    }

    pub(super) fn usm_fill(
        buffer: Handle<CommandBuffer>,
        start: *mut c_void,
        pattern: *const c_void,
        pattern_size: usize,
        size: usize,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        // SAFETY: the caller vouches for the memory as long as he enqueues the command buffer, and passes a
        // pattern of this size.
        let fill = unsafe { usm::fill_command(buffer, start, pattern, pattern_size, size) }?;
        buffer.append(fill, None, &appended)
    }

    pub(super) fn usm_prefetch(
        buffer: Handle<CommandBuffer>,
        start: *const c_void,
        size: usize,
        flags: ur_usm_migration_flags_t,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        let hint = usm::hint_command(buffer, start, size, flags & UR_USM_MIGRATION_FLAGS_MASK)?;
        buffer.append(hint, None, &appended)
    }

    pub(super) fn usm_advise(
        buffer: Handle<CommandBuffer>,
        start: *const c_void,
        size: usize,
        advice: ur_usm_advice_flags_t,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        let hint = usm::hint_command(buffer, start, size, advice & UR_USM_ADVICE_FLAGS_MASK)?;
        buffer.append(hint, None, &appended)
    }

    pub(super) fn copy(
        buffer: Handle<CommandBuffer>,
        from: Handle<Buffer>,
        to: Handle<Buffer>,
        from_offset: usize,
        to_offset: usize,
        size: usize,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        let copy = copy_command(buffer, (from, from_offset), (to, to_offset), size)?;
        buffer.append(copy, None, &appended)
    }

    pub(super) fn write(
        buffer: Handle<CommandBuffer>,
        to: Handle<Buffer>,
        offset: usize,
        size: usize,
        from: *const c_void,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        // SAFETY: the caller vouches for the memory as long as he enqueues the command buffer.
        let copy = unsafe { write_command(buffer, to, offset, size, from) }?;
        buffer.append(copy, None, &appended)
    }

    pub(super) fn read(
        buffer: Handle<CommandBuffer>,
        from: Handle<Buffer>,
        offset: usize,
        size: usize,
        to: *mut c_void,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        // SAFETY: the caller vouches for the memory as long as he enqueues the command buffer.
        let copy = unsafe { read_command(buffer, from, offset, size, to) }?;
        buffer.append(copy, None, &appended)
    }

    pub(super) fn fill(
        buffer: Handle<CommandBuffer>,
        to: Handle<Buffer>,
        pattern: *const c_void,
        pattern_size: usize,
        offset: usize,
        size: usize,
        after(after_count, first_after): SyncPoints,
        waits(wait_count, first_wait): WaitList,
        sync_point: MaybeOut<ur_exp_command_buffer_sync_point_t>,
        event: MaybeOut<ur_event_handle_t>,
        command: MaybeOut<ur_exp_command_buffer_command_handle_t>,
    ) {
        let appended = Appended::new(after, &waits, sync_point, &event, command)?;
        // SAFETY: the caller passes a pattern of this size.
        let fill = unsafe { fill_command(buffer, to, pattern, pattern_size, offset, size) }?;
        buffer.append(fill, None, &appended)
    }
}
