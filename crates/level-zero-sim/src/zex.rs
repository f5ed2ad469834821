//! Functions that `zeDriverGetExtensionFunctionAddress` returns. They are the functions for
//! counter-based events under their older names, and do the same as those of the core API.

use std::ffi::{CStr, c_void};

use level_zero_sys::*;

use crate::call::entry;
use crate::counter_event::{close, create, export, import};
use crate::switches::switches;

/// Returns the function of this name, if the driver has it.
pub(crate) fn find(name: &CStr) -> Option<*mut c_void> {
    let text = name.to_str().ok()?;
    let missing = |name: &str| switches().missing(name);
    if missing(text) || ZEX_COUNTER_BASED_EVENT_EXT_NAME.to_str().is_ok_and(missing) {
        return None;
    }
    let create: zex_pfnCounterBasedEventCreate2_t = Some(zexCounterBasedEventCreate2);
    let export: zex_pfnCounterBasedEventGetIpcHandle_t = Some(zexCounterBasedEventGetIpcHandle);
    let import: zex_pfnCounterBasedEventOpenIpcHandle_t = Some(zexCounterBasedEventOpenIpcHandle);
    let close: zex_pfnCounterBasedEventCloseIpcHandle_t = Some(zexCounterBasedEventCloseIpcHandle);
    let functions = [
        (ZEX_COUNTER_BASED_EVENT_CREATE2, create? as *mut c_void),
        (
            ZEX_COUNTER_BASED_EVENT_GET_IPC_HANDLE,
            export? as *mut c_void,
        ),
        (
            ZEX_COUNTER_BASED_EVENT_OPEN_IPC_HANDLE,
            import? as *mut c_void,
        ),
        (
            ZEX_COUNTER_BASED_EVENT_CLOSE_IPC_HANDLE,
            close? as *mut c_void,
        ),
    ];
    functions
        .into_iter()
        .find(|(known, _)| *known == name)
        .map(|(_, function)| function)
}

entry! {
    fn zexCounterBasedEventCreate2(
        context: ze_context_handle_t,
        device: ze_device_handle_t,
        desc: *const zex_counter_based_event_desc_t,
        event: *mut ze_event_handle_t,
    ) {
        create(context, device, desc, event)
    }

    fn zexCounterBasedEventGetIpcHandle(
        event: ze_event_handle_t,
        handle: *mut zex_ipc_counter_based_event_handle_t,
    ) {
        export(event, handle)
    }

    fn zexCounterBasedEventOpenIpcHandle(
        context: ze_context_handle_t,
        handle: zex_ipc_counter_based_event_handle_t,
        event: *mut ze_event_handle_t,
    ) {
        import(context, handle, event)
    }

    fn zexCounterBasedEventCloseIpcHandle(event: ze_event_handle_t) {
        close(event)
    }
}
