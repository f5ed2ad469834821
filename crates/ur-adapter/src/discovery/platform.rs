//! The entry points for the platform.

use super::device::opencl_of;
use super::{Adapter, Device, Platform, adapter, platform};
use crate::abi::boundary::{MaybeOut, Out, OutList, Text, entry_points};
use crate::abi::description;
use crate::abi::failure::{Failure, Result};
use crate::abi::object::{Handle, Ref};
use crate::abi::query::{Answer, Query};
use std::ffi::c_char;
use unified_runtime_sys::{
    ur_api_version_t, ur_native_handle_t, ur_platform_dditable_t, ur_platform_handle_t,
    ur_platform_info_t, ur_platform_native_properties_t,
};

entry_points! {
    fn get(
        adapter: Handle<Adapter>,
        platforms(count, first): OutList<ur_platform_handle_t>,
        available: MaybeOut<u32>,
    ) {
        // Clients cannot use a platform that has no devices.
        let exists = !platform().devices.is_empty();
        match (platforms.count, platforms.is_null()) {
            (0, false) => return Err(Failure::SIZE),
            (_, true) if available.is_none() => return Err(Failure::VALUE),
            _ => {}
        }
        if exists {
            platforms.put([platform().handle()]);
        }
        available.map_or(Ok(()), |place| place.put(u32::from(exists)))
    }

    fn get_info(
        platform: Handle<Platform>,
        name: ur_platform_info_t,
        query(size, value, size_ret): Answer,
    ) {
        answer(name, query)
    }

    fn get_api_version(platform: Handle<Platform>, version: Out<ur_api_version_t>) {
        version.put(ur_api_version_t::UR_API_VERSION_CURRENT)
    }

    /// Returns the native handle of the first driver. If no device has a driver, returns the
    /// platform's own handle.
    fn get_native_handle(platform: Handle<Platform>, native: Out<ur_native_handle_t>) {
        let driver = platform.devices.iter().find_map(driver_of);
        native.put(driver.unwrap_or(platform.handle() as ur_native_handle_t))
    }

    fn create_with_native_handle(
        native: ur_native_handle_t,
        adapter: Handle<Adapter>,
        properties: *const ur_platform_native_properties_t,
        created: Out<ur_platform_handle_t>,
    ) {
        let mut drivers = platform().devices.iter().filter_map(driver_of).peekable();
        let own = platform().handle();
        let is_known = match drivers.peek() {
            // The single platform has the devices of all drivers, so each driver's native handle
            // refers to this platform.
            Some(_) => drivers.any(|driver| driver == native),
            None => native == own as ur_native_handle_t,
        };
        if !is_known {
            return Err(Failure::argument("this native handle does not belong to a platform of this adapter"));
        }
        created.put(own)
    }

    fn get_backend_option(
        platform: Handle<Platform>,
        frontend: Text,
        backend: Out<*const c_char>,
    ) {
        match frontend.to_bytes() {
            // An OpenCL runtime compiles the programs, and uses another name for this option.
            b"-O0" if platform.devices.iter().any(|device| device.inner.native_runtime().is_ok()) => {
                backend.put(c"-cl-opt-disable".as_ptr())
            }
            b"" | b"-O0" | b"-O1" | b"-O2" | b"-O3" => backend.put(c"".as_ptr()),
            _ => Err(Failure::VALUE),
        }
    }
}

/// Writes a property of the platform to the caller's memory.
fn answer(name: ur_platform_info_t, query: Query<'_>) -> Result<()> {
    match name {
        ur_platform_info_t::UR_PLATFORM_INFO_NAME => query.text(description::get().platform_name),
        ur_platform_info_t::UR_PLATFORM_INFO_VENDOR_NAME => query.text("Crosshandle"),
        ur_platform_info_t::UR_PLATFORM_INFO_VERSION => query.text(env!("CARGO_PKG_VERSION")),
        ur_platform_info_t::UR_PLATFORM_INFO_EXTENSIONS => query.text(""),
        ur_platform_info_t::UR_PLATFORM_INFO_PROFILE => query.text("FULL_PROFILE"),
        ur_platform_info_t::UR_PLATFORM_INFO_BACKEND => {
            query.value(description::reported_backend().0)
        }
        ur_platform_info_t::UR_PLATFORM_INFO_ADAPTER => query.value(adapter().handle()),
        _ => Err(Failure::ENUMERATION),
    }
}

/// Returns the native handle of a device's driver. Returns `None` if the device has no driver, or
/// if its driver has no native handle.
fn driver_of(device: &Ref<Device>) -> Option<ur_native_handle_t> {
    if let Some(runtime) = opencl_of(&device.inner) {
        return Some(runtime.platform);
    }
    let native = device.inner.native_driver()?;
    Some(native.raw())
}

/// The entry points for the platform.
pub(crate) const TABLE: ur_platform_dditable_t = ur_platform_dditable_t {
    pfnGet: Some(get),
    pfnGetInfo: Some(get_info),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
    pfnGetApiVersion: Some(get_api_version),
    pfnGetBackendOption: Some(get_backend_option),
};
