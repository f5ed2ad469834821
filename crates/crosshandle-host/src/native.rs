//! The objects of the OpenCL runtime, for programs that call the runtime too.

use super::program::{HostProgram, HostPrograms, Units, error, runtime};
use crosshandle_hal::{
    BackendProgram, BackendRuntime, BackendRuntimeMemory, HostFunction, NativeKernels,
    NativePrograms, NativeRecording, Work,
};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{NativeRuntime, Ownership};
use opencl_cpu::{MemoryObject, Program, Recording, Runtime};
use std::ptr::NonNull;
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

    fn create_recording(&self) -> Result<Arc<dyn NativeRecording>> {
        let recording = Recording::new(&self.device()?).map_err(error)?;
        let recording = recording.ok_or_else(|| {
            Error::Unsupported("the OpenCL runtime lacks cl_khr_command_buffer".into())
        })?;
        Ok(Arc::new(HostRecording {
            raw: recording.raw(),
            recording: Mutex::new(recording),
        }))
    }

    unsafe fn create_memory(
        &self,
        start: NonNull<u8>,
        len: usize,
    ) -> Result<Arc<dyn BackendRuntimeMemory>> {
        // SAFETY: promised by the caller.
        let memory = unsafe { MemoryObject::new(&self.device()?, start, len) };
        Ok(Arc::new(HostMemory(memory.map_err(error)?)))
    }
}

/// A command buffer of the runtime.
struct HostRecording {
    raw: usize,
    /// Locked during a run, because the runtime runs a command buffer once at a time.
    recording: Mutex<Recording>,
}

impl NativeRecording for HostRecording {
    fn raw(&self) -> usize {
        self.raw
    }

    fn finish(self: Arc<Self>) -> Result<Work> {
        self.recording.lock().finish().map_err(error)?;
        let run = move || {
            // SAFETY: the program promised that everything that its commands use stays valid.
            let run = unsafe { self.recording.lock().run() };
            run.map_err(|failure| error(failure).into())
        };
        Ok(Work::Call(HostFunction::Repeatable(Arc::new(run))))
    }
}

/// A memory object of the runtime.
struct HostMemory(MemoryObject);

impl BackendRuntimeMemory for HostMemory {
    fn raw(&self) -> usize {
        self.0.raw()
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
