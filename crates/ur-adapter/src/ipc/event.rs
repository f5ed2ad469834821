//! Entry points that share events between processes.

use super::{HandleBytes, put_bytes};
use crate::abi::boundary::{Out, entry_points};
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Ref};
use crate::context::Context;
use crate::discovery::Device;
use crate::event::{Event, Kind, Origin};
use crosshandle::EventHandle;
use crosshandle::handle::EVENT_HANDLE_SIZE;
use std::ffi::c_void;
use unified_runtime_sys::{ur_event_handle_t, ur_result_t};

entry_points! {
    pub(super) fn get(event: Handle<Event>, data: Out<*mut c_void>, size: Out<usize>) {
        check_shareable(event)?;
        let handle = event.inner()?.handle()?;
        let bytes = event.context().state().handles.hand_out(handle.as_bytes());
        put_bytes(bytes, EVENT_HANDLE_SIZE, &data, &size)
    }

    pub(super) fn open(
        context: Handle<Context>,
        bytes(data, size): HandleBytes<*const c_void>,
        opened: Out<ur_event_handle_t>,
    ) {
        let can_share = |device: &Ref<Device>| device.inner().info().capabilities.event_sharing;
        if !context.devices().all(can_share) {
            return Err(Failure::unsupported("a device of this context cannot share events"));
        }
        let handle = EventHandle::from_bytes(bytes).map_err(crosshandle::Error::from)?;
        // The state of an event is host memory, so the context's first device opens every event.
        let (_, first) = context.first();
        let inner = first.open_event(&handle)?;
        opened.put(Event::hand_out(context.to_ref(), inner, Origin::Opened))
    }
}

/// Checks that an event can be shared.
///
/// # Errors
/// Returns `UNSUPPORTED_FEATURE` if the event records timestamps, and `INVALID_EVENT` if it was not
/// created for sharing. Returns `GRAPH_INTERNAL_EVENT` for an event of a captured command.
fn check_shareable(event: &Event) -> Result<()> {
    if let Origin::Reusable(Kind::Shared) = event.origin() {
        return Ok(());
    }
    if event.inner()?.profile().is_ok() {
        return Err(Failure::unsupported(
            "an event that records timestamps cannot be shared",
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
