//! Objects of the driver, for programs that also call the driver.

use crate::boundary::{entry, entry_object, entry_value};
use crate::context::{crosshandle_context, crosshandle_context_options, read_options};
use crate::device::crosshandle_device;
use crate::error::crosshandle_result;
use crate::event::crosshandle_event;
use crate::object::{close, get, object};
use crosshandle::native::{NativeEvent, NativeObject, Ownership};
use crosshandle::{Context, Event, EventOptions};
use std::ffi::c_void;
use std::ptr;

/// A driver's event (`CUevent`, `ze_event_handle_t`) that happens when a signal of an event is
/// finished. Any thread may use it.
pub struct crosshandle_native_event {}
object!(crosshandle_native_event, NativeEvent, 6, "native event");

/// Returns the identifier of an object that belongs to the driver of the context's device.
pub(crate) fn native_object(context: &Context, native: *mut c_void) -> NativeObject {
    NativeObject::new(context.device().info().backend, native.expose_provenance())
}

/// Converts a driver's object to the value that C programs use for it.
fn value(native: Option<NativeObject>) -> *mut c_void {
    let raw = native.map_or(0, NativeObject::raw);
    ptr::with_exposed_provenance_mut(raw)
}

/// Returns the driver's own context, a `CUcontext` or `ze_context_handle_t`. Returns null if the
/// device has no driver, and on an error. It exists at least as long as the context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_context_native(
    context: *const crosshandle_context,
) -> *mut c_void {
    entry_value!(or ptr::null_mut(); Ok(value(get(context)?.native())))
}

/// Creates a context over a driver's context that the program has made, a `CUcontext` or
/// `ze_context_handle_t`. `options` may be null for the defaults.
///
/// The program destroys the driver's context after everything that was made from the result is
/// closed and all submitted work is complete.
///
/// Errors: `CROSSHANDLE_INVALID_ARGUMENT` for a context of another device, and
/// `CROSSHANDLE_UNSUPPORTED` if the device has no driver. The caller closes the context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_context_adopt(
    device: *const crosshandle_device,
    native: *mut c_void,
    options: *const crosshandle_context_options,
    context: *mut *mut crosshandle_context,
) -> crosshandle_result {
    entry_object! { context;
        let device = get(device)?;
        let native = NativeObject::new(device.info().backend, native.expose_provenance());
        Context::adopt(device, native, read_options(options)?)?
    }
}

/// Creates a shareable event from a driver's event (`CUevent`, `ze_event_handle_t`) in its latest
/// record. Signal 1 of the result completes when the driver's event happens.
///
/// A `ze_event_handle_t` must exist until the result is complete. The program destroys the driver's
/// event.
///
/// Errors: `CROSSHANDLE_UNSUPPORTED` if the driver has no events. The caller closes the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_adopt(
    context: *const crosshandle_context,
    native: *mut c_void,
    event: *mut *mut crosshandle_event,
) -> crosshandle_result {
    entry_object! { event;
        let context = get(context)?;
        let native = native_object(context, native);
        Event::adopt(context, native, Ownership::Borrowed, EventOptions::new())?
    }
}

/// Creates a driver's event that happens when the latest signal of `event` succeeds or fails. If no
/// signal was submitted, it happens at once.
///
/// Errors: `CROSSHANDLE_UNSUPPORTED` if the driver has no events. The caller closes the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_native_event_create(
    context: *const crosshandle_context,
    event: *const crosshandle_event,
    native_event: *mut *mut crosshandle_native_event,
) -> crosshandle_result {
    entry_object! { native_event;
        NativeEvent::new(get(context)?, get(event)?)?
    }
}

/// Returns the driver's event, a `CUevent` or `ze_event_handle_t`. It is valid until the native
/// event is closed. Returns null on an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_native_event_native(
    native_event: *const crosshandle_native_event,
) -> *mut c_void {
    entry_value!(or ptr::null_mut(); Ok(value(Some(get(native_event)?.native()))))
}

/// Destroys the driver's event. Submitted waits for a `CUevent` stay valid. Waits for a
/// `ze_event_handle_t` must have ended. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_native_event_close(
    native_event: *mut crosshandle_native_event,
) -> crosshandle_result {
    entry!(close(native_event).map(drop))
}
