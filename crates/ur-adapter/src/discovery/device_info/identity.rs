//! Device properties that identify a device or relate it to other devices.

use super::Answer::{self, Bytes, Handle, Text, U32, Unsupported, Words};
use crate::abi::description;
use crate::abi::object::Shared;
use crate::discovery::Device;
use crate::discovery::platform;
use unified_runtime_sys::ur_device_info_t as name;

pub(super) fn answer(device: &Shared<Device>, asked: name) -> Option<Answer<'_>> {
    let info = device.inner().info();
    Some(match asked {
        name::UR_DEVICE_INFO_TYPE => U32(description::get().device_type.0),
        name::UR_DEVICE_INFO_VENDOR_ID => U32(info.vendor_id.unwrap_or(0)),
        name::UR_DEVICE_INFO_DEVICE_ID => info.device_id.map_or(Unsupported, U32),
        name::UR_DEVICE_INFO_PLATFORM => Handle(platform().handle().cast()),
        name::UR_DEVICE_INFO_REFERENCE_COUNT => U32(device.references()),
        name::UR_DEVICE_INFO_EXTENSIONS => Words(extensions(device.inner())),
        name::UR_DEVICE_INFO_NAME => Text(&info.name),
        name::UR_DEVICE_INFO_VENDOR => Text(&info.vendor),
        name::UR_DEVICE_INFO_DRIVER_VERSION => Text(&info.driver_version),
        name::UR_DEVICE_INFO_PROFILE => Text("FULL_PROFILE"),
        name::UR_DEVICE_INFO_UUID => Bytes(*info.uuid.as_bytes()),
        name::UR_DEVICE_INFO_PCI_ADDRESS => info.pci_address.as_deref().map_or(Unsupported, Text),

        name::UR_DEVICE_INFO_COMPONENT_DEVICES | name::UR_DEVICE_INFO_COMPOSITE_DEVICE => {
            Unsupported
        }

        // These properties exist only on Windows or for Intel GPUs.
        name::UR_DEVICE_INFO_LUID
        | name::UR_DEVICE_INFO_NODE_MASK
        | name::UR_DEVICE_INFO_IP_VERSION
        | name::UR_DEVICE_INFO_GPU_EU_COUNT
        | name::UR_DEVICE_INFO_GPU_EU_SIMD_WIDTH
        | name::UR_DEVICE_INFO_GPU_EU_SLICES
        | name::UR_DEVICE_INFO_GPU_EU_COUNT_PER_SUBSLICE
        | name::UR_DEVICE_INFO_GPU_SUBSLICES_PER_SLICE
        | name::UR_DEVICE_INFO_GPU_HW_THREADS_PER_EU
        | name::UR_DEVICE_INFO_XE_STACK_COUNT
        | name::UR_DEVICE_INFO_XE_REGIONS_PER_STACK
        | name::UR_DEVICE_INFO_XE_CLUSTERS_PER_REGION
        | name::UR_DEVICE_INFO_XE_CORES_PER_CLUSTER
        | name::UR_DEVICE_INFO_EUS_PER_XE_CORE
        | name::UR_DEVICE_INFO_MAX_LANES_PER_HW_THREAD => Unsupported,
        _ => return None,
    })
}

/// Returns the names of the device's extensions.
///
/// The SYCL runtime derives the aspects `fp16` and `fp64` from them. The extensions of the kernel
/// runtime are included only if that runtime is already loaded. Programs without kernels make this
/// query too, so the query must not load the runtime.
fn extensions(device: &crosshandle::Device) -> Vec<&str> {
    if let Some(limits) = device.loaded_kernels()
        && !limits.extensions.is_empty()
    {
        return limits.extensions.split_ascii_whitespace().collect();
    }
    let capabilities = &device.info().capabilities;
    let known = [
        (capabilities.half_precision, "cl_khr_fp16"),
        (capabilities.double_precision, "cl_khr_fp64"),
    ];
    let known = known.into_iter().filter(|(has, _)| *has);
    known.map(|(_, extension)| extension).collect()
}
