//! What a kernel answers to queries.

use super::Kernel;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crate::program::enter_with_kernels;
use crate::query::Query;
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_device_handle_t, ur_kernel_group_info_t as group_info, ur_kernel_handle_t,
    ur_kernel_info_t as name, ur_kernel_sub_group_info_t as sub_group_info, ur_result_t,
};

pub(super) unsafe extern "C" fn get_info(
    handle: ur_kernel_handle_t,
    asked: name,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes a kernel's handle and a place for the answer.
        let (kernel, query) = unsafe {
            (
                Shared::<Kernel>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        answer(kernel, asked, query)
    })
}

fn answer(kernel: &Shared<Kernel>, asked: name, query: Query) -> Result<()> {
    let properties = || kernel.functions[0].plain.properties();
    match asked {
        name::UR_KERNEL_INFO_FUNCTION_NAME => query.text(&kernel.name),
        // Where the driver doesn't say, nobody knows.
        name::UR_KERNEL_INFO_NUM_ARGS => {
            let parameters = properties().parameters.as_ref();
            query.value(parameters.map_or(0, Vec::len) as u32)
        }
        name::UR_KERNEL_INFO_REFERENCE_COUNT => query.value(kernel.references()),
        name::UR_KERNEL_INFO_CONTEXT => query.value(kernel.program().context().handle()),
        name::UR_KERNEL_INFO_PROGRAM => query.value(kernel.program().handle()),
        name::UR_KERNEL_INFO_ATTRIBUTES => query.text(""),
        name::UR_KERNEL_INFO_NUM_REGS => query.value(properties().registers),
        // What is spilled is not told from other memory of a work-item.
        name::UR_KERNEL_INFO_SPILL_MEM_SIZE => {
            Err(ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION.into())
        }
        _ => Err(Failure::ENUMERATION),
    }
}

pub(super) unsafe extern "C" fn get_group_info(
    handle: ur_kernel_handle_t,
    device: ur_device_handle_t,
    asked: group_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles and a place for the answer.
        let (kernel, device, query) = unsafe {
            (
                Shared::<Kernel>::from_handle(handle)?,
                Shared::<Device>::from_handle(device)?,
                Query::new(size, value, size_ret)?,
            )
        };
        answer_group(kernel, device, asked, query)
    })
}

fn answer_group(
    kernel: &Kernel,
    device: &Shared<Device>,
    asked: group_info,
    query: Query,
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
            query.value(limits.device.subgroup as usize)
        }
        group_info::UR_KERNEL_GROUP_INFO_PRIVATE_MEM_SIZE => query.value(properties.local_memory),
        group_info::UR_KERNEL_GROUP_INFO_COMPILE_MAX_WORK_GROUP_SIZE => {
            query.value(limits.metadata.largest_size.unwrap_or_default())
        }
        group_info::UR_KERNEL_GROUP_INFO_COMPILE_MAX_LINEAR_WORK_GROUP_SIZE => {
            query.value(limits.metadata.most_items.unwrap_or_default())
        }
        _ => Err(Failure::ENUMERATION),
    }
}

pub(super) unsafe extern "C" fn get_sub_group_info(
    handle: ur_kernel_handle_t,
    device: ur_device_handle_t,
    asked: sub_group_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles and a place for the answer.
        let (kernel, device, query) = unsafe {
            (
                Shared::<Kernel>::from_handle(handle)?,
                Shared::<Device>::from_handle(device)?,
                Query::new(size, value, size_ret)?,
            )
        };
        let limits = kernel.limits(device)?;
        let sub_group = limits.device.subgroup;
        match asked {
            sub_group_info::UR_KERNEL_SUB_GROUP_INFO_MAX_SUB_GROUP_SIZE => query.value(sub_group),
            sub_group_info::UR_KERNEL_SUB_GROUP_INFO_MAX_NUM_SUB_GROUPS => {
                query.value((limits.items as u32).div_ceil(sub_group.max(1)))
            }
            // 0 for what the source doesn't ask for.
            sub_group_info::UR_KERNEL_SUB_GROUP_INFO_COMPILE_NUM_SUB_GROUPS => query.value(0_u32),
            sub_group_info::UR_KERNEL_SUB_GROUP_INFO_SUB_GROUP_SIZE_INTEL => {
                query.value(limits.metadata.sub_group.unwrap_or_default())
            }
            _ => Err(Failure::ENUMERATION),
        }
    })
}
