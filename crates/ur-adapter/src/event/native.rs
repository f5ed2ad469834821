//! Native handles of events: the driver's events, or addresses that identify events on a device
//! without a driver.

use super::{Event, Origin};
use crate::abi::boundary::{MaybeIn, Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::Lock;
use crate::abi::native::{NativeHandles, of_driver, ownership};
use crate::abi::object::{Handle, Shared};
use crate::context::Context;
use crosshandle::{EventOptions, native::NativeEvent};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use unified_runtime_sys::{ur_event_handle_t, ur_event_native_properties_t, ur_native_handle_t};

/// The events that native handles identify on devices without a driver.
static NATIVE: NativeHandles<Shared<Event>> = NativeHandles::new();

/// The events of commands, indexed by the driver's event that represents the command's signal.
static RECORDED: Lock<Option<HashMap<ur_native_handle_t, Weak<Shared<Event>>>>> = Lock::new(None);

/// The driver's events that represent signals of one UR event. They are destroyed with the UR
/// event.
#[derive(Default)]
pub(super) struct Natives(Lock<Vec<NativeEvent>>);

impl Drop for Natives {
    fn drop(&mut self) {
        let natives = self.0.get_mut();
        if natives.is_empty() {
            return;
        }
        let mut recorded = RECORDED.lock();
        for native in natives {
            // The entry is removed before the driver's event is destroyed. After the destruction,
            // the driver may give a new event the same address.
            let value = native.native().raw();
            recorded.as_mut().and_then(|known| known.remove(&value));
        }
    }
}

/// Returns the driver's event that represents the latest signal.
///
/// An event of a command has only one signal, so it needs only one driver's event. A reusable event
/// needs one for each call, because clients may still wait for earlier signals.
///
/// # Errors
/// Returns `UNSUPPORTED_FEATURE` for an event that other processes may signal. The driver's event
/// would only follow the UR event. If a client signalled the driver's event, neither the UR event
/// nor any other process would notice.
fn record(event: &Shared<Event>) -> Result<ur_native_handle_t> {
    if event.is_shared() {
        return Err(Failure::unsupported(
            "a shared event has no native handle, because native signals would not reach the other \
             processes: signal it by urEnqueueEventsWaitWithBarrierExt; to wait natively, take the \
             handle of the event of a barrier that waits for the shared event",
        ));
    }
    let mut natives = event.natives.0.lock();
    let is_of_command = matches!(event.origin(), Origin::Command { .. });
    if is_of_command && let Some(native) = natives.first() {
        return Ok(native.native().raw());
    }
    let (_, inner) = event.context().first();
    let native = NativeEvent::new(inner, event.inner()?)?;
    let value = native.native().raw();
    // Only events of commands are added. A reusable event may have a newer signal when a client
    // passes the native handle back.
    if is_of_command {
        let mut recorded = RECORDED.lock();
        let event = Arc::downgrade(&event.to_ref());
        recorded.get_or_insert_default().insert(value, event);
    }
    natives.push(native);
    Ok(value)
}

/// Returns the event of a command that a native handle represents.
fn find(native: ur_native_handle_t) -> Option<Arc<Shared<Event>>> {
    let recorded = RECORDED.lock();
    recorded.as_ref()?.get(&native)?.upgrade()
}

/// Creates an event in `crosshandle` for a native handle.
///
/// # Safety
/// The caller must ensure that `native` is 0, a handle that this adapter returned, or an event of
/// the driver. Unless the call transfers the ownership, the owner must keep the driver's event
/// alive.
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
        return Ok((event.inner()?.clone(), event.origin().clone()));
    }
    // SAFETY: the handle is neither 0 nor known, so the caller ensures that it is an event of the
    // driver that stays alive.
    let event = unsafe {
        crosshandle::Event::adopt(inner, of_driver(native), ownership(is_owned), options)?
    };
    Ok((event, Origin::Native))
}

entry_points! {
    pub(super) fn get_native_handle(event: Handle<Event>, native: Out<ur_native_handle_t>) {
        native.put(if event.context().first().0.has_driver() {
            record(event)?
        } else {
            event.inner()?;
            NATIVE.of(&event.to_ref())
        })
    }

    pub(super) fn create_with_native_handle(
        native: ur_native_handle_t,
        context: Handle<Context>,
        properties: MaybeIn<ur_event_native_properties_t>,
        created: Out<ur_event_handle_t>,
    ) {
        let is_owned = properties.is_some_and(|properties| properties.isNativeHandleOwned != 0);
        // SAFETY: the caller passes a native handle, and keeps the driver's event alive unless it
        // transfers the ownership.
        let (inner, origin) = unsafe { adopt(context, native, is_owned)? };
        created.put(Event::hand_out(context.to_ref(), inner, origin))
    }
}
