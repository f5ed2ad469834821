//! Allocating and freeing.

use super::allocations::Kind;
use super::{Pool, request};
use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::device::Device;
use crate::enqueue::wait_while;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crosshandle::{AllocationOptions, MemoryKind};
use std::ffi::c_void;
use unified_runtime_sys::{
    ur_context_handle_t, ur_device_handle_t, ur_result_t, ur_usm_desc_t, ur_usm_pool_handle_t,
};

/// What to allocate.
pub(crate) struct Request {
    pub(crate) kind: MemoryKind,
    pub(crate) len: usize,
    /// A power of two, in bytes; 0 for the usual one.
    pub(crate) align: usize,
}

/// Allocates on a device, and returns where. What is memory of the host then belongs to none.
pub(crate) fn allocate(
    context: &Shared<Context>,
    on: &Shared<Device>,
    pool: Option<&Shared<Pool>>,
    request: &Request,
) -> Result<*mut c_void> {
    let inner = context.on(on)?;
    let invalid_size = ur_result_t::UR_RESULT_ERROR_INVALID_USM_SIZE;
    if request.len == 0 {
        return Err(Failure::of(invalid_size));
    }
    let most = on.inner().info().max_allocation;
    if request.len as u64 > most {
        return Err(Failure::new(
            invalid_size,
            format!("one allocation on this device can have {most} bytes at most"),
        ));
    }
    let mut options = AllocationOptions::new(request.len).kind(request.kind);
    if request.align != 0 {
        options = options.align(request.align);
    }
    let memory = match pool {
        Some(pool) => pool.on(context, on)?.allocate_with(options),
        None => inner.allocate_with(options),
    };
    let memory = memory.map_err(|error| match error {
        // Of all arguments, only the alignment can be wrong yet.
        crosshandle::Error::InvalidArgument(_) => {
            Failure::from(error).with_result(ur_result_t::UR_RESULT_ERROR_INVALID_VALUE)
        }
        error => error.into(),
    })?;
    let (kind, device) = match request.kind {
        MemoryKind::Host => (Kind::Host, None),
        MemoryKind::Shared => (Kind::Shared, Some(on)),
        _ => (Kind::Device, Some(on)),
    };
    Ok(context.state().usm.add(kind, device, pool, memory))
}

pub(super) unsafe extern "C" fn host(
    context: ur_context_handle_t,
    desc: *const ur_usm_desc_t,
    pool: ur_usm_pool_handle_t,
    size: usize,
    memory: *mut *mut c_void,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle, and null or a pool's.
        let (context, pool) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<Pool>::from_handle(pool).ok(),
            )
        };
        not_null(memory)?;
        let request = Request {
            kind: MemoryKind::Host,
            len: size,
            // SAFETY: the caller passes null or a description.
            align: unsafe { request::alignment(desc) }?,
        };
        let start = allocate(context, context.first().0, pool, &request)?;
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(memory, start) }
    })
}

pub(super) unsafe extern "C" fn device(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    desc: *const ur_usm_desc_t,
    pool: ur_usm_pool_handle_t,
    size: usize,
    memory: *mut *mut c_void,
) -> ur_result_t {
    // SAFETY: as promised to this function.
    enter(|| unsafe {
        on_device(
            MemoryKind::Device,
            context,
            device,
            desc,
            pool,
            size,
            memory,
        )
    })
}

pub(super) unsafe extern "C" fn shared(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    desc: *const ur_usm_desc_t,
    pool: ur_usm_pool_handle_t,
    size: usize,
    memory: *mut *mut c_void,
) -> ur_result_t {
    // SAFETY: as promised to this function.
    enter(|| unsafe {
        on_device(
            MemoryKind::Shared,
            context,
            device,
            desc,
            pool,
            size,
            memory,
        )
    })
}

/// # Safety
/// As the entry points that it is part of: handles are null or good, as are the description and
/// the place for the result.
unsafe fn on_device(
    kind: MemoryKind,
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    desc: *const ur_usm_desc_t,
    pool: ur_usm_pool_handle_t,
    len: usize,
    memory: *mut *mut c_void,
) -> Result<()> {
    // SAFETY: as promised to this function.
    unsafe {
        let context = Shared::<Context>::from_handle(context)?;
        let device = Shared::<Device>::from_handle(device)?;
        let pool = Shared::<Pool>::from_handle(pool).ok();
        not_null(memory)?;
        let align = request::alignment(desc)?;
        let request = Request { kind, len, align };
        put(memory, allocate(context, device, pool, &request)?)
    }
}

/// Rows start at multiples of this many bytes: a line of a cache, and more than any element that
/// devices access at once.
const PITCH: usize = 64;

pub(super) unsafe extern "C" fn pitched(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    desc: *const ur_usm_desc_t,
    pool: ur_usm_pool_handle_t,
    width: usize,
    height: usize,
    element_size: usize,
    memory: *mut *mut c_void,
    pitch: *mut usize,
) -> ur_result_t {
    enter(|| {
        not_null(pitch)?;
        let size = ur_result_t::UR_RESULT_ERROR_INVALID_USM_SIZE;
        let unit = PITCH.max(element_size.checked_next_power_of_two().unwrap_or(PITCH));
        let row = width.checked_next_multiple_of(unit);
        let row = row.ok_or(Failure::of(size))?;
        let len = row.checked_mul(height).ok_or(Failure::of(size))?;
        // SAFETY: as promised to this function.
        unsafe {
            on_device(MemoryKind::Device, context, device, desc, pool, len, memory)?;
            put(pitch, row)
        }
    })
}

/// Waits for the commands that use the memory, as UR wants it. A function that a queue runs can't
/// wait for what that queue does later, nor anybody for who releases a buffer of the memory; it is
/// kept until that is done.
pub(super) unsafe extern "C" fn free(
    context: ur_context_handle_t,
    memory: *mut c_void,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(memory)?;
        let allocation = context.state().usm.free(memory)?;
        wait_while(|| allocation.is_in_use());
        Ok(())
    })
}
