//! The properties of a device. This file creates its description, and two other files find the
//! limits of kernels and of images.

pub(crate) mod images;
pub(crate) mod kernels;

use crate::driver::{DeviceHandle, Driver, INTEL_26_18, check, description, list_of};
use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_os::mapping::HUGE_PAGE;
use crosshandle_types::error::Result;
use crosshandle_types::{Capabilities, DeviceInfo, dlpack, known};
use level_zero_sys::{
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE, ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY,
    ZE_DEVICE_FP_FLAG_FMA, ZE_DEVICE_MODULE_FLAG_FP16, ZE_DEVICE_MODULE_FLAG_FP64,
    ZE_DEVICE_PROPERTY_FLAG_ECC, ZE_DEVICE_PROPERTY_FLAG_INTEGRATED,
    ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF, ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD,
    ze_device_memory_properties_t, ze_external_memory_type_flags_t, ze_pci_address_ext_t,
};
use std::ffi::CStr;
use std::time::Duration;

/// The greatest alignment that the address of opened memory keeps, in bytes. Drivers choose the
/// addresses, and guarantee only the alignment of their pages.
const IMPORT_ALIGNMENT: usize = 64 << 10;

/// The PCI vendor number of Intel.
const INTEL: u32 = 0x8086;

/// Properties of a device that only this backend needs.
pub(crate) struct Details {
    /// The ordinal of the queue group on which lists are created.
    pub group: u32,
    /// The abilities of that group, as `ze_command_queue_group_property_flags_t`.
    pub abilities: u32,
    /// The maximum length of a fill pattern in that group, in bytes.
    pub max_pattern: usize,
    /// The type of descriptor that allocated memory can be exported as, if any.
    pub exportable_memory: Option<ze_external_memory_type_flags_t>,
    /// The type of descriptor that physical memory can be exported and imported as, if any.
    pub external_memory: Option<ze_external_memory_type_flags_t>,
}

/// Queries the driver for the properties of a device.
pub(crate) fn describe(
    driver: &Driver,
    device: DeviceHandle,
    index: usize,
) -> Result<(DeviceInfo, Details)> {
    let loader = &driver.loader;
    let mut properties = description!(ze_device_properties_t, ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES);
    // SAFETY: a device that the driver listed, with a live result.
    let code = unsafe { (loader.zeDeviceGetProperties)(device.0, &mut properties) };
    check("zeDeviceGetProperties", code)?;
    let mut module = description!(
        ze_device_module_properties_t,
        ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES
    );
    // SAFETY: as above.
    let code = unsafe { (loader.zeDeviceGetModuleProperties)(device.0, &mut module) };
    check("zeDeviceGetModuleProperties", code)?;
    let details = details(driver, device)?;
    let memories = memories(driver, device)?;
    let fastest = memories.iter().max_by_key(|memory| memory.maxClockRate);
    let has = |flag: u32| properties.flags & flag != 0;
    let units =
        properties.numSlices * properties.numSubslicesPerSlice * properties.numEUsPerSubslice;
    let name = properties.name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    let vendor = match properties.vendorId {
        INTEL => "Intel".to_owned(),
        other => format!("PCI vendor {other:#06x}"),
    };
    let info = DeviceInfo {
        name: name.to_string_lossy().into_owned(),
        vendor,
        vendor_id: Some(properties.vendorId),
        device_id: Some(properties.deviceId),
        pci_address: pci_address(driver, device),
        driver_version: version(driver),
        backend: BackendKind::LevelZero,
        index,
        uuid: DeviceUuid::from_bytes(properties.uuid.id),
        total_memory: memories.iter().map(|memory| memory.totalSize).sum(),
        max_allocation: properties.maxMemAllocSize,
        cache_size: cache_size(driver, device),
        cache_line: Some(64),
        compute_units: units,
        clock_rate: known(properties.coreClockRate),
        vector_width: None,
        memory_clock_rate: fastest.and_then(|memory| known(memory.maxClockRate)),
        memory_bus_width: fastest.and_then(|memory| known(memory.maxBusWidth)),
        granularity: HUGE_PAGE,
        import_alignment: IMPORT_ALIGNMENT,
        dlpack_type: dlpack::ONE_API,
        capabilities: Capabilities {
            device_signals: false,
            memory_sharing: driver.shares_memory,
            physical_memory_sharing: details.external_memory.is_some(),
            event_sharing: true,
            // The driver opens memory either for reading and writing, or not at all.
            read_only_memory: false,
            host_accessible_memory: false,
            host_memory_only: false,
            partial_mappings: true,
            fabric_memory: false,
            late_failures: true,
            native_graphs: false,
            unified_memory: has(ZE_DEVICE_PROPERTY_FLAG_INTEGRATED),
            // Copies and kernels accept only memory of the driver.
            system_memory: false,
            error_correction: has(ZE_DEVICE_PROPERTY_FLAG_ECC),
            half_precision: module.flags & ZE_DEVICE_MODULE_FLAG_FP16 != 0,
            double_precision: module.flags & ZE_DEVICE_MODULE_FLAG_FP64 != 0,
            fused_multiply_add: module.fp32flags & ZE_DEVICE_FP_FLAG_FMA != 0,
            // A list's thread takes timestamps with the host's clock.
            timer_resolution: Duration::from_micros(1),
        },
    };
    Ok((info, details))
}

/// Returns a text with the driver's build and the version of the API.
fn version(driver: &Driver) -> String {
    let [major, minor, build @ ..] = driver.version.to_be_bytes();
    let build = u16::from_be_bytes(build);
    let (api_major, api_minor) = driver.api;
    format!("{major}.{minor}.{build} (Level Zero {api_major}.{api_minor})")
}

/// Returns the PCI address of a device, if the driver reports it.
fn pci_address(driver: &Driver, device: DeviceHandle) -> Option<String> {
    let get = driver.loader.zeDevicePciGetPropertiesExt?;
    let mut properties = description!(
        ze_pci_ext_properties_t,
        ZE_STRUCTURE_TYPE_PCI_EXT_PROPERTIES
    );
    // SAFETY: a device that the driver listed, with a live result.
    let code = unsafe { get(device.0, &mut properties) };
    check("zeDevicePciGetPropertiesExt", code).ok()?;
    let ze_pci_address_ext_t {
        domain,
        bus,
        device,
        function,
    } = properties.address;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// Returns the properties of each memory of a device.
fn memories(driver: &Driver, device: DeviceHandle) -> Result<Vec<ze_device_memory_properties_t>> {
    let get = driver.loader.zeDeviceGetMemoryProperties;
    let empty = description!(
        ze_device_memory_properties_t,
        ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES
    );
    list_of("zeDeviceGetMemoryProperties", empty, |count, items| {
        // SAFETY: a device that the driver listed, with room for `count` items.
        unsafe { get(device.0, count, items) }
    })
}

/// Returns the size of the largest cache in bytes, if the driver reports it.
fn cache_size(driver: &Driver, device: DeviceHandle) -> Option<u64> {
    let get = driver.loader.zeDeviceGetCacheProperties;
    let empty = description!(
        ze_device_cache_properties_t,
        ZE_STRUCTURE_TYPE_DEVICE_CACHE_PROPERTIES
    );
    let caches = list_of("zeDeviceGetCacheProperties", empty, |count, items| {
        // SAFETY: a device that the driver listed, with room for `count` items.
        unsafe { get(device.0, count, items) }
    });
    let sizes = caches.unwrap_or_default().into_iter();
    sizes
        .map(|cache| cache.cacheSize as u64)
        .max()
        .and_then(known)
}

/// Queries the driver for the properties that only this backend needs.
fn details(driver: &Driver, device: DeviceHandle) -> Result<Details> {
    let get = driver.loader.zeDeviceGetCommandQueueGroupProperties;
    let empty = description!(
        ze_command_queue_group_properties_t,
        ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES
    );
    let operation = "zeDeviceGetCommandQueueGroupProperties";
    let groups = list_of(operation, empty, |count, items| {
        // SAFETY: a device that the driver listed, with room for `count` items.
        unsafe { get(device.0, count, items) }
    })?;
    // Compute groups can also copy, and they support longer patterns.
    let can = |flag: u32| groups.iter().position(|group| group.flags & flag != 0);
    let group = can(ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE)
        .or_else(|| can(ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY))
        .unwrap_or(0);
    let max_pattern = groups
        .get(group)
        .map_or(1, |group| group.maxMemoryFillPatternSize.max(1));
    let mut external = description!(
        ze_device_external_memory_properties_t,
        ZE_STRUCTURE_TYPE_DEVICE_EXTERNAL_MEMORY_PROPERTIES
    );
    // SAFETY: a device that the driver listed, with a live result.
    let code =
        unsafe { (driver.loader.zeDeviceGetExternalMemoryProperties)(device.0, &mut external) };
    let (exports, imports) = match check("zeDeviceGetExternalMemoryProperties", code) {
        Ok(()) => (
            external.memoryAllocationExportTypes,
            external.memoryAllocationImportTypes,
        ),
        Err(_) => (0, 0),
    };
    let first = |kinds: u32| {
        [
            ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD,
            ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF,
        ]
        .into_iter()
        .find(|kind| kinds & kind != 0)
    };
    // When they should import physical memory from a descriptor, earlier drivers ignore the
    // descriptor and return new memory.
    let imports_physical = driver.version >= INTEL_26_18;
    Ok(Details {
        group: group as u32,
        abilities: groups.get(group).map_or(0, |group| group.flags),
        max_pattern,
        exportable_memory: first(exports),
        external_memory: first(exports & imports).filter(|_| imports_physical),
    })
}
