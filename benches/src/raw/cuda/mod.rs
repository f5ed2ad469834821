//! The CUDA driver's own calls, as a program without the library would use them to share between
//! processes.
//!
//! Everything is in the primary context of its GPU, which the library under test uses too.

mod ipc;
mod library;
mod memory;
mod page;
mod physical;
mod stream;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use anyhow::Result;
use cudarc::driver::sys::{CUcontext, CUdevice};

pub(crate) use ipc::{EVENT_HANDLE_SIZE, Event, LegacyMemory, MEMORY_HANDLE_SIZE};
use library::{Library, library};
pub(crate) use memory::{Memory, pool_round};
pub(crate) use page::{Page, Registered};
pub(crate) use physical::{Mapped, Physical};
pub(crate) use stream::{Operation, Stream, Word};

/// A GPU and its primary context.
#[derive(Clone, Copy)]
pub(crate) struct Gpu {
    library: &'static Library,
    device: CUdevice,
    /// Retained once and never released: it lives as long as the process.
    context: CUcontext,
}

impl Gpu {
    /// Returns the number of GPUs.
    pub(crate) fn count() -> Result<usize> {
        let library = library()?;
        let mut count = 0;
        // SAFETY: the result is live.
        library.check("cuDeviceGetCount", unsafe {
            (library.device_count)(&mut count)
        })?;
        Ok(usize::try_from(count)?)
    }

    /// Opens a GPU, and makes its context the calling thread's current one.
    pub(crate) fn open(index: usize) -> Result<Self> {
        let library = library()?;
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: the result is live.
        library.check("cuDeviceGet", unsafe {
            (library.device_get)(&mut device, c_int::try_from(index)?)
        })?;
        // SAFETY: the result is live, and the device one of the driver's.
        library.check("cuDevicePrimaryCtxRetain", unsafe {
            (library.primary_ctx_retain)(&mut context, device)
        })?;
        let gpu = Self {
            library,
            device,
            context,
        };
        gpu.make_current()?;
        Ok(gpu)
    }

    /// Makes the GPU's context the calling thread's current one.
    pub(crate) fn make_current(&self) -> Result<()> {
        let library = self.library;
        // SAFETY: a context that is never released.
        library.check("cuCtxSetCurrent", unsafe {
            (library.ctx_set_current)(self.context)
        })
    }

    /// Asks which context is current: the cost of a call that does next to nothing.
    #[inline]
    pub(crate) fn ask_current(&self) -> Result<()> {
        let library = self.library;
        let mut context = ptr::null_mut();
        // SAFETY: the result is live.
        library.check("cuCtxGetCurrent", unsafe {
            (library.ctx_get_current)(&mut context)
        })
    }

    /// Lets this GPU, which must be the current one, access the memory that `peer` allocates.
    pub(crate) fn enable_peer(&self, peer: &Self) -> Result<()> {
        let library = self.library;
        // SAFETY: a context that is never released; there are no flags.
        library.check("cuCtxEnablePeerAccess", unsafe {
            (library.ctx_enable_peer_access)(peer.context, 0)
        })
    }

    pub(crate) fn name(&self) -> Result<String> {
        let library = self.library;
        let mut name: [c_char; 128] = [0; 128];
        // SAFETY: the buffer is as long as said; the driver ends what it writes with a zero.
        library.check("cuDeviceGetName", unsafe {
            (library.device_name)(name.as_mut_ptr(), name.len() as c_int, self.device)
        })?;
        let bytes = name.map(|byte| byte as u8);
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// Returns the bytes that are free on the current GPU.
    pub(crate) fn free_memory(&self) -> Result<u64> {
        let library = self.library;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the results are live.
        library.check("cuMemGetInfo", unsafe {
            (library.mem_get_info)(&mut free, &mut total)
        })?;
        Ok(free as u64)
    }
}
