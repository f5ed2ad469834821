//! Programs: device code and its kernels.

pub(crate) mod kernel;

use crate::api::context::Context;
use crate::api::core::ContextCore;
use crate::api::memory::MemoryRange;
use crosshandle_hal::{BackendProgram, BackendPrograms, NativePrograms};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, NativeObject, Ownership, ProgramImage, ProgramOptions};
use kernel::{Kernel, check_fork};
use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

/// A program that is loaded on a device. Its kernels keep it loaded, and so do commands that use
/// its kernels or variables. Cloning is cheap, and any thread may use it.
#[derive(Clone)]
pub struct Program {
    core: Arc<ContextCore>,
    inner: Arc<dyn BackendProgram>,
}

impl Program {
    /// Loads a program, so that its kernels can be launched
    /// ([`Command::launch`](crate::Command::launch)).
    ///
    /// With some drivers this call blocks until the device has completed all submitted work. Load
    /// programs before you submit commands that wait for the calling thread.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device runs no programs
    ///   ([`Device::kernels`](crate::Device::kernels)).
    /// - [`Error::Program`], with the compiler's log, if the driver refuses
    ///   the image.
    pub fn new(context: &Context, image: ProgramImage<'_>) -> Result<Self> {
        Self::with_options(context, &[image], &ProgramOptions::new())
    }

    /// Loads a program with options. Several images are linked into one program.
    ///
    /// # Errors
    /// As [`new`](Self::new). Also
    /// [`Error::InvalidArgument`] if `images` is empty.
    pub fn with_options(
        context: &Context,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Self> {
        if images.is_empty() {
            return Err(Error::invalid("a program is made of at least one image"));
        }
        let core = context.core();
        let inner = loader(core)?.load(images, options)?;
        Ok(Self {
            core: Arc::clone(core),
            inner,
        })
    }

    /// # Safety
    /// The safety conditions of [`adopt`](Self::adopt).
    #[allow(unsafe_code)] // The promise is the caller's.
    pub(crate) unsafe fn adopt_raw(
        core: &Arc<ContextCore>,
        program: usize,
        ownership: Ownership,
    ) -> Result<Self> {
        // SAFETY: promised by the caller.
        let inner = unsafe { native_loader(core)?.adopt(program, ownership) }?;
        Ok(Self {
            core: Arc::clone(core),
            inner,
        })
    }

    /// # Safety
    /// The safety conditions of [`Kernel::adopt`].
    #[allow(unsafe_code)] // The promise is the caller's.
    pub(crate) unsafe fn adopt_kernel(
        core: &Arc<ContextCore>,
        kernel: usize,
        ownership: Ownership,
    ) -> Result<(Self, Kernel)> {
        let adopter = native_loader(core)?.kernels().ok_or_else(|| {
            Error::Unsupported(
                "this driver does not tell a kernel's program; adopt the program, and find the \
                 kernel in it"
                    .into(),
            )
        })?;
        // SAFETY: promised by the caller.
        let (inner, name) = unsafe { adopter.adopt_kernel(kernel, ownership) }?;
        let program = Self {
            core: Arc::clone(core),
            inner,
        };
        let kernel = program.kernel(&name)?;
        Ok((program, kernel))
    }

    /// Returns the kernel called `name`.
    ///
    /// # Errors
    /// - [`Error::NoSymbol`] if the program has no kernel of that name.
    /// - [`Error::Driver`] if the driver fails.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        check_fork()?;
        let inner = Arc::clone(&self.inner).kernel(&symbol(name)?)?;
        Ok(Kernel::new(&self.core, inner, name))
    }

    /// Returns the memory of the global variable called `name`. The range keeps the program loaded.
    ///
    /// # Errors
    /// - [`Error::NoSymbol`] if the program has no variable of that name.
    /// - [`Error::Driver`] if the driver fails.
    pub fn variable(&self, name: &str) -> Result<MemoryRange> {
        check_fork()?;
        let (address, len) = self.inner.variable(&symbol(name)?)?;
        let is_on_host = self
            .core
            .device()
            .info()
            .capabilities
            .host_accessible_memory;
        let range = MemoryRange::new(address, len, Access::ReadWrite, is_on_host);
        Ok(range.keeping(Arc::new(self.clone())))
    }

    /// Returns the output of the driver's compiler, which may be empty.
    pub fn log(&self) -> &str {
        self.inner.log()
    }

    /// Returns the names of all kernels, if the driver reports them.
    pub fn kernel_names(&self) -> Option<Vec<String>> {
        check_fork().ok()?;
        self.inner.kernel_names()
    }

    /// Returns the program as a [binary image](ProgramImage::binary) that this machine can load
    /// again; `None` if the driver does not provide one.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver fails.
    pub fn binary(&self) -> Result<Option<Vec<u8>>> {
        check_fork()?;
        self.inner.binary()
    }

    /// Returns the driver's own program, which lives as long as `self`. It is a `CUmodule` on CUDA,
    /// a `ze_module_handle_t` on Level Zero and a `cl_program` on the host.
    pub fn native(&self) -> NativeObject {
        NativeObject::new(self.core.device().info().backend, self.inner.raw())
    }
}

fn loader(core: &ContextCore) -> Result<&dyn BackendPrograms> {
    check_fork()?;
    core.backend().programs().ok_or_else(|| {
        Error::Unsupported(format!("{} runs no programs", core.device().info().name))
    })
}

fn native_loader(core: &ContextCore) -> Result<&dyn NativePrograms> {
    loader(core)?.native().ok_or_else(|| {
        Error::Unsupported(format!(
            "{} has no programs of its driver",
            core.device().info().name
        ))
    })
}

/// Converts a name to a C string. A name that contains a zero byte names no symbol.
fn symbol(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::NoSymbol(name.into()))
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("device", &self.core.device().to_string())
            .finish_non_exhaustive()
    }
}
