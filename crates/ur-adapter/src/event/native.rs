//! Native handles of events: the driver's events where there is a driver, otherwise what stands for
//! them.

use super::{Event, Origin};
use crate::boundary::{enter, not_null, put};
use crate::context::Context;
use crate::failure::Result;
use crate::native::{NativeHandles, of_driver, ownership};
use crate::object::Shared;
use crosshandle::{EventOptions, NativeEvent};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use unified_runtime_sys::{
    ur_context_handle_t, ur_event_handle_t, ur_event_native_properties_t, ur_native_handle_t,
    ur_result_t,
};

/// Without a driver.
static NATIVE: NativeHandles<Shared<Event>> = NativeHandles::new();

/// Events of commands by the driver's events that stand for them.
static RECORDED: Mutex<Option<HashMap<ur_native_handle_t, Weak<Shared<Event>>>>> = Mutex::new(None);

/// The driver's events that stand for an event's signals, destroyed with it.
#[derive(Default)]
pub(super) struct Natives(Mutex<Vec<NativeEvent>>);

impl Drop for Natives {
    fn drop(&mut self) {
        let natives = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if natives.is_empty() {
            return;
        }
        let mut recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
        for native in natives {
            // Before it is destroyed, so that its address means nothing when it is another one's.
            let value = native.native().raw();
            recorded.as_mut().and_then(|known| known.remove(&value));
        }
    }
}

/// The driver's event for the latest signal. That of a command has one signal, so that one is
/// enough; of a reusable event's, what was given for earlier ones may still be waited for.
fn record(event: &Shared<Event>) -> Result<ur_native_handle_t> {
    let mut natives = event
        .natives
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let is_of_command = matches!(event.origin(), Origin::Command { .. });
    if is_of_command && let Some(native) = natives.first() {
        return Ok(native.native().raw());
    }
    let (_, inner) = event.context().first();
    let native = inner.native_event(event.inner())?;
    let value = native.native().raw();
    // A reusable event may mean another signal by the time that its native handle comes back.
    if is_of_command {
        let mut recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
        let event = Arc::downgrade(&event.to_ref());
        recorded.get_or_insert_default().insert(value, event);
    }
    natives.push(native);
    Ok(value)
}

/// The event of a command that a native handle was got of.
fn find(native: ur_native_handle_t) -> Option<Arc<Shared<Event>>> {
    let recorded = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
    recorded.as_ref()?.get(&native)?.upgrade()
}

/// What an event of the program's, or nothing at all, is for us.
///
/// # Safety
/// The native handle is an event of the driver.
unsafe fn adopt(
    context: &Context,
    native: ur_native_handle_t,
    is_owned: bool,
) -> Result<(crosshandle::Event, Origin)> {
    let (device, inner) = context.first();
    let options = EventOptions::new().shareable(false);
    if native == 0 {
        return Ok((inner.create_event_with(options)?, Origin::Native));
    }
    let known = if device.has_driver() {
        find(native)
    } else {
        Some(NATIVE.find(native)?)
    };
    if let Some(event) = known {
        return Ok((event.inner().clone(), event.origin().clone()));
    }
    // SAFETY: as promised to this function.
    let event = unsafe { inner.adopt_event(of_driver(native), ownership(is_owned), options)? };
    Ok((event, Origin::Native))
}

pub(super) unsafe extern "C" fn get_native_handle(
    handle: ur_event_handle_t,
    native: *mut ur_native_handle_t,
) -> ur_result_t {
    enter(|| {
        not_null(native)?;
        // SAFETY: the caller passes an event's handle.
        let event = unsafe { Shared::<Event>::from_handle(handle) }?;
        let value = if event.context().first().0.has_driver() {
            record(event)?
        } else {
            NATIVE.of(&event.to_ref())
        };
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(native, value) }
    })
}

pub(super) unsafe extern "C" fn create_with_native_handle(
    native: ur_native_handle_t,
    context: ur_context_handle_t,
    properties: *const ur_event_native_properties_t,
    created: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a context's handle, and null or properties.
        let (context, properties) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                properties.as_ref(),
            )
        };
        not_null(created)?;
        let is_owned = properties.is_some_and(|properties| properties.isNativeHandleOwned != 0);
        // SAFETY: the caller passes a native handle.
        let (inner, origin) = unsafe { adopt(context, native, is_owned)? };
        let event = Event::hand_out(context.to_ref(), inner, origin);
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, event) }
    })
}
