//! The driver object, of which each process has one.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, LazyLock};

use level_zero_sys::*;

use crate::call::{
    INVALID_ARGUMENT, INVALID_ENUMERATION, INVALID_NULL_POINTER, Result, UNINITIALIZED, entry,
    enumerate, name, read, write,
};
use crate::context::Context;
use crate::device::devices;
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::switches::switches;
use crate::zex;

pub(crate) struct Driver;

impl Object for Driver {
    const NAME: &'static str = "driver";

    fn resource(&self) -> Resource {
        Resource::Driver
    }

    fn context(&self) -> Option<&Arc<Context>> {
        None
    }
}

/// The driver's handle as an address, or 0 if there was no memory for it.
static DRIVER: LazyLock<usize> = LazyLock::new(|| {
    let handle: Result<*mut c_void> = handles::create(Arc::new(Driver));
    handle.map_or(0, |handle| handle.expose_provenance())
});

fn driver() -> Result<ze_driver_handle_t> {
    match *DRIVER {
        0 => Err(UNINITIALIZED),
        address => Ok(std::ptr::with_exposed_provenance_mut(address)),
    }
}

/// The extensions that `zeDriverGetExtensionProperties` lists.
const EXTENSIONS: [(&CStr, u32); 6] = [
    (ZEX_COUNTER_BASED_EVENT_EXT_NAME, 0x1_0000),
    (ZE_DEVICE_IP_VERSION_EXT_NAME, 0x1_0000),
    (ZE_GLOBAL_OFFSET_EXP_NAME, 0x1_0000),
    (ZE_KERNEL_MAX_GROUP_SIZE_PROPERTIES_EXT_NAME, 0x1_0000),
    (ZE_MODULE_PROGRAM_EXP_NAME, 0x1_0000),
    (ZE_PCI_PROPERTIES_EXT_NAME, 0x1_0000),
];

fn text(name: &CStr) -> &str {
    name.to_str().unwrap_or_default()
}

entry! {
    fn zeInit(flags: ze_init_flags_t) {
        let known = ZE_INIT_FLAG_GPU_ONLY | ZE_INIT_FLAG_VPU_ONLY;
        if flags & !known != 0 {
            return Err(INVALID_ENUMERATION);
        }
        // All devices are GPUs.
        if flags != 0 && flags & ZE_INIT_FLAG_GPU_ONLY == 0 {
            return Err(UNINITIALIZED);
        }
        driver().map(drop)
    }

    fn zeInitDrivers(
        count: *mut u32,
        drivers: *mut ze_driver_handle_t,
        desc: *mut ze_init_driver_type_desc_t,
    ) {
        if read(desc.cast_const())?.flags & ZE_INIT_DRIVER_TYPE_FLAG_GPU == 0 {
            return Err(UNINITIALIZED);
        }
        enumerate(&[driver()?], count, drivers)
    }

    fn zeDriverGet(count: *mut u32, drivers: *mut ze_driver_handle_t) {
        enumerate(&[driver()?], count, drivers)
    }

    fn zeDriverGetApiVersion(driver: ze_driver_handle_t, version: *mut ze_api_version_t) {
        handles::get::<Driver, _>(driver)?;
        write(version, ze_api_version_t(1 << 16 | switches().minor_version))
    }

    fn zeDriverGetProperties(
        driver: ze_driver_handle_t,
        properties: *mut ze_driver_properties_t,
    ) {
        handles::get::<Driver, _>(driver)?;
        let mut value = read(properties)?;
        value.uuid.id = [0; 16];
        value.uuid.id[..6].copy_from_slice(b"ze_sim");
        value.uuid.id[12..].copy_from_slice(&switches().driver_version.to_le_bytes());
        value.driverVersion = switches().driver_version;
        write(properties, value)
    }

    fn zeDriverGetIpcProperties(
        driver: ze_driver_handle_t,
        properties: *mut ze_driver_ipc_properties_t,
    ) {
        handles::get::<Driver, _>(driver)?;
        let mut value = read(properties)?;
        value.flags = 0;
        if !switches().missing("ipc_memory") {
            value.flags |= ZE_IPC_PROPERTY_FLAG_MEMORY;
        }
        write(properties, value)
    }

    fn zeDriverGetExtensionProperties(
        driver: ze_driver_handle_t,
        count: *mut u32,
        extensions: *mut ze_driver_extension_properties_t,
    ) {
        handles::get::<Driver, _>(driver)?;
        let here = EXTENSIONS.iter().filter(|(name, _)| !switches().missing(text(name)));
        let list: Vec<_> = here
            .map(|&(extension, version)| ze_driver_extension_properties_t {
                name: name(text(extension)),
                version,
            })
            .collect();
        enumerate(&list, count, extensions)
    }

    fn zeDriverGetExtensionFunctionAddress(
        driver: ze_driver_handle_t,
        name: *const c_char,
        address: *mut *mut c_void,
    ) {
        handles::get::<Driver, _>(driver)?;
        if name.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        // SAFETY: the contract of entry points: the string ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        let function = zex::find(name).ok_or(INVALID_ARGUMENT)?;
        write(address, function)
    }

    fn zeDeviceGet(
        driver: ze_driver_handle_t,
        count: *mut u32,
        list: *mut ze_device_handle_t,
    ) {
        handles::get::<Driver, _>(driver)?;
        enumerate(&devices()?, count, list)
    }
}
