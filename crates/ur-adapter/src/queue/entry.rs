//! The entry points for queues.

use super::{NATIVE, Queue};
use crate::abi::boundary::{MaybeIn, MaybeInMut, Out, entry_points};
use crate::abi::chain;
use crate::abi::description;
use crate::abi::failure::{Failure, Result};
use crate::abi::native::{of_driver, ownership};
use crate::abi::object::{Handle, MaybeHandle, Shared, release, retain};
use crate::abi::query::{Answer, Query};
use crate::context::Context;
use crate::discovery::Device;
use crosshandle::{QueueOrder, native::NativeObject};
use std::ptr::NonNull;
use unified_runtime_sys::{
    UR_QUEUE_FLAG_ON_DEVICE, UR_QUEUE_FLAG_ON_DEVICE_DEFAULT,
    UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE, UR_QUEUE_FLAG_PRIORITY_HIGH,
    UR_QUEUE_FLAG_PRIORITY_LOW, UR_QUEUE_FLAG_SUBMISSION_BATCHED,
    UR_QUEUE_FLAG_SUBMISSION_IMMEDIATE, UR_QUEUE_FLAGS_MASK, ur_native_handle_t,
    ur_queue_dditable_t, ur_queue_flags_t, ur_queue_handle_t, ur_queue_index_properties_t,
    ur_queue_info_t, ur_queue_native_desc_t, ur_queue_native_properties_t, ur_queue_properties_t,
    ur_result_t, ur_structure_type_t,
};

entry_points! {
    fn create(
        context: Handle<Context>,
        device: Handle<Device>,
        properties: MaybeIn<ur_queue_properties_t>,
        created: Out<ur_queue_handle_t>,
    ) {
        let flags = properties.map_or(0, |properties| properties.flags);
        check_flags(flags)?;
        if let Some(properties) = properties {
            // SAFETY: the caller passes a valid chain of property structures.
            unsafe { check_index(properties) }?;
        }
        let order = if flags & UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0 {
            QueueOrder::OutOfOrder
        } else {
            QueueOrder::InOrder
        };
        let inner = context.on(device)?.create_queue_with(order)?;
        created.put(Queue::create(context, device, inner, flags))
    }

    fn get_info(
        queue: Handle<Queue>,
        name: ur_queue_info_t,
        query(size, value, size_ret): Answer,
    ) {
        answer(queue, name, query)
    }

    fn get_native_handle(
        queue: Handle<Queue>,
        desc: MaybeInMut<ur_queue_native_desc_t>,
        native: Out<ur_native_handle_t>,
    ) {
        let kind = desc.and_then(|desc| NonNull::new(desc.pNativeData.cast::<i32>()));
        if let (Some(own), Some(kind)) = (description::get().queue_kind, kind) {
            // SAFETY: the caller guarantees that a non-null `pNativeData` is valid for a write of
            // the queue kind, which is an `i32`.
            unsafe { kind.write(own) };
        }
        let of_driver = queue.inner().native().map(NativeObject::raw);
        native.put(of_driver.unwrap_or_else(|| NATIVE.of(&queue.state)))
    }

    fn create_with_native_handle(
        native: ur_native_handle_t,
        context: Handle<Context>,
        device: MaybeHandle<Device>,
        properties: MaybeIn<ur_queue_native_properties_t>,
        created: Out<ur_queue_handle_t>,
    ) {
        if context.first().0.has_driver() {
            let device = device.unwrap_or(context.first().0);
            // SAFETY: the caller passes a valid chain of property structures.
            let flags = unsafe { native_flags(properties) }?;
            let is_owned = properties.is_some_and(|properties| properties.isNativeHandleOwned != 0);
            let inner = context.on(device)?;
            // SAFETY: the caller passes a queue of the driver. It keeps the queue alive unless it
            // transfers the ownership.
            let inner = unsafe { crosshandle::Queue::adopt(inner, of_driver(native), ownership(is_owned))? };
            return created.put(Queue::create(context, device, inner, flags));
        }
        let state = NATIVE.find(native)?;
        if device.is_some_and(|device| !std::ptr::eq(device, &*state.device)) {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE,
                "this native queue belongs to another device",
            ));
        }
        context.on(&state.device)?;
        let context = context.to_ref();
        created.put(Shared::hand_out(Shared::new(Queue { context, state })))
    }

    fn finish(queue: Handle<Queue>) {
        if let Some(capture) = queue.capture_slot().capture() {
            return Err(capture.refuse("a queue that is being captured runs no commands, so it cannot be waited for"));
        }
        Ok(queue.inner().finish()?)
    }

    fn flush(queue: Handle<Queue>) {
        Ok(queue.inner().flush()?)
    }
}

/// Checks the flags for a queue.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` for unknown flags. Returns `INVALID_QUEUE_PROPERTIES` for flags
/// that exclude each other, and for queues that kernels submit to.
fn check_flags(flags: ur_queue_flags_t) -> Result<()> {
    if flags & UR_QUEUE_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    let invalid = |message: &'static str| {
        let result = ur_result_t::UR_RESULT_ERROR_INVALID_QUEUE_PROPERTIES;
        Err(Failure::new(result, message))
    };
    let both = |one, other| flags & one != 0 && flags & other != 0;
    if both(UR_QUEUE_FLAG_PRIORITY_HIGH, UR_QUEUE_FLAG_PRIORITY_LOW) {
        return invalid("a queue cannot have both high and low priority");
    }
    if both(
        UR_QUEUE_FLAG_SUBMISSION_BATCHED,
        UR_QUEUE_FLAG_SUBMISSION_IMMEDIATE,
    ) {
        return invalid("a queue cannot submit both in batches and immediately");
    }
    if flags & (UR_QUEUE_FLAG_ON_DEVICE | UR_QUEUE_FLAG_ON_DEVICE_DEFAULT) != 0 {
        return invalid("device queues, to which kernels submit commands, are not supported");
    }
    Ok(())
}

/// Checks the index of the compute queue. The only valid index is 0.
///
/// # Errors
/// Returns `INVALID_VALUE` if the index is not 0.
///
/// # Safety
/// The chain that starts at `properties.pNext` must satisfy the contract of [`chain::find`].
unsafe fn check_index(properties: &ur_queue_properties_t) -> Result<()> {
    let stype = ur_structure_type_t::UR_STRUCTURE_TYPE_QUEUE_INDEX_PROPERTIES;
    // SAFETY: the caller upholds this function's contract.
    match unsafe { chain::find::<ur_queue_index_properties_t>(properties.pNext, stype) } {
        Some(index) if index.computeIndex > 0 => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
            "the device has one group of compute queues, whose index is 0",
        )),
        _ => Ok(()),
    }
}

/// Writes a property of a queue to the caller's memory.
fn answer(queue: &Shared<Queue>, name: ur_queue_info_t, query: Query<'_>) -> Result<()> {
    match name {
        ur_queue_info_t::UR_QUEUE_INFO_CONTEXT => query.value(queue.context.handle()),
        ur_queue_info_t::UR_QUEUE_INFO_DEVICE => query.value(queue.state.device.handle()),
        // Queues that kernels submit to are not supported.
        ur_queue_info_t::UR_QUEUE_INFO_DEVICE_DEFAULT => {
            query.value::<ur_queue_handle_t>(std::ptr::null_mut())
        }
        ur_queue_info_t::UR_QUEUE_INFO_FLAGS => query.value(queue.state.flags),
        ur_queue_info_t::UR_QUEUE_INFO_REFERENCE_COUNT => query.value(queue.references()),
        ur_queue_info_t::UR_QUEUE_INFO_SIZE => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_QUEUE,
            "only device queues have a size",
        )),
        ur_queue_info_t::UR_QUEUE_INFO_EMPTY => query.truth(queue.inner().is_idle()),
        _ => Err(Failure::ENUMERATION),
    }
}

/// Reads the properties for a native queue, and returns the queue flags.
///
/// # Errors
/// Returns `UNSUPPORTED_FEATURE` if queues of this kind cannot be adopted. Otherwise returns the
/// same errors as [`check_flags`].
///
/// # Safety
/// The chain that starts at `properties.pNext` must satisfy the contract of [`chain::find`]. A
/// `pNativeData` in it must be null or point to the queue kind, which is an `i32`.
unsafe fn native_flags(
    properties: Option<&ur_queue_native_properties_t>,
) -> Result<ur_queue_flags_t> {
    let next = properties.map_or(std::ptr::null(), |properties| properties.pNext.cast_const());
    // SAFETY: the caller ensures that the chain is valid, and that a non-null `pNativeData` points
    // to an `i32`.
    let (kind, own) = unsafe {
        let stype = ur_structure_type_t::UR_STRUCTURE_TYPE_QUEUE_NATIVE_DESC;
        let kind = chain::find::<ur_queue_native_desc_t>(next, stype)
            .and_then(|desc| desc.pNativeData.cast::<i32>().as_ref());
        let stype = ur_structure_type_t::UR_STRUCTURE_TYPE_QUEUE_PROPERTIES;
        (kind, chain::find::<ur_queue_properties_t>(next, stype))
    };
    if let (Some(kind), Some(own)) = (kind, description::get().queue_kind)
        && *kind != own
    {
        return Err(Failure::unsupported(
            "only immediate command lists can be adopted as queues",
        ));
    }
    let flags = own.map_or(0, |properties| properties.flags);
    check_flags(flags)?;
    Ok(flags)
}

pub(crate) const TABLE: ur_queue_dditable_t = ur_queue_dditable_t {
    pfnGetInfo: Some(get_info),
    pfnCreate: Some(create),
    pfnRetain: Some(retain::<Queue>),
    pfnRelease: Some(release::<Queue>),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
    pfnFinish: Some(finish),
    pfnFlush: Some(flush),
};
