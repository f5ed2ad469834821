//! Programs on the host. An OpenCL runtime for the CPU compiles them, and runs their kernels on its
//! threads. This library loads the runtime when a program is first loaded, or when the limits of
//! kernels are first requested. Processes that do neither do not load it.
//!
//! Kernels work in place on the same mappings as all other code. The runtime must therefore support
//! fine-grained *system* shared virtual memory, which makes every address of the process valid on
//! the device.

mod image;
mod kernel;
mod launch;
mod units;

pub(super) use launch::{Launcher, StartedLaunch};
pub(super) use units::Units;

use crosshandle_hal::{BackendKernel, BackendProgram, BackendPrograms, NativePrograms};
use crosshandle_handle::BackendKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Address, KernelLimits, ProgramImage, ProgramOptions};
use kernel::HostKernel;
use opencl_cpu::{Code, Failure, Program, Runtime};
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Returns the runtime, or an error that says where it was searched for.
pub(super) fn runtime() -> Result<&'static Runtime> {
    Runtime::get().map_err(|reason| Error::Unsupported(reason.into()))
}

/// Returns the limits of kernels, or the reason why there are none.
pub(super) fn limits() -> std::result::Result<&'static KernelLimits, String> {
    static LIMITS: OnceLock<KernelLimits> = OnceLock::new();
    let runtime = Runtime::get()?;
    Ok(LIMITS.get_or_init(|| describe(runtime)))
}

/// Returns the limits of kernels if the runtime is already loaded.
pub(super) fn loaded_limits() -> Option<&'static KernelLimits> {
    Runtime::loaded()?;
    limits().ok()
}

fn describe(runtime: &'static Runtime) -> KernelLimits {
    let limits = runtime.limits();
    let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let short = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let subgroups: Vec<u32> = limits.subgroup_sizes.iter().copied().map(narrow).collect();
    // The size that compilers usually choose: a 512-bit vector of 32-bit words.
    let usual = subgroups.iter().copied().filter(|size| *size <= 16).max();
    KernelLimits {
        // The version of OpenCL C, which is the same for all supported runtimes.
        architecture: (3, 0),
        block_threads: narrow(limits.group_items),
        block: limits.group_sizes.map(narrow),
        grid: [u32::MAX; 3],
        subgroup: usual.or(subgroups.first().copied()).unwrap_or(1),
        // Leaked only once in a process.
        subgroups: Vec::leak(subgroups),
        shared_memory: short(limits.local_memory),
        registers: 0,
        constant_memory: short(limits.constant_memory),
        arguments: narrow(limits.argument_bytes),
        // A thread of the CPU runs a block to its end before it starts another one, and there may
        // be only one thread.
        cooperative: true,
        cooperative_blocks: 1,
        clusters: false,
        local_arguments: true,
        offsets: true,
        block_choice: true,
        linking: true,
        intermediate_languages: &limits.intermediate_languages,
        extensions: runtime.extensions(),
    }
}

/// Converts a failure of the runtime to an error.
pub(super) fn error(failure: Failure) -> Error {
    let name = failure.name().to_owned();
    let (backend, code) = (BackendKind::Host, i64::from(failure.code));
    if failure.is_out_of_memory() {
        return Error::OutOfMemory {
            bytes: 0,
            code: Some(code),
            limit: None,
        };
    }
    let operation = failure.operation;
    match operation {
        "clCreateProgramWithSource"
        | "clCreateProgramWithIL"
        | "clCreateProgramWithBinary"
        | "clSetProgramSpecializationConstant"
        | "clBuildProgram"
        | "clCompileProgram"
        | "clLinkProgram" => Error::Program {
            backend,
            operation,
            code,
            name,
            log: failure.log,
        },
        _ => Error::Driver {
            backend,
            operation,
            code,
            name,
        },
    }
}

/// The loader of programs for a set of compute units.
pub(super) struct HostPrograms(Units);

impl HostPrograms {
    pub(super) fn new(units: &Units) -> Self {
        Self(units.clone())
    }
}

impl BackendPrograms for HostPrograms {
    fn load(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Arc<dyn BackendProgram>> {
        let device = self.0.device()?;
        let of_images: Vec<_> = images
            .iter()
            .map(|image| image.options_among(options))
            .collect();
        let codes = images.iter().zip(&of_images).map(|(image, options)| {
            Ok(Code {
                image: image::prepare(image)?,
                options,
            })
        });
        let codes = codes.collect::<Result<Vec<_>>>()?;
        let linker = image::linker_options(&options.compiler);
        // SAFETY: the creator of each image that is not text promised that it is well-formed.
        let program = unsafe { Program::build(&device, &codes, &linker) }.map_err(error)?;
        Ok(Arc::new(HostProgram(Arc::new(program))))
    }

    fn native(&self) -> Option<&dyn NativePrograms> {
        Some(self)
    }
}

/// A program that the runtime has built.
pub(super) struct HostProgram(pub(super) Arc<Program>);

impl BackendProgram for HostProgram {
    fn kernel(self: Arc<Self>, name: &CStr) -> Result<Arc<dyn BackendKernel>> {
        match self.0.kernel(name) {
            Ok(kernel) => Ok(Arc::new(HostKernel::new(kernel))),
            Err(failure) if failure.is_unknown_name() => {
                Err(Error::NoSymbol(name.to_string_lossy().into_owned()))
            }
            Err(failure) => Err(error(failure)),
        }
    }

    fn variable(&self, name: &CStr) -> Result<(Address, usize)> {
        let found = self.0.variable(name);
        let found = found.and_then(|(start, len)| Some((NonNull::new(start.cast())?, len)));
        let (start, len) =
            found.ok_or_else(|| Error::NoSymbol(name.to_string_lossy().into_owned()))?;
        Ok((Address::new(start), len))
    }

    fn log(&self) -> &str {
        self.0.log()
    }

    fn kernel_names(&self) -> Option<Vec<String>> {
        self.0.kernel_names().ok()
    }

    fn binary(&self) -> Result<Option<Vec<u8>>> {
        self.0.binary().map(Some).map_err(error)
    }

    fn raw(&self) -> usize {
        self.0.raw()
    }
}
