//! The driver's own inter-process handles for events and for memory from `cuMemAlloc`.

use std::ffi::c_uint;
use std::ptr;

use anyhow::Result;
use cudarc::driver::sys::{
    CUevent, CUevent_flags, CUipcEventHandle, CUipcMem_flags, CUipcMemHandle,
};

use super::memory::read;
use super::{Gpu, Memory};

pub(crate) const IPC_EVENT_SIZE: usize = size_of::<CUipcEventHandle>();
pub(crate) const IPC_MEMORY_SIZE: usize = size_of::<CUipcMemHandle>();

/// An event that processes share, destroyed when dropped.
pub(crate) struct Event {
    gpu: Gpu,
    handle: CUevent,
}

impl Event {
    /// Creates an event in the current context, which is that of `gpu`.
    pub(crate) fn create(gpu: &Gpu) -> Result<Self> {
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint
            | CUevent_flags::CU_EVENT_INTERPROCESS as c_uint;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is valid for the result.
        gpu.library.check("cuEventCreate", unsafe {
            (gpu.library.event_create)(&mut handle, flags)
        })?;
        Ok(Self { gpu: *gpu, handle })
    }

    pub(crate) fn export(&self) -> Result<[u8; IPC_EVENT_SIZE]> {
        let library = self.gpu.library;
        let mut handle = CUipcEventHandle {
            reserved: [0; IPC_EVENT_SIZE],
        };
        // SAFETY: `handle` is valid for the result, and this object owns the event.
        library.check("cuIpcGetEventHandle", unsafe {
            (library.ipc_get_event)(&mut handle, self.handle)
        })?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    /// Opens another process's event in the current context, which must be that of `gpu`.
    #[inline]
    pub(crate) fn open(gpu: &Gpu, bytes: [u8; IPC_EVENT_SIZE]) -> Result<Self> {
        let mut handle = ptr::null_mut();
        let bytes = CUipcEventHandle {
            reserved: bytes.map(|byte| byte as _),
        };
        // SAFETY: `handle` is valid for the result; the driver checks the bytes.
        gpu.library.check("cuIpcOpenEventHandle", unsafe {
            (gpu.library.ipc_open_event)(&mut handle, bytes)
        })?;
        Ok(Self { gpu: *gpu, handle })
    }

    pub(super) fn handle(&self) -> CUevent {
        self.handle
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this object owns the event and destroys it once. The driver keeps what streams
        // still need.
        let code: c_uint = unsafe { (self.gpu.library.event_destroy)(self.handle) };
        debug_assert_eq!(code, 0, "cuEventDestroy");
    }
}

impl Memory {
    /// Gets the driver's handle to the allocation.
    pub(crate) fn export(&self) -> Result<[u8; IPC_MEMORY_SIZE]> {
        let library = self.gpu().library;
        let mut handle = CUipcMemHandle {
            reserved: [0; IPC_MEMORY_SIZE],
        };
        // SAFETY: `handle` is valid for the result, and this object owns the memory.
        library.check("cuIpcGetMemHandle", unsafe {
            (library.ipc_get_memory)(&mut handle, self.address())
        })?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }
}

/// Memory from another process's `cuMemAlloc`, closed when dropped.
pub(crate) struct LegacyMemory {
    gpu: Gpu,
    address: u64,
}

impl LegacyMemory {
    /// Opens another process's memory in the current context, which must be that of `gpu`.
    #[inline]
    pub(crate) fn open(gpu: &Gpu, bytes: [u8; IPC_MEMORY_SIZE]) -> Result<Self> {
        let mut address = 0;
        let bytes = CUipcMemHandle {
            reserved: bytes.map(|byte| byte as _),
        };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        // SAFETY: `address` is valid for the result; the driver checks the bytes.
        gpu.library.check("cuIpcOpenMemHandle", unsafe {
            (gpu.library.ipc_open_memory)(&mut address, bytes, flags)
        })?;
        Ok(Self { gpu: *gpu, address })
    }

    /// Reads the first eight bytes.
    pub(crate) fn first_word(&self) -> Result<u64> {
        read(&self.gpu, self.address)
    }
}

impl Drop for LegacyMemory {
    fn drop(&mut self) {
        // SAFETY: this object has opened the memory and closes it once. Its only use is a copy that
        // has completed.
        let code: c_uint = unsafe { (self.gpu.library.ipc_close_memory)(self.address) };
        debug_assert_eq!(code, 0, "cuIpcCloseMemHandle");
    }
}
