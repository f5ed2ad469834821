//! Contexts, which contain memory, events and lists.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use level_zero_sys::*;

use crate::call::{Result, entry, present, read, read_all, write};
use crate::checks::{Check, misuse};
use crate::device::Device;
use crate::driver::Driver;
use crate::handles::{self, Object};
use crate::ledger::{Resource, write_report};

#[derive(Default)]
pub(crate) struct Context {
    /// The number of objects in this context.
    members: AtomicUsize,
}

impl Object for Context {
    const NAME: &'static str = "context";

    fn resource(&self) -> Resource {
        Resource::Context
    }

    fn context(&self) -> Option<&Arc<Context>> {
        None
    }
}

impl Context {
    pub(crate) fn gain(&self) {
        self.members.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn lose(&self) {
        self.members.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the context and the device that most functions take first, and checks that the device
/// works.
pub(crate) fn pair(
    context: ze_context_handle_t,
    device: ze_device_handle_t,
) -> Result<(Arc<Context>, Arc<Device>)> {
    let context = handles::get::<Context, _>(context)?;
    let device = handles::get::<Device, _>(device)?;
    device.check()?;
    Ok((context, device))
}

fn create(
    driver: ze_driver_handle_t,
    desc: *const ze_context_desc_t,
    to: *mut ze_context_handle_t,
) -> Result<()> {
    handles::get::<Driver, _>(driver)?;
    read(desc)?;
    present(to)?;
    write(to, handles::create(Arc::new(Context::default()))?)
}

entry! {
    fn zeContextCreate(
        driver: ze_driver_handle_t,
        desc: *const ze_context_desc_t,
        context: *mut ze_context_handle_t,
    ) {
        create(driver, desc, context)
    }

    fn zeContextCreateEx(
        driver: ze_driver_handle_t,
        desc: *const ze_context_desc_t,
        count: u32,
        devices: *mut ze_device_handle_t,
        context: *mut ze_context_handle_t,
    ) {
        if !devices.is_null() {
            for device in read_all(devices.cast_const(), count)? {
                handles::get::<Device, _>(device)?;
            }
        }
        create(driver, desc, context)
    }

    fn zeContextDestroy(context: ze_context_handle_t) {
        let context = handles::take::<Context, _>(context, |_| Ok(()))?;
        let members = context.members.load(Ordering::Relaxed);
        if members > 0 {
            misuse(Check::OutlivedContext, &format!("{members} objects still live in it"));
        }
        write_report();
        Ok(())
    }

    fn zeContextGetStatus(context: ze_context_handle_t) {
        handles::get::<Context, _>(context).map(drop)
    }

    fn zeContextSystemBarrier(context: ze_context_handle_t, device: ze_device_handle_t) {
        pair(context, device).map(drop)
    }

    fn zeContextMakeMemoryResident(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        address: *mut c_void,
        size: usize,
    ) {
        pair(context, device)?;
        crate::space::find_range(address.addr(), size).map(drop)
    }

    fn zeContextEvictMemory(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        address: *mut c_void,
        size: usize,
    ) {
        pair(context, device)?;
        crate::space::find_range(address.addr(), size).map(drop)
    }
}
