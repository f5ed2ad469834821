//! Virtual memory management: physical memory that is shared as a descriptor, and its mappings.

use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use anyhow::{Result, ensure};
use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemLocation, CUmemLocationType,
};

use super::memory::read;
use super::{Gpu, Stream};

pub(super) const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Physical memory, released when dropped.
pub(crate) struct Physical {
    gpu: Gpu,
    handle: u64,
}

impl Physical {
    /// Creates physical memory on `gpu`, which must be the current GPU. `length` must be a multiple
    /// of 2 MiB.
    pub(crate) fn create(gpu: &Gpu, length: usize) -> Result<Self> {
        // SAFETY: zeros are a valid value of this C structure of numbers, pointers and enumerations
        // that have a zero.
        let mut properties: CUmemAllocationProp = unsafe { mem::zeroed() };
        properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.requestedHandleTypes = DESCRIPTOR;
        properties.location = location(gpu);
        let mut handle = 0;
        // SAFETY: `handle` is valid for the result, and `properties` is initialised.
        gpu.library.check("cuMemCreate", unsafe {
            (gpu.library.mem_create)(&mut handle, length, &properties, 0)
        })?;
        Ok(Self { gpu: *gpu, handle })
    }

    /// Exports the memory as a descriptor.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let library = self.gpu.library;
        let mut descriptor: c_int = -1;
        let result = (&raw mut descriptor).cast::<c_void>();
        // SAFETY: for this kind of handle the driver writes an `int`, and `descriptor` is one.
        library.check("cuMemExportToShareableHandle", unsafe {
            (library.mem_export)(result, self.handle, DESCRIPTOR.0, 0)
        })?;
        ensure!(descriptor >= 0, "the driver exported no descriptor");
        // SAFETY: the driver has opened the descriptor for the caller, which owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Imports physical memory into the current context, which must be that of `gpu`.
    #[inline]
    pub(crate) fn import(gpu: &Gpu, descriptor: impl AsFd) -> Result<Self> {
        let number = descriptor.as_fd().as_raw_fd() as usize;
        let mut handle = 0;
        let number = ptr::without_provenance_mut::<c_void>(number);
        // SAFETY: `handle` is valid for the result. For this kind of handle the driver reads the
        // pointer's value as a descriptor number and does not dereference it.
        let code = unsafe { (gpu.library.mem_import)(&mut handle, number, DESCRIPTOR.0) };
        gpu.library.check("cuMemImportFromShareableHandle", code)?;
        Ok(Self { gpu: *gpu, handle })
    }

    /// Maps `length` bytes of the memory. This context's GPU may read and write them.
    #[inline]
    pub(crate) fn map(self, length: usize) -> Result<Mapped> {
        let library = self.gpu.library;
        let mut address = 0;
        // SAFETY: `address` is valid for the result, and the driver chooses the address.
        library.check("cuMemAddressReserve", unsafe {
            (library.mem_reserve)(&mut address, length, 0, 0, 0)
        })?;
        let mapped = Mapped {
            physical: self,
            address,
            length,
        };
        // SAFETY: these addresses were reserved above, and nothing is mapped there.
        library.check("cuMemMap", unsafe {
            (library.mem_map)(address, length, 0, mapped.physical.handle, 0)
        })?;
        // SAFETY: zeros are a valid value of this C structure of numbers and enumerations that have
        // a zero.
        let mut access: CUmemAccessDesc = unsafe { mem::zeroed() };
        access.location = location(&mapped.physical.gpu);
        access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        // SAFETY: these addresses were mapped above, and `access` is one description.
        library.check("cuMemSetAccess", unsafe {
            (library.mem_set_access)(address, length, &access, 1)
        })?;
        Ok(mapped)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: this object owns the handle and releases it once. Mappings keep the memory alive.
        let code: c_uint = unsafe { (self.gpu.library.mem_release)(self.handle) };
        debug_assert_eq!(code, 0, "cuMemRelease");
    }
}

/// Physical memory that is mapped at an address, and unmapped when dropped.
pub(crate) struct Mapped {
    physical: Physical,
    address: u64,
    length: usize,
}

impl Mapped {
    /// Reads the first eight bytes.
    pub(crate) fn first_word(&self) -> Result<u64> {
        read(&self.physical.gpu, self.address)
    }

    /// Sets both halves of the first eight bytes to `word`.
    pub(crate) fn set_first_word(&self, stream: &Stream, word: u32) -> Result<()> {
        let library = self.physical.gpu.library;
        // SAFETY: two words of four bytes are inside this memory, and the stream lives as long as
        // the process.
        library.check("cuMemsetD32Async", unsafe {
            (library.memset_32)(self.address, word, 2, stream.handle())
        })?;
        stream.synchronize()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let library = self.physical.gpu.library;
        // SAFETY: this object has mapped these addresses and unmaps them once. Its methods wait for
        // the work that they submit, and `into_word` leaks the object.
        let unmapped = unsafe { (library.mem_unmap)(self.address, self.length) };
        // SAFETY: this object has reserved these addresses, and nothing is mapped there any more.
        let freed = unsafe { (library.mem_address_free)(self.address, self.length) };
        debug_assert_eq!((unmapped, freed), (0, 0), "cuMemUnmap, cuMemAddressFree");
    }
}

pub(super) fn location(gpu: &Gpu) -> CUmemLocation {
    CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: gpu.device,
    }
}
