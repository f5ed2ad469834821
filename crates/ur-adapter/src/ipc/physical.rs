//! Sharing physical memory.
//!
//! Every `Get` makes a handle of its own. It is good until it is put back; those who have opened
//! it by then keep the memory.

use super::handle_bytes;
use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::device::Device;
use crate::failure::Failure;
use crate::object::{Shared, release};
use crate::physical_memory::{Origin, PhysicalMemory};
use crosshandle::handle::HANDLE_SIZE;
use crosshandle::{Error, PhysicalMemoryHandle};
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_context_handle_t, ur_device_handle_t, ur_physical_mem_handle_t, ur_result_t,
};

pub(super) unsafe extern "C" fn get(
    context: ur_context_handle_t,
    memory: ur_physical_mem_handle_t,
    data: *mut *mut c_void,
    size: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles.
        let (context, memory) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<PhysicalMemory>::from_handle(memory)?,
            )
        };
        not_null(data)?;
        not_null(size)?;
        memory.check_context(context)?;
        if memory.is_opened() {
            return Err(Failure::argument(
                "this physical memory was opened from a handle; pass that handle on instead",
            ));
        }
        if !memory.is_shareable() {
            return Err(Failure::argument(
                "only physical memory created with UR_PHYSICAL_MEM_FLAG_ENABLE_IPC can be shared",
            ));
        }
        let export = memory.inner().export()?;
        let buffer = context.state().handles.hand_out_export(export);
        // SAFETY: the caller passes valid pointers.
        unsafe {
            put(data, buffer)?;
            put(size, HANDLE_SIZE)
        }
    })
}

pub(super) unsafe extern "C" fn open(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    data: *const c_void,
    size: usize,
    memory: *mut ur_physical_mem_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles.
        let (context, device) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<Device>::from_handle(device)?,
            )
        };
        not_null(memory)?;
        // SAFETY: the caller passes this many bytes.
        let bytes = unsafe { handle_bytes(data, size) }?;
        let handle = PhysicalMemoryHandle::from_bytes(bytes).map_err(Error::from)?;
        let inner = context.on(device)?;
        let opened = match inner.open_physical_memory(&handle) {
            Err(Error::ReadOnly) => inner.open_physical_memory_read_only(&handle),
            opened => opened,
        };
        let opened = PhysicalMemory::hand_out(context, device, opened?, Origin::Opened);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(memory, opened) }
    })
}

/// Releases what was opened. It stays for as long as it is retained or mapped.
pub(super) unsafe extern "C" fn close(
    context: ur_context_handle_t,
    handle: ur_physical_mem_handle_t,
) -> ur_result_t {
    let checked = enter(|| {
        // SAFETY: the caller passes handles.
        let (context, memory) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<PhysicalMemory>::from_handle(handle)?,
            )
        };
        memory.check_context(context)?;
        if !memory.is_opened() {
            return Err(Failure::argument(
                "this physical memory was not opened from a handle; release it",
            ));
        }
        Ok(())
    });
    if checked != ur_result_t::UR_RESULT_SUCCESS {
        return checked;
    }
    // SAFETY: as promised to this function.
    unsafe { release::<PhysicalMemory>(handle) }
}
