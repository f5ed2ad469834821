//! What is known of a device before anything is made on it.

use crate::handle::{BackendKind, DeviceUuid};
use std::time::Duration;

/// What is known of a device. Where its driver or system doesn't say, a field is `None`, or 0 as it
/// says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device's name, by its driver.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// The maker's PCI vendor number, also of devices that are not on a PCI bus.
    pub vendor_id: Option<u32>,
    /// The PCI device number that the maker gave it.
    pub device_id: Option<u32>,
    /// Where it sits on the PCI bus, as `domain:bus:device.function`.
    pub pci_address: Option<String>,
    /// The driver's version.
    pub driver_version: String,
    /// Whose driver it is.
    pub backend: BackendKind,
    /// Its number among the backend's devices, in this process.
    pub index: usize,
    /// Its identity, the same in every process on this machine.
    pub uuid: DeviceUuid,
    /// Bytes of memory it has.
    pub total_memory: u64,
    /// Bytes that one allocation can have at most.
    pub max_allocation: u64,
    /// The highest rate at which its memory ticks, in MHz, and how many bits it moves with each
    /// half of a tick; 0 if they are not known.
    pub memory_clock_rate: u32,
    /// See [`memory_clock_rate`](Self::memory_clock_rate).
    pub memory_bus_width: u32,
    /// Bytes of its largest cache; 0 if none is known.
    pub cache_size: u64,
    /// Bytes of a line of that cache; 0 if none is known.
    pub cache_line: u32,
    /// Units that compute independently.
    pub compute_units: u32,
    /// Their highest clock rate, in MHz; 0 if it is not known.
    pub clock_rate: u32,
    /// Bytes on which one instruction of a unit can compute; 0 if that is not known.
    pub vector_width: u32,
    /// The smallest piece of physical memory and of a mapping, in bytes.
    pub granularity: usize,
    /// What it can do.
    pub capabilities: Capabilities,
    /// How large what its kernels use may be; `None` if it runs no programs
    /// ([`Context::load_program`](crate::Context::load_program)).
    pub kernels: Option<KernelLimits>,
}

/// What limits kernels on a device, whatever they need themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct KernelLimits {
    /// The version of the device's instruction set: major and minor number.
    pub architecture: (u32, u32),
    /// Threads in a block.
    pub block_threads: u32,
    /// Threads in a block, in each dimension.
    pub block: [u32; 3],
    /// Blocks in a grid, in each dimension.
    pub grid: [u32; 3],
    /// Threads that run in lockstep.
    pub subgroup: u32,
    /// Bytes of shared memory of a block.
    pub shared_memory: u32,
    /// Registers of all threads of a block together.
    pub registers: u32,
    /// Bytes of constants of a program.
    pub constant_memory: u32,
    /// Bytes of all arguments of a launch.
    pub arguments: u32,
    /// Whether all blocks of a launch can run at the same time, to wait for each other.
    pub cooperative: bool,
    /// Whether blocks can be put together in clusters.
    pub clusters: bool,
}

/// What a device can do. What is absent here is never tried and fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Capabilities {
    /// Its memory can be shared with other processes.
    pub memory_sharing: bool,
    /// Its physical memory can be shared and mapped into reserved ranges.
    pub physical_memory_sharing: bool,
    /// Its events can be shared.
    pub event_sharing: bool,
    /// Importers can be limited to reading.
    pub read_only_memory: bool,
    /// The host can access device memory through its address.
    pub host_accessible_memory: bool,
    /// Parts of physical memory can be mapped. Where absent, only all of it at once.
    pub partial_mappings: bool,
    /// A command in a queue fails with what it waits for, however late that fails. Where absent,
    /// it fails with what has failed when it is submitted, and with functions of the host
    /// ([`Command::call`](crate::Command::call)) that fail later; after the death of a process it
    /// runs as if nothing had happened.
    pub late_failures: bool,
    /// Device memory is the host's memory: nothing moves between the two, and all that the host
    /// can access, the device can too.
    pub unified_memory: bool,
    /// Its memory is known to correct errors.
    pub error_correction: bool,
    /// It computes with floating-point numbers of 16 bits.
    pub half_precision: bool,
    /// It computes with floating-point numbers of 64 bits.
    pub double_precision: bool,
    /// It multiplies and adds in one step, with one rounding.
    pub fused_multiply_add: bool,
    /// The resolution of profiling timestamps.
    pub timer_resolution: Duration,
}
