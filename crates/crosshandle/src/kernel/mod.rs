//! Kernels: functions of a program that devices run in many threads, and what they run on.

mod arguments;
mod shape;

pub use arguments::KernelArguments;
pub use shape::LaunchShape;

use crate::backend::{KernelLimits, Launch, LoadedKernel};
use crate::context::ContextCore;
use crate::error::{Error, Result};
use std::fmt;
use std::sync::Arc;

/// What is known of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KernelProperties {
    /// Threads that a block can have at most, with the registers that they need.
    pub block_threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory that a block has in any case.
    pub shared_memory: usize,
    /// Bytes of shared memory that a launch can add to that.
    pub dynamic_shared_memory: usize,
    /// Bytes of memory of a thread.
    pub local_memory: usize,
    /// Bytes of constants.
    pub constant_memory: usize,
    /// The version of the instruction set for which it was compiled to assembly, major and minor.
    pub assembly_version: (u32, u32),
    /// The version of the instruction set of its code.
    pub binary_version: (u32, u32),
    /// Its parameters, in order, if the driver says.
    pub parameters: Option<Vec<KernelParameter>>,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KernelParameter {
    /// Where it starts among all of them, in bytes.
    pub offset: usize,
    /// Its bytes.
    pub size: usize,
}

impl KernelParameter {
    pub(crate) fn new(offset: usize, size: usize) -> Self {
        Self { offset, size }
    }
}

/// A function of a program that a device runs in many threads. Keeps its program loaded. Cheap to
/// clone; any thread may use it.
#[derive(Clone)]
pub struct Kernel {
    core: Arc<ContextCore>,
    inner: Arc<dyn LoadedKernel>,
    name: Arc<str>,
}

impl Kernel {
    pub(crate) fn new(core: &Arc<ContextCore>, inner: Arc<dyn LoadedKernel>, name: &str) -> Self {
        Self {
            core: Arc::clone(core),
            inner,
            name: name.into(),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it needs, and what limits that puts on launches.
    pub fn properties(&self) -> &KernelProperties {
        self.inner.properties()
    }

    /// Threads in a block with which most of them run at a time, if each block gets so many bytes
    /// of dynamic shared memory.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn suggested_block(&self, dynamic_shared_memory: usize) -> Result<u32> {
        let limit = self.properties().block_threads;
        self.inner.suggest_block(dynamic_shared_memory, limit)
    }

    /// Blocks that the whole device runs at a time, which is what a cooperative launch can have.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn concurrent_blocks(&self, threads: u32, dynamic_shared_memory: usize) -> Result<u32> {
        let each = self.inner.blocks_per_unit(threads, dynamic_shared_memory)?;
        Ok(each.saturating_mul(self.core.device().info().compute_units))
    }

    /// The driver's own handle (a `CUfunction` for NVIDIA's), good as long as this lives.
    pub fn native_handle(&self) -> usize {
        self.inner.native()
    }

    /// A launch that this kernel and its device can do, or `None` if there are no blocks in it.
    pub(crate) fn launch(
        &self,
        shape: LaunchShape,
        arguments: KernelArguments,
    ) -> Result<Option<Launch>> {
        shape.check(self.properties(), &self.limits()?)?;
        self.check_arguments(&arguments)?;
        if shape.is_empty() {
            return Ok(None);
        }
        Ok(Some(Launch {
            kernel: Arc::clone(&self.inner),
            shape,
            arguments,
        }))
    }

    fn limits(&self) -> Result<KernelLimits> {
        let limits = self.core.device().info().kernels;
        limits.ok_or_else(|| Error::Unsupported("this device runs no kernels".into()))
    }

    fn check_arguments(&self, arguments: &KernelArguments) -> Result<()> {
        let Some(parameters) = &self.properties().parameters else {
            return Ok(());
        };
        if arguments.len() != parameters.len() {
            return Err(Error::invalid(format!(
                "kernel '{}' has {} parameters, but got {} arguments",
                self.name,
                parameters.len(),
                arguments.len()
            )));
        }
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
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
