//! Level Zero's own calls, as a program would use them that shares without the library.
//!
//! All objects are in one context of the first driver, on its first device. Context and device live
//! as long as the process.

mod event;
mod list;
mod memory;

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, anyhow, bail};
use level_zero_sys::{
    Loader, ZE_INIT_FLAG_GPU_ONLY, ze_context_desc_t, ze_context_handle_t, ze_device_handle_t,
    ze_device_properties_t, ze_driver_handle_t, ze_result_t,
};

use event::CounterEventFunctions;
pub(crate) use event::{CounterEvent, OpenedEvent, PooledEvent, Signalled};
pub(crate) use list::List;
pub(crate) use memory::{Memory, OpenedMemory};

/// Size of the driver's inter-process handles in bytes. The first four are a descriptor's number.
pub(crate) const HANDLE_SIZE: usize = 64;

/// Makes a structure of Level Zero with its `stype` and zeros.
macro_rules! description {
    ($type:ident, $stype:ident) => {{
        // SAFETY: all zeros are a value of the descriptor structures of Level Zero, which consist of
        // numbers and pointers.
        let mut value: level_zero_sys::$type = unsafe { std::mem::zeroed() };
        value.stype = level_zero_sys::ze_structure_type_t::$stype;
        value
    }};
}
use description;

/// The first device, with its driver and a context.
pub(crate) struct Gpu {
    loader: Loader,
    driver: ze_driver_handle_t,
    device: ze_device_handle_t,
    context: ze_context_handle_t,
    counter_events: CounterEventFunctions,
}

// SAFETY: Level Zero lets any thread use these handles.
unsafe impl Send for Gpu {}
// SAFETY: Level Zero lets several threads use these handles at the same time.
unsafe impl Sync for Gpu {}

/// Makes an error of a call's result unless it is success.
#[inline]
fn check(function: &str, code: ze_result_t) -> Result<()> {
    if code != ze_result_t::ZE_RESULT_SUCCESS {
        bail!("{function}: {:#x}", code.0);
    }
    Ok(())
}

impl Gpu {
    /// Returns the first device. The first call loads and initialises the driver.
    pub(crate) fn first() -> Result<&'static Self> {
        static GPU: OnceLock<std::result::Result<Gpu, String>> = OnceLock::new();
        let gpu = GPU.get_or_init(|| Self::open().map_err(|error| format!("{error:#}")));
        gpu.as_ref().map_err(|error| anyhow!("{error}"))
    }

    fn open() -> Result<Self> {
        let loader = Loader::load().map_err(|error| anyhow!("{error}"))?;
        // SAFETY: any thread may call this at any time; the flag is valid.
        check("zeInit", unsafe { (loader.zeInit)(ZE_INIT_FLAG_GPU_ONLY) })?;
        let (mut count, mut driver) = (1, ptr::null_mut());
        // SAFETY: `driver` has room for `count` handles.
        let code = unsafe { (loader.zeDriverGet)(&mut count, &mut driver) };
        check("zeDriverGet", code)?;
        let (mut count, mut device) = (1, ptr::null_mut());
        // SAFETY: the loader returned `driver`, and `device` has room for `count` handles.
        let code = unsafe { (loader.zeDeviceGet)(driver, &mut count, &mut device) };
        check("zeDeviceGet", code)?;
        let desc: ze_context_desc_t =
            description!(ze_context_desc_t, ZE_STRUCTURE_TYPE_CONTEXT_DESC);
        let mut context = ptr::null_mut();
        // SAFETY: the loader returned `driver`, and `context` is valid for the result.
        let code = unsafe { (loader.zeContextCreate)(driver, &desc, &mut context) };
        check("zeContextCreate", code)?;
        let counter_events = CounterEventFunctions::find(&loader, driver)
            .context("the driver has no counter-based events")?;
        Ok(Self {
            loader,
            driver,
            device,
            context,
            counter_events,
        })
    }

    pub(crate) fn name(&self) -> Result<String> {
        let mut properties: ze_device_properties_t =
            description!(ze_device_properties_t, ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES);
        // SAFETY: the loader returned the device, and `properties` has the type that its `stype`
        // names.
        let code = unsafe { (self.loader.zeDeviceGetProperties)(self.device, &mut properties) };
        check("zeDeviceGetProperties", code)?;
        let bytes = properties.name.map(|byte| byte as u8);
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// Returns the version of Level Zero that the driver implements.
    pub(crate) fn api_version(&self) -> Result<String> {
        let mut version = level_zero_sys::ze_api_version_t(0);
        // SAFETY: the loader returned the driver, and `version` is valid for the result.
        let code = unsafe { (self.loader.zeDriverGetApiVersion)(self.driver, &mut version) };
        check("zeDriverGetApiVersion", code)?;
        Ok(format!("{}.{}", version.0 >> 16, version.0 & 0xffff))
    }
}

/// Duplicates the descriptor in an exported handle. The original stays the driver's.
///
/// # Safety
///
/// This process has exported the handle, and the exported object still lives.
pub(crate) unsafe fn duplicate_descriptor(handle: &[u8; HANDLE_SIZE]) -> Result<OwnedFd> {
    let (number, _) = handle.split_first_chunk().context("a handle is longer")?;
    // SAFETY: the caller promises that this is an exported handle, whose descriptor the driver
    // keeps open as long as the exported object lives.
    let file = unsafe { BorrowedFd::borrow_raw(i32::from_ne_bytes(*number)) };
    Ok(file.try_clone_to_owned()?)
}

/// Returns another process's handle with the number of a descriptor of this process.
pub(crate) fn with_descriptor(handle: &[u8], file: BorrowedFd<'_>) -> Result<[u8; HANDLE_SIZE]> {
    let mut handle: [u8; HANDLE_SIZE] = handle.try_into()?;
    handle[..4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
    Ok(handle)
}
