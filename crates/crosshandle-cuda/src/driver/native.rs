//! The driver's knowledge of objects that other code created, and its legacy way to share memory.
//!
//! For all calls, the device's context must be current (see `Driver::enter`).

use super::{
    Allocation, ContextHandle, DeviceAddress, DeviceHandle, Driver, INVALID_VALUE, NOT_FOUND,
    SUCCESS, StreamHandle,
};
use crosshandle_types::error::{Error, Result};
use cudarc::driver::sys::{
    CUipcMem_flags, CUipcMemHandle, CUmemAllocationHandleType, CUmemorytype, CUpointer_attribute,
    CUpointer_attribute as Attribute, CUstreamCaptureStatus,
};
use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

/// The bytes that name an allocation to other processes in the driver's legacy sharing (`cuIpc`).
/// They do not keep the allocation alive.
pub(crate) type LegacyHandle = [u8; 64];

/// The allocation that an address lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub start: DeviceAddress,
    pub len: usize,
    pub device: c_int,
    /// The driver's number for the allocation.
    pub number: u64,
    /// Whether the allocation is device memory and not host memory.
    pub is_device: bool,
    /// Whether the allocation moves between device and host.
    pub is_managed: bool,
    /// Whether legacy sharing supports the allocation.
    pub has_legacy_handle: bool,
    /// Whether the allocation was created so that it can be exported as a descriptor.
    pub has_descriptor: bool,
}

impl Driver {
    /// Returns the device of the current context.
    pub(crate) fn current_device(&self) -> Result<DeviceHandle> {
        let mut device = 0;
        self.check("cuCtxGetDevice", (self.library.ctx_get_device)(&mut device))?;
        Ok(DeviceHandle(device))
    }

    /// Waits until the current context has completed all submitted work, of this library and of
    /// other code. It does so by freeing memory, which also works while another thread captures a
    /// stream. `cuCtxSynchronize` would invalidate the capture, in any capture mode of either
    /// thread.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let mut memory = ptr::null_mut();
        self.beside_captures(|| {
            // SAFETY: the result is a live place for one address.
            let code = unsafe { (self.library.mem_host_alloc)(&mut memory, 1, 0) };
            self.check("cuMemHostAlloc", code)?;
            // SAFETY: allocated above, and no other code has the address.
            let code = unsafe { (self.library.mem_free_host)(memory) };
            self.check("cuMemFreeHost", code)
        })
    }

    /// Returns the context that a stream belongs to. For default streams, this is the current
    /// context.
    pub(crate) fn context_of(&self, stream: StreamHandle) -> Result<ContextHandle> {
        let mut context = ContextHandle::NONE;
        self.check(
            "cuStreamGetCtx",
            (self.library.stream_get_ctx)(stream, &mut context),
        )?;
        Ok(context)
    }

    /// Returns whether commands that are submitted to a stream are recorded in a graph instead of
    /// run.
    pub(crate) fn is_recording(&self, stream: StreamHandle) -> Result<bool> {
        let mut status = 0;
        self.check(
            "cuStreamIsCapturing",
            (self.library.stream_is_capturing)(stream, &mut status),
        )?;
        Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_uint)
    }

    /// Returns the start and the length of the allocation at an address, or `None` if the driver
    /// knows of none.
    pub(crate) fn extent_at(
        &self,
        address: DeviceAddress,
    ) -> Result<Option<(DeviceAddress, usize)>> {
        let (mut start, mut len) = (0, 0);
        let code = (self.library.mem_get_address_range)(&mut start, &mut len, address);
        // The driver returns these codes for an address that it does not know.
        if code == INVALID_VALUE || code == NOT_FOUND {
            return Ok(None);
        }
        self.check("cuMemGetAddressRange", code)?;
        Ok(Some((start, len)))
    }

    /// Returns the allocation at an address, or `None` if the driver knows of none.
    pub(crate) fn look_at(&self, address: DeviceAddress) -> Result<Option<Found>> {
        let Some((start, len)) = self.extent_at(address)? else {
            return Ok(None);
        };
        let [device, number, kind, is_managed, is_legacy, handles] = self.attributes_of(
            [
                Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
                Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
                Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
            ],
            address,
        );
        let descriptor = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        Ok(Some(Found {
            start,
            len,
            device: device as c_int,
            number,
            is_device: kind == CUmemorytype::CU_MEMORYTYPE_DEVICE as u64,
            is_managed: is_managed != 0,
            has_legacy_handle: is_legacy != 0,
            has_descriptor: handles & u64::from(descriptor.0) != 0,
        }))
    }

    /// Returns attributes of an allocation. Attributes that the allocation lacks are 0.
    fn attributes_of<const N: usize>(
        &self,
        attributes: [CUpointer_attribute; N],
        address: DeviceAddress,
    ) -> [u64; N] {
        // Each place is as long as the longest attribute. A shorter attribute leaves the other
        // bytes zero.
        let mut values = [0_u64; N];
        let places = values.each_mut().map(|value| ptr::from_mut(value).cast());
        let numbers = attributes.map(|attribute| attribute as c_uint);
        // A single call for all attributes takes the driver's locks once.
        //
        // SAFETY: `places` has one live place for each attribute, and each place is long enough.
        // The driver only looks up the address.
        let code = unsafe {
            (self.library.pointer_get_attributes)(
                N as c_uint,
                numbers.as_ptr(),
                places.as_ptr(),
                address,
            )
        };
        if code == SUCCESS {
            return values;
        }
        numbers.map(|attribute| {
            let mut value = 0_u64;
            // SAFETY: the place is live and long enough for the attribute. The driver only looks up
            // the address.
            let code = unsafe {
                let place = (&raw mut value).cast();
                (self.library.pointer_get_attribute)(place, attribute, address)
            };
            // The driver returns an error for an attribute that the allocation lacks.
            if code == SUCCESS { value } else { 0 }
        })
    }

    /// Returns a handle to an allocation of the program. The handle keeps the allocation alive.
    pub(crate) fn retain_memory(&'static self, start: DeviceAddress) -> Result<Allocation> {
        let mut handle = 0;
        let start = ptr::without_provenance_mut(start as usize);
        self.check(
            "cuMemRetainAllocationHandle",
            (self.library.mem_retain)(&mut handle, start),
        )?;
        Ok(Allocation {
            driver: self,
            handle,
        })
    }

    /// Returns the bytes that name an allocation to other processes.
    pub(crate) fn legacy_handle(&self, start: DeviceAddress) -> Result<LegacyHandle> {
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        self.check(
            "cuIpcGetMemHandle",
            (self.library.ipc_get_mem_handle)(&mut handle, start),
        )?;
        Ok(handle.reserved.map(|byte| byte as u8))
    }

    /// Maps the whole of another process's allocation. Any bytes may be tried, because the driver
    /// refuses bytes that name no allocation. An allocation has the same address however often it
    /// is opened.
    pub(crate) fn open_legacy(&self, handle: &LegacyHandle) -> Result<DeviceAddress> {
        let handle = CUipcMemHandle {
            reserved: handle.map(|byte| byte as c_char),
        };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
        let mut start = 0;
        self.check(
            "cuIpcOpenMemHandle",
            (self.library.ipc_open_mem_handle)(&mut start, handle, flags),
        )?;
        Ok(start)
    }

    /// Unmaps another process's allocation.
    ///
    /// # Safety
    /// The address was returned by a call of [`open_legacy`](Self::open_legacy), and is unmapped
    /// once for each such call. Nothing uses the memory any more.
    pub(crate) unsafe fn close_legacy(&self, start: DeviceAddress) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuIpcCloseMemHandle", unsafe {
            (self.library.ipc_close_mem_handle)(start)
        })
    }
}

impl Found {
    /// Returns the address after the end of the allocation.
    pub(crate) fn end(&self) -> usize {
        self.start as usize + self.len
    }

    /// Returns an error if neither legacy sharing nor a descriptor can share the allocation.
    pub(crate) fn check_shareable(&self) -> Result<()> {
        let reason = if !self.is_device {
            "it is host memory"
        } else if self.is_managed {
            "it is managed memory, which moves between device and host"
        } else if !self.has_legacy_handle && !self.has_descriptor {
            "it comes from a pool of the driver (such as cudaMallocAsync), or was created without a \
             kind of handle that can be exported"
        } else {
            return Ok(());
        };
        Err(Error::Unsupported(format!(
            "the driver can't share this memory: {reason}"
        )))
    }
}
