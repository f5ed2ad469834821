//! Creation of reusable events.

use super::{Event, Kind, Origin};
use crate::abi::boundary::{In, Out, entry_points};
use crate::abi::chain;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::Handle;
use crate::context::Context;
use crate::discovery::Device;
use crosshandle::EventOptions;
use std::ffi::c_void;
use unified_runtime_sys::{
    UR_EXP_EVENT_FLAG_ENABLE_PROFILING, UR_EXP_EVENT_FLAG_IPC_EXP, UR_EXP_EVENT_FLAGS_MASK,
    ur_event_handle_t, ur_exp_event_desc_t, ur_exp_event_flags_t, ur_result_t, ur_structure_type_t,
};

/// The structure `ur_exp_event_sync_mode_desc_t`, which later versions of UR can chain to the
/// description of a reusable event.
#[repr(C)]
struct SyncMode {
    stype: ur_structure_type_t,
    next: *const c_void,
    flags: u32,
}

impl SyncMode {
    /// The value of `UR_STRUCTURE_TYPE_EXP_EVENT_SYNC_MODE_DESC`.
    const STYPE: ur_structure_type_t = ur_structure_type_t(0x8001);
    /// The value of `UR_EXP_EVENT_SYNC_MODE_FLAG_LOW_POWER_WAIT`.
    const LOW_POWER_WAIT: u32 = 1;
}

entry_points! {
    pub(super) fn create(
        context: Handle<Context>,
        device: Handle<Device>,
        desc: In<ur_exp_event_desc_t>,
        created: Out<ur_event_handle_t>,
    ) {
        let kind = kind_of(desc.flags)?;
        let inner = context.on(device)?;
        if kind == Kind::Shared && !device.inner().info().capabilities.event_sharing {
            return Err(Failure::unsupported("this device cannot share events"));
        }
        // SAFETY: the caller passes a valid chain of descriptions.
        let mode = unsafe { chain::find::<SyncMode>(desc.pNext, SyncMode::STYPE) };
        let options = EventOptions::new()
            .shareable(kind == Kind::Shared)
            .profiling(kind != Kind::Shared)
            .low_power(mode.is_some_and(|mode| mode.flags & SyncMode::LOW_POWER_WAIT != 0));
        let event = inner.create_event_with(options)?;
        event.set_profiling(kind == Kind::Profiling);
        created.put(Event::hand_out(context.to_ref(), event, Origin::Reusable(kind)))
    }
}

/// Converts the flags for a reusable event to its kind.
///
/// # Errors
/// Returns `INVALID_ENUMERATION` for unknown flags, and `INVALID_VALUE` for flags that exclude each
/// other.
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
            "an event can be shared or record timestamps, but not both",
        )),
        (true, false) => Ok(Kind::Shared),
        (false, true) => Ok(Kind::Profiling),
        (false, false) => Ok(Kind::Plain),
    }
}
