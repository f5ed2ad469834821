//! Contexts, which contain memory, events and lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use level_zero_sys::*;

use crate::call::{Result, entry, present, read, write};
use crate::checks::{Check, misuse};
use crate::device::Device;
use crate::driver::Driver;
use crate::handles::{self, Object};
use crate::ledger::{Resource, write_report};

#[derive(Default)]
pub(crate) struct Context {
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

entry! {
    fn zeContextCreate(
        driver: ze_driver_handle_t,
        desc: *const ze_context_desc_t,
        context: *mut ze_context_handle_t,
    ) {
        handles::get::<Driver, _>(driver)?;
        read(desc)?;
        present(context)?;
        write(context, handles::create(Arc::new(Context::default()))?)
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
}
