//! Programs that have a kernel of every name.

use crate::{BackendKernel, BackendProgram, BackendPrograms};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Address, KernelProperties, ProgramImage, ProgramOptions};
use std::ffi::CStr;
use std::sync::Arc;

/// Maximum number of threads in a block.
pub(super) const BLOCK_THREADS: u32 = 1024;

pub(super) struct NoopPrograms;

struct NoopProgram;

struct NoopKernel(KernelProperties);

impl BackendPrograms for NoopPrograms {
    fn load(
        &self,
        _images: &[ProgramImage<'_>],
        _options: &ProgramOptions,
    ) -> Result<Arc<dyn BackendProgram>> {
        Ok(Arc::new(NoopProgram))
    }
}

impl BackendProgram for NoopProgram {
    fn kernel(self: Arc<Self>, _name: &CStr) -> Result<Arc<dyn BackendKernel>> {
        Ok(Arc::new(NoopKernel(KernelProperties::new(BLOCK_THREADS))))
    }

    fn variable(&self, name: &CStr) -> Result<(Address, usize)> {
        Err(Error::NoSymbol(name.to_string_lossy().into_owned()))
    }

    fn log(&self) -> &str {
        ""
    }

    fn raw(&self) -> usize {
        0
    }
}

impl BackendKernel for NoopKernel {
    fn properties(&self) -> &KernelProperties {
        &self.0
    }

    fn suggest_block(&self, _dynamic_shared: usize, limit: u32) -> Result<u32> {
        Ok(limit.min(BLOCK_THREADS))
    }

    fn concurrent_blocks(&self, _threads: u32, _dynamic_shared: usize, units: u32) -> Result<u32> {
        Ok(units)
    }

    fn raw(&self) -> usize {
        0
    }
}
