//! The limits of kernels on a device.

use super::Details;
use crate::driver::{DeviceHandle, Driver, check, description};
use crosshandle_types::KernelLimits;
use crosshandle_types::error::Result;
use level_zero_sys::{
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE,
    ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COOPERATIVE_KERNELS, ZE_DEVICE_IP_VERSION_EXT_NAME,
    ZE_DEVICE_MODULE_FLAG_FP16, ZE_DEVICE_MODULE_FLAG_FP64, ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS,
    ZE_GLOBAL_OFFSET_EXP_NAME, ZE_MODULE_PROGRAM_EXP_NAME, ze_device_compute_properties_t,
    ze_device_module_properties_t,
};

/// The highest minor version of SPIR-V 1 that exists.
const SPIR_V_MINOR_VERSIONS: u32 = 6;

/// The OpenCL extensions that the compilers of all Level Zero drivers support. The table below adds
/// those that depend on the module properties.
const EXTENSIONS: &str = "cl_khr_il_program cl_khr_subgroups cl_intel_required_subgroup_size";
const EXTENSIONS_BY_FLAG: [(u32, &str); 3] = [
    (ZE_DEVICE_MODULE_FLAG_FP16, "cl_khr_fp16"),
    (ZE_DEVICE_MODULE_FLAG_FP64, "cl_khr_fp64"),
    (
        ZE_DEVICE_MODULE_FLAG_INT64_ATOMICS,
        "cl_khr_int64_base_atomics cl_khr_int64_extended_atomics",
    ),
];

/// Queries the driver for the limits of kernels. The error is the reason why the device has none.
pub(crate) fn describe(
    driver: &Driver,
    device: DeviceHandle,
    details: &Details,
) -> std::result::Result<KernelLimits, String> {
    let asked = ask(driver, device).map_err(|error| error.to_string())?;
    let (compute, module) = asked;
    if details.abilities & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE == 0 {
        return Err("this device only copies".into());
    }
    if module.spirvVersionSupported == 0 {
        return Err(
            "the Level Zero driver compiles no SPIR-V: its compiler is not installed".into(),
        );
    }
    let count = (compute.numSubGroupSizes as usize).min(compute.subGroupSizes.len());
    let mut subgroups = compute.subGroupSizes[..count].to_vec();
    subgroups.sort_unstable();
    // The size that compilers usually choose if the kernel does not require one.
    let usual = subgroups.iter().copied().filter(|size| *size <= 32).max();
    Ok(KernelLimits {
        architecture: architecture(driver, device),
        block_threads: compute.maxTotalGroupSize,
        block: [
            compute.maxGroupSizeX,
            compute.maxGroupSizeY,
            compute.maxGroupSizeZ,
        ],
        grid: [
            compute.maxGroupCountX,
            compute.maxGroupCountY,
            compute.maxGroupCountZ,
        ],
        subgroup: usual.unwrap_or(1),
        // Leaked only once for each device of the process.
        subgroups: Vec::leak(subgroups),
        shared_memory: compute.maxSharedLocalMemory,
        registers: 0,
        // Constants are ordinary memory.
        constant_memory: u32::MAX,
        arguments: module.maxArgumentsSize,
        cooperative: details.abilities & ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COOPERATIVE_KERNELS
            != 0,
        clusters: false,
        local_arguments: true,
        offsets: driver.loader.zeKernelSetGlobalOffsetExp.is_some()
            && driver.has_extension(ZE_GLOBAL_OFFSET_EXP_NAME),
        block_choice: true,
        cooperative_blocks: u32::MAX,
        linking: driver.has_extension(ZE_MODULE_PROGRAM_EXP_NAME),
        intermediate_languages: languages(module.spirvVersionSupported).leak(),
        extensions: extensions(module.flags).leak(),
    })
}

fn ask(
    driver: &Driver,
    device: DeviceHandle,
) -> Result<(
    ze_device_compute_properties_t,
    ze_device_module_properties_t,
)> {
    let loader = &driver.loader;
    let mut compute = description!(
        ze_device_compute_properties_t,
        ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES
    );
    // SAFETY: a device that the driver listed, with a live result.
    let code = unsafe { (loader.zeDeviceGetComputeProperties)(device.0, &mut compute) };
    check("zeDeviceGetComputeProperties", code)?;
    let mut module = description!(
        ze_device_module_properties_t,
        ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES
    );
    // SAFETY: as above.
    let code = unsafe { (loader.zeDeviceGetModuleProperties)(device.0, &mut module) };
    check("zeDeviceGetModuleProperties", code)?;
    Ok((compute, module))
}

/// Returns the version of the device's architecture, or zeros if the driver does not report it.
fn architecture(driver: &Driver, device: DeviceHandle) -> (u32, u32) {
    if !driver.has_extension(ZE_DEVICE_IP_VERSION_EXT_NAME) {
        return (0, 0);
    }
    let mut version = description!(
        ze_device_ip_version_ext_t,
        ZE_STRUCTURE_TYPE_DEVICE_IP_VERSION_EXT
    );
    let mut properties = description!(ze_device_properties_t, ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES);
    properties.pNext = (&raw mut version).cast();
    // SAFETY: a device that the driver listed, with a chain of live results.
    let code = unsafe { (driver.loader.zeDeviceGetProperties)(device.0, &mut properties) };
    match check("zeDeviceGetProperties", code) {
        Ok(()) => (version.ipVersion >> 22, version.ipVersion >> 14 & 0xFF),
        Err(_) => (0, 0),
    }
}

/// Returns all versions of SPIR-V up to the one that the driver reports.
fn languages(version: u32) -> String {
    let (major, minor) = (version >> 16, version & 0xFFFF);
    let versions =
        (0..=minor.min(SPIR_V_MINOR_VERSIONS)).map(|minor| format!("SPIR-V_{major}.{minor}"));
    versions.collect::<Vec<_>>().join(" ")
}

fn extensions(flags: u32) -> String {
    let more = EXTENSIONS_BY_FLAG
        .iter()
        .filter(|(flag, _)| flags & flag != 0);
    let more = more.map(|(_, names)| *names);
    std::iter::once(EXTENSIONS)
        .chain(more)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_extensions_are_lists_of_words() {
        assert_eq!(languages(1 << 16 | 2), "SPIR-V_1.0 SPIR-V_1.1 SPIR-V_1.2");
        assert!(languages(1 << 16 | 0xFFFF).ends_with(" SPIR-V_1.6"));
        assert_eq!(extensions(0), EXTENSIONS);
        assert!(extensions(ZE_DEVICE_MODULE_FLAG_FP64).ends_with(" cl_khr_fp64"));
    }
}
