//! Host memory that processes and GPUs share.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

use anyhow::{Result, ensure};
use cudarc::driver::sys;

use super::{Gpu, Word};
use crate::raw::memfd::Mapping;

/// A page of a memfd that is registered with the driver until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Page {
    mapping: &'static Mapping,
    address: u64,
}

impl Page {
    pub(crate) const LENGTH: usize = 4096;

    /// Maps and registers a memfd of `LENGTH` bytes.
    pub(crate) fn register(gpu: &Gpu, file: impl AsFd) -> Result<Self> {
        // The mapping is leaked, because streams may write to it until the process ends.
        let mapping: &'static Mapping = Box::leak(Box::new(Mapping::shared(file, Self::LENGTH)?));
        let library = gpu.library;
        let start = ptr::with_exposed_provenance_mut::<c_void>(mapping.address());
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the page is mapped until the process ends.
        library.check("cuMemHostRegister", unsafe {
            (library.mem_host_register)(start, Self::LENGTH, flags)
        })?;
        let mut address = 0;
        // SAFETY: `address` is valid for the result, and the page is registered.
        library.check("cuMemHostGetDevicePointer", unsafe {
            (library.mem_host_pointer)(&mut address, start, 0)
        })?;
        Ok(Self { mapping, address })
    }

    /// Returns the word at byte `offset`, for the host.
    pub(crate) fn word(&self, offset: usize) -> Result<&'static AtomicU64> {
        self.mapping.word(offset)
    }

    /// Returns the word at byte `offset`, for streams.
    pub(crate) fn device_word(&self, offset: usize) -> Result<Word> {
        ensure!(
            offset.is_multiple_of(8) && offset < Self::LENGTH,
            "no word at byte {offset} of a page"
        );
        Ok(Word::new(self.address + offset as u64))
    }
}
