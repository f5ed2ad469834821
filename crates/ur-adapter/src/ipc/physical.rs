//! Entry points that share physical memory between processes.
//!
//! Each `Get` call creates a separate handle, which is valid until the user returns it. Processes
//! that opened the handle before that keep the memory.

use super::{HandleBytes, put_bytes};
use crate::abi::boundary::{Out, entry_points};
use crate::abi::failure::Failure;
use crate::abi::object::{Handle, release_once};
use crate::context::Context;
use crate::discovery::Device;
use crate::memory::physical::{Origin, PhysicalMemory};
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use crosshandle::{Error, virtual_memory::PhysicalMemoryHandle};
use std::ffi::c_void;
use unified_runtime_sys::ur_physical_mem_handle_t;

entry_points! {
    pub(super) fn get(
        context: Handle<Context>,
        memory: Handle<PhysicalMemory>,
        data: Out<*mut c_void>,
        size: Out<usize>,
    ) {
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
        let bytes = context.state().handles.hand_out_export(export);
        put_bytes(bytes, MEMORY_HANDLE_SIZE, &data, &size)
    }

    pub(super) fn open(
        context: Handle<Context>,
        device: Handle<Device>,
        bytes(data, size): HandleBytes<*const c_void>,
        memory: Out<ur_physical_mem_handle_t>,
    ) {
        let handle = PhysicalMemoryHandle::from_bytes(bytes).map_err(Error::from)?;
        let inner = context.on(device)?;
        let opened = match crosshandle::virtual_memory::PhysicalMemory::open(inner, &handle) {
            Err(Error::ReadOnly) => crosshandle::virtual_memory::PhysicalMemory::open_read_only(inner, &handle),
            opened => opened,
        };
        memory.put(PhysicalMemory::hand_out(context, device, opened?, Origin::Opened))
    }

    /// Releases opened memory. The memory continues to exist while it is retained or mapped.
    pub(super) fn close(context: Handle<Context>, memory: Handle<PhysicalMemory>) {
        memory.check_context(context)?;
        if !memory.is_opened() {
            return Err(Failure::argument(
                "this physical memory was not opened from a handle; release it",
            ));
        }
        // SAFETY: the caller passes the handle of living memory, and transfers one of UR's
        // references to this call.
        unsafe { release_once::<PhysicalMemory>(memory.handle()) }
    }
}
