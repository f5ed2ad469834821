//! The CUDA driver's own calls, as a program would use them to share without the library.
//!
//! All objects belong to the primary context of their GPU, which the library uses too.

mod graph;
mod ipc;
mod library;
mod memory;
mod page;
mod physical;
mod pool;
mod stream;

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use anyhow::Result;
use cudarc::driver::sys::{CUcontext, CUdevice};

pub(crate) use graph::Graph;
pub(crate) use ipc::{Event, IPC_EVENT_SIZE, IPC_MEMORY_SIZE, LegacyMemory};
use library::{Library, library};
pub(crate) use memory::{Memory, pool_round};
pub(crate) use page::Page;
pub(crate) use physical::{Mapped, Physical};
pub(crate) use pool::{POOL_POINTER_SIZE, Pool};
pub(crate) use stream::{Stream, Word};

/// A GPU and its primary context.
#[derive(Clone, Copy)]
pub(crate) struct Gpu {
    library: &'static Library,
    device: CUdevice,
    /// The primary context, which is retained once and never released, so it lives as long as the
    /// process.
    context: CUcontext,
}

impl Gpu {
    /// Counts the GPUs of this machine.
    pub(crate) fn count() -> Result<usize> {
        let library = library()?;
        let mut count = 0;
        // SAFETY: `count` is valid for the result.
        library.check("cuDeviceGetCount", unsafe {
            (library.device_count)(&mut count)
        })?;
        Ok(usize::try_from(count)?)
    }

    /// Opens GPU `index`, and makes its context the calling thread's current one.
    pub(crate) fn open(index: usize) -> Result<Self> {
        let library = library()?;
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: `device` is valid for the result.
        library.check("cuDeviceGet", unsafe {
            (library.device_get)(&mut device, c_int::try_from(index)?)
        })?;
        // SAFETY: `context` is valid for the result, and the driver returned `device`.
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

    /// Makes this GPU's context the calling thread's current one.
    pub(crate) fn make_current(&self) -> Result<()> {
        let library = self.library;
        // SAFETY: the context is retained and never released.
        library.check("cuCtxSetCurrent", unsafe {
            (library.ctx_set_current)(self.context)
        })
    }

    pub(crate) fn name(&self) -> Result<String> {
        let library = self.library;
        let mut name: [c_char; 128] = [0; 128];
        // SAFETY: `name` is valid for the given length.
        library.check("cuDeviceGetName", unsafe {
            (library.device_name)(name.as_mut_ptr(), name.len() as c_int, self.device)
        })?;
        let bytes = name.map(|byte| byte as u8);
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }
}
