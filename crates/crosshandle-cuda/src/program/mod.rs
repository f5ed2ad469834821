//! Programs on a GPU.

mod image;
mod kernel;

pub(super) use kernel::{DriverLaunch, driver_launch, launch};

use super::context::CudaContext;
use super::device::Gpu;
use super::driver::ModuleHandle;
use super::scheduler::Urgency;
use crosshandle_hal::{BackendKernel, BackendProgram, BackendPrograms, NativePrograms};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Address, Ownership, ProgramImage, ProgramOptions};
use kernel::CudaKernel;
use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Estimate of the memory that a loaded program uses, in bytes, because the driver does not report
/// it. It only counts towards [`QUIET_MAX_BYTES`].
const PROGRAM_BYTES: usize = 1 << 20;

/// A program that is loaded into the device's context. A deferred call unloads it when no stream
/// waits, because the driver would not return before that.
struct CudaProgram {
    gpu: Arc<Gpu>,
    module: ModuleHandle,
    /// Whether the drop of this value unloads the program.
    is_owned: bool,
    log: String,
}

impl CudaProgram {
    fn new(gpu: &Arc<Gpu>, module: ModuleHandle, is_owned: bool, log: String) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            module,
            is_owned,
            log,
        }
    }

    fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Drop for CudaProgram {
    fn drop(&mut self) {
        if !self.is_owned || process::is_forked() {
            return;
        }
        let module = self.module;
        // A context of the program may end before the call. The driver then unloads everything in
        // it.
        let unload = self.gpu.later("unloading a program", move |driver| {
            let driver = driver?;
            // SAFETY: the module was loaded for this value, or given to it. Kernels and commands
            // keep the programs that they use.
            unsafe { driver.unload_module(module) }
        });
        let scheduler = self.gpu.scheduler();
        scheduler.call(Urgency::WhenQuiet, PROGRAM_BYTES, unload);
    }
}

impl BackendPrograms for CudaContext {
    /// Loads a program into the device's context. The driver may wait for streams, so the caller
    /// holds no lock.
    fn load(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Arc<dyn BackendProgram>> {
        let prepared = images.iter().map(image::prepare);
        let prepared = prepared.collect::<Result<Vec<_>>>()?;
        let gpu = self.gpu();
        let _current = gpu.enter()?;
        let driver = gpu.driver();
        let (module, log) = match &prepared[..] {
            [one] => driver.load_module(&one.image(), options.max_registers)?,
            several => {
                let images: Vec<_> = several.iter().map(image::Prepared::image).collect();
                driver.link_modules(&images, options.max_registers)?
            }
        };
        Ok(Arc::new(CudaProgram::new(gpu, module, true, log)))
    }

    fn native(&self) -> Option<&dyn NativePrograms> {
        Some(self)
    }
}

impl NativePrograms for CudaContext {
    unsafe fn adopt(
        &self,
        program: usize,
        ownership: Ownership,
    ) -> Result<Arc<dyn BackendProgram>> {
        // SAFETY: promised by the caller.
        let module = unsafe { ModuleHandle::from_raw(program) };
        let is_owned = ownership == Ownership::Owned;
        let program = CudaProgram::new(self.gpu(), module, is_owned, String::new());
        Ok(Arc::new(program))
    }
}

impl BackendProgram for CudaProgram {
    fn kernel(self: Arc<Self>, name: &CStr) -> Result<Arc<dyn BackendKernel>> {
        let _current = self.gpu.enter()?;
        let function = self.gpu.driver().function(self.module, name)?;
        Ok(Arc::new(CudaKernel::new(&self, function)?))
    }

    fn variable(&self, name: &CStr) -> Result<(Address, usize)> {
        let _current = self.gpu.enter()?;
        let (start, len) = self.gpu.driver().variable(self.module, name)?;
        let start = NonNull::new(ptr::with_exposed_provenance_mut(start as usize));
        let start = start.ok_or_else(|| Error::NoSymbol(name.to_string_lossy().into_owned()))?;
        Ok((Address::new(start), len))
    }

    fn log(&self) -> &str {
        &self.log
    }

    fn raw(&self) -> usize {
        self.module.number()
    }
}
