//! Properties of kernels.

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
