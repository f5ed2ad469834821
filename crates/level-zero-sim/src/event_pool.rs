//! Pools of events.

use std::sync::Arc;

use level_zero_sys::*;

use crate::call::{INVALID_ENUMERATION, INVALID_SIZE, entry, present, read, read_all, write};
use crate::checks::{Check, misuse};
use crate::context::Context;
use crate::device::Device;
use crate::handles::{self, Object};
use crate::ledger::Resource;
use crate::memory::count_allocation;

const FLAGS: ze_event_pool_flags_t = ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_IPC;

pub(crate) struct Pool {
    pub(crate) context: Arc<Context>,
    pub(crate) count: u32,
    /// Whether the pool was created to be shared. This driver does not share pools.
    pub(crate) is_shared: bool,
}

impl Object for Pool {
    const NAME: &'static str = "event pool";

    fn resource(&self) -> Resource {
        Resource::Pool
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

entry! {
    fn zeEventPoolCreate(
        context: ze_context_handle_t,
        desc: *const ze_event_pool_desc_t,
        count: u32,
        devices: *mut ze_device_handle_t,
        pool: *mut ze_event_pool_handle_t,
    ) {
        let context = handles::get::<Context, _>(context)?;
        let desc = read(desc)?;
        present(pool)?;
        for device in read_all(devices.cast_const(), if devices.is_null() { 0 } else { count })? {
            handles::get::<Device, _>(device)?;
        }
        if desc.flags & !FLAGS != 0 {
            return Err(INVALID_ENUMERATION);
        }
        if desc.count == 0 || desc.count > 1 << 20 {
            return Err(INVALID_SIZE);
        }
        count_allocation()?;
        write(pool, handles::create(Arc::new(Pool {
            context,
            count: desc.count,
            is_shared: desc.flags & ZE_EVENT_POOL_FLAG_IPC != 0,
        }))?)
    }

    fn zeEventPoolDestroy(pool: ze_event_pool_handle_t) {
        let pool = handles::take::<Pool, _>(pool, |_| Ok(()))?;
        // The pool has one reference here, and one for each of its events.
        if Arc::strong_count(&pool) > 1 {
            misuse(Check::DestroyInUse, "the pool still has events");
        }
        Ok(())
    }
}
