//! Device properties for UR's experimental features, except those for images.

use super::Answer::{self, Truth, U32};
use crate::abi::description;
use crate::discovery::Device;
use unified_runtime_sys::{
    UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_EVENTS,
    UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_GLOBAL_WORK_OFFSET,
    UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_GLOBAL_WORK_SIZE,
    UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_KERNEL_ARGUMENTS,
    UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_KERNEL_HANDLE,
    UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_LOCAL_WORK_SIZE, ur_device_info_t as name,
    ur_device_type_t,
};

/// The properties of a recorded command that an update can change.
const UPDATES: u32 = UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_EVENTS
    | UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_KERNEL_ARGUMENTS
    | UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_LOCAL_WORK_SIZE
    | UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_GLOBAL_WORK_SIZE
    | UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_GLOBAL_WORK_OFFSET
    | UR_DEVICE_COMMAND_BUFFER_UPDATE_CAPABILITY_FLAG_KERNEL_HANDLE;

pub(super) fn answer<'a>(device: &'a Device, asked: name) -> Option<Answer<'a>> {
    let capabilities = &device.inner().info().capabilities;
    Some(match asked {
        name::UR_DEVICE_INFO_IPC_MEMORY_SUPPORT_EXP => Truth(capabilities.memory_sharing),
        name::UR_DEVICE_INFO_IPC_PHYSICAL_MEMORY_SUPPORT_EXP => {
            Truth(capabilities.physical_memory_sharing)
        }
        name::UR_DEVICE_INFO_IPC_EVENT_SUPPORT_EXP => Truth(capabilities.event_sharing),

        name::UR_DEVICE_INFO_REUSABLE_EVENTS_SUPPORT_EXP
        | name::UR_DEVICE_INFO_PER_EVENT_PROFILING_SUPPORT_EXP
        | name::UR_DEVICE_INFO_TIMESTAMP_RECORDING_SUPPORT_EXP
        | name::UR_DEVICE_INFO_LOW_POWER_EVENTS_SUPPORT_EXP
        | name::UR_DEVICE_INFO_ENQUEUE_NATIVE_COMMAND_SUPPORT_EXP
        | name::UR_DEVICE_INFO_ENQUEUE_HOST_TASK_SUPPORT_EXP
        | name::UR_DEVICE_INFO_ASYNC_USM_ALLOCATIONS_SUPPORT_EXP
        | name::UR_DEVICE_INFO_USM_CONTEXT_MEMCPY_SUPPORT_EXP
        | name::UR_DEVICE_INFO_USM_HOST_ALLOC_REGISTER_SUPPORT_EXP
        | name::UR_DEVICE_INFO_USM_P2P_SUPPORT_EXP
        | name::UR_DEVICE_INFO_DEVICE_WAIT_SUPPORT_EXP => Truth(true),

        // Unless this adapter replays graphs itself, command buffers run as graphs of the driver.
        name::UR_DEVICE_INFO_COMMAND_BUFFER_SUPPORT_EXP
        | name::UR_DEVICE_INFO_COMMAND_BUFFER_EVENT_SUPPORT_EXP
        | name::UR_DEVICE_INFO_GRAPH_RECORD_AND_REPLAY_SUPPORT_EXP => {
            Truth(description::get().replays_graphs || capabilities.native_graphs)
        }

        // Native commands of a child are nodes of the driver's graph.
        name::UR_DEVICE_INFO_COMMAND_BUFFER_SUBGRAPH_SUPPORT_EXP => {
            Truth(capabilities.native_graphs)
        }

        // Exportable memory is not supported.
        name::UR_DEVICE_INFO_MEMORY_EXPORT_EXPORTABLE_DEVICE_MEM_EXP
        // These features of kernels and programs are not supported.
        | name::UR_DEVICE_INFO_CLOCK_SUB_GROUP_SUPPORT_EXP
        | name::UR_DEVICE_INFO_CLOCK_WORK_GROUP_SUPPORT_EXP
        | name::UR_DEVICE_INFO_CLOCK_DEVICE_SUPPORT_EXP
        | name::UR_DEVICE_INFO_MULTI_DEVICE_COMPILE_SUPPORT_EXP => Truth(false),
        name::UR_DEVICE_INFO_IS_INTEGRATED_GPU => {
            let is_gpu = description::get().device_type == ur_device_type_t::UR_DEVICE_TYPE_GPU;
            Truth(is_gpu && capabilities.unified_memory)
        }
        name::UR_DEVICE_INFO_COMMAND_BUFFER_UPDATE_CAPABILITIES_EXP => U32(UPDATES),
        name::UR_DEVICE_INFO_2D_BLOCK_ARRAY_CAPABILITIES_EXP => U32(0),
        _ => return None,
    })
}
