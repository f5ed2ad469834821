//! The adapter: one in each process, there from the first call on.

use crate::boundary::{enter, not_null, put, put_optional};
use crate::description;
use crate::failure::{self, Failure, Result};
use crate::log;
use crate::object::{Object, Ref, Shared};
use crate::platform::Platform;
use crate::query::Query;
use std::ffi::{c_char, c_void};
use std::sync::OnceLock;
use unified_runtime_sys::{
    ur_adapter_dditable_t, ur_adapter_handle_t, ur_adapter_handle_t_, ur_adapter_info_t,
    ur_logger_callback_t, ur_logger_level_t, ur_result_t,
};

/// The adapter and its only platform.
pub(crate) struct Adapter {
    platform: Ref<Platform>,
}

impl Object for Adapter {
    type Opaque = ur_adapter_handle_t_;
}

/// The adapter of this process. It is never destroyed: the loader lets go of it at a time when
/// other threads may still use what it made.
pub(crate) fn adapter() -> &'static Ref<Adapter> {
    static ADAPTER: OnceLock<Ref<Adapter>> = OnceLock::new();
    ADAPTER.get_or_init(|| {
        Shared::new(Adapter {
            platform: Shared::new(Platform::discover()),
        })
    })
}

impl Adapter {
    pub(crate) fn platform(&self) -> &Ref<Platform> {
        &self.platform
    }
}

unsafe extern "C" fn get(
    count: u32,
    adapters: *mut ur_adapter_handle_t,
    available: *mut u32,
) -> ur_result_t {
    enter(|| {
        if !adapters.is_null() {
            if count == 0 {
                return Err(Failure::SIZE);
            }
            let handle = Shared::hand_out(Ref::clone(adapter()));
            // SAFETY: there is room for `count` handles, by the caller's promise.
            unsafe { put(adapters, handle) }?;
        }
        // SAFETY: null or valid, by the caller's promise.
        unsafe { put_optional(available, 1) };
        Ok(())
    })
}

/// The adapter stays, whatever its count; only the count changes.
unsafe extern "C" fn retain(handle: ur_adapter_handle_t) -> ur_result_t {
    // SAFETY: as promised to this function.
    unsafe { crate::object::retain::<Adapter>(handle) }
}

unsafe extern "C" fn release(handle: ur_adapter_handle_t) -> ur_result_t {
    // SAFETY: as promised to this function. The static keeps the object.
    unsafe { crate::object::release::<Adapter>(handle) }
}

unsafe extern "C" fn get_last_error(
    handle: ur_adapter_handle_t,
    message: *mut *const c_char,
    code: *mut i32,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an adapter's handle and valid pointers.
        unsafe {
            Shared::<Adapter>::from_handle(handle)?;
            not_null(code)?;
            failure::with_last(|text, native_code| {
                put(message, text.as_ptr())?;
                put(code, native_code)
            })
        }
    })
}

unsafe extern "C" fn get_info(
    handle: ur_adapter_handle_t,
    name: ur_adapter_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an adapter's handle and a place for the answer.
        let (adapter, query) = unsafe {
            (
                Shared::<Adapter>::from_handle(handle)?,
                Query::new(size, value, size_ret)?,
            )
        };
        answer(adapter, name, query)
    })
}

fn answer(adapter: &Shared<Adapter>, name: ur_adapter_info_t, query: Query) -> Result<()> {
    match name {
        ur_adapter_info_t::UR_ADAPTER_INFO_BACKEND => {
            query.value(description::reported_backend().0)
        }
        ur_adapter_info_t::UR_ADAPTER_INFO_REFERENCE_COUNT => query.value(adapter.references()),
        // Which implementation of the backend's adapter this is; upstream's are 1 and 2.
        ur_adapter_info_t::UR_ADAPTER_INFO_VERSION => query.value(1_u32),
        _ => Err(Failure::ENUMERATION),
    }
}

unsafe extern "C" fn set_logger_callback(
    handle: ur_adapter_handle_t,
    callback: ur_logger_callback_t,
    user_data: *mut c_void,
    level: ur_logger_level_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an adapter's handle.
        unsafe { Shared::<Adapter>::from_handle(handle) }?;
        if callback.is_none() {
            return Err(Failure::NULL_POINTER);
        }
        check(level)?;
        log::set_callback(callback, user_data, level);
        Ok(())
    })
}

unsafe extern "C" fn set_logger_callback_level(
    handle: ur_adapter_handle_t,
    level: ur_logger_level_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an adapter's handle.
        unsafe { Shared::<Adapter>::from_handle(handle) }?;
        check(level)?;
        log::set_level(level);
        Ok(())
    })
}

/// Refuses what is no level.
fn check(level: ur_logger_level_t) -> Result<()> {
    if level.0 > ur_logger_level_t::UR_LOGGER_LEVEL_QUIET.0 {
        return Err(Failure::ENUMERATION);
    }
    Ok(())
}

pub(crate) const TABLE: ur_adapter_dditable_t = ur_adapter_dditable_t {
    pfnGet: Some(get),
    pfnRelease: Some(release),
    pfnRetain: Some(retain),
    pfnGetLastError: Some(get_last_error),
    pfnGetInfo: Some(get_info),
    pfnSetLoggerCallback: Some(set_logger_callback),
    pfnSetLoggerCallbackLevel: Some(set_logger_callback_level),
};
