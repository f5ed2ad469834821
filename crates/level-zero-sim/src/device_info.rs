//! The properties of devices.

use std::ffi::c_void;

use level_zero_sys::*;

use crate::call::{Result, entry, enumerate, name, read, write};
use crate::device::Device;
use crate::handles;
use crate::module;
use crate::switches::switches;

/// Maximum size of an allocation, in bytes.
pub(crate) const MAX_ALLOCATION: u64 = 4 << 30;
/// Maximum length of a fill's pattern, in bytes.
pub(crate) const MAX_PATTERN: usize = 128;
/// Maximum number of work-items of a group, in total and in each dimension. The OpenCL runtime
/// allows more.
pub(crate) const GROUP_SIZE: u32 = 1024;
/// Maximum size of a group's local memory, in bytes. The OpenCL runtime allows more.
pub(crate) const LOCAL_MEMORY: u32 = 128 << 10;
/// Maximum size of all arguments of a kernel, in bytes. The OpenCL runtime allows more.
pub(crate) const ARGUMENT_BYTES: u32 = 2048;
/// The IP version, which is that of a Battlemage.
const IP_VERSION: u32 = 0x0500_4000;
/// The queue groups: one for all commands, one for copies only.
pub(crate) const QUEUE_GROUPS: [ze_command_queue_group_property_flags_t; 2] = [
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE
        | ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY
        | ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COOPERATIVE_KERNELS,
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY,
];

fn version_known() -> bool {
    !ZE_DEVICE_IP_VERSION_EXT_NAME
        .to_str()
        .is_ok_and(|name| switches().missing(name))
}

/// Fills the structures that are chained to a device's properties. Unknown structures are skipped.
fn fill_chain(first: *mut c_void) -> Result<()> {
    let mut next = first.cast::<ze_base_properties_t>();
    while !next.is_null() {
        let base = read(next.cast_const())?;
        if base.stype == ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT
            && version_known()
        {
            let extension = next.cast::<ze_device_ip_version_ext_t>();
            let mut value = read(extension.cast_const())?;
            value.ipVersion = IP_VERSION;
            write(extension, value)?;
        }
        next = base.pNext.cast();
    }
    Ok(())
}

entry! {
    fn zeDeviceGetProperties(
        device: ze_device_handle_t,
        properties: *mut ze_device_properties_t,
    ) {
        let device = handles::get::<Device, _>(device)?;
        let old = read(properties.cast_const())?;
        // The resolution is in nanoseconds per tick, or since version 1.2 in ticks per second.
        let per_second = ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2;
        write(properties, ze_device_properties_t {
            stype: old.stype,
            pNext: old.pNext,
            type_: ze_device_type_t::ZE_DEVICE_TYPE_GPU,
            vendorId: 0x8086,
            deviceId: 0xffff,
            flags: 0,
            subdeviceId: 0,
            coreClockRate: 1_000,
            maxMemAllocSize: MAX_ALLOCATION,
            maxHardwareContexts: 1 << 16,
            maxCommandQueuePriority: 0,
            numThreadsPerEU: 8,
            physicalEUSimdWidth: 16,
            numEUsPerSubslice: 8,
            numSubslicesPerSlice: 4,
            numSlices: 1,
            timerResolution: if old.stype == per_second { 1_000_000_000 } else { 1 },
            timestampValidBits: 64,
            kernelTimestampValidBits: 64,
            uuid: ze_device_uuid_t { id: device.uuid() },
            name: name(&format!("Simulated Level Zero device {}", device.index)),
        })?;
        fill_chain(old.pNext)
    }

    fn zeDeviceGetComputeProperties(
        device: ze_device_handle_t,
        properties: *mut ze_device_compute_properties_t,
    ) {
        handles::get::<Device, _>(device)?;
        let old = read(properties.cast_const())?;
        let mut subGroupSizes = [0; 8];
        subGroupSizes[..2].copy_from_slice(&[16, 32]);
        write(properties, ze_device_compute_properties_t {
            stype: old.stype,
            pNext: old.pNext,
            maxTotalGroupSize: GROUP_SIZE,
            maxGroupSizeX: GROUP_SIZE,
            maxGroupSizeY: GROUP_SIZE,
            maxGroupSizeZ: GROUP_SIZE,
            maxGroupCountX: u32::MAX,
            maxGroupCountY: u32::MAX,
            maxGroupCountZ: u32::MAX,
            maxSharedLocalMemory: LOCAL_MEMORY,
            numSubGroupSizes: 2,
            subGroupSizes,
        })
    }

    fn zeDeviceGetModuleProperties(
        device: ze_device_handle_t,
        properties: *mut ze_device_module_properties_t,
    ) {
        handles::get::<Device, _>(device)?;
        let mut value = read(properties.cast_const())?;
        let of_modules = |number: u32| if module::is_available() { number } else { 0 };
        value.spirvVersionSupported = of_modules(1 << 16 | 4);
        value.flags =
            of_modules(ZE_DEVICE_MODULE_FLAG_FP64 | ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS);
        let usual = ZE_DEVICE_FP_FLAG_DENORM
            | ZE_DEVICE_FP_FLAG_INF_NAN
            | ZE_DEVICE_FP_FLAG_ROUND_TO_NEAREST
            | ZE_DEVICE_FP_FLAG_FMA;
        value.fp16flags = 0;
        value.fp32flags = of_modules(usual);
        value.fp64flags = of_modules(usual);
        value.maxArgumentsSize = of_modules(ARGUMENT_BYTES);
        value.printfBufferSize = 0;
        value.nativeKernelSupported.id = [0; 16];
        write(properties, value)
    }

    fn zeDeviceGetCommandQueueGroupProperties(
        device: ze_device_handle_t,
        count: *mut u32,
        properties: *mut ze_command_queue_group_properties_t,
    ) {
        handles::get::<Device, _>(device)?;
        let group = |flags| ze_command_queue_group_properties_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_COMMAND_QUEUE_GROUP_PROPERTIES,
            pNext: std::ptr::null_mut(),
            flags,
            maxMemoryFillPatternSize: MAX_PATTERN,
            numQueues: 4,
        };
        enumerate(&QUEUE_GROUPS.map(group), count, properties)
    }

    fn zeDeviceGetMemoryProperties(
        device: ze_device_handle_t,
        count: *mut u32,
        properties: *mut ze_device_memory_properties_t,
    ) {
        handles::get::<Device, _>(device)?;
        let memory = ze_device_memory_properties_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES,
            pNext: std::ptr::null_mut(),
            flags: 0,
            maxClockRate: 1_000,
            maxBusWidth: 64,
            totalSize: 16 << 30,
            name: name("memfd"),
        };
        enumerate(&[memory], count, properties)
    }

    fn zeDeviceGetCacheProperties(
        device: ze_device_handle_t,
        count: *mut u32,
        properties: *mut ze_device_cache_properties_t,
    ) {
        handles::get::<Device, _>(device)?;
        let cache = ze_device_cache_properties_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_DEVICE_CACHE_PROPERTIES,
            pNext: std::ptr::null_mut(),
            flags: 0,
            cacheSize: 8 << 20,
        };
        enumerate(&[cache], count, properties)
    }

    fn zeDeviceGetExternalMemoryProperties(
        device: ze_device_handle_t,
        properties: *mut ze_device_external_memory_properties_t,
    ) {
        handles::get::<Device, _>(device)?;
        let mut value = read(properties.cast_const())?;
        let kinds = match switches().missing("external_memory") {
            true => 0,
            false => ZE_EXTERNAL_MEMORY_TYPE_FLAG_DMA_BUF | ZE_EXTERNAL_MEMORY_TYPE_FLAG_OPAQUE_FD,
        };
        value.memoryAllocationImportTypes = kinds;
        value.memoryAllocationExportTypes = kinds;
        value.imageImportTypes = 0;
        value.imageExportTypes = 0;
        write(properties, value)
    }

    fn zeDevicePciGetPropertiesExt(
        device: ze_device_handle_t,
        properties: *mut ze_pci_ext_properties_t,
    ) {
        let device = handles::get::<Device, _>(device)?;
        let mut value = read(properties.cast_const())?;
        value.address.domain = 0;
        value.address.bus = device.index + 1;
        value.address.device = 0;
        value.address.function = 0;
        value.maxSpeed.genVersion = 5;
        value.maxSpeed.width = 16;
        value.maxSpeed.maxBandwidth = 64 << 30;
        write(properties, value)
    }
}
