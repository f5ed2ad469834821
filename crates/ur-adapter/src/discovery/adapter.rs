//! The adapter's entry points.

use super::{Adapter, adapter};
use crate::abi::boundary::{MaybeOut, Out, OutList, entry_points};
use crate::abi::description;
use crate::abi::failure::{self, Failure, Result};
use crate::abi::log;
use crate::abi::object::{Handle, Ref, Shared, release, retain};
use crate::abi::query::{Answer, Query};
use std::ffi::{c_char, c_void};
use unified_runtime_sys::{
    ur_adapter_dditable_t, ur_adapter_handle_t, ur_adapter_info_t, ur_logger_callback_t,
    ur_logger_level_t,
};

entry_points! {
    fn get(
        adapters(count, first): OutList<ur_adapter_handle_t>,
        available: MaybeOut<u32>,
    ) {
        if description::is_reported_as_opencl() {
            // Clients that use native handles as OpenCL objects look for an OpenCL loader in their
            // process.
            opencl_cpu::load_loader();
        }
        if !adapters.is_null() {
            if adapters.count == 0 {
                return Err(Failure::SIZE);
            }
            adapters.put([Shared::hand_out(Ref::clone(adapter()))]);
        }
        available.map_or(Ok(()), |place| place.put(1))
    }

    fn get_last_error(
        adapter: Handle<Adapter>,
        message: Out<*const c_char>,
        code: Out<i32>,
    ) {
        failure::with_last(|text, native_code| {
            message.put(text.as_ptr())?;
            code.put(native_code)
        })
    }

    fn get_info(
        adapter: Handle<Adapter>,
        name: ur_adapter_info_t,
        query(size, value, size_ret): Answer,
    ) {
        answer(adapter, name, query)
    }

    fn set_logger_callback(
        adapter: Handle<Adapter>,
        callback: ur_logger_callback_t,
        user_data: *mut c_void,
        level: ur_logger_level_t,
    ) {
        if callback.is_none() {
            return Err(Failure::NULL_POINTER);
        }
        check(level)?;
        log::set_callback(callback, user_data, level);
        Ok(())
    }

    fn set_logger_callback_level(adapter: Handle<Adapter>, level: ur_logger_level_t) {
        check(level)?;
        log::set_level(level);
        Ok(())
    }
}

/// Writes a property of the adapter to the caller's memory.
fn answer(adapter: &Shared<Adapter>, name: ur_adapter_info_t, query: Query<'_>) -> Result<()> {
    match name {
        ur_adapter_info_t::UR_ADAPTER_INFO_BACKEND => {
            query.value(description::reported_backend().0)
        }
        ur_adapter_info_t::UR_ADAPTER_INFO_REFERENCE_COUNT => query.value(adapter.references()),
        // For some backends, upstream UR has two adapters, with versions 1 and 2. This adapter
        // reports version 1.
        ur_adapter_info_t::UR_ADAPTER_INFO_VERSION => query.value(1_u32),
        _ => Err(Failure::ENUMERATION),
    }
}

/// Returns `INVALID_ENUMERATION` for an unknown log level.
fn check(level: ur_logger_level_t) -> Result<()> {
    if level.0 > ur_logger_level_t::UR_LOGGER_LEVEL_QUIET.0 {
        return Err(Failure::ENUMERATION);
    }
    Ok(())
}

/// The entry points for the adapter. A static keeps the adapter alive, so releasing it only changes
/// the reference count.
pub(crate) const TABLE: ur_adapter_dditable_t = ur_adapter_dditable_t {
    pfnGet: Some(get),
    pfnRelease: Some(release::<Adapter>),
    pfnRetain: Some(retain::<Adapter>),
    pfnGetLastError: Some(get_last_error),
    pfnGetInfo: Some(get_info),
    pfnSetLoggerCallback: Some(set_logger_callback),
    pfnSetLoggerCallbackLevel: Some(set_logger_callback_level),
};
