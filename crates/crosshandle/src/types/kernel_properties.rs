//! Properties of kernels.

/// The properties of a kernel: what it needs, and the limits that follow.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KernelProperties {
    /// The most threads that a block can have, with the registers that they need.
    pub block_threads: u32,
    /// The registers of a thread.
    pub registers: u32,
    /// The shared memory that each block has without being asked for, in bytes.
    pub shared_memory: usize,
    /// The shared memory that a launch can add to that, in bytes.
    pub dynamic_shared_memory: usize,
    /// The memory of a thread, in bytes.
    pub local_memory: usize,
    /// The constants, in bytes.
    pub constant_memory: usize,
    /// The version of the instruction set of its assembly code: major and minor number.
    pub assembly_version: (u32, u32),
    /// The version of the instruction set of its machine code: major and minor number.
    pub binary_version: (u32, u32),
    /// Its parameters, in order; `None` if the driver does not say.
    pub parameters: Option<Vec<KernelParameter>>,
}

/// A parameter of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KernelParameter {
    /// Its offset among all parameters, in bytes.
    pub offset: usize,
    /// Its size, in bytes.
    pub size: usize,
}

impl KernelParameter {
    pub(crate) fn new(offset: usize, size: usize) -> Self {
        Self { offset, size }
    }
}
