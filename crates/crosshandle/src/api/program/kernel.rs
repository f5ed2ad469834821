//! Kernels: functions of a program that a device runs in many threads.

use crate::api::core::ContextCore;
use crate::api::memory::MemoryRange;
use crosshandle_hal::{BackendKernel, Launch};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{
    KernelArgument, KernelArguments, KernelLimits, KernelProperties, LaunchShape, NativeObject,
};
use std::fmt;
use std::sync::Arc;

/// A function of a program that a device runs in many threads. It keeps its program loaded. Cloning
/// is cheap, and any thread may use it.
#[derive(Clone)]
pub struct Kernel {
    core: Arc<ContextCore>,
    inner: Arc<dyn BackendKernel>,
    name: Arc<str>,
}

impl Kernel {
    pub(crate) fn new(core: &Arc<ContextCore>, inner: Arc<dyn BackendKernel>, name: &str) -> Self {
        Self {
            core: Arc::clone(core),
            inner,
            name: name.into(),
        }
    }

    /// Returns the kernel's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the resources that the kernel needs and the limits of its launches.
    pub fn properties(&self) -> &KernelProperties {
        self.inner.properties()
    }

    /// Returns the number of threads per block that lets the device run the most threads at a time.
    /// Each block gets `dynamic_shared_memory` bytes of shared memory from its launch.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the driver fails.
    pub fn suggested_block(&self, dynamic_shared_memory: usize) -> Result<u32> {
        check_fork()?;
        let limit = self.properties().block_threads;
        self.inner.suggest_block(dynamic_shared_memory, limit)
    }

    /// Returns the number of blocks that the whole device runs at a time. This is the maximum for a
    /// [cooperative](LaunchShape::cooperative) launch. Each block has `threads` threads and gets
    /// `dynamic_shared_memory` bytes of shared memory.
    ///
    /// # Errors
    /// [`Error::Driver`](crate::Error::Driver) if the driver fails.
    pub fn concurrent_blocks(&self, threads: u32, dynamic_shared_memory: usize) -> Result<u32> {
        check_fork()?;
        let units = self.core.device().info().compute_units;
        self.inner
            .concurrent_blocks(threads, dynamic_shared_memory, units)
    }

    /// Returns the driver's own kernel, which lives as long as `self`. It is a `CUfunction` on
    /// CUDA, a `ze_kernel_handle_t` on Level Zero and a `cl_kernel` on the host.
    pub fn native(&self) -> NativeObject {
        NativeObject::new(self.core.device().info().backend, self.inner.raw())
    }

    /// Creates a launch, if the kernel and its device allow it. Returns `None` if the shape has no
    /// blocks.
    pub(crate) fn launch(
        &self,
        shape: LaunchShape,
        arguments: KernelArguments,
    ) -> Result<Option<Launch>> {
        check_fork()?;
        let limits = self.core.device().kernels()?;
        shape.check(self.properties(), limits)?;
        self.check_arguments(&arguments, limits)?;
        if shape.is_empty() {
            return Ok(None);
        }
        Ok(Some(Launch {
            kernel: Arc::clone(&self.inner),
            shape,
            arguments,
        }))
    }

    fn check_arguments(&self, arguments: &KernelArguments, limits: &KernelLimits) -> Result<()> {
        let properties = self.properties();
        if let Some(count) = properties.parameter_count
            && arguments.len() != count
        {
            return Err(Error::invalid(format!(
                "kernel '{}' has {count} parameters, but got {} arguments",
                self.name,
                arguments.len()
            )));
        }
        self.check_local(arguments, limits)?;
        let Some(parameters) = &properties.parameters else {
            return self.inner.check_arguments(arguments);
        };
        let mut pairs = arguments.iter().zip(parameters).enumerate();
        match pairs.find(|(_, (argument, parameter))| argument.len() != parameter.size) {
            Some((index, (argument, parameter))) => Err(Error::invalid(format!(
                "parameter {index} of kernel '{}' has {} bytes, but its argument has {}",
                self.name,
                parameter.size,
                argument.len()
            ))),
            None => Ok(()),
        }
    }

    /// Checks that the device accepts shared memory as arguments, and that the kernel can have that
    /// much.
    fn check_local(&self, arguments: &KernelArguments, limits: &KernelLimits) -> Result<()> {
        let available = self.properties().dynamic_shared_memory;
        match arguments.local_bytes() {
            Some(0) => Ok(()),
            Some(_) if !limits.local_arguments => Err(Error::Unsupported(
                "kernels on this device get shared memory with the launch \
                 (LaunchShape::shared_memory), not as arguments"
                    .into(),
            )),
            Some(bytes) if bytes <= available => Ok(()),
            bytes => Err(Error::invalid(format!(
                "arguments of {} bytes of shared memory are more than the {available} that kernel \
                 '{}' can have",
                bytes.unwrap_or(usize::MAX),
                self.name
            ))),
        }
    }
}

/// Fails in a forked child, in which the threads that compile and run kernels do not exist.
pub(crate) fn check_fork() -> Result<()> {
    match process::is_forked() {
        true => Err(Error::forked()),
        false => Ok(()),
    }
}

impl KernelArgument for MemoryRange {
    fn add_to(&self, arguments: KernelArguments) -> KernelArguments {
        let mut arguments = arguments.address(self.as_ptr().expose_provenance());
        if let Some(memory) = self.keep() {
            arguments.keep(memory);
        }
        arguments
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_types::{Access, Address};
    use std::ptr::NonNull;

    #[test]
    fn arguments_are_what_was_added_and_keep_their_memory() {
        let kept = Arc::new(7);
        let place = NonNull::from(&*kept).cast();
        let range = MemoryRange::new(Address::new(place), 4, Access::ReadWrite, true);
        let range = range.keeping(Arc::clone(&kept));
        let arguments = KernelArguments::new()
            .value(5_u32)
            .with(&range)
            .bytes(&[])
            .bytes(&[1, 2, 3]);
        drop(range);
        let wanted = [
            &5_u32.to_ne_bytes()[..],
            &place.addr().get().to_ne_bytes(),
            &[],
            &[1, 2, 3],
        ];
        assert_eq!(arguments.len(), wanted.len());
        assert!(arguments.iter().eq(wanted));
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(arguments);
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
