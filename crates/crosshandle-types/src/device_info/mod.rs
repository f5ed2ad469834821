//! Descriptions of devices.

mod partition;

pub use partition::{AffinityDomain, Partition, PartitionLimits};

use crosshandle_handle::{BackendKind, DeviceUuid};
use std::time::Duration;

/// A description of a device. A field is `None` if neither the driver nor the system provides the
/// value.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The device's name, as given by its driver.
    pub name: String,
    /// The vendor's name, or `unknown`.
    pub vendor: String,
    /// The vendor's PCI id, also for devices that are not on a PCI bus.
    pub vendor_id: Option<u32>,
    /// The PCI device id that the vendor assigned to the device.
    pub device_id: Option<u32>,
    /// The location on the PCI bus, as `domain:bus:device.function`.
    pub pci_address: Option<String>,
    /// The driver's version. For the host, the kernel's version.
    pub driver_version: String,
    /// The backend that the device belongs to.
    pub backend: BackendKind,
    /// The device's number among the devices of its backend, in this process.
    pub index: usize,
    /// The device's identity, the same in every process on this machine.
    pub uuid: DeviceUuid,
    /// The memory of the device, in bytes.
    pub total_memory: u64,
    /// Maximum size of one allocation, in bytes.
    pub max_allocation: u64,
    /// The highest clock rate of the memory, in MHz.
    pub memory_clock_rate: Option<u32>,
    /// Number of bits that the memory transfers with each half of a clock cycle.
    pub memory_bus_width: Option<u32>,
    /// The size of the largest cache, in bytes.
    pub cache_size: Option<u64>,
    /// The length of a line of the largest cache, in bytes.
    pub cache_line: Option<u32>,
    /// The number of units that compute independently.
    pub compute_units: u32,
    /// The highest clock rate of the compute units, in MHz.
    pub clock_rate: Option<u32>,
    /// The widest vector that one instruction processes, in bytes.
    pub vector_width: Option<u32>,
    /// The smallest unit of physical memory and of mappings, in bytes.
    pub granularity: usize,
    /// The greatest alignment that memory keeps when another process opens it, in bytes.
    pub import_alignment: usize,
    /// The number by which DLPack and other libraries know the kind of the device
    /// (`DLDeviceType`).
    pub dlpack_type: i32,
    /// The device's abilities.
    pub capabilities: Capabilities,
}

/// DLPack's numbers of the kinds of devices that other crates of this workspace treat specially.
pub mod dlpack {
    /// The host.
    pub const CPU: i32 = 1;
    /// NVIDIA GPUs.
    pub const CUDA: i32 = 2;
    /// Devices of oneAPI, such as Intel GPUs.
    pub const ONE_API: i32 = 14;
}

/// Returns `None` for 0, which drivers report for an unknown number.
pub fn known<T: Default + PartialEq>(number: T) -> Option<T> {
    (number != T::default()).then_some(number)
}

/// The limits of a device that apply to all kernels (see
/// `Device::kernels`). A kernel may have lower limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelLimits {
    /// The version of the device's instruction set: major and minor number.
    pub architecture: (u32, u32),
    /// Maximum number of threads in a block.
    pub block_threads: u32,
    /// Maximum number of threads in a block, in each dimension.
    pub block: [u32; 3],
    /// Maximum number of blocks in a grid, in each dimension.
    pub grid: [u32; 3],
    /// Number of threads that run in lockstep. If kernels differ, this is the usual number.
    pub subgroup: u32,
    /// All numbers of threads that kernels can run in lockstep, in ascending order.
    pub subgroups: &'static [u32],
    /// Maximum shared memory of a block, in bytes.
    pub shared_memory: u32,
    /// Maximum number of registers that all threads of a block can use together.
    pub registers: u32,
    /// Maximum size of a program's constants, in bytes.
    pub constant_memory: u32,
    /// Maximum size of all arguments of a launch, in bytes.
    pub arguments: u32,
    /// Whether all blocks of a launch can run at the same time, so that they can wait for each
    /// other.
    pub cooperative: bool,
    /// Maximum number of blocks of a cooperative launch, for any kernel.
    /// `Kernel::concurrent_blocks` returns the limit of one
    /// kernel.
    pub cooperative_blocks: u32,
    /// Whether blocks can be grouped into clusters.
    pub clusters: bool,
    /// Whether kernels take shared memory as an argument
    /// ([`KernelArguments::local`](crate::KernelArguments::local)) instead of with the launch.
    pub local_arguments: bool,
    /// Whether thread numbers can start at another value than 0
    /// ([`LaunchShape::offset`](crate::LaunchShape::offset)).
    pub offsets: bool,
    /// The intermediate languages that programs can be loaded in, such as `SPIR-V_1.4` or `PTX`,
    /// separated by spaces.
    pub intermediate_languages: &'static str,
    /// The OpenCL extensions of the compiler and runtime of kernels, separated by spaces.
    pub extensions: &'static str,
    /// Whether the driver can choose the block size
    /// ([`LaunchShape::threads`](crate::LaunchShape::threads)).
    pub block_choice: bool,
    /// Whether a program can be linked from several images.
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

/// The abilities of a device. A call that needs a missing ability fails with
/// [`Error::Unsupported`](crate::error::Error::Unsupported).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Whether the device's memory can be shared with other processes.
    pub memory_sharing: bool,
    /// Whether the device's physical memory can be shared and mapped into reserved ranges.
    pub physical_memory_sharing: bool,
    /// Whether the device's events can be shared.
    pub event_sharing: bool,
    /// Whether importers can be limited to reading.
    pub read_only_memory: bool,
    /// Whether the host can access device memory through its address.
    pub host_accessible_memory: bool,
    /// Whether commands and kernels can access only memory that the host can access.
    pub host_memory_only: bool,
    /// Whether parts of physical memory can be mapped. If not, physical memory can only be mapped
    /// as a whole.
    pub partial_mappings: bool,
    /// Whether the device has memory whose fabric handles
    /// can be opened on other hosts. The allocation of such memory can still fail if the system
    /// does not permit it.
    pub fabric_memory: bool,
    /// Whether a command in a queue fails if a signal that it waits for fails, however late. If
    /// not, the command fails in two cases only: the signal has already failed when the command is
    /// submitted, or a function of the host (`Command::call`) fails later.
    /// If a process dies after the submission, the command runs normally.
    pub late_failures: bool,
    /// Whether a run of an `ExecutableGraph` is a single launch of a
    /// driver's graph. If not, this library submits the nodes in order. The run is one command in
    /// both cases.
    pub native_graphs: bool,
    /// Whether device memory is the host's memory. Data need not move between the two, and the
    /// device can access everything that the host can.
    pub unified_memory: bool,
    /// Whether the device's kernels and copies can use all memory of the host in place, including
    /// memory that the driver neither allocated nor registered.
    pub system_memory: bool,
    /// Whether the device's memory is known to correct errors.
    pub error_correction: bool,
    /// Whether kernels can use 16-bit floating-point numbers. On the host, the processor can load
    /// and store them. The kernel runtime decides whether it computes in 16 or in 32 bits.
    pub half_precision: bool,
    /// Whether the device computes with 64-bit floating-point numbers.
    pub double_precision: bool,
    /// Whether the device multiplies and adds in one operation, with one rounding.
    pub fused_multiply_add: bool,
    /// The resolution of profiling timestamps.
    pub timer_resolution: Duration,
}
