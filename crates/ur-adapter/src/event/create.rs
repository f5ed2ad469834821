//! Reusable events.

use super::{Event, Kind, Origin};
use crate::boundary::{enter, not_null, put};
use crate::chain;
use crate::context::Context;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::Shared;
use crosshandle::EventOptions;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_EXP_EVENT_FLAG_ENABLE_PROFILING, UR_EXP_EVENT_FLAG_IPC_EXP, UR_EXP_EVENT_FLAGS_MASK,
    ur_context_handle_t, ur_device_handle_t, ur_event_handle_t, ur_exp_event_desc_t,
    ur_exp_event_flags_t, ur_result_t, ur_structure_type_t,
};

/// `ur_exp_event_sync_mode_desc_t`, which later versions of the interface can chain to the
/// description of a reusable event.
#[repr(C)]
struct SyncMode {
    stype: ur_structure_type_t,
    next: *const c_void,
    flags: u32,
}

impl SyncMode {
    /// `UR_STRUCTURE_TYPE_EXP_EVENT_SYNC_MODE_DESC`.
    const STYPE: ur_structure_type_t = ur_structure_type_t(0x8001);
    /// `UR_EXP_EVENT_SYNC_MODE_FLAG_LOW_POWER_WAIT`.
    const LOW_POWER_WAIT: u32 = 1;
}

pub(super) unsafe extern "C" fn create(
    context: ur_context_handle_t,
    device: ur_device_handle_t,
    desc: *const ur_exp_event_desc_t,
    created: *mut ur_event_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes handles, and null or a description.
        let (context, device, desc) = unsafe {
            (
                Shared::<Context>::from_handle(context)?,
                Shared::<Device>::from_handle(device)?,
                desc.as_ref().ok_or(Failure::NULL_POINTER)?,
            )
        };
        not_null(created)?;
        let kind = kind_of(desc.flags)?;
        let inner = context.on(device)?;
        if kind == Kind::Shared && !device.inner().info().capabilities.event_sharing {
            return Err(Failure::unsupported("this device cannot share events"));
        }
        // SAFETY: the caller passes a chain of descriptions.
        let mode = unsafe { chain::find::<SyncMode>(desc.pNext, SyncMode::STYPE) };
        let options = EventOptions::new()
            .shareable(kind == Kind::Shared)
            .profiling(kind != Kind::Shared)
            .low_power(mode.is_some_and(|mode| mode.flags & SyncMode::LOW_POWER_WAIT != 0));
        let event = inner.create_event_with(options)?;
        event.set_profiling(kind == Kind::Profiling);
        let event = Event::hand_out(context.to_ref(), event, Origin::Reusable(kind));
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, event) }
    })
}

fn kind_of(flags: ur_exp_event_flags_t) -> Result<Kind> {
    if flags & UR_EXP_EVENT_FLAGS_MASK != 0 {
        return Err(Failure::ENUMERATION);
    }
    let is_set = |flag| flags & flag != 0;
    match (
        is_set(UR_EXP_EVENT_FLAG_IPC_EXP),
        is_set(UR_EXP_EVENT_FLAG_ENABLE_PROFILING),
    ) {
        (true, true) => Err(Failure::new(
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
            "an event can be shared or take timestamps, but not both",
        )),
        (true, false) => Ok(Kind::Shared),
        (false, true) => Ok(Kind::Profiling),
        (false, false) => Ok(Kind::Plain),
    }
}
