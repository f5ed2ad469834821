//! Descriptions of devices.

mod partition;

pub use partition::{AffinityDomain, Partition, PartitionLimits};

use crate::handle::{BackendKind, DeviceUuid};
use std::time::Duration;

/// A description of a device. A field is `None` where the driver or the system does not say.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device's name, by its driver.
    pub name: String,
    /// The maker's name, `unknown` where it is not known.
    pub vendor: String,
    /// The maker's PCI vendor number, also of devices that are not on a PCI bus.
    pub vendor_id: Option<u32>,
    /// The PCI device number that the maker gave it.
    pub device_id: Option<u32>,
    /// The place on the PCI bus, as `domain:bus:device.function`.
    pub pci_address: Option<String>,
    /// The driver's version; of the host, the kernel's.
    pub driver_version: String,
    /// The backend that the device belongs to.
    pub backend: BackendKind,
    /// The device's number among those of its backend, in this process.
    pub index: usize,
    /// The device's identity, the same in every process on this machine.
    pub uuid: DeviceUuid,
    /// The memory of the device, in bytes.
    pub total_memory: u64,
    /// The most that one allocation can have, in bytes.
    pub max_allocation: u64,
    /// The highest clock rate of the memory, in MHz.
    pub memory_clock_rate: Option<u32>,
    /// Bits that the memory moves with each half of a clock cycle.
    pub memory_bus_width: Option<u32>,
    /// The size of the largest cache, in bytes.
    pub cache_size: Option<u64>,
    /// The length of a line of that cache, in bytes.
    pub cache_line: Option<u32>,
    /// The number of units that compute independently.
    pub compute_units: u32,
    /// The highest clock rate of the compute units, in MHz.
    pub clock_rate: Option<u32>,
    /// The widest vector that one instruction computes on, in bytes.
    pub vector_width: Option<u32>,
    /// The smallest piece of physical memory and of a mapping, in bytes.
    pub granularity: usize,
    /// The device's abilities.
    pub capabilities: Capabilities,
}

/// Returns `None` for 0, by which drivers say that they do not know a number.
pub(crate) fn known<T: Default + PartialEq>(number: T) -> Option<T> {
    (number != T::default()).then_some(number)
}

/// The limits of kernels on a device ([`Device::kernels`](crate::Device::kernels)), whatever they need themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct KernelLimits {
    /// The version of the device's instruction set: major and minor number.
    pub architecture: (u32, u32),
    /// The most threads in a block.
    pub block_threads: u32,
    /// The most threads in a block, in each dimension.
    pub block: [u32; 3],
    /// The most blocks in a grid, in each dimension.
    pub grid: [u32; 3],
    /// The number of threads that run in lockstep: the usual one, where kernels differ.
    pub subgroup: u32,
    /// All numbers of threads that run in lockstep in some kernel, smallest first.
    pub subgroups: &'static [u32],
    /// The shared memory of a block, in bytes.
    pub shared_memory: u32,
    /// The registers of all threads of a block together.
    pub registers: u32,
    /// The constants of a program, in bytes.
    pub constant_memory: u32,
    /// The size of all arguments of a launch, in bytes.
    pub arguments: u32,
    /// All blocks of a launch can run at the same time, to wait for each other.
    pub cooperative: bool,
    /// The most blocks of a cooperative launch, of whatever kernel. [`Kernel::concurrent_blocks`](crate::Kernel::concurrent_blocks)
    /// tells that of one.
    pub cooperative_blocks: u32,
    /// Blocks can be put together in clusters.
    pub clusters: bool,
    /// Kernels take shared memory as arguments
    /// ([`KernelArguments::local`](crate::KernelArguments::local)), not with the launch.
    pub local_arguments: bool,
    /// Threads can be counted from another number than 0 ([`LaunchShape::offset`](crate::LaunchShape::offset)).
    pub offsets: bool,
    /// The intermediate languages that programs can be loaded in, as `SPIR-V_1.4`, with spaces between
    /// them.
    pub intermediate_languages: &'static str,
    /// The OpenCL extensions of what compiles and runs kernels, with spaces between them.
    pub extensions: &'static str,
    /// The driver chooses blocks, if asked to ([`LaunchShape::threads`](crate::LaunchShape::threads)).
    pub block_choice: bool,
    /// A program may be linked of several images.
    pub linking: bool,
}

impl KernelLimits {
    /// Returns whether a launch may have this many threads in each dimension.
    pub fn holds(&self, threads: [usize; 3]) -> bool {
        let sides = threads.into_iter().zip(self.grid).zip(self.block);
        let most = |grid: u32, block: u32| u64::from(grid).saturating_mul(u64::from(block));
        let fits = |((count, grid), block)| count as u64 <= most(grid, block);
        let all = threads.into_iter().try_fold(1_usize, usize::checked_mul);
        all.is_some() && sides.into_iter().all(fits)
    }
}

/// The abilities of a device. A call that needs one that is absent fails with
/// [`Error::Unsupported`](crate::Error::Unsupported).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// The device's memory can be shared with other processes.
    pub memory_sharing: bool,
    /// The device's physical memory can be shared and mapped into reserved ranges.
    pub physical_memory_sharing: bool,
    /// The device's events can be shared.
    pub event_sharing: bool,
    /// Importers can be limited to reading.
    pub read_only_memory: bool,
    /// The host can access device memory through its address.
    pub host_accessible_memory: bool,
    /// Parts of physical memory can be mapped. Where absent, only all of it at once.
    pub partial_mappings: bool,
    /// The device has memory whose [fabric handles](crate::Context::allocate_fabric_memory) other hosts open. Whether the
    /// system permits it shows when such memory is allocated.
    pub fabric_memory: bool,
    /// A command in a queue fails if a signal that it waits for fails, however late that is. Where
    /// absent, it fails if the signal has failed when the command is submitted, and if a function of
    /// the host ([`Command::call`](crate::Command::call)) fails later; after the death of a process it
    /// runs as if nothing had happened.
    pub late_failures: bool,
    /// A run of an [`ExecutableGraph`](crate::ExecutableGraph) is one launch of a graph of the driver. Where
    /// absent, this library submits the nodes in order, as one command all the same.
    pub native_graphs: bool,
    /// Device memory is the host's memory: nothing moves between the two, and the device can access all
    /// that the host can.
    pub unified_memory: bool,
    /// The device's kernels and copies use all memory that the host can access in place, also what no driver
    /// has allocated or was told of.
    pub system_memory: bool,
    /// The device's memory is known to correct errors.
    pub error_correction: bool,
    /// Kernels can use floating-point numbers of 16 bits. On the host, the processor reads and writes them;
    /// whether it also computes with them, or in 32 bits, is the kernel runtime's affair.
    pub half_precision: bool,
    /// The device computes with floating-point numbers of 64 bits.
    pub double_precision: bool,
    /// The device multiplies and adds in one step, with one rounding.
    pub fused_multiply_add: bool,
    /// The resolution of profiling timestamps.
    pub timer_resolution: Duration,
}
