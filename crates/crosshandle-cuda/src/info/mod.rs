//! The description of a GPU, and the limits of kernels.

pub(crate) mod images;

use crate::driver::sys::CUdevice_attribute as Attribute;
use crate::driver::{DeviceHandle, Driver};
use crosshandle_handle::BackendKind;
use crosshandle_os::mapping::HUGE_PAGE;
use crosshandle_types::error::Result;
use crosshandle_types::{Capabilities, DeviceInfo, KernelLimits, dlpack, known};
use std::fs;
use std::time::Duration;

/// Resolution of the driver's event times, as documented for `cuEventElapsedTime`. It is a property
/// of the driver, not a tuning value.
const TIMER_RESOLUTION: Duration = Duration::from_nanos(500);

/// The PCI vendor number.
const NVIDIA: u32 = 0x10de;
/// Bytes of a cache line of the L2 cache, on all devices so far.
const CACHE_LINE: u32 = 128;
/// Maximum size of a launch's arguments in bytes, on all devices. Newer devices accept more from
/// newer programs.
const ARGUMENTS: u32 = 4096;

pub(crate) fn describe(driver: &Driver, device: DeviceHandle, index: usize) -> Result<DeviceInfo> {
    let can = |attribute| {
        // An attribute that the driver does not know is a capability that it lacks.
        driver.device_attribute(device, attribute).unwrap_or(0) != 0
    };
    let number = |attribute| {
        let value = driver.device_attribute(device, attribute).unwrap_or(0);
        u32::try_from(value).unwrap_or(0)
    };
    let has_descriptors = can(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
        && can(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
    let granularity = match has_descriptors {
        true => driver.granularity(device)?,
        false => HUGE_PAGE,
    };
    let units =
        driver.device_attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let total_memory = driver.device_memory(device)?;
    let pci_address = format!(
        "{:04x}:{:02x}:{:02x}.0",
        number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
        number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
        number(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
    );
    Ok(DeviceInfo {
        name: driver.device_name(device)?,
        vendor: "NVIDIA".into(),
        vendor_id: Some(NVIDIA),
        device_id: pci_device(&pci_address),
        pci_address: Some(pci_address),
        driver_version: driver_version(driver),
        backend: BackendKind::Cuda,
        index,
        uuid: driver.device_uuid(device)?,
        total_memory,
        max_allocation: total_memory,
        // The driver reports kHz.
        memory_clock_rate: known(number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) / 1000),
        memory_bus_width: known(number(
            Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH,
        )),
        cache_size: known(number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).into()),
        cache_line: Some(CACHE_LINE),
        compute_units: units.try_into().unwrap_or(0),
        clock_rate: known(number(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000),
        vector_width: None,
        granularity,
        import_alignment: HUGE_PAGE,
        dlpack_type: dlpack::CUDA,
        capabilities: Capabilities {
            memory_sharing: has_descriptors,
            physical_memory_sharing: has_descriptors,
            // Events need 32-bit operations on words. The driver reports only the 64-bit
            // operations, but a device with those also has the 32-bit ones. Events also need access
            // to registered host memory.
            event_sharing: can(Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)
                && can(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED),
            read_only_memory: has_descriptors,
            host_accessible_memory: false,
            unified_memory: can(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
            system_memory: can(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
            error_correction: can(Attribute::CU_DEVICE_ATTRIBUTE_ECC_ENABLED),
            // All devices with virtual memory management support these operations, and those
            // devices are the ones that have descriptors.
            half_precision: has_descriptors,
            double_precision: has_descriptors,
            fused_multiply_add: has_descriptors,
            // The driver accepts no offset into an allocation.
            host_memory_only: false,
            partial_mappings: false,
            fabric_memory: has_descriptors
                && can(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
            // A waiting stream only compares numbers. It continues even if the signal has failed.
            late_failures: false,
            native_graphs: driver.has_graphs(),
            timer_resolution: TIMER_RESOLUTION,
        },
    })
}

/// Returns the number that the manufacturer gave a device on the PCI bus, if the system shows it.
fn pci_device(address: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/bus/pci/devices/{address}/device")).ok()?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Returns the limits of kernels, or `None` if the driver lacks functions for programs.
pub(crate) fn kernel_limits(driver: &Driver, device: DeviceHandle) -> Option<KernelLimits> {
    let number = |attribute| {
        let value = driver.device_attribute(device, attribute).unwrap_or(0);
        u32::try_from(value).unwrap_or(0)
    };
    driver.has_programs().then(|| limits_of(number))
}

fn limits_of(number: impl Fn(Attribute) -> u32) -> KernelLimits {
    let architecture = (
        number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
    );
    KernelLimits {
        architecture,
        block_threads: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        block: [
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
        ],
        grid: [
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
            number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
        ],
        subgroup: number(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        // The only subgroup size of all devices so far.
        subgroups: &[32],
        // The limit for kernels that opt in.
        shared_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        registers: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        constant_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        arguments: ARGUMENTS,
        cooperative: number(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) != 0,
        // Devices of compute capability 9.0 and later have clusters.
        clusters: architecture.0 >= 9,
        local_arguments: false,
        offsets: false,
        block_choice: false,
        cooperative_blocks: u32::MAX,
        linking: true,
        intermediate_languages: "PTX",
        extensions: "",
    }
}

/// Returns the version of the kernel module, if the system shows it, and the version of the API.
fn driver_version(driver: &Driver) -> String {
    let api = driver.version();
    match fs::read_to_string("/sys/module/nvidia/version") {
        Ok(version) => format!("{} (CUDA {api})", version.trim()),
        Err(_) => format!("CUDA {api}"),
    }
}
