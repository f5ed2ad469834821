//! Events: counter-based ones, which processes share, and pooled ones.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::rc::Rc;

use anyhow::Result;
use level_zero_sys::{
    Loader, Pointer, ZE_EVENT_COUNTER_BASED_FLAG_HOST_VISIBLE,
    ZE_EVENT_COUNTER_BASED_FLAG_IMMEDIATE, ZE_EVENT_COUNTER_BASED_FLAG_IPC,
    ZE_EVENT_POOL_FLAG_HOST_VISIBLE, ZE_EVENT_SCOPE_FLAG_HOST,
    ZEX_COUNTER_BASED_EVENT_CLOSE_IPC_HANDLE, ZEX_COUNTER_BASED_EVENT_CREATE2,
    ZEX_COUNTER_BASED_EVENT_GET_IPC_HANDLE, ZEX_COUNTER_BASED_EVENT_OPEN_IPC_HANDLE,
    ZEX_STRUCTURE_COUNTER_BASED_EVENT_DESC, ze_driver_handle_t, ze_event_handle_t,
    ze_event_pool_handle_t, ze_ipc_event_counter_based_handle_t,
    ze_pfnEventCounterBasedCloseIpcHandle_t, ze_pfnEventCounterBasedCreate_t,
    ze_pfnEventCounterBasedGetIpcHandle_t, ze_pfnEventCounterBasedOpenIpcHandle_t, ze_result_t,
    ze_structure_type_t,
};

use super::{Gpu, HANDLE_SIZE, check, description};

/// Functions for counter-based events: the loader's, or else the driver's experimental ones.
pub(super) struct CounterEventFunctions {
    stype: ze_structure_type_t,
    create: <ze_pfnEventCounterBasedCreate_t as Pointer>::Function,
    get: <ze_pfnEventCounterBasedGetIpcHandle_t as Pointer>::Function,
    open: <ze_pfnEventCounterBasedOpenIpcHandle_t as Pointer>::Function,
    close: <ze_pfnEventCounterBasedCloseIpcHandle_t as Pointer>::Function,
}

impl CounterEventFunctions {
    /// Finds the functions. Returns `None` if neither loader nor driver has them.
    pub(super) fn find(loader: &Loader, driver: ze_driver_handle_t) -> Option<Self> {
        if let Some(create) = loader.zeEventCounterBasedCreate {
            return Some(Self {
                stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC,
                create,
                get: loader.zeEventCounterBasedGetIpcHandle?,
                open: loader.zeEventCounterBasedOpenIpcHandle?,
                close: loader.zeEventCounterBasedCloseIpcHandle?,
            });
        }
        let create: ze_pfnEventCounterBasedCreate_t =
            extension(loader, driver, ZEX_COUNTER_BASED_EVENT_CREATE2);
        let get: ze_pfnEventCounterBasedGetIpcHandle_t =
            extension(loader, driver, ZEX_COUNTER_BASED_EVENT_GET_IPC_HANDLE);
        let open: ze_pfnEventCounterBasedOpenIpcHandle_t =
            extension(loader, driver, ZEX_COUNTER_BASED_EVENT_OPEN_IPC_HANDLE);
        let close: ze_pfnEventCounterBasedCloseIpcHandle_t =
            extension(loader, driver, ZEX_COUNTER_BASED_EVENT_CLOSE_IPC_HANDLE);
        Some(Self {
            stype: ZEX_STRUCTURE_COUNTER_BASED_EVENT_DESC,
            create: create?,
            get: get?,
            open: open?,
            close: close?,
        })
    }
}

/// Finds a driver's function by its name. Returns a null pointer if the driver lacks the function.
fn extension<F: Default + Copy>(loader: &Loader, driver: ze_driver_handle_t, name: &CStr) -> F {
    let mut address: *mut c_void = ptr::null_mut();
    let find = loader.zeDriverGetExtensionFunctionAddress;
    // SAFETY: the loader returned `driver`, `name` ends with a zero, and `address` is valid for the
    // result.
    let code = unsafe { find(driver, name.as_ptr(), &mut address) };
    assert_eq!(size_of::<F>(), size_of_val(&address));
    match code {
        // SAFETY: both have the size of a pointer, by the assertion. Callers pass an `Option` of the
        // type that the function of this name has; null is its `None`.
        ze_result_t::ZE_RESULT_SUCCESS => unsafe { std::mem::transmute_copy(&address) },
        _ => F::default(),
    }
}

/// An event that lists signal and wait for.
pub(crate) trait Signalled {
    /// Returns the driver's handle.
    fn handle(&self) -> ze_event_handle_t;
}

/// Waits on the host until an event is signalled.
#[inline]
fn synchronize(gpu: &Gpu, event: ze_event_handle_t) -> Result<()> {
    // SAFETY: the caller owns the event.
    check("zeEventHostSynchronize", unsafe {
        (gpu.loader.zeEventHostSynchronize)(event, u64::MAX)
    })
}

/// Returns whether an event is signalled.
#[inline]
fn is_done(gpu: &Gpu, event: ze_event_handle_t) -> Result<bool> {
    // SAFETY: the caller owns the event.
    let code = unsafe { (gpu.loader.zeEventQueryStatus)(event) };
    match code {
        ze_result_t::ZE_RESULT_NOT_READY => Ok(false),
        code => check("zeEventQueryStatus", code).map(|()| true),
    }
}

/// A counter-based event that processes share, destroyed when dropped.
pub(crate) struct CounterEvent {
    gpu: &'static Gpu,
    handle: ze_event_handle_t,
}

impl CounterEvent {
    pub(crate) fn create(gpu: &'static Gpu) -> Result<Self> {
        let mut desc = description!(
            ze_event_counter_based_desc_t,
            ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC
        );
        desc.stype = gpu.counter_events.stype;
        desc.flags = ZE_EVENT_COUNTER_BASED_FLAG_IMMEDIATE
            | ZE_EVENT_COUNTER_BASED_FLAG_HOST_VISIBLE
            | ZE_EVENT_COUNTER_BASED_FLAG_IPC;
        desc.signal = ZE_EVENT_SCOPE_FLAG_HOST;
        desc.wait = ZE_EVENT_SCOPE_FLAG_HOST;
        let mut handle = ptr::null_mut();
        let create = gpu.counter_events.create;
        // SAFETY: context and device live as long as the process; `handle` is valid for the result.
        let code = unsafe { create(gpu.context, gpu.device, &desc, &mut handle) };
        check("zeEventCounterBasedCreate", code)?;
        Ok(Self { gpu, handle })
    }

    /// Gets the driver's handle to the event.
    #[inline]
    pub(crate) fn export(&self) -> Result<[u8; HANDLE_SIZE]> {
        let mut handle = ze_ipc_event_counter_based_handle_t {
            data: [0; HANDLE_SIZE],
        };
        // SAFETY: this object owns the event, and `handle` is valid for the result.
        let code = unsafe { (self.gpu.counter_events.get)(self.handle, &mut handle) };
        check("zeEventCounterBasedGetIpcHandle", code)?;
        Ok(handle.data.map(|byte| byte as u8))
    }

    #[inline]
    pub(crate) fn synchronize(&self) -> Result<()> {
        synchronize(self.gpu, self.handle)
    }

    #[inline]
    pub(crate) fn is_done(&self) -> Result<bool> {
        is_done(self.gpu, self.handle)
    }
}

impl Signalled for CounterEvent {
    fn handle(&self) -> ze_event_handle_t {
        self.handle
    }
}

impl Drop for CounterEvent {
    fn drop(&mut self) {
        // SAFETY: this object owns the event and destroys it once. The scenarios drop an event after
        // they have waited for all lists that use it.
        unsafe { (self.gpu.loader.zeEventDestroy)(self.handle) };
    }
}

/// Another process's counter-based event, closed when dropped.
pub(crate) struct OpenedEvent {
    gpu: &'static Gpu,
    handle: ze_event_handle_t,
}

impl OpenedEvent {
    /// Opens a handle that contains the number of a descriptor of this process.
    #[inline]
    pub(crate) fn open(gpu: &'static Gpu, bytes: [u8; HANDLE_SIZE]) -> Result<Self> {
        let exported = ze_ipc_event_counter_based_handle_t {
            data: bytes.map(|byte| byte as c_char),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the context lives as long as the process, and `handle` is valid for the result.
        // The driver checks the bytes.
        let code = unsafe { (gpu.counter_events.open)(gpu.context, exported, &mut handle) };
        check("zeEventCounterBasedOpenIpcHandle", code)?;
        Ok(Self { gpu, handle })
    }
}

impl Drop for OpenedEvent {
    fn drop(&mut self) {
        // SAFETY: this object has opened the event and closes it once. No list uses the event, since
        // the type gives out no handle.
        unsafe { (self.gpu.counter_events.close)(self.handle) };
    }
}

/// An event of a pool, for this process alone.
pub(crate) struct PooledEvent {
    handle: ze_event_handle_t,
    pool: Rc<Pool>,
}

/// A pool of events, destroyed with its last event.
struct Pool {
    gpu: &'static Gpu,
    handle: ze_event_pool_handle_t,
}

impl PooledEvent {
    pub(crate) fn create(gpu: &'static Gpu) -> Result<Self> {
        Self::create_at(&Pool::create(gpu, 1)?, 0)
    }

    /// Creates several events of one pool, as programs do.
    pub(crate) fn create_many(gpu: &'static Gpu, count: u32) -> Result<Vec<Self>> {
        let pool = Pool::create(gpu, count)?;
        (0..count)
            .map(|index| Self::create_at(&pool, index))
            .collect()
    }

    fn create_at(pool: &Rc<Pool>, index: u32) -> Result<Self> {
        let mut desc = description!(ze_event_desc_t, ZE_STRUCTURE_TYPE_EVENT_DESC);
        desc.index = index;
        desc.signal = ZE_EVENT_SCOPE_FLAG_HOST;
        desc.wait = ZE_EVENT_SCOPE_FLAG_HOST;
        let mut handle = ptr::null_mut();
        // SAFETY: the pool lives, its creators use each index once, and `handle` is valid for the
        // result.
        let code = unsafe { (pool.gpu.loader.zeEventCreate)(pool.handle, &desc, &mut handle) };
        check("zeEventCreate", code)?;
        let pool = Rc::clone(pool);
        Ok(Self { handle, pool })
    }

    pub(crate) fn synchronize(&self) -> Result<()> {
        synchronize(self.pool.gpu, self.handle)
    }

    pub(crate) fn is_done(&self) -> Result<bool> {
        is_done(self.pool.gpu, self.handle)
    }

    pub(crate) fn reset(&self) -> Result<()> {
        // SAFETY: this object owns the event. The scenarios reset an event after they have waited
        // for all lists that signal it.
        check("zeEventHostReset", unsafe {
            (self.pool.gpu.loader.zeEventHostReset)(self.handle)
        })
    }
}

impl Signalled for PooledEvent {
    fn handle(&self) -> ze_event_handle_t {
        self.handle
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        // SAFETY: this object owns the event and destroys it once, before it drops its pool. The
        // scenarios drop an event after they have waited for all lists that use it.
        unsafe { (self.pool.gpu.loader.zeEventDestroy)(self.handle) };
    }
}

impl Pool {
    fn create(gpu: &'static Gpu, count: u32) -> Result<Rc<Self>> {
        let mut desc = description!(ze_event_pool_desc_t, ZE_STRUCTURE_TYPE_EVENT_POOL_DESC);
        desc.flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE;
        desc.count = count;
        let mut handle = ptr::null_mut();
        let create = gpu.loader.zeEventPoolCreate;
        // SAFETY: the context lives as long as the process, no device means all, and `handle` is
        // valid for the result.
        let code = unsafe { create(gpu.context, &desc, 0, ptr::null_mut(), &mut handle) };
        check("zeEventPoolCreate", code)?;
        Ok(Rc::new(Self { gpu, handle }))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: this object owns the pool and destroys it once. Each event keeps the pool, so none
        // is left.
        unsafe { (self.gpu.loader.zeEventPoolDestroy)(self.handle) };
    }
}
