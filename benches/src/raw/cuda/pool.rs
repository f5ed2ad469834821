//! The driver's memory pools between processes, as `cuda.core` uses them.

use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use anyhow::{Result, ensure};
use cudarc::driver::sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationType, CUmemPoolProps,
    CUmemPoolPtrExportData, CUmemoryPool,
};

use super::memory::read;
use super::physical::{DESCRIPTOR, location};
use super::{Gpu, Stream};

pub(crate) const POOL_POINTER_SIZE: usize = size_of::<CUmemPoolPtrExportData>();

/// A pool, or the import of another process's pool. It lives as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct Pool {
    gpu: Gpu,
    handle: CUmemoryPool,
}

impl Pool {
    pub(crate) fn create(gpu: &Gpu) -> Result<Self> {
        // SAFETY: zeros are a valid value of this C structure of numbers, pointers and enumerations
        // that have a zero.
        let mut properties: CUmemPoolProps = unsafe { mem::zeroed() };
        properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.handleTypes = DESCRIPTOR;
        properties.location = location(gpu);
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is valid for the result, and `properties` is initialised.
        gpu.library.check("cuMemPoolCreate", unsafe {
            (gpu.library.pool_create)(&mut handle, &properties)
        })?;
        Ok(Self { gpu: *gpu, handle })
    }

    /// Exports the pool as a descriptor.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let library = self.gpu.library;
        let mut descriptor: c_int = -1;
        let result = (&raw mut descriptor).cast::<c_void>();
        // SAFETY: for this kind of handle the driver writes an `int`, and `descriptor` is one.
        library.check("cuMemPoolExportToShareableHandle", unsafe {
            (library.pool_export)(result, self.handle, DESCRIPTOR.0, 0)
        })?;
        ensure!(descriptor >= 0, "the driver exported no descriptor");
        // SAFETY: the driver has opened the descriptor for the caller, which owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Imports another process's pool. This context's GPU may read and write its memory.
    pub(crate) fn import(gpu: &Gpu, descriptor: impl AsFd) -> Result<Self> {
        let library = gpu.library;
        let number = descriptor.as_fd().as_raw_fd() as usize;
        let number = ptr::without_provenance_mut::<c_void>(number);
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is valid for the result. For this kind of handle the driver reads the
        // pointer's value as a descriptor number and does not dereference it.
        library.check("cuMemPoolImportFromShareableHandle", unsafe {
            (library.pool_import)(&mut handle, number, DESCRIPTOR.0, 0)
        })?;
        // SAFETY: zeros are a valid value of this C structure of numbers and enumerations that have
        // a zero.
        let mut access: CUmemAccessDesc = unsafe { mem::zeroed() };
        access.location = location(gpu);
        access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        // SAFETY: the pool was imported above, and `access` is one description.
        library.check("cuMemPoolSetAccess", unsafe {
            (library.pool_set_access)(handle, &access, 1)
        })?;
        Ok(Self { gpu: *gpu, handle })
    }

    /// Allocates memory with this word at its start, twice.
    pub(crate) fn allocate(&self, stream: &Stream, length: usize, word: u32) -> Result<PoolMemory> {
        let library = self.gpu.library;
        let mut address = 0;
        // SAFETY: `address` is valid for the result, and the pool and the stream live as long as
        // the process.
        library.check("cuMemAllocFromPoolAsync", unsafe {
            (library.pool_alloc_async)(&mut address, length, self.handle, stream.handle())
        })?;
        let memory = PoolMemory {
            stream: *stream,
            gpu: self.gpu,
            address,
        };
        // SAFETY: two words of four bytes are inside this memory.
        library.check("cuMemsetD32Async", unsafe {
            (library.memset_32)(address, word, 2, stream.handle())
        })?;
        stream.synchronize()?;
        Ok(memory)
    }

    /// Opens memory of another process's pool, which this object has imported.
    #[inline]
    pub(crate) fn open(
        &self,
        stream: &Stream,
        bytes: [u8; POOL_POINTER_SIZE],
    ) -> Result<PoolMemory> {
        let mut address = 0;
        let mut data = CUmemPoolPtrExportData { reserved: bytes };
        // SAFETY: `address` is valid for the result; the driver checks the bytes.
        self.gpu.library.check("cuMemPoolImportPointer", unsafe {
            (self.gpu.library.pool_import_pointer)(&mut address, self.handle, &mut data)
        })?;
        Ok(PoolMemory {
            stream: *stream,
            gpu: self.gpu,
            address,
        })
    }
}

/// Memory of a pool, freed when dropped.
pub(crate) struct PoolMemory {
    stream: Stream,
    gpu: Gpu,
    address: u64,
}

impl PoolMemory {
    pub(crate) fn export(&self) -> Result<[u8; POOL_POINTER_SIZE]> {
        let mut data = CUmemPoolPtrExportData {
            reserved: [0; POOL_POINTER_SIZE],
        };
        // SAFETY: `data` is valid for the result, and this object owns the memory.
        self.gpu.library.check("cuMemPoolExportPointer", unsafe {
            (self.gpu.library.pool_export_pointer)(&mut data, self.address)
        })?;
        Ok(data.reserved)
    }

    /// Reads the first eight bytes.
    pub(crate) fn first_word(&self) -> Result<u64> {
        read(&self.gpu, self.address)
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        let library = self.gpu.library;
        // SAFETY: this object owns the memory and frees it once. Its uses have completed.
        let code: c_uint = unsafe { (library.mem_free_async)(self.address, self.stream.handle()) };
        debug_assert_eq!(code, 0, "cuMemFreeAsync");
        let _ = self.stream.synchronize();
    }
}
