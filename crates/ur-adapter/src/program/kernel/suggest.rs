//! Suggestions for the size and the number of a kernel's work-groups.

use super::{Kernel, pack, read_arguments, read_sizes};
use crate::abi::boundary::{List, Out, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Shared};
use crate::discovery::Device;
use crate::program::enter_with_kernels;
use crate::queue::Queue;
use crate::queue::destination::CheckOnly;
use std::ptr;
use unified_runtime_sys::{
    ur_exp_kernel_arg_properties_t, ur_kernel_handle_t, ur_queue_handle_t, ur_result_t,
};

pub(super) unsafe extern "C" fn local_work_size(
    kernel: ur_kernel_handle_t,
    queue: ur_queue_handle_t,
    dimensions: u32,
    offset: *const usize,
    global: *const usize,
    suggested: *mut usize,
) -> ur_result_t {
    let (count, none) = (0, ptr::null());
    // SAFETY: the caller upholds this function's contract. The list of kernel arguments is empty.
    unsafe {
        local_work_size_with_args(
            kernel, queue, dimensions, offset, global, count, none, suggested,
        )
    }
}

entry_points! {
    in enter_with_kernels;

    pub(super) fn local_work_size_with_args(
        kernel: Handle<Kernel>,
        queue: Handle<Queue>,
        dimensions: u32,
        offset: *const usize,
        global: *const usize,
        arguments(count, first): List<ur_exp_kernel_arg_properties_t>,
        suggested: Out<usize>,
    ) {
        not_null(offset)?;
        not_null(global)?;
        // SAFETY: the caller passes an array with `dimensions` elements, and kernel arguments whose
        // values match their types.
        let (global, arguments) = unsafe {
            (
                read_sizes(dimensions, global, 1)?.ok_or(Failure::NULL_POINTER)?,
                read_arguments(&CheckOnly(queue), arguments)?,
            )
        };
        // If the caller passes no arguments, the kernel is assumed to use no local memory.
        let local_memory = match arguments.is_empty() {
            true => 0,
            false => pack(&arguments, None, None, 0)?.local,
        };
        let size = kernel.suggest(queue.device(), global, local_memory)?;
        // SAFETY: the caller's memory has room for `dimensions` elements.
        unsafe { suggested.put_all(&size[..dimensions as usize]) };
        Ok(())
    }

    pub(super) fn max_cooperative_group_count(
        kernel: Handle<Kernel>,
        device: Handle<Device>,
        dimensions: u32,
        local: *const usize,
        shared_memory: usize,
        count: Out<u32>,
    ) {
        // SAFETY: the caller passes null or an array with `dimensions` elements.
        let local = unsafe { read_sizes(dimensions, local, 1) }?.ok_or(Failure::NULL_POINTER)?;
        count.put(groups(kernel, device, local, shared_memory)?)
    }
}

/// Returns the maximum number of work-groups that can run at the same time, so that they can wait
/// for each other. Returns 0 if the group size is invalid.
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
