//! Counter-based events, and the driver's functions for them.

use super::{
    DeviceHandle, Driver, DriverContext, EventHandle, Handle, IPC_HANDLE_BYTES, check,
    check_memory, description, driver_handles,
};
use crosshandle_types::error::{Error, Result};
use level_zero_sys::{
    Pointer, ZE_EVENT_COUNTER_BASED_FLAG_HOST_VISIBLE, ZE_EVENT_COUNTER_BASED_FLAG_IMMEDIATE,
    ZE_EVENT_COUNTER_BASED_FLAG_IPC, ZE_EVENT_SCOPE_FLAG_HOST, ZEL_HANDLE_DRIVER,
    ZEX_COUNTER_BASED_EVENT_CLOSE_IPC_HANDLE, ZEX_COUNTER_BASED_EVENT_CREATE2,
    ZEX_COUNTER_BASED_EVENT_GET_IPC_HANDLE, ZEX_COUNTER_BASED_EVENT_OPEN_IPC_HANDLE,
    ZEX_STRUCTURE_COUNTER_BASED_EVENT_DESC, ze_ipc_event_counter_based_handle_t,
    ze_pfnEventCounterBasedCloseIpcHandle_t, ze_pfnEventCounterBasedCreate_t,
    ze_pfnEventCounterBasedGetIpcHandle_t, ze_pfnEventCounterBasedOpenIpcHandle_t, ze_result_t,
    ze_structure_type_t,
};
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The functions for counter-based events. They come from the loader or from an extension of the
/// driver.
pub(super) struct CounterEvents {
    stype: ze_structure_type_t,
    create: <ze_pfnEventCounterBasedCreate_t as Pointer>::Function,
    get: <ze_pfnEventCounterBasedGetIpcHandle_t as Pointer>::Function,
    open: <ze_pfnEventCounterBasedOpenIpcHandle_t as Pointer>::Function,
    close: <ze_pfnEventCounterBasedCloseIpcHandle_t as Pointer>::Function,
}

impl CounterEvents {
    /// Finds all functions. Returns `None` if one of them is missing.
    pub(super) fn find(driver: &Driver) -> Option<Self> {
        let loader = &driver.loader;
        if driver.api >= (1, 15)
            && let Some(create) = loader.zeEventCounterBasedCreate
        {
            return Some(Self {
                stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC,
                create,
                get: loader.zeEventCounterBasedGetIpcHandle?,
                open: loader.zeEventCounterBasedOpenIpcHandle?,
                close: loader.zeEventCounterBasedCloseIpcHandle?,
            });
        }
        // The driver's own functions accept only the driver's own handles.
        if !has_own_handles(driver) {
            return None;
        }
        let create: ze_pfnEventCounterBasedCreate_t =
            extension(driver, ZEX_COUNTER_BASED_EVENT_CREATE2);
        let get: ze_pfnEventCounterBasedGetIpcHandle_t =
            extension(driver, ZEX_COUNTER_BASED_EVENT_GET_IPC_HANDLE);
        let open: ze_pfnEventCounterBasedOpenIpcHandle_t =
            extension(driver, ZEX_COUNTER_BASED_EVENT_OPEN_IPC_HANDLE);
        let close: ze_pfnEventCounterBasedCloseIpcHandle_t =
            extension(driver, ZEX_COUNTER_BASED_EVENT_CLOSE_IPC_HANDLE);
        Some(Self {
            stype: ZEX_STRUCTURE_COUNTER_BASED_EVENT_DESC,
            create: create?,
            get: get?,
            open: open?,
            close: close?,
        })
    }
}

/// Finds an extension function of the driver. Returns a null pointer if the driver has no function
/// of that name.
fn extension<F: Default + Copy>(driver: &Driver, name: &CStr) -> F {
    let mut address: *mut c_void = ptr::null_mut();
    let find = driver.loader.zeDriverGetExtensionFunctionAddress;
    // SAFETY: a driver that the loader gave, a name that ends with a zero byte, and a live result.
    let code = unsafe { find(driver.handle.0, name.as_ptr(), &mut address) };
    if code != ze_result_t::ZE_RESULT_SUCCESS {
        return F::default();
    }
    assert_eq!(size_of::<F>(), size_of_val(&address));
    // SAFETY: both types have the size of a pointer, null is `None`, and `F` is the type of the
    // function with this name.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Returns whether handles are the driver's own. If there are several drivers, older loaders return
/// handles of their own instead.
fn has_own_handles(driver: &Driver) -> bool {
    let Some(translate) = driver.loader.zelLoaderTranslateHandle else {
        // The loader is too old to translate handles. Such a loader returns handles of its own if
        // the environment variable requests it, or if there are several drivers.
        let asked =
            std::env::var_os("ZE_ENABLE_LOADER_INTERCEPT").is_some_and(|value| value == "1");
        return !asked && driver_handles(&driver.loader).is_ok_and(|all| all.len() == 1);
    };
    let mut theirs = ptr::null_mut();
    let ours = driver.handle.0.cast::<c_void>();
    // SAFETY: a driver that the loader gave, and a live result.
    let code = unsafe { translate(ZEL_HANDLE_DRIVER, ours, &mut theirs) };
    code != ze_result_t::ZE_RESULT_SUCCESS || theirs == ours
}

/// Returns the error of a driver without counter-based events.
pub(crate) fn missing() -> Error {
    Error::Unsupported("this Level Zero driver has no counter-based events".into())
}

/// An event that this process created. Dropping it destroys the driver's event.
pub(crate) struct CreatedEvent {
    context: Arc<DriverContext>,
    handle: EventHandle,
}

impl CreatedEvent {
    /// Creates an event, or returns `None` if the driver has no counter-based events.
    pub(crate) fn create(
        context: &Arc<DriverContext>,
        device: DeviceHandle,
    ) -> Option<Result<Self>> {
        let functions = context.driver.counter_events()?;
        let mut desc = description!(
            ze_event_counter_based_desc_t,
            ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC
        );
        desc.stype = functions.stype;
        desc.flags = ZE_EVENT_COUNTER_BASED_FLAG_IMMEDIATE
            | ZE_EVENT_COUNTER_BASED_FLAG_HOST_VISIBLE
            | ZE_EVENT_COUNTER_BASED_FLAG_IPC;
        desc.signal = ZE_EVENT_SCOPE_FLAG_HOST;
        desc.wait = ZE_EVENT_SCOPE_FLAG_HOST;
        let mut handle = ptr::null_mut();
        // SAFETY: our context, one of its devices, and a live result.
        let code = unsafe { (functions.create)(context.handle.0, device.0, &desc, &mut handle) };
        let made = check_memory("zeEventCounterBasedCreate", 0, code).map(|()| Self {
            context: Arc::clone(context),
            handle: Handle(handle),
        });
        Some(made)
    }

    /// Takes ownership of an event that the program created.
    ///
    /// # Safety
    /// `handle` is an event of the driver, and no other code destroys it.
    pub(crate) unsafe fn given(context: &Arc<DriverContext>, handle: EventHandle) -> Self {
        Self {
            context: Arc::clone(context),
            handle,
        }
    }

    /// Checks that an opened event receives later signals. Otherwise its handle is a snapshot of
    /// one signal, and a wait for the next signal would return immediately.
    ///
    /// Handles are snapshots in Intel's drivers before 26.14, and in later ones that cannot fetch
    /// descriptors. Such drivers refuse to create a handle of an event that was never signalled,
    /// which this check uses.
    pub(crate) fn check_live(context: &Arc<DriverContext>, device: DeviceHandle) -> Result<()> {
        if context.has_live_events.load(Ordering::Relaxed) {
            return Ok(());
        }
        let fresh = Self::create(context, device).transpose()?;
        fresh.ok_or_else(missing)?.export().map_err(|error| {
            Error::Unsupported(format!("handles of events are snapshots: {error}"))
        })?;
        context.has_live_events.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn handle(&self) -> EventHandle {
        self.handle
    }

    pub(crate) fn context(&self) -> &Arc<DriverContext> {
        &self.context
    }

    /// Returns the driver's IPC handle. The driver owns the descriptor in it.
    pub(crate) fn export(&self) -> Result<[u8; IPC_HANDLE_BYTES]> {
        let mut handle = ze_ipc_event_counter_based_handle_t {
            data: [0; IPC_HANDLE_BYTES],
        };
        if let Some(functions) = self.context.driver.counter_events() {
            // SAFETY: our event, with a live result.
            let code = unsafe { (functions.get)(self.handle.0, &mut handle) };
            check_memory("zeEventCounterBasedGetIpcHandle", 0, code)?;
        }
        Ok(handle.data.map(|byte| byte as u8))
    }
}

impl Drop for CreatedEvent {
    fn drop(&mut self) {
        self.context.release("an event", |context| {
            // SAFETY: the event was created once and is destroyed once, here. Commands keep the
            // events that they use.
            let code = unsafe { (context.driver.loader.zeEventDestroy)(self.handle.0) };
            check("zeEventDestroy", code)
        });
    }
}

/// An event that was opened by another process's handle. Dropping it closes the driver's event.
pub(crate) struct OpenedEvent {
    context: Arc<DriverContext>,
    handle: EventHandle,
}

impl OpenedEvent {
    /// Opens an event by a handle that the caller has checked. Returns `None` if the driver has no
    /// counter-based events.
    pub(crate) fn open(
        context: &Arc<DriverContext>,
        bytes: [u8; IPC_HANDLE_BYTES],
    ) -> Option<Result<Self>> {
        let functions = context.driver.counter_events()?;
        let theirs = ze_ipc_event_counter_based_handle_t {
            data: bytes.map(|byte| byte as c_char),
        };
        let mut handle = ptr::null_mut();
        // SAFETY: our context, with a live result.
        let code = unsafe { (functions.open)(context.handle.0, theirs, &mut handle) };
        let opened = check_memory("zeEventCounterBasedOpenIpcHandle", 0, code).map(|()| Self {
            context: Arc::clone(context),
            handle: Handle(handle),
        });
        Some(opened)
    }

    pub(crate) fn handle(&self) -> EventHandle {
        self.handle
    }
}

impl Drop for OpenedEvent {
    fn drop(&mut self) {
        self.context.release("an opened event", |context| {
            let Some(functions) = context.driver.counter_events() else {
                return Ok(());
            };
            // SAFETY: the event was opened once and is closed once, here. Commands keep the events
            // that they use.
            let code = unsafe { (functions.close)(self.handle.0) };
            check("zeEventCounterBasedCloseIpcHandle", code)
        });
    }
}
