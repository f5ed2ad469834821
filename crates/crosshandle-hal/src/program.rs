//! Programs and their kernels.

use crate::NativePrograms;
use crosshandle_types::error::Result;
use crosshandle_types::{Address, KernelArguments, KernelProperties, ProgramImage, ProgramOptions};
use std::any::Any;
use std::ffi::CStr;
use std::sync::Arc;

/// A loader of programs for one device.
pub trait BackendPrograms {
    /// Loads a program from one image, or links it from several. The caller passes at least one
    /// image.
    fn load(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Arc<dyn BackendProgram>>;

    /// Returns the native view of the loader, if programs may load programs with the driver too.
    fn native(&self) -> Option<&dyn NativePrograms> {
        None
    }
}

/// A program that is loaded on a device. Its kernels keep it loaded.
pub trait BackendProgram: Send + Sync {
    /// Returns a kernel of the program, or
    /// [`Error::NoSymbol`](crosshandle_types::error::Error::NoSymbol) if the program has no kernel
    /// of that name.
    fn kernel(self: Arc<Self>, name: &CStr) -> Result<Arc<dyn BackendKernel>>;

    /// Returns the address of a variable of the program, and its length in bytes. Fails as
    /// [`kernel`](Self::kernel) does if the name does not exist.
    fn variable(&self, name: &CStr) -> Result<(Address, usize)>;

    /// Returns the output of the driver's compiler, which may be empty.
    fn log(&self) -> &str;

    /// Returns the names of all kernels, if the driver provides them.
    fn kernel_names(&self) -> Option<Vec<String>> {
        None
    }

    /// Returns the program as a binary image, if the driver provides one.
    fn binary(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Returns the driver's own program as an integer. On CUDA, for example, it is a `CUmodule`.
    fn raw(&self) -> usize;
}

/// A kernel of a loaded program.
pub trait BackendKernel: Any + Send + Sync {
    /// Returns the kernel's requirements and the resulting limits.
    fn properties(&self) -> &KernelProperties;

    /// Checks the arguments against everything that the driver knows about them and that the
    /// kernel's properties do not contain.
    fn check_arguments(&self, _arguments: &KernelArguments) -> Result<()> {
        Ok(())
    }

    /// Returns the number of threads per block, at most `limit`, with which the most threads run at
    /// the same time. `dynamic_shared` is in bytes.
    fn suggest_block(&self, dynamic_shared: usize, limit: u32) -> Result<u32>;

    /// Returns the number of blocks that a device with `units` compute units can run at the same
    /// time.
    fn concurrent_blocks(&self, threads: u32, dynamic_shared: usize, units: u32) -> Result<u32>;

    /// Returns the driver's own kernel as an integer. On CUDA, for example, it is a `CUfunction`.
    fn raw(&self) -> usize;
}
