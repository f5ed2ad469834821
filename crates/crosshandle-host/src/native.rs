//! The objects of the OpenCL runtime, for programs that call the runtime too.

use super::program::{HostProgram, HostPrograms, Units, error, runtime};
use crosshandle_hal::{BackendProgram, BackendRuntime, NativeKernels, NativePrograms};
use crosshandle_types::error::Result;
use crosshandle_types::{NativeRuntime, Ownership};
use opencl_cpu::{Program, Runtime};
use std::sync::Arc;

impl BackendRuntime for Units {
    fn native(&self) -> std::result::Result<NativeRuntime, String> {
        let (platform, device, context) = self.look()?.raw();
        Ok(NativeRuntime {
            platform,
            device,
            context,
        })
    }

    fn description(&self) -> Option<String> {
        let runtime = Runtime::get().ok()?;
        Some(format!(
            "{} {} ({})",
            runtime.platform_name(),
            runtime.version(),
            runtime.path().display()
        ))
    }
}

impl NativePrograms for HostPrograms {
    unsafe fn adopt(
        &self,
        program: usize,
        ownership: Ownership,
    ) -> Result<Arc<dyn BackendProgram>> {
        let is_owned = ownership == Ownership::Owned;
        // SAFETY: promised by the caller.
        let program = unsafe { Program::adopt(runtime()?, program, is_owned) };
        Ok(Arc::new(HostProgram(Arc::new(program))))
    }

    fn kernels(&self) -> Option<&dyn NativeKernels> {
        Some(self)
    }
}

impl NativeKernels for HostPrograms {
    unsafe fn adopt_kernel(
        &self,
        kernel: usize,
        ownership: Ownership,
    ) -> Result<(Arc<dyn BackendProgram>, String)> {
        let runtime = runtime()?;
        // SAFETY: promised by the caller.
        let (name, program) = unsafe {
            (
                opencl_cpu::name_of(runtime, kernel).map_err(error)?,
                opencl_cpu::program_of(runtime, kernel).map_err(error)?,
            )
        };
        // SAFETY: the kernel keeps its program alive until here.
        let program = unsafe { Program::adopt(runtime, program, false) };
        if ownership == Ownership::Owned {
            // SAFETY: the caller transfers ownership of the kernel. Launches use a kernel of their
            // own.
            unsafe { opencl_cpu::release(runtime, kernel) };
        }
        Ok((Arc::new(HostProgram(Arc::new(program))), name))
    }
}
