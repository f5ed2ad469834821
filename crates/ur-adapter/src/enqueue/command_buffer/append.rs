//! Entry points that record copies, fills and memory hints.

use super::appended::appends;
use crate::abi::object::Handle;
use crate::enqueue::buffer::{copy_command, fill_command, read_command, write_command};
use crate::enqueue::usm;
use crate::memory::buffer::Buffer;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_USM_ADVICE_FLAGS_MASK, UR_USM_MIGRATION_FLAGS_MASK, ur_usm_advice_flags_t,
    ur_usm_migration_flags_t,
};

appends! {
    buffer;

    fn usm_copy(
        to: *mut c_void,
        from: *const c_void,
        size: usize,
    ) {
        // SAFETY: the caller guarantees that its memory is valid in every run of the command
        // buffer.
        unsafe { usm::copy_command(buffer, to, from, size) }
    }

    fn usm_fill(
        start: *mut c_void,
        pattern: *const c_void,
        pattern_size: usize,
        size: usize,
    ) {
        // SAFETY: the caller guarantees that its memory is valid in every run of the command
        // buffer. It passes null or a pattern of `pattern_size` bytes.
        unsafe { usm::fill_command(buffer, start, pattern, pattern_size, size) }
    }

    fn usm_prefetch(
        start: *const c_void,
        size: usize,
        flags: ur_usm_migration_flags_t,
    ) {
        usm::hint_command(buffer, start, size, flags & UR_USM_MIGRATION_FLAGS_MASK)
    }

    fn usm_advise(
        start: *const c_void,
        size: usize,
        advice: ur_usm_advice_flags_t,
    ) {
        usm::hint_command(buffer, start, size, advice & UR_USM_ADVICE_FLAGS_MASK)
    }

    fn copy(
        from: Handle<Buffer>,
        to: Handle<Buffer>,
        from_offset: usize,
        to_offset: usize,
        size: usize,
    ) {
        copy_command(buffer, (from, from_offset), (to, to_offset), size)
    }

    fn write(
        to: Handle<Buffer>,
        offset: usize,
        size: usize,
        from: *const c_void,
    ) {
        // SAFETY: the caller guarantees that its memory is valid in every run of the command
        // buffer.
        unsafe { write_command(buffer, to, offset, size, from) }
    }

    fn read(
        from: Handle<Buffer>,
        offset: usize,
        size: usize,
        to: *mut c_void,
    ) {
        // SAFETY: the caller guarantees that its memory is valid in every run of the command
        // buffer.
        unsafe { read_command(buffer, from, offset, size, to) }
    }

    fn fill(
        to: Handle<Buffer>,
        pattern: *const c_void,
        pattern_size: usize,
        offset: usize,
        size: usize,
    ) {
        // SAFETY: the caller passes null or a pattern of `pattern_size` bytes.
        unsafe { fill_command(buffer, to, pattern, pattern_size, offset, size) }
    }
}
