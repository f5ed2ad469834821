//! Pools of events.

use std::sync::{Arc, Mutex, PoisonError};

use level_zero_sys::*;

use crate::call::{
    INVALID_ARGUMENT, INVALID_ENUMERATION, INVALID_SIZE, Result, UNSUPPORTED_FEATURE, entry,
    present, read, read_all, write,
};
use crate::checks::{Check, misuse};
use crate::context::Context;
use crate::device::Device;
use crate::handles::{self, Object};
use crate::ipc::{Exported, Kind, Wire};
use crate::ledger::Resource;
use crate::memory::count_allocation;
use crate::slot::Slots;
use crate::switches::switches;

const TIMES: ze_event_pool_flags_t =
    ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP | ZE_EVENT_POOL_FLAG_KERNEL_MAPPED_TIMESTAMP;
const FLAGS: ze_event_pool_flags_t =
    ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_IPC | TIMES;

pub(crate) struct Pool {
    pub(crate) context: Arc<Context>,
    pub(crate) slots: Arc<Slots>,
    pub(crate) has_times: bool,
    /// Whether other processes may open the pool.
    pub(crate) is_shared: bool,
    /// Whether the pool was opened from a handle. Such a pool is closed and not destroyed.
    opened: bool,
    exported: Mutex<Option<Exported>>,
}

impl Object for Pool {
    const NAME: &'static str = "event pool";

    fn resource(&self) -> Resource {
        match self.opened {
            true => Resource::OpenedPool,
            false => Resource::Pool,
        }
    }

    fn context(&self) -> Option<&Arc<Context>> {
        Some(&self.context)
    }
}

/// Ends a pool by close or destroy, and checks that this is the right one for it.
fn end(pool: ze_event_pool_handle_t, opened: bool) -> Result<()> {
    let pool = handles::take::<Pool, _>(pool, |pool| match pool.opened == opened {
        true => Ok(()),
        false => {
            let what = if opened {
                "created here, not opened"
            } else {
                "opened from a handle"
            };
            misuse(Check::WrongClose, &format!("the event pool was {what}"));
            Err(INVALID_ARGUMENT)
        }
    })?;
    // The pool has one reference here, and one for each of its events.
    if Arc::strong_count(&pool) > 1 {
        misuse(Check::DestroyInUse, "the pool still has events");
    }
    Ok(())
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
            slots: Slots::new(desc.count, desc.flags & ZE_EVENT_POOL_FLAG_IPC != 0)?,
            has_times: desc.flags & TIMES != 0,
            is_shared: desc.flags & ZE_EVENT_POOL_FLAG_IPC != 0,
            opened: false,
            exported: Mutex::new(None),
        }))?)
    }

    fn zeEventPoolDestroy(pool: ze_event_pool_handle_t) {
        end(pool, false)
    }

    fn zeEventPoolCloseIpcHandle(pool: ze_event_pool_handle_t) {
        end(pool, true)
    }

    fn zeEventPoolGetIpcHandle(
        pool: ze_event_pool_handle_t,
        handle: *mut ze_ipc_event_pool_handle_t,
    ) {
        let pool = handles::get::<Pool, _>(pool)?;
        present(handle)?;
        if switches().missing("ipc_event_pool") {
            return Err(UNSUPPORTED_FEATURE);
        }
        let mut exported = pool.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if exported.is_none() {
            *exported = Some(Exported::new(pool.slots.segment()?)?);
        }
        let exported = exported.as_ref().ok_or(INVALID_ARGUMENT)?;
        exported.check()?;
        let count = pool.slots.count() as u64;
        let wire = Wire::new(Kind::EventPool, exported, count, u32::from(pool.has_times));
        write(handle, ze_ipc_event_pool_handle_t { data: wire.into_bytes() })
    }

    fn zeEventPoolPutIpcHandle(
        context: ze_context_handle_t,
        handle: ze_ipc_event_pool_handle_t,
    ) {
        // The descriptor stays open as long as the pool.
        handles::get::<Context, _>(context)?;
        Wire::read(handle.data, Kind::EventPool).map(drop)
    }

    fn zeEventPoolOpenIpcHandle(
        context: ze_context_handle_t,
        handle: ze_ipc_event_pool_handle_t,
        pool: *mut ze_event_pool_handle_t,
    ) {
        let context = handles::get::<Context, _>(context)?;
        present(pool)?;
        let wire = Wire::read(handle.data, Kind::EventPool)?;
        let slots = Slots::open(wire.open(Kind::EventPool)?)?;
        write(pool, handles::create(Arc::new(Pool {
            context,
            slots,
            has_times: wire.flags != 0,
            is_shared: true,
            opened: true,
            exported: Mutex::new(None),
        }))?)
    }
}
