//! Device memory of `cuMemAlloc`.

use std::ffi::c_uint;

use anyhow::{Result, ensure};

use super::{Gpu, Stream};

/// Device memory. Freed when dropped, which waits for commands that use it.
pub(crate) struct Memory {
    gpu: Gpu,
    address: u64,
    length: usize,
}

impl Memory {
    /// Allocates on the current GPU, which is `gpu`.
    pub(crate) fn allocate(gpu: &Gpu, length: usize) -> Result<Self> {
        let mut address = 0;
        // SAFETY: the result is live.
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

    /// Sets all of the memory to a repeated word.
    pub(crate) fn fill(&self, stream: &Stream, word: u32) -> Result<()> {
        let library = self.gpu.library;
        // SAFETY: the range is all of this memory, whose size is a multiple of a word's.
        library.check("cuMemsetD32Async", unsafe {
            (library.memset_32)(self.address, word, self.length / 4, stream.handle())
        })?;
        stream.synchronize()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated when this was made, and freed once.
        let code: c_uint = unsafe { (self.gpu.library.mem_free)(self.address) };
        debug_assert_eq!(code, 0, "cuMemFree");
    }
}

/// Allocates from the driver's default pool and frees again, both in stream order.
#[inline]
pub(crate) fn pool_round(gpu: &Gpu, stream: &Stream, length: usize) -> Result<()> {
    let library = gpu.library;
    let mut address = 0;
    // SAFETY: the result is live, and the stream stays.
    library.check("cuMemAllocAsync", unsafe {
        (library.mem_alloc_async)(&mut address, length, stream.handle())
    })?;
    ensure!(address != 0, "cuMemAllocAsync: no address");
    // SAFETY: allocated above, in the same stream.
    library.check("cuMemFreeAsync", unsafe {
        (library.mem_free_async)(address, stream.handle())
    })
}

/// Returns eight bytes of device memory, after the current GPU has finished everything.
pub(super) fn read(gpu: &Gpu, address: u64) -> Result<u64> {
    let mut value = 0_u64;
    // SAFETY: the result is live and as long as said; an address without memory is an error.
    gpu.library.check("cuMemcpyDtoH", unsafe {
        (gpu.library.memcpy_to_host)((&raw mut value).cast(), address, 8)
    })?;
    Ok(value)
}
