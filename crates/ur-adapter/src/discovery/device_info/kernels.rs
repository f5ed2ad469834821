//! Device properties for kernels. A device that runs no kernels reports the minimum values that the
//! SYCL and OpenCL specifications require.

use super::Answer::{self, List, Size, Sizes, Text, Truth, U32, U64, Unsupported, Version};
use crate::abi::description;
use crate::discovery::Device;
use crosshandle::kernel::KernelLimits;
use unified_runtime_sys::{
    UR_DEVICE_EXEC_CAPABILITY_FLAG_KERNEL, UR_KERNEL_LAUNCH_PROPERTIES_FLAG_CLUSTER_DIMENSION,
    UR_KERNEL_LAUNCH_PROPERTIES_FLAG_COOPERATIVE,
    UR_KERNEL_LAUNCH_PROPERTIES_FLAG_WORK_GROUP_MEMORY, ur_device_info_t as name,
    ur_device_local_mem_type_t as local_memory, ur_kernel_launch_properties_flags_t,
};

/// Size of the buffer for the output of `printf` in kernels, in bytes. It is the minimum that
/// OpenCL requires.
const PRINTF_BUFFER_BYTES: usize = 1 << 20;

pub(super) fn answer<'a>(device: &'a Device, asked: name) -> Option<Answer<'a>> {
    // Only queries about kernels load the kernel runtime.
    let Some(without) = without_kernels(device, asked) else {
        return any(asked);
    };
    let limits = device.inner().kernels().ok();
    let with = limits.and_then(|limits| with_kernels(limits, asked));
    Some(with.unwrap_or(without))
}

/// Returns the value of a property on a device that runs kernels.
fn with_kernels(limits: &KernelLimits, asked: name) -> Option<Answer<'_>> {
    let sizes = |sizes: [u32; 3]| Sizes(sizes.map(|size| size as usize));
    let has_compute_capability = description::get().has_compute_capability;
    let is_at_least = |major| Truth(has_compute_capability && limits.architecture.0 >= major);
    Some(match asked {
        name::UR_DEVICE_INFO_VERSION | name::UR_DEVICE_INFO_BACKEND_RUNTIME_VERSION => {
            Version(limits.architecture.0, limits.architecture.1)
        }
        name::UR_DEVICE_INFO_MAX_WORK_ITEM_SIZES => sizes(limits.block),
        name::UR_DEVICE_INFO_MAX_WORK_GROUPS_3D => sizes(limits.grid),
        name::UR_DEVICE_INFO_MAX_WORK_GROUP_SIZE => Size(limits.block_threads as usize),
        name::UR_DEVICE_INFO_MAX_WORK_GROUPS => {
            let counts = limits.grid.map(|count| count as usize);
            Size(counts.into_iter().fold(1, usize::saturating_mul))
        }
        name::UR_DEVICE_INFO_MAX_NUM_SUB_GROUPS => {
            // A work-group has the most sub-groups if the sub-groups have the smallest size.
            let smallest = limits.subgroups.first().copied().unwrap_or(1);
            U32(limits.block_threads.div_ceil(smallest.max(1)))
        }
        name::UR_DEVICE_INFO_SUB_GROUP_SIZES_INTEL => List(limits.subgroups),
        name::UR_DEVICE_INFO_MAX_PARAMETER_SIZE => Size(limits.arguments as usize),
        name::UR_DEVICE_INFO_MAX_REGISTERS_PER_WORK_GROUP if limits.registers == 0 => Unsupported,
        name::UR_DEVICE_INFO_MAX_REGISTERS_PER_WORK_GROUP => U32(limits.registers),
        // Unified Runtime calls PTX a binary.
        name::UR_DEVICE_INFO_IL_VERSION => Text(match takes_spirv(limits) {
            true => limits.intermediate_languages,
            false => "",
        }),
        name::UR_DEVICE_INFO_PROGRAM_SET_SPECIALIZATION_CONSTANTS => Truth(takes_spirv(limits)),
        name::UR_DEVICE_INFO_MAX_CONSTANT_BUFFER_SIZE => U64(limits.constant_memory.into()),
        name::UR_DEVICE_INFO_LOCAL_MEM_TYPE => U32(local_memory::UR_DEVICE_LOCAL_MEM_TYPE_LOCAL.0),
        name::UR_DEVICE_INFO_LOCAL_MEM_SIZE => U64(limits.shared_memory.into()),
        name::UR_DEVICE_INFO_PRINTF_BUFFER_SIZE => Size(PRINTF_BUFFER_BYTES),
        name::UR_DEVICE_INFO_EXECUTION_CAPABILITIES => U32(UR_DEVICE_EXEC_CAPABILITY_FLAG_KERNEL),
        name::UR_DEVICE_INFO_KERNEL_LAUNCH_CAPABILITIES => U32(launch_capabilities(limits)),
        name::UR_DEVICE_INFO_COMPILER_AVAILABLE | name::UR_DEVICE_INFO_GLOBAL_VARIABLE_SUPPORT => {
            Truth(true)
        }
        name::UR_DEVICE_INFO_LINKER_AVAILABLE | name::UR_DEVICE_INFO_DYNAMIC_LINK_SUPPORT_EXP => {
            Truth(limits.linking)
        }
        name::UR_DEVICE_INFO_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS => is_at_least(7),
        name::UR_DEVICE_INFO_ASYNC_BARRIER => is_at_least(8),
        _ => return None,
    })
}

fn takes_spirv(limits: &KernelLimits) -> bool {
    limits.intermediate_languages.contains("SPIR-V")
}

fn launch_capabilities(limits: &KernelLimits) -> ur_kernel_launch_properties_flags_t {
    let when = |can, flag| if can { flag } else { 0 };
    when(
        !limits.local_arguments,
        UR_KERNEL_LAUNCH_PROPERTIES_FLAG_WORK_GROUP_MEMORY,
    ) | when(
        limits.cooperative,
        UR_KERNEL_LAUNCH_PROPERTIES_FLAG_COOPERATIVE,
    ) | when(
        limits.clusters,
        UR_KERNEL_LAUNCH_PROPERTIES_FLAG_CLUSTER_DIMENSION,
    )
}

/// Returns the value of a property on a device that runs no kernels.
fn without_kernels(device: &Device, asked: name) -> Option<Answer<'static>> {
    Some(match asked {
        name::UR_DEVICE_INFO_VERSION | name::UR_DEVICE_INFO_BACKEND_RUNTIME_VERSION => {
            Text(env!("CARGO_PKG_VERSION"))
        }
        name::UR_DEVICE_INFO_MAX_WORK_ITEM_SIZES | name::UR_DEVICE_INFO_MAX_WORK_GROUPS_3D => {
            Sizes([1; 3])
        }
        name::UR_DEVICE_INFO_MAX_WORK_GROUP_SIZE | name::UR_DEVICE_INFO_MAX_WORK_GROUPS => Size(1),
        name::UR_DEVICE_INFO_MAX_NUM_SUB_GROUPS | name::UR_DEVICE_INFO_SUB_GROUP_SIZES_INTEL => {
            U32(1)
        }
        name::UR_DEVICE_INFO_MAX_PARAMETER_SIZE => Size(1024),
        name::UR_DEVICE_INFO_MAX_REGISTERS_PER_WORK_GROUP => Unsupported,
        // Constants are in ordinary memory.
        name::UR_DEVICE_INFO_MAX_CONSTANT_BUFFER_SIZE => U64(device.inner().info().max_allocation),
        name::UR_DEVICE_INFO_LOCAL_MEM_TYPE => U32(local_memory::UR_DEVICE_LOCAL_MEM_TYPE_NONE.0),
        name::UR_DEVICE_INFO_LOCAL_MEM_SIZE => U64(0),
        name::UR_DEVICE_INFO_PRINTF_BUFFER_SIZE => Size(0),
        name::UR_DEVICE_INFO_EXECUTION_CAPABILITIES
        | name::UR_DEVICE_INFO_KERNEL_LAUNCH_CAPABILITIES => U32(0),
        name::UR_DEVICE_INFO_COMPILER_AVAILABLE
        | name::UR_DEVICE_INFO_LINKER_AVAILABLE
        | name::UR_DEVICE_INFO_GLOBAL_VARIABLE_SUPPORT
        | name::UR_DEVICE_INFO_DYNAMIC_LINK_SUPPORT_EXP
        | name::UR_DEVICE_INFO_PROGRAM_SET_SPECIALIZATION_CONSTANTS
        | name::UR_DEVICE_INFO_SUB_GROUP_INDEPENDENT_FORWARD_PROGRESS
        | name::UR_DEVICE_INFO_ASYNC_BARRIER => Truth(false),
        name::UR_DEVICE_INFO_IL_VERSION => Text(""),
        _ => return None,
    })
}

/// Returns the value of a property that does not depend on kernel support.
fn any(asked: name) -> Option<Answer<'static>> {
    Some(match asked {
        name::UR_DEVICE_INFO_MAX_WORK_ITEM_DIMENSIONS => U32(3),
        name::UR_DEVICE_INFO_MAX_CONSTANT_ARGS => U32(8),
        name::UR_DEVICE_INFO_BUILT_IN_KERNELS => Text(""),
        // Programs without kernels make this query too, so the query must not load the kernel
        // runtime. Assertions work on every device that runs kernels, except on Level Zero. There
        // SYCL implements them.
        name::UR_DEVICE_INFO_USE_NATIVE_ASSERT => {
            let description = description::get();
            Truth(description.has_assert && !description.program_targets.is_empty())
        }
        name::UR_DEVICE_INFO_KERNEL_SET_SPECIALIZATION_CONSTANTS
        | name::UR_DEVICE_INFO_BFLOAT16
        | name::UR_DEVICE_INFO_BFLOAT16_CONVERSIONS_NATIVE
        | name::UR_DEVICE_INFO_HOST_PIPE_READ_WRITE_SUPPORT
        | name::UR_DEVICE_INFO_ESIMD_SUPPORT => Truth(false),
        _ => return None,
    })
}
