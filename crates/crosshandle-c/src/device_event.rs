//! Events for code on devices.

use crate::boundary::{entry, place};
use crate::context::crosshandle_context;
use crate::error::crosshandle_result;
use crate::event::crosshandle_event;
use crate::object::{close, get, object, open};
use crosshandle::event::DeviceEvent;
use std::ffi::c_void;
use std::ptr;

/// An event that code on a device uses. Any thread may use it.
pub struct crosshandle_event_on_device {}
object!(
    crosshandle_event_on_device,
    DeviceEvent,
    16,
    "event on a device"
);

/// An event as code on a device uses it, with the functions of `crosshandle.cuh`. A kernel takes
/// the structure by value.
#[repr(C)]
pub struct crosshandle_device_event {
    /// The event's words, which all processes share.
    pub words: *mut c_void,
    /// The number of signals by code on the device, or null if the code may only wait.
    pub signalled: *mut c_void,
    /// The number of calls of `wait_next`.
    pub awaited: *mut c_void,
    /// The word that tells code on the device to stop.
    pub abort: *mut c_void,
}

/// Gives code on the context's device access to an event, and stores in `addresses` what the code
/// needs. The addresses are valid until `on_device` is closed, which must come after the end of the
/// code.
///
/// The code can wait for any event. It can signal an event that was created in this context with
/// `single_signaller`.
///
/// Errors: `CROSSHANDLE_UNSUPPORTED` if code on the device cannot use events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_open_on_device(
    context: *const crosshandle_context,
    event: *const crosshandle_event,
    on_device: *mut *mut crosshandle_event_on_device,
    addresses: *mut crosshandle_device_event,
) -> crosshandle_result {
    entry! {
        let (on_device, addresses) = (place(on_device)?, place(addresses)?);
        let opened = get(context)?.device_event(get(event)?)?;
        let own = opened.addresses();
        addresses.write(crosshandle_device_event {
            words: ptr::with_exposed_provenance_mut(own.words),
            signalled: ptr::with_exposed_provenance_mut(own.signalled),
            awaited: ptr::with_exposed_provenance_mut(own.awaited),
            abort: ptr::with_exposed_provenance_mut(own.abort),
        });
        on_device.write(open(opened));
        Ok(())
    }
}

/// Ends the access of code on a device to an event. Closing null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_event_on_device_close(
    on_device: *mut crosshandle_event_on_device,
) -> crosshandle_result {
    entry!(close(on_device).map(drop))
}

/// Tells code on the context's device to stop (`abort` true), or takes that back.
///
/// Errors: `CROSSHANDLE_OUT_OF_MEMORY`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_context_abort_device_code(
    context: *const crosshandle_context,
    abort: bool,
) -> crosshandle_result {
    entry! {
        let context = get(context)?;
        match abort {
            true => context.abort_device_code()?,
            false => context.clear_device_abort()?,
        }
        Ok(())
    }
}
