//! Queues: commands run in order, or as soon as what they wait for is there.

use crate::boundary::{enter, not_null, put, put_optional};
use crate::chain;
use crate::context::Context;
use crate::description;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::native::{NativeHandles, of_driver, ownership};
use crate::object::{Object, Ref, Shared, release, retain};
use crate::query::Query;
use crate::stub::{Reason, Stub};
use crosshandle::{Command, NativeObject, QueueOrder};
use std::convert::Infallible;
use std::ffi::c_void;
use std::sync::Arc;
use unified_runtime_sys::{
    UR_QUEUE_FLAG_LOW_POWER_EVENTS_SUPPORT_EXP, UR_QUEUE_FLAG_ON_DEVICE,
    UR_QUEUE_FLAG_ON_DEVICE_DEFAULT, UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE,
    UR_QUEUE_FLAG_PRIORITY_HIGH, UR_QUEUE_FLAG_PRIORITY_LOW, UR_QUEUE_FLAG_PROFILING_ENABLE,
    UR_QUEUE_FLAG_SUBMISSION_BATCHED, UR_QUEUE_FLAG_SUBMISSION_IMMEDIATE, UR_QUEUE_FLAGS_MASK,
    ur_bool_t, ur_context_handle_t, ur_device_handle_t, ur_native_handle_t, ur_queue_dditable_t,
    ur_queue_exp_dditable_t, ur_queue_flags_t, ur_queue_handle_t, ur_queue_handle_t_,
    ur_queue_index_properties_t, ur_queue_info_t, ur_queue_native_desc_t,
    ur_queue_native_properties_t, ur_queue_properties_t, ur_result_t, ur_structure_type_t,
};

/// A queue. Several UR queues share one [`QueueState`] if they were made from one native handle.
pub(crate) struct Queue {
    context: Ref<Context>,
    state: Arc<QueueState>,
}

/// What a queue is.
pub(crate) struct QueueState {
    device: Ref<Device>,
    inner: crosshandle::Queue,
    flags: ur_queue_flags_t,
}

static NATIVE: NativeHandles<QueueState> = NativeHandles::new();

impl Object for Queue {
    type Opaque = ur_queue_handle_t_;
}

impl QueueState {
    /// The library's queue.
    #[inline]
    pub(crate) fn inner(&self) -> &crosshandle::Queue {
        &self.inner
    }
}

impl Queue {
    /// Makes a queue for the caller.
    fn create(
        context: &Shared<Context>,
        device: &Shared<Device>,
        inner: crosshandle::Queue,
        flags: ur_queue_flags_t,
    ) -> ur_queue_handle_t {
        let state = Arc::new(QueueState {
            device: device.to_ref(),
            inner,
            flags,
        });
        device.register_queue(&state);
        let context = context.to_ref();
        Shared::hand_out(Shared::new(Self { context, state }))
    }

    pub(crate) fn context(&self) -> &Ref<Context> {
        &self.context
    }

    pub(crate) fn device(&self) -> &Ref<Device> {
        &self.state.device
    }

    /// The library's queue.
    #[inline]
    pub(crate) fn inner(&self) -> &crosshandle::Queue {
        &self.state.inner
    }

    /// Whether its events take timestamps.
    #[inline]
    pub(crate) fn is_profiling(&self) -> bool {
        self.state.flags & UR_QUEUE_FLAG_PROFILING_ENABLE != 0
    }

    /// Whether waiting for its events shall sleep at once.
    #[inline]
    pub(crate) fn is_low_power(&self) -> bool {
        self.state.flags & UR_QUEUE_FLAG_LOW_POWER_EVENTS_SUPPORT_EXP != 0
    }
}

impl Drop for Queue {
    /// What was submitted still runs, and may use what only the context keeps: addresses with
    /// physical memory.
    fn drop(&mut self) {
        if self.inner().is_idle() {
            return;
        }
        let context = Ref::clone(&self.context);
        let release = Command::call(move || {
            drop(context);
            Ok::<_, Infallible>(())
        });
        if let Err(error) = self.inner().submit(release.after_earlier()) {
            tracing::error!(%error, "a context may go before the commands that use it");
        }
    }
}

/// # Errors
/// `INVALID_ENUMERATION`, `INVALID_QUEUE_PROPERTIES`.
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
        return invalid("there are no queues on the device, to which only kernels could submit");
    }
    Ok(())
}

unsafe extern "C" fn create(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    properties: *const ur_queue_properties_t,
    created: *mut ur_queue_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles, and null or properties.
        let (context, device, properties) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<Device>::from_handle(device)?,
                properties.as_ref(),
            )
        };
        not_null(created)?;
        let flags = properties.map_or(0, |properties| properties.flags);
        check_flags(flags)?;
        if let Some(properties) = properties {
            // SAFETY: the caller passes a chain of properties.
            unsafe { check_index(properties) }?;
        }
        let order = if flags & UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE != 0 {
            QueueOrder::OutOfOrder
        } else {
            QueueOrder::InOrder
        };
        let inner = context.on(device)?.create_queue_with(order)?;
        let queue = Queue::create(context, device, inner, flags);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, queue) }
    })
}

/// # Errors
/// `INVALID_VALUE` for any but the first of a device's groups of compute queues.
///
/// # Safety
/// What follows the properties is as [`chain::find`] demands it.
unsafe fn check_index(properties: &ur_queue_properties_t) -> Result<()> {
    let stype = ur_structure_type_t::UR_STRUCTURE_TYPE_QUEUE_INDEX_PROPERTIES;
    // SAFETY: as promised to this function.
    match unsafe { chain::find::<ur_queue_index_properties_t>(properties.pNext, stype) } {
        Some(index) if index.computeIndex > 0 => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
            "the device has one group of compute queues, whose index is 0",
        )),
        _ => Ok(()),
    }
}

unsafe extern "C" fn get_info(
    handle: ur_queue_handle_t,
    name: ur_queue_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a queue's handle and a place for the answer.
        let (queue, query) = unsafe {
            (
                Shared::<Queue>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        answer(queue, name, query)
    })
}

fn answer(queue: &Shared<Queue>, name: ur_queue_info_t, query: Query) -> Result<()> {
    match name {
        ur_queue_info_t::UR_QUEUE_INFO_CONTEXT => query.value(queue.context.handle()),
        ur_queue_info_t::UR_QUEUE_INFO_DEVICE => query.value(queue.state.device.handle()),
        // There are none on the device.
        ur_queue_info_t::UR_QUEUE_INFO_DEVICE_DEFAULT => {
            query.value::<ur_queue_handle_t>(std::ptr::null_mut())
        }
        ur_queue_info_t::UR_QUEUE_INFO_FLAGS => query.value(queue.state.flags),
        ur_queue_info_t::UR_QUEUE_INFO_REFERENCE_COUNT => query.value(queue.references()),
        ur_queue_info_t::UR_QUEUE_INFO_SIZE => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_QUEUE,
            "only queues on the device have a size",
        )),
        ur_queue_info_t::UR_QUEUE_INFO_EMPTY => query.truth(queue.inner().is_idle()),
        _ => Err(Failure::ENUMERATION),
    }
}

unsafe extern "C" fn get_native_handle(
    handle: ur_queue_handle_t,
    desc: *mut ur_queue_native_desc_t,
    native: *mut ur_native_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a queue's handle, a valid pointer, and null or a description
        // that says where the kind of the queue is to be written, if anywhere.
        unsafe {
            let queue = Shared::<Queue>::from_handle(handle)?;
            not_null(native)?;
            let kind = desc.as_ref().map(|desc| desc.pNativeData.cast::<i32>());
            if let (Some(own), Some(kind)) = (description::get().queue_kind, kind) {
                put_optional(kind, own);
            }
            let native_of_driver = queue.inner().native().map(NativeObject::raw);
            put(
                native,
                native_of_driver.unwrap_or_else(|| NATIVE.of(&queue.state)),
            )
        }
    })
}

unsafe extern "C" fn create_with_native_handle(
    native: ur_native_handle_t,
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    properties: *const ur_queue_native_properties_t,
    created: *mut ur_queue_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(created)?;
        if context.first().0.has_driver() {
            // SAFETY: the caller passes null or a device's handle, and null or properties.
            let (device, properties) = unsafe {
                let device = if device.is_null() {
                    context.first().0
                } else {
                    Shared::<Device>::from_handle(device)?
                };
                (device, properties.as_ref())
            };
            // SAFETY: the caller passes a chain of properties.
            let flags = unsafe { native_flags(properties) }?;
            let is_owned = properties.is_some_and(|properties| properties.isNativeHandleOwned != 0);
            let inner = context.on(device)?;
            // SAFETY: the caller passes a queue of the driver, and keeps it unless he gives it
            // away.
            let inner = unsafe { inner.adopt_queue(of_driver(native), ownership(is_owned))? };
            let queue = Queue::create(context, device, inner, flags);
            // SAFETY: the caller passes a valid pointer.
            return unsafe { put(created, queue) };
        }
        let state = NATIVE.find(native)?;
        if !device.is_null() && device != state.device.handle() {
            return Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE,
                "this native queue is one of another device",
            ));
        }
        context.on(&state.device)?;
        let context = context.to_ref();
        let queue = Shared::new(Queue { context, state });
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, Shared::hand_out(queue)) }
    })
}

/// What the properties of a native queue say of its flags.
///
/// # Errors
/// `UNSUPPORTED_FEATURE` for a kind of queue that cannot be adopted; as [`check_flags`].
///
/// # Safety
/// What follows the properties is as [`chain::find`] demands it.
unsafe fn native_flags(
    properties: Option<&ur_queue_native_properties_t>,
) -> Result<ur_queue_flags_t> {
    let next = properties.map_or(std::ptr::null(), |properties| properties.pNext.cast_const());
    // SAFETY: as promised to this function.
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
            "only immediate command lists can be queues here",
        ));
    }
    let flags = own.map_or(0, |properties| properties.flags);
    check_flags(flags)?;
    Ok(flags)
}

unsafe extern "C" fn finish(handle: ur_queue_handle_t) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a queue's handle.
        let queue = unsafe { Shared::<Queue>::from_handle(handle) }?;
        Ok(queue.inner().finish()?)
    })
}

unsafe extern "C" fn flush(handle: ur_queue_handle_t) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a queue's handle.
        let queue = unsafe { Shared::<Queue>::from_handle(handle) }?;
        Ok(queue.inner().flush()?)
    })
}

unsafe extern "C" fn is_graph_capture_enabled(
    handle: ur_queue_handle_t,
    result: *mut ur_bool_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a queue's handle and a valid pointer.
        unsafe {
            Shared::<Queue>::from_handle(handle)?;
            put(result, 0)
        }
    })
}

struct NoCapture;

impl Reason for NoCapture {
    const TEXT: &str = "this adapter has no graphs, so queues cannot record any";
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

pub(crate) const EXP_TABLE: ur_queue_exp_dditable_t = ur_queue_exp_dditable_t {
    pfnBeginGraphCaptureExp: Stub::<NoCapture>::STUB,
    pfnBeginCaptureIntoGraphExp: Stub::<NoCapture>::STUB,
    pfnEndGraphCaptureExp: Stub::<NoCapture>::STUB,
    pfnIsGraphCaptureEnabledExp: Some(is_graph_capture_enabled),
    pfnGetGraphExp: Stub::<NoCapture>::STUB,
};
