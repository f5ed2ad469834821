//! Entry points that allocate and free unified shared memory (USM).

use super::request::Alignment;
use crate::abi::boundary::{Out, entry_points, not_null};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, MaybeHandle, Shared};
use crate::context::Context;
use crate::context::allocations::Kind;
use crate::context::pools::Pool;
use crate::discovery::Device;
use crate::queue::host_function::wait_while;
use crosshandle::{AllocationOptions, MemoryKind};
use std::ffi::c_void;
use unified_runtime_sys::ur_result_t;

/// Alignment of rows in pitched allocations, in bytes. It is the size of a cache line, and is
/// larger than any element that devices access in one operation.
const ROW_ALIGN_BYTES: usize = 64;

/// The requested properties of an allocation.
pub(crate) struct Request {
    pub(crate) kind: MemoryKind,
    /// The length in bytes.
    pub(crate) len: usize,
    /// The alignment in bytes, which is a power of two. 0 selects the default alignment.
    pub(crate) align: usize,
}

/// Allocates memory through a device, and returns the memory's address. Host memory is not assigned
/// to the device.
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
        // The other arguments have been checked, so only the alignment can be invalid.
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

/// Defines the entry points that allocate memory through a device. They differ only in the kind of
/// memory.
macro_rules! of_device {
    ($($name:ident: $kind:ident,)*) => {
        entry_points! {$(
            pub(super) fn $name(
                context: Handle<Context>,
                device: Handle<Device>,
                align: Alignment,
                pool: MaybeHandle<Pool>,
                len: usize,
                memory: Out<*mut c_void>,
            ) {
                let kind = MemoryKind::$kind;
                memory.put(allocate(context, device, pool, &Request { kind, len, align })?)
            }
        )*}
    };
}

of_device! {
    device: Device,
    shared: Shared,
}

entry_points! {
    pub(super) fn host(
        context: Handle<Context>,
        align: Alignment,
        pool: MaybeHandle<Pool>,
        len: usize,
        memory: Out<*mut c_void>,
    ) {
        let (device, _) = context.first();
        let kind = MemoryKind::Host;
        memory.put(allocate(context, device, pool, &Request { kind, len, align })?)
    }

    pub(super) fn pitched(
        context: Handle<Context>,
        device: Handle<Device>,
        align: Alignment,
        pool: MaybeHandle<Pool>,
        width: usize,
        height: usize,
        element_size: usize,
        memory: Out<*mut c_void>,
        pitch: Out<usize>,
    ) {
        let too_large = || Failure::of(ur_result_t::UR_RESULT_ERROR_INVALID_USM_SIZE);
        let unit = element_size.checked_next_power_of_two().unwrap_or(0);
        let row = width.checked_next_multiple_of(unit.max(ROW_ALIGN_BYTES));
        let row = row.ok_or_else(too_large)?;
        let len = row.checked_mul(height).ok_or_else(too_large)?;
        // The memory receives the alignment of image memory, because callers may create images from
        // it.
        let align = align.max(device.views().map_or(0, |views| views.start_alignment));
        let kind = MemoryKind::Device;
        memory.put(allocate(context, device, pool, &Request { kind, len, align })?)?;
        pitch.put(row)
    }

    /// Frees memory after waiting for the commands that use it, as UR requires.
    ///
    /// The call does not wait in two cases. A function that a queue runs cannot wait for later
    /// commands on that queue. If a buffer was created from the memory, no thread can wait for the
    /// buffer's release. In both cases, the memory is freed when its last use ends.
    pub(super) fn free(context: Handle<Context>, memory: *mut c_void) {
        not_null(memory)?;
        let allocation = context.state().usm.free(memory)?;
        wait_while(|| allocation.is_in_use());
        Ok(())
    }
}
