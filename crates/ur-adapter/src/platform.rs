//! The platform: all devices of the adapter's backend.

use crate::adapter::{Adapter, adapter};
use crate::boundary::{enter, put, put_optional};
use crate::description;
use crate::device::Device;
use crate::failure::{Failure, Result};
use crate::object::{Object, Ref, Shared};
use crate::query::Query;
use std::ffi::{c_char, c_void};
use unified_runtime_sys::{
    ur_adapter_handle_t, ur_api_version_t, ur_native_handle_t, ur_platform_dditable_t,
    ur_platform_handle_t, ur_platform_handle_t_, ur_platform_info_t,
    ur_platform_native_properties_t, ur_result_t,
};

/// All devices of one backend.
pub(crate) struct Platform {
    devices: Vec<Ref<Device>>,
}

impl Object for Platform {
    type Opaque = ur_platform_handle_t_;
}

impl Platform {
    /// Looks for the devices of the adapter's backend.
    pub(crate) fn discover() -> Self {
        let backend = description::get().backend;
        let devices = crosshandle::Device::all()
            .into_iter()
            .filter(|device| device.info().backend == backend)
            .map(Device::create)
            .collect();
        Self { devices }
    }

    pub(crate) fn devices(&self) -> &[Ref<Device>] {
        &self.devices
    }
}

/// The platform of this process.
pub(crate) fn platform() -> &'static Ref<Platform> {
    adapter().platform()
}

unsafe extern "C" fn get(
    handle: ur_adapter_handle_t,
    count: u32,
    platforms: *mut ur_platform_handle_t,
    available: *mut u32,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an adapter's handle.
        unsafe { Shared::<Adapter>::from_handle(handle) }?;
        // Without devices there is nothing that a client could do with a platform.
        let exists = !platform().devices.is_empty();
        match (count, platforms.is_null()) {
            (0, false) => return Err(Failure::SIZE),
            (_, true) if available.is_null() => return Err(Failure::VALUE),
            (1.., false) if exists => {
                // SAFETY: there is room for `count` handles, by the caller's promise.
                unsafe { put(platforms, platform().handle()) }?;
            }
            _ => {}
        }
        // SAFETY: null or valid, by the caller's promise.
        unsafe { put_optional(available, u32::from(exists)) };
        Ok(())
    })
}

unsafe extern "C" fn get_info(
    handle: ur_platform_handle_t,
    name: ur_platform_info_t,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a platform's handle and a place for the answer.
        let query = unsafe {
            Shared::<Platform>::from_handle(handle)?;
            Query::new(size, value, size_ret)?
        };
        answer(name, query)
    })
}

fn answer(name: ur_platform_info_t, query: Query) -> Result<()> {
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

unsafe extern "C" fn get_api_version(
    handle: ur_platform_handle_t,
    version: *mut ur_api_version_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a platform's handle and a valid pointer.
        unsafe {
            Shared::<Platform>::from_handle(handle)?;
            put(version, ur_api_version_t::UR_API_VERSION_CURRENT)
        }
    })
}

/// The driver of a device, where drivers have a handle of their own.
fn driver_of(device: &Ref<Device>) -> Option<ur_native_handle_t> {
    let native = device.inner().native_driver()?;
    Some(native.raw())
}

/// The driver of the first device; where there is none, the platform's handle.
unsafe extern "C" fn get_native_handle(
    handle: ur_platform_handle_t,
    native: *mut ur_native_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a platform's handle and a valid pointer.
        unsafe {
            let platform = Shared::<Platform>::from_handle(handle)?;
            let driver = platform.devices.iter().find_map(driver_of);
            put(native, driver.unwrap_or(handle as ur_native_handle_t))
        }
    })
}

unsafe extern "C" fn create_with_native_handle(
    native: ur_native_handle_t,
    handle: ur_adapter_handle_t,
    _properties: *const ur_platform_native_properties_t,
    created: *mut ur_platform_handle_t,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes an adapter's handle.
        unsafe { Shared::<Adapter>::from_handle(handle) }?;
        let mut drivers = platform().devices.iter().filter_map(driver_of).peekable();
        let own = platform().handle();
        let is_known = match drivers.peek() {
            // One platform has the devices of all drivers.
            Some(_) => drivers.any(|driver| driver == native),
            None => native == own as ur_native_handle_t,
        };
        if !is_known {
            return Err(Failure::argument("this is no platform's native handle"));
        }
        // SAFETY: the caller passes a valid pointer.
        unsafe { put(created, own) }
    })
}

unsafe extern "C" fn get_backend_option(
    handle: ur_platform_handle_t,
    frontend: *const c_char,
    backend: *mut *const c_char,
) -> ur_result_t {
    enter(|| {
        // SAFETY: the caller passes a platform's handle.
        unsafe { Shared::<Platform>::from_handle(handle) }?;
        if frontend.is_null() {
            return Err(Failure::NULL_POINTER);
        }
        // SAFETY: the caller passes a string that ends with a null byte.
        let option = unsafe { std::ffi::CStr::from_ptr(frontend) };
        match option.to_bytes() {
            // Nothing is compiled here, so no option means anything.
            b"" | b"-O0" | b"-O1" | b"-O2" | b"-O3" => {
                // SAFETY: the caller passes a valid pointer.
                unsafe { put(backend, c"".as_ptr()) }
            }
            _ => Err(Failure::VALUE),
        }
    })
}

pub(crate) const TABLE: ur_platform_dditable_t = ur_platform_dditable_t {
    pfnGet: Some(get),
    pfnGetInfo: Some(get_info),
    pfnGetNativeHandle: Some(get_native_handle),
    pfnCreateWithNativeHandle: Some(create_with_native_handle),
    pfnGetApiVersion: Some(get_api_version),
    pfnGetBackendOption: Some(get_backend_option),
};
