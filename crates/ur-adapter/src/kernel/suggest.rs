//! With how many work-items and work-groups a kernel is best launched.

use super::{Kernel, check_dimensions, pack, read_arguments, read_sizes};
use crate::boundary::{not_null, put};
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crate::program::enter_with_kernels;
use crate::queue::Queue;
use std::ptr;
use unified_runtime_sys::{
    ur_device_handle_t, ur_exp_kernel_arg_properties_t, ur_kernel_handle_t, ur_queue_handle_t,
    ur_result_t,
};

pub(super) unsafe extern "C" fn local_work_size(
    kernel: ur_kernel_handle_t,
    queue: ur_queue_handle_t,
    dimensions: u32,
    offset: *const usize,
    global: *const usize,
    suggested: *mut usize,
) -> ur_result_t {
    // SAFETY: as promised to this function; there are no arguments.
    unsafe {
        local_work_size_with_args(
            kernel,
            queue,
            dimensions,
            offset,
            global,
            0,
            ptr::null(),
            suggested,
        )
    }
}

pub(super) unsafe extern "C" fn local_work_size_with_args(
    kernel: ur_kernel_handle_t,
    queue: ur_queue_handle_t,
    dimensions: u32,
    offset: *const usize,
    global: *const usize,
    count: u32,
    arguments: *const ur_exp_kernel_arg_properties_t,
    suggested: *mut usize,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles.
        let (kernel, queue) = unsafe {
            (
                Shared::<Kernel>::from_handle(kernel)?,
                Shared::<Queue>::from_handle(queue)?,
            )
        };
        not_null(offset)?;
        not_null(global)?;
        not_null(suggested)?;
        // SAFETY: the caller passes as many numbers and arguments as it says.
        let (global, arguments) = unsafe {
            (
                read_sizes(dimensions, global, 1)?.ok_or(Failure::NULL_POINTER)?,
                read_arguments(queue.context(), queue.device(), count, arguments)?,
            )
        };
        // Without its arguments, a kernel is taken to use no local memory.
        let local_memory = match arguments.is_empty() {
            true => 0,
            false => pack(&arguments, None, None, 0)?.local,
        };
        let size = kernel.suggest(queue.device(), global, local_memory)?;
        for (index, size) in size.iter().take(dimensions as usize).enumerate() {
            // SAFETY: there is room for as many numbers as there are dimensions.
            unsafe { suggested.add(index).write(*size) };
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn max_cooperative_group_count(
    kernel: ur_kernel_handle_t,
    device: ur_device_handle_t,
    dimensions: u32,
    local: *const usize,
    shared_memory: usize,
    count: *mut u32,
) -> ur_result_t {
    enter_with_kernels(|| {
        // SAFETY: the caller passes handles.
        let (kernel, device) = unsafe {
            (
                Shared::<Kernel>::from_handle(kernel)?,
                Shared::<Device>::from_handle(device)?,
            )
        };
        not_null(local)?;
        not_null(count)?;
        check_dimensions(dimensions)?;
        // SAFETY: the caller passes as many numbers as it says.
        let local = unsafe { read_sizes(dimensions, local, 1) }?.ok_or(Failure::NULL_POINTER)?;
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(count, groups(kernel, device, local, shared_memory)?) }
    })
}

/// How many groups can wait for each other; none of a size that the kernel can't have.
fn groups(
    kernel: &Kernel,
    device: &Shared<Device>,
    local: [usize; 3],
    shared_memory: usize,
) -> Result<u32> {
    let function = kernel.on(device)?;
    if !kernel.limits(device)?.device.cooperative {
        return Err(Failure::unsupported(
            "groups cannot wait for each other on this device",
        ));
    }
    let properties = function.plain.properties();
    let items = local
        .iter()
        .try_fold(1_usize, |all, size| all.checked_mul(*size));
    let most = properties.block_threads as usize;
    let items = items.filter(|items| (1..=most).contains(items));
    match items {
        Some(items) if shared_memory <= properties.dynamic_shared_memory => Ok(function
            .plain
            .concurrent_blocks(items as u32, shared_memory)?),
        _ => Ok(0),
    }
}
