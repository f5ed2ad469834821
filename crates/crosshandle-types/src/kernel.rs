//! Properties, arguments and launch shapes of kernels.

use super::KernelLimits;
use crate::error::{Error, Result};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// The properties of a kernel: its resource use, and the limits that result from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelProperties {
    /// Maximum number of threads in a block, given the registers that each thread needs.
    pub block_threads: u32,
    /// Number of registers per thread.
    pub registers: u32,
    /// Shared memory that each block always has, in bytes.
    pub shared_memory: usize,
    /// Maximum shared memory that a launch can add to each block, in bytes.
    pub dynamic_shared_memory: usize,
    /// Local memory per thread, in bytes.
    pub local_memory: usize,
    /// Size of the constants, in bytes.
    pub constant_memory: usize,
    /// Version of the instruction set of the kernel's assembly code: major and minor number.
    pub assembly_version: (u32, u32),
    /// Version of the instruction set of the kernel's machine code: major and minor number.
    pub binary_version: (u32, u32),
    /// Number of parameters, or `None` if the driver does not provide it.
    pub parameter_count: Option<usize>,
    /// The parameters in order, or `None` if the driver does not provide their sizes.
    pub parameters: Option<Vec<KernelParameter>>,
    /// The only block shape that the source allows, if the driver reports one.
    pub required_block: Option<[u32; 3]>,
    /// Number of threads that run in lockstep, if the driver reports it for each kernel.
    pub subgroup: Option<u32>,
    /// The only number of threads in lockstep that the source allows, if the driver reports one.
    pub required_subgroup: Option<u32>,
    /// Number of threads whose multiples make the most efficient blocks, or `None` if the driver
    /// does not report it.
    pub block_multiple: Option<u32>,
}

impl KernelProperties {
    /// Creates properties in which only the maximum number of threads in a block is known.
    pub fn new(block_threads: u32) -> Self {
        Self {
            block_threads,
            registers: 0,
            shared_memory: 0,
            dynamic_shared_memory: 0,
            local_memory: 0,
            constant_memory: 0,
            assembly_version: (0, 0),
            binary_version: (0, 0),
            parameter_count: None,
            parameters: None,
            required_block: None,
            subgroup: None,
            required_subgroup: None,
            block_multiple: None,
        }
    }
}

/// A parameter of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelParameter {
    /// The parameter's offset among all parameters, in bytes.
    pub offset: usize,
    /// The parameter's size, in bytes.
    pub size: usize,
}

impl KernelParameter {
    pub fn new(offset: usize, size: usize) -> Self {
        Self { offset, size }
    }
}

/// An object that a kernel takes as an argument: a range of memory, an image, a sampler or a view.
///
/// - Memory is the address of the range's start.
/// - Kernels of CUDA take an image as the 64 bits of a surface object, and sample a view instead.
/// - Kernels of CUDA take a sampler as 32 bits that describe it, as SYCL's compiler has them: bit 0
///   for normalised coordinates, bit 1 for the linear filter, and bits 2 to 4 for the addressing
///   mode as Unified Runtime numbers it.
/// - A view is its number.
pub trait KernelArgument {
    /// Adds the object to the arguments.
    fn add_to(&self, arguments: KernelArguments) -> KernelArguments;
}

/// The arguments of a launch, in the order of the kernel's parameters.
#[derive(Clone, Default)]
pub struct KernelArguments {
    bytes: Vec<u8>,
    parts: Vec<Part>,
    keep: Vec<Arc<dyn Any + Send + Sync>>,
}

/// An argument, as a range of the bytes of all arguments.
#[derive(Clone)]
struct Part {
    bytes: Range<usize>,
    kind: ArgumentKind,
}

/// The kind of an argument. Drivers that only know the sizes of parameters treat all kinds the
/// same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgumentKind {
    /// A value.
    Value,
    /// An address.
    Address,
    /// An image or a sampler. The bytes are the driver's own object.
    Object,
    /// Shared memory of a block. The bytes are its length, as a `usize`.
    Local,
}

impl KernelArguments {
    /// Creates an empty list of arguments.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a value. It must have the size of the kernel's parameter.
    pub fn value<T>(self, value: T) -> Self
    where
        T: IntoBytes + Immutable,
    {
        self.bytes(value.as_bytes())
    }

    /// Adds a value, given as its bytes.
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.part(bytes, ArgumentKind::Value)
    }

    /// Adds an address, or 0. The list does not keep the memory at this address alive. For memory
    /// of this crate, use `memory`.
    pub fn address(self, address: usize) -> Self {
        self.part(&address.to_ne_bytes(), ArgumentKind::Address)
    }

    /// Adds shared memory of `len` bytes for each block. Only for devices whose kernels take shared
    /// memory as an argument ([`KernelLimits::local_arguments`]). On other devices, use
    /// [`LaunchShape::shared_memory`].
    pub fn local(self, len: usize) -> Self {
        self.part(&len.to_ne_bytes(), ArgumentKind::Local)
    }

    /// Adds an object, and keeps it until the kernel is done.
    pub fn with(self, object: &impl KernelArgument) -> Self {
        object.add_to(self)
    }

    /// Adds an object of the driver, in the form that its kernels take.
    #[doc(hidden)]
    pub fn object(self, object: &[u8]) -> Self {
        self.part(object, ArgumentKind::Object)
    }

    fn part(mut self, bytes: &[u8], kind: ArgumentKind) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.parts.push(Part {
            bytes: start..self.bytes.len(),
            kind,
        });
        self
    }

    /// Keeps an object alive until the kernel has completed.
    pub fn keep(&mut self, object: Arc<dyn Any + Send + Sync>) {
        self.keep.push(object);
    }

    /// Returns the number of arguments.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the bytes of each argument.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.kinds().map(|(_, bytes)| bytes)
    }

    /// Returns the kind and the bytes of each argument.
    pub fn kinds(&self) -> impl ExactSizeIterator<Item = (ArgumentKind, &[u8])> {
        let parts = self.parts.iter();
        parts.map(|part| (part.kind, &self.bytes[part.bytes.clone()]))
    }

    /// Returns the total shared memory that the arguments request, in bytes, or `None` if the sum
    /// overflows.
    pub fn local_bytes(&self) -> Option<usize> {
        let lengths = self
            .kinds()
            .filter(|(kind, _)| *kind == ArgumentKind::Local);
        lengths
            .map(|(_, bytes)| number(bytes))
            .try_fold(0, usize::checked_add)
    }
}

/// Converts the bytes of an address or of a length to a number.
pub fn number(bytes: &[u8]) -> usize {
    bytes
        .first_chunk()
        .map_or(0, |bytes| usize::from_ne_bytes(*bytes))
}

impl fmt::Debug for KernelArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The shape of a launch: the number of threads that run a kernel, and their grouping into blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub offset: [usize; 3],
    /// The total number of threads if the driver chooses the blocks. `grid` and `block` are then 1.
    pub threads: Option<[usize; 3]>,
    pub cluster: Option<[u32; 3]>,
    pub shared_memory: usize,
    pub is_cooperative: bool,
}

impl LaunchShape {
    /// Requests `grid` blocks of `block` threads, in each dimension. If there are no blocks,
    /// nothing runs.
    pub fn new(grid: [u32; 3], block: [u32; 3]) -> Self {
        Self {
            grid,
            block,
            offset: [0; 3],
            threads: None,
            cluster: None,
            shared_memory: 0,
            is_cooperative: false,
        }
    }

    /// Requests enough blocks of `threads` threads to give each of `items` items a thread, in one
    /// dimension. The last block may have threads without an item.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if blocks have no threads, or if too many blocks would be needed.
    pub fn covering(items: usize, threads: u32) -> Result<Self> {
        let blocks = items.checked_add((threads as usize).saturating_sub(1));
        let blocks = blocks.and_then(|items| items.checked_div(threads as usize));
        match blocks.map(u32::try_from) {
            Some(Ok(blocks)) => Ok(Self::new([blocks, 1, 1], [threads, 1, 1])),
            _ => Err(Error::invalid(format!(
                "{items} items cannot be divided into blocks of {threads} threads"
            ))),
        }
    }

    /// Requests this many threads in each dimension, in blocks that the driver chooses. Only for
    /// devices whose driver supports this ([`KernelLimits::block_choice`]). If there are no
    /// threads, nothing runs.
    pub fn threads(threads: [usize; 3]) -> Self {
        let one = if threads.contains(&0) { 0 } else { 1 };
        Self {
            threads: Some(threads),
            ..Self::new([one, 1, 1], [1; 3])
        }
    }

    /// Sets the number of the first thread in each dimension (default: 0). Only for devices that
    /// support offsets ([`KernelLimits::offsets`]).
    pub fn offset(mut self, offset: [usize; 3]) -> Self {
        self.offset = offset;
        self
    }

    /// Sets the shared memory that each block gets in addition to the kernel's own, in bytes
    /// (default: 0).
    pub fn shared_memory(mut self, bytes: usize) -> Self {
        self.shared_memory = bytes;
        self
    }

    /// Sets whether all blocks run at the same time, so that they can wait for each other (default:
    /// no). The device limits the number of such blocks.
    pub fn cooperative(mut self, cooperative: bool) -> Self {
        self.is_cooperative = cooperative;
        self
    }

    /// Sets the number of blocks in a cluster, in each dimension (default: no clusters). All blocks
    /// of a cluster can access each other's shared memory. Every device with clusters supports 8
    /// blocks. Larger clusters depend on the device and the kernel, and only a launch shows whether
    /// they work.
    pub fn cluster(mut self, blocks: [u32; 3]) -> Self {
        self.cluster = Some(blocks);
        self
    }

    /// Returns whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }

    /// Rejects a shape that the kernel or the device does not support.
    pub fn check(&self, kernel: &KernelProperties, limits: &KernelLimits) -> Result<()> {
        let counts = self.block.iter().map(|count| u64::from(*count));
        let threads = counts.fold(1, u64::saturating_mul);
        let exceeds = |sizes: [u32; 3], limits: [u32; 3]| {
            sizes.iter().zip(limits).any(|(size, limit)| *size > limit)
        };
        if threads == 0 || exceeds(self.block, limits.block) {
            return Err(Error::invalid(format!(
                "blocks of {:?} threads are none that this device runs (at least one, at most \
                 {:?})",
                self.block, limits.block
            )));
        }
        if threads > u64::from(kernel.block_threads) {
            return Err(Error::invalid(format!(
                "blocks of {threads} threads are more than the {} that this kernel can have",
                kernel.block_threads
            )));
        }
        if exceeds(self.grid, limits.grid) {
            return Err(Error::invalid(format!(
                "a grid of {:?} blocks is larger than this device's largest, {:?}",
                self.grid, limits.grid
            )));
        }
        if self.shared_memory > kernel.dynamic_shared_memory {
            return Err(Error::invalid(format!(
                "{} bytes of shared memory are more than the {} that this kernel can have",
                self.shared_memory, kernel.dynamic_shared_memory
            )));
        }
        if let Some(required) = kernel.required_block
            && self.threads.is_none()
            && required != self.block
        {
            return Err(Error::invalid(format!(
                "blocks of {:?} threads are not those that this kernel requires, {required:?}",
                self.block
            )));
        }
        if let (Some(required), Some(threads)) = (kernel.required_block, self.threads)
            && !threads
                .iter()
                .zip(required)
                .all(|(count, size)| size != 0 && count.is_multiple_of(size as usize))
        {
            return Err(Error::invalid(format!(
                "{threads:?} threads are not made of blocks of {required:?}, which this kernel requires"
            )));
        }
        self.check_abilities(limits)
    }

    /// Returns the number of blocks, or the largest number if the driver chooses the blocks.
    fn blocks(&self) -> u64 {
        if self.threads.is_some() {
            return u64::MAX;
        }
        let counts = self.grid.into_iter().map(u64::from);
        counts.fold(1, u64::saturating_mul)
    }

    /// Rejects a shape that needs an ability that the device does not have.
    fn check_abilities(&self, limits: &KernelLimits) -> Result<()> {
        let lacks = |what: &str| Err(Error::Unsupported(what.into()));
        if let Some(threads) = self.threads
            && !limits.holds(threads)
        {
            return Err(Error::invalid(format!(
                "{threads:?} threads are more than this device runs at once"
            )));
        }
        if self.threads.is_some() && !limits.block_choice {
            return lacks("this device's driver chooses no blocks; give their number and size");
        }
        if self.offset != [0; 3] && !limits.offsets {
            return lacks("this device counts threads from 0; add an offset in the kernel");
        }
        if self.shared_memory != 0 && limits.local_arguments {
            return lacks(
                "kernels on this device take shared memory as arguments (KernelArguments::local), not \
                 with the launch",
            );
        }
        if self.is_cooperative && !limits.cooperative {
            return Err(Error::Unsupported(
                "this device does not run all blocks of a launch at the same time".into(),
            ));
        }
        if self.is_cooperative && self.blocks() > limits.cooperative_blocks.into() {
            return Err(Error::Unsupported(format!(
                "this device runs at most {} blocks of a launch at the same time, and no blocks that it \
                 chooses itself",
                limits.cooperative_blocks
            )));
        }
        match self.cluster {
            Some(_) if !limits.clusters => Err(Error::Unsupported(
                "this device has no clusters of blocks".into(),
            )),
            Some(cluster) if !divides(cluster, self.grid) => Err(Error::invalid(format!(
                "a grid of {:?} blocks is not made of clusters of {cluster:?}",
                self.grid
            ))),
            _ => Ok(()),
        }
    }
}

fn divides(cluster: [u32; 3], grid: [u32; 3]) -> bool {
    let mut pairs = cluster.into_iter().zip(grid);
    pairs.all(|(cluster, grid)| cluster != 0 && grid % cluster == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: KernelLimits = KernelLimits {
        architecture: (9, 0),
        block_threads: 1024,
        block: [1024, 1024, 64],
        grid: [u32::MAX >> 1, 65535, 65535],
        subgroup: 32,
        subgroups: &[32],
        shared_memory: 1 << 16,
        registers: 1 << 16,
        constant_memory: 1 << 16,
        arguments: 4096,
        cooperative: false,
        cooperative_blocks: u32::MAX,
        clusters: true,
        local_arguments: false,
        offsets: false,
        block_choice: false,
        linking: true,
        intermediate_languages: "",
        extensions: "",
    };

    fn kernel() -> KernelProperties {
        KernelProperties {
            dynamic_shared_memory: 1000,
            ..KernelProperties::new(512)
        }
    }

    #[test]
    fn shapes_fit_kernel_and_device() {
        let fits = |shape: LaunchShape| shape.check(&kernel(), &LIMITS).is_ok();
        assert!(fits(LaunchShape::new([1, 65535, 1], [8, 8, 8])));
        assert!(fits(LaunchShape::new([1; 3], [1; 3]).shared_memory(1000)));
        assert!(fits(LaunchShape::new([0, 1, 1], [1; 3])));
        for shape in [
            LaunchShape::new([1; 3], [0, 1, 1]),
            LaunchShape::new([1; 3], [1, 1, 65]),
            LaunchShape::new([1; 3], [513, 1, 1]),
            LaunchShape::new([1; 3], [u32::MAX; 3]),
            LaunchShape::new([1, 65536, 1], [1; 3]),
            LaunchShape::new([1; 3], [1; 3]).shared_memory(1001),
            LaunchShape::new([1; 3], [1; 3]).cooperative(true),
            LaunchShape::new([3, 1, 1], [1; 3]).cluster([2, 1, 1]),
            LaunchShape::new([3, 1, 1], [1; 3]).cluster([0, 1, 1]),
            LaunchShape::new([1; 3], [1; 3]).offset([0, 0, 1]),
            LaunchShape::threads([1; 3]),
        ] {
            assert!(!fits(shape), "{shape:?}");
        }
        assert!(fits(LaunchShape::new([4, 1, 1], [1; 3]).cluster([2, 1, 1])));
    }

    #[test]
    fn shapes_are_of_kinds_that_the_device_knows() {
        let limits = KernelLimits {
            local_arguments: true,
            offsets: true,
            block_choice: true,
            ..LIMITS
        };
        let mut kernel = kernel();
        let fits =
            |shape: LaunchShape, kernel: &KernelProperties| shape.check(kernel, &limits).is_ok();
        assert!(fits(
            LaunchShape::threads([7, 1, 1]).offset([1; 3]),
            &kernel
        ));
        assert!(!fits(
            LaunchShape::new([1; 3], [1; 3]).shared_memory(1),
            &kernel
        ));
        kernel.required_block = Some([4, 2, 1]);
        assert!(fits(LaunchShape::new([1; 3], [4, 2, 1]), &kernel));
        assert!(!fits(LaunchShape::new([1; 3], [8, 1, 1]), &kernel));
        assert!(fits(LaunchShape::threads([16; 3]), &kernel));
        assert!(!fits(LaunchShape::threads([16, 3, 1]), &kernel));
        assert!(LaunchShape::threads([16, 0, 1]).is_empty());
    }

    #[test]
    fn every_item_is_covered() {
        let blocks = |items, threads| LaunchShape::covering(items, threads).map(|it| it.grid[0]);
        assert_eq!(blocks(0, 32).unwrap(), 0);
        assert_eq!(blocks(1, 32).unwrap(), 1);
        assert_eq!(blocks(64, 32).unwrap(), 2);
        assert_eq!(blocks(65, 32).unwrap(), 3);
        assert!(blocks(1, 0).is_err() && blocks(usize::MAX, 1).is_err());
    }
}
