//! Device memory: allocated by this process, or opened.

use std::ffi::{c_char, c_void};
use std::ptr;

use anyhow::{Result, ensure};
use level_zero_sys::ze_ipc_mem_handle_t;

use super::{Gpu, HANDLE_SIZE, check, description};

/// Memory that this process has allocated, freed when dropped.
pub(crate) struct Memory {
    gpu: &'static Gpu,
    start: *mut c_void,
    length: usize,
}

impl Memory {
    #[inline]
    pub(crate) fn allocate(gpu: &'static Gpu, length: usize) -> Result<Self> {
        let desc = description!(
            ze_device_mem_alloc_desc_t,
            ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC
        );
        let mut start = ptr::null_mut();
        let allocate = gpu.loader.zeMemAllocDevice;
        // SAFETY: context and device live as long as the process; `start` is valid for the result.
        let code = unsafe { allocate(gpu.context, &desc, length, 0, gpu.device, &mut start) };
        check("zeMemAllocDevice", code)?;
        ensure!(!start.is_null(), "the memory is nowhere");
        Ok(Self { gpu, start, length })
    }

    pub(super) fn address(&self) -> *mut c_void {
        self.start
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Gets the driver's handle to the memory.
    #[inline]
    pub(crate) fn export(&self) -> Result<[u8; HANDLE_SIZE]> {
        let mut handle = ze_ipc_mem_handle_t {
            data: [0; HANDLE_SIZE],
        };
        let get = self.gpu.loader.zeMemGetIpcHandle;
        // SAFETY: this object owns the memory, and `handle` is valid for the result.
        let code = unsafe { get(self.gpu.context, self.start, &mut handle) };
        check("zeMemGetIpcHandle", code)?;
        Ok(handle.data.map(|byte| byte as u8))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this object owns the memory and frees it once. The scenarios drop memory after
        // they have waited for all lists that use it.
        unsafe { (self.gpu.loader.zeMemFree)(self.gpu.context, self.start) };
    }
}

/// Another process's memory, closed when dropped.
pub(crate) struct OpenedMemory {
    gpu: &'static Gpu,
    start: *mut c_void,
}

impl OpenedMemory {
    /// Opens a handle that contains the number of a descriptor of this process.
    #[inline]
    pub(crate) fn open(gpu: &'static Gpu, bytes: [u8; HANDLE_SIZE]) -> Result<Self> {
        let handle = ze_ipc_mem_handle_t {
            data: bytes.map(|byte| byte as c_char),
        };
        let mut start = ptr::null_mut();
        let open = gpu.loader.zeMemOpenIpcHandle;
        // SAFETY: context and device live as long as the process, and `start` is valid for the
        // result. The driver checks the bytes.
        let code = unsafe { open(gpu.context, gpu.device, handle, 0, &mut start) };
        check("zeMemOpenIpcHandle", code)?;
        Ok(Self { gpu, start })
    }
}

impl Drop for OpenedMemory {
    fn drop(&mut self) {
        // SAFETY: this object has opened the memory and closes it once. Nothing uses the memory,
        // since the type gives out no address.
        unsafe { (self.gpu.loader.zeMemCloseIpcHandle)(self.gpu.context, self.start) };
    }
}
