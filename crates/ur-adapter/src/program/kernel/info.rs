//! Queries about kernels.

use super::Kernel;
use crate::abi::boundary::entry_points;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Shared};
use crate::abi::query::{Answer, Query};
use crate::discovery::Device;
use crate::program::enter_with_kernels;
use unified_runtime_sys::{
    ur_kernel_group_info_t as group_info, ur_kernel_info_t as name,
    ur_kernel_sub_group_info_t as sub_group_info, ur_result_t,
};

entry_points! {
    in enter_with_kernels;

    pub(super) fn get_info(
        kernel: Handle<Kernel>,
        asked: name,
        query(size, value, size_ret): Answer,
    ) {
        answer(kernel, asked, query)
    }

    pub(super) fn get_group_info(
        kernel: Handle<Kernel>,
        device: Handle<Device>,
        asked: group_info,
        query(size, value, size_ret): Answer,
    ) {
        answer_group(kernel, device, asked, query)
    }

    pub(super) fn get_sub_group_info(
        kernel: Handle<Kernel>,
        device: Handle<Device>,
        asked: sub_group_info,
        query(size, value, size_ret): Answer,
    ) {
        let limits = kernel.limits(device)?;
        let properties = kernel.on(device)?.plain.properties();
        let sub_group = properties.subgroup.unwrap_or(limits.device.subgroup);
        match asked {
            sub_group_info::UR_KERNEL_SUB_GROUP_INFO_MAX_SUB_GROUP_SIZE => query.value(sub_group),
            sub_group_info::UR_KERNEL_SUB_GROUP_INFO_MAX_NUM_SUB_GROUPS => {
                query.value((limits.items as u32).div_ceil(sub_group.max(1)))
            }
            // 0 means that the kernel's source does not specify a number of sub-groups.
            sub_group_info::UR_KERNEL_SUB_GROUP_INFO_COMPILE_NUM_SUB_GROUPS => query.value(0_u32),
            sub_group_info::UR_KERNEL_SUB_GROUP_INFO_SUB_GROUP_SIZE_INTEL => {
                query.value(limits.metadata.sub_group.unwrap_or_default())
            }
            _ => Err(Failure::ENUMERATION),
        }
    }
}

/// Writes a property of a kernel to the caller's memory.
fn answer(kernel: &Shared<Kernel>, asked: name, query: Query<'_>) -> Result<()> {
    let properties = || kernel.functions[0].plain.properties();
    match asked {
        name::UR_KERNEL_INFO_FUNCTION_NAME => query.text(&kernel.name),
        // 0 means that the driver does not report the number of arguments.
        name::UR_KERNEL_INFO_NUM_ARGS => {
            query.value(properties().parameter_count.unwrap_or(0) as u32)
        }
        name::UR_KERNEL_INFO_REFERENCE_COUNT => query.value(kernel.references()),
        name::UR_KERNEL_INFO_CONTEXT => query.value(kernel.program().context().handle()),
        name::UR_KERNEL_INFO_PROGRAM => query.value(kernel.program().handle()),
        name::UR_KERNEL_INFO_ATTRIBUTES => query.text(""),
        name::UR_KERNEL_INFO_NUM_REGS => query.value(properties().registers),
        // Drivers do not distinguish spilled registers from other private memory of a work-item.
        name::UR_KERNEL_INFO_SPILL_MEM_SIZE => {
            Err(ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION.into())
        }
        _ => Err(Failure::ENUMERATION),
    }
}

/// Writes a property of a kernel's work-groups on one device to the caller's memory.
fn answer_group(
    kernel: &Kernel,
    device: &Shared<Device>,
    asked: group_info,
    query: Query<'_>,
) -> Result<()> {
    let limits = kernel.limits(device)?;
    let properties = kernel.on(device)?.plain.properties();
    match asked {
        group_info::UR_KERNEL_GROUP_INFO_GLOBAL_WORK_SIZE => {
            let (block, grid) = (limits.device.block, limits.device.grid);
            let size = |index| (block[index] as usize).saturating_mul(grid[index] as usize);
            query.value([0, 1, 2].map(size))
        }
        group_info::UR_KERNEL_GROUP_INFO_WORK_GROUP_SIZE => query.value(limits.items),
        group_info::UR_KERNEL_GROUP_INFO_COMPILE_WORK_GROUP_SIZE => {
            query.value(limits.metadata.required_size.unwrap_or_default())
        }
        group_info::UR_KERNEL_GROUP_INFO_LOCAL_MEM_SIZE => query.value(properties.shared_memory),
        group_info::UR_KERNEL_GROUP_INFO_PREFERRED_WORK_GROUP_SIZE_MULTIPLE => {
            let multiple = properties.block_multiple.unwrap_or(limits.device.subgroup);
            query.value(multiple as usize)
        }
        group_info::UR_KERNEL_GROUP_INFO_PRIVATE_MEM_SIZE => query.value(properties.local_memory),
        group_info::UR_KERNEL_GROUP_INFO_COMPILE_MAX_WORK_GROUP_SIZE => {
            let metadata = &limits.metadata;
            let size = metadata.largest_size.or(metadata.extents);
            query.value(size.unwrap_or_default())
        }
        group_info::UR_KERNEL_GROUP_INFO_COMPILE_MAX_LINEAR_WORK_GROUP_SIZE => {
            query.value(limits.metadata.most_items.unwrap_or_default())
        }
        _ => Err(Failure::ENUMERATION),
    }
}
