//! Sharing events.

use super::handle_bytes;
use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::device::Device;
use crate::event::{Event, Kind, Origin};
use crate::failure::{Failure, Result};
use crate::object::{Ref, Shared};
use crosshandle::EventHandle;
use crosshandle::handle::HANDLE_SIZE;
use std::ffi::c_void;
use unified_runtime_sys::{ur_context_handle_t, ur_event_handle_t, ur_result_t};

pub(super) unsafe extern "C" fn get(
    handle: ur_event_handle_t,
    data: *mut *mut c_void,
    size: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an event's handle.
        let event = unsafe { Shared::<Event>::from_handle(handle) }?;
        not_null(data)?;
        not_null(size)?;
        check_shareable(event)?;
        let handle = event.inner().handle()?;
        let buffer = event.context().state().handles.hand_out(handle.as_bytes());
        // SAFETY: the caller passes valid pointers.
        unsafe {
            put(data, buffer)?;
            put(size, HANDLE_SIZE)
        }
    })
}

/// # Errors
/// `UNSUPPORTED_FEATURE` for an event that takes timestamps, `INVALID_EVENT` for any other that was
/// not made for sharing.
fn check_shareable(event: &Event) -> Result<()> {
    if let Origin::Reusable(Kind::Shared) = event.origin() {
        return Ok(());
    }
    if event.inner().profile().is_ok() {
        return Err(Failure::unsupported(
            "an event that takes timestamps cannot be shared",
        ));
    }
    Err(Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_EVENT,
        match event.origin() {
            Origin::Opened => {
                "this event was opened from a handle; pass that handle on instead of a new one"
            }
            _ => "only events created with UR_EXP_EVENT_FLAG_IPC_EXP can be shared",
        },
    ))
}

pub(super) unsafe extern "C" fn open(
    context: ur_context_handle_t,
    data: *const c_void,
    size: usize,
    opened: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle.
        let context = unsafe { Shared::<Context>::from_handle(context) }?;
        not_null(opened)?;
        // SAFETY: the caller passes this many bytes.
        let bytes = unsafe { handle_bytes(data, size) }?;
        let can_share = |device: &Ref<Device>| device.inner().info().capabilities.event_sharing;
        if !context.devices().all(can_share) {
            return Err(Failure::unsupported(
                "a device of this context cannot share events",
            ));
        }
        let handle = EventHandle::from_bytes(bytes).map_err(crosshandle::Error::from)?;
        let inner = open_in(context, &handle)?;
        let event = Event::hand_out(context.to_ref(), inner, Origin::Opened);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(opened, event) }
    })
}

/// Opens an event on that device of the context on which it was made.
fn open_in(context: &Context, handle: &EventHandle) -> Result<crosshandle::Event> {
    let (_, mut inner) = context.first();
    if context.devices().len() > 1 {
        let device = handle.device();
        let mut devices = context.devices();
        if let Some(device) = devices.find(|own| own.inner().info().uuid == device) {
            inner = context.on(device)?;
        }
    }
    // Where no device is the right one, this says so.
    Ok(inner.open_event(handle)?)
}
