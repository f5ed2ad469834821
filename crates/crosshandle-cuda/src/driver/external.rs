//! Memory of other interfaces, such as Vulkan.
//!
//! For all calls, the context that the memory is imported into must be current (see
//! `Driver::enter`).

use super::{ArrayShape, DeviceAddress, Driver, ExternalHandle, LevelsHandle, Pixel};
use crosshandle_types::error::Result;
use cudarc::driver::sys::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1, CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC,
    CUexternalMemoryHandleType,
};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

impl Driver {
    /// Imports memory by one of the driver's descriptors. The driver checks whether the descriptor
    /// stands for memory.
    pub(crate) fn import_external(&self, file: OwnedFd, len: u64) -> Result<ExternalHandle> {
        let mut external = ExternalHandle::NONE;
        // SAFETY: this is a union of a number and pointers, for which zeros are valid.
        let mut handle: CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st__bindgen_ty_1 =
            unsafe { MaybeUninit::zeroed().assume_init() };
        handle.fd = file.as_raw_fd();
        let description = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_: CUexternalMemoryHandleType::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD,
            handle,
            size: len,
            flags: 0,
            reserved: [0; 16],
        };
        // SAFETY: result and description are live, and so is the descriptor.
        let code = unsafe { (self.images()?.external_import)(&mut external, &description) };
        self.check("cuImportExternalMemory", code)?;
        // From now on the descriptor belongs to the driver.
        let _ = file.into_raw_fd();
        Ok(external)
    }

    /// Maps a part of imported memory at an address.
    pub(crate) fn map_external(
        &self,
        external: ExternalHandle,
        offset: u64,
        len: u64,
    ) -> Result<DeviceAddress> {
        let mut start = 0;
        let description = CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
            offset,
            size: len,
            flags: 0,
            reserved: [0; 16],
        };
        // SAFETY: the result and the description are live. The handle stands for live memory.
        let code = unsafe { (self.images()?.external_map)(&mut start, external, &description) };
        self.check("cuExternalMemoryGetMappedBuffer", code)?;
        Ok(start)
    }

    /// Frees a mapping.
    ///
    /// # Safety
    /// The mapping was created by [`map_external`](Self::map_external), and nothing uses it any
    /// more.
    pub(crate) unsafe fn unmap_external(&self, start: DeviceAddress) -> Result<()> {
        // SAFETY: promised by the caller.
        self.check("cuMemFree", unsafe { (self.images()?.mem_free)(start) })
    }

    /// Maps imported memory, from its start, as an array of one or several levels.
    pub(crate) fn external_levels(
        &self,
        external: ExternalHandle,
        shape: &ArrayShape,
        pixel: Pixel,
        levels: u32,
    ) -> Result<LevelsHandle> {
        let mut handle = LevelsHandle::NONE;
        let description = CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
            offset: 0,
            arrayDesc: shape.description(pixel),
            numLevels: levels,
            reserved: [0; 16],
        };
        let map = self.images()?.external_levels;
        // SAFETY: the result and the description are live. The handle stands for live memory.
        let code = unsafe { map(&mut handle, external, &description) };
        self.check("cuExternalMemoryGetMappedMipmappedArray", code)?;
        Ok(handle)
    }

    /// Releases imported memory.
    ///
    /// # Safety
    /// The memory was imported by [`import_external`](Self::import_external), and all mappings of
    /// it are freed.
    pub(crate) unsafe fn release_external(&self, external: ExternalHandle) -> Result<()> {
        // SAFETY: promised by the caller.
        let code = unsafe { (self.images()?.external_destroy)(external) };
        self.check("cuDestroyExternalMemory", code)
    }
}
