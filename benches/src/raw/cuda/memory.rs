//! Device memory of `cuMemAlloc`.

use std::ffi::c_uint;

use anyhow::{Result, ensure};

use super::{Gpu, Stream};

/// Device memory, freed when dropped. Freeing waits for the work that uses the memory.
pub(crate) struct Memory {
    gpu: Gpu,
    address: u64,
    length: usize,
}

impl Memory {
    /// Allocates memory on the current GPU, which is `gpu`.
    pub(crate) fn allocate(gpu: &Gpu, length: usize) -> Result<Self> {
        let mut address = 0;
        // SAFETY: `address` is valid for the result.
        gpu.library.check("cuMemAlloc", unsafe {
            (gpu.library.mem_alloc)(&mut address, length)
        })?;
        Ok(Self {
            gpu: *gpu,
            address,
            length,
        })
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn fill(&self, stream: &Stream, word: u32) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: the words are inside this memory, and the stream lives as long as the process.
        library.check("cuMemsetD32Async", unsafe {
            (library.memset_32)(self.address, word, self.length / 4, stream.handle())
        })?;
        stream.synchronize()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this object has allocated the memory and frees it once.
        let code: c_uint = unsafe { (self.gpu.library.mem_free)(self.address) };
        debug_assert_eq!(code, 0, "cuMemFree");
    }
}

/// Allocates from the driver's default pool and frees again, both in stream order.
#[inline]
pub(crate) fn pool_round(gpu: &Gpu, stream: &Stream, length: usize) -> Result<()> {
    let library = gpu.library;
    let mut address = 0;
    // SAFETY: `address` is valid for the result, and the stream lives as long as the process.
    library.check("cuMemAllocAsync", unsafe {
        (library.mem_alloc_async)(&mut address, length, stream.handle())
    })?;
    ensure!(address != 0, "cuMemAllocAsync: no address");
    // SAFETY: the memory was allocated above, in the same stream, and is freed once.
    library.check("cuMemFreeAsync", unsafe {
        (library.mem_free_async)(address, stream.handle())
    })
}

/// Reads eight bytes of device memory after all earlier work of the current GPU.
pub(super) fn read(gpu: &Gpu, address: u64) -> Result<u64> {
    let mut value = 0_u64;
    // SAFETY: `value` is valid for eight bytes. The driver returns an error if there is no memory
    // at `address`.
    gpu.library.check("cuMemcpyDtoH", unsafe {
        (gpu.library.memcpy_to_host)((&raw mut value).cast(), address, 8)
    })?;
    Ok(value)
}
