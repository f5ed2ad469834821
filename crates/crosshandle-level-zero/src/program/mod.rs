//! Programs on a GPU: modules of the driver, from SPIR-V or in its own binary format.

mod image;
mod kernel;
mod launch;

pub(super) use launch::launch;

use super::context::LevelZeroContext;
use super::device::Gpu;
use super::driver::{Handle, Module};
use crosshandle_hal::{BackendKernel, BackendProgram, BackendPrograms, NativePrograms};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Address, Ownership, ProgramImage, ProgramOptions};
use kernel::LevelZeroKernel;
use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

impl BackendPrograms for LevelZeroContext {
    fn load(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Arc<dyn BackendProgram>> {
        let gpu = self.gpu();
        gpu.kernels()
            .map_err(|reason| Error::Unsupported(reason.into()))?;
        let (format, inputs) = image::prepare(gpu.driver(), images, options)?;
        // SAFETY: the creator of each image promised that it is valid.
        let (module, log) =
            unsafe { Module::create(self.context(), gpu.handle(), format, &inputs) }?;
        Ok(Arc::new(LevelZeroProgram {
            gpu: Arc::clone(gpu),
            module: Arc::new(module),
            log,
        }))
    }

    fn native(&self) -> Option<&dyn NativePrograms> {
        Some(self)
    }
}

impl NativePrograms for LevelZeroContext {
    unsafe fn adopt(
        &self,
        program: usize,
        ownership: Ownership,
    ) -> Result<Arc<dyn BackendProgram>> {
        let handle = Handle(ptr::with_exposed_provenance_mut(program));
        let is_given = ownership == Ownership::Owned;
        // SAFETY: promised by the caller.
        let module = unsafe { Module::adopt(self.context(), handle, is_given) };
        Ok(Arc::new(LevelZeroProgram {
            gpu: Arc::clone(self.gpu()),
            module: Arc::new(module),
            log: String::new(),
        }))
    }
}

/// A program that the driver has loaded.
struct LevelZeroProgram {
    gpu: Arc<Gpu>,
    module: Arc<Module>,
    log: String,
}

impl BackendProgram for LevelZeroProgram {
    fn kernel(self: Arc<Self>, name: &CStr) -> Result<Arc<dyn BackendKernel>> {
        match self.module.kernel(name)? {
            Some(kernel) => Ok(Arc::new(LevelZeroKernel::new(&self.gpu, kernel, name)?)),
            None => Err(unknown(name)),
        }
    }

    fn variable(&self, name: &CStr) -> Result<(Address, usize)> {
        let (start, len) = self.module.variable(name)?.ok_or_else(|| unknown(name))?;
        let start = NonNull::new(start).ok_or_else(|| unknown(name))?;
        Ok((Address::new(start), len))
    }

    fn log(&self) -> &str {
        &self.log
    }

    fn kernel_names(&self) -> Option<Vec<String>> {
        self.module.kernel_names().ok()
    }

    fn binary(&self) -> Result<Option<Vec<u8>>> {
        self.module.binary().map(Some)
    }

    fn raw(&self) -> usize {
        self.module.handle().0.expose_provenance()
    }
}

fn unknown(name: &CStr) -> Error {
    Error::NoSymbol(name.to_string_lossy().into_owned())
}
