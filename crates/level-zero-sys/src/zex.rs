//! Counter-based events as drivers offered them before Level Zero 1.15: functions that
//! `zeDriverGetExtensionFunctionAddress` finds by name. The core API adopted them unchanged except
//! for the names and the value of `stype`.

use core::ffi::CStr;

use crate::{
    ze_event_counter_based_desc_t, ze_ipc_event_counter_based_handle_t,
    ze_pfnEventCounterBasedCloseIpcHandle_t, ze_pfnEventCounterBasedCreate_t,
    ze_pfnEventCounterBasedGetIpcHandle_t, ze_pfnEventCounterBasedOpenIpcHandle_t,
    ze_structure_type_t,
};

/// The name of the extension in the list of `zeDriverGetExtensionProperties`.
pub const ZEX_COUNTER_BASED_EVENT_EXT_NAME: &CStr = c"ZEX_counter_based_event";

/// `stype` of a [`zex_counter_based_event_desc_t`].
pub const ZEX_STRUCTURE_COUNTER_BASED_EVENT_DESC: ze_structure_type_t =
    ze_structure_type_t(0x0003_001c);

pub type zex_counter_based_event_desc_t = ze_event_counter_based_desc_t;
pub type zex_ipc_counter_based_event_handle_t = ze_ipc_event_counter_based_handle_t;

pub type zex_pfnCounterBasedEventCreate2_t = ze_pfnEventCounterBasedCreate_t;
pub type zex_pfnCounterBasedEventGetIpcHandle_t = ze_pfnEventCounterBasedGetIpcHandle_t;
pub type zex_pfnCounterBasedEventOpenIpcHandle_t = ze_pfnEventCounterBasedOpenIpcHandle_t;
pub type zex_pfnCounterBasedEventCloseIpcHandle_t = ze_pfnEventCounterBasedCloseIpcHandle_t;

/// The name of the function that creates an event, for `zeDriverGetExtensionFunctionAddress`.
pub const ZEX_COUNTER_BASED_EVENT_CREATE2: &CStr = c"zexCounterBasedEventCreate2";
/// The name of the function that returns an IPC handle of an event.
pub const ZEX_COUNTER_BASED_EVENT_GET_IPC_HANDLE: &CStr = c"zexCounterBasedEventGetIpcHandle";
/// The name of the function that opens an IPC handle.
pub const ZEX_COUNTER_BASED_EVENT_OPEN_IPC_HANDLE: &CStr = c"zexCounterBasedEventOpenIpcHandle";
/// The name of the function that closes an opened event.
pub const ZEX_COUNTER_BASED_EVENT_CLOSE_IPC_HANDLE: &CStr = c"zexCounterBasedEventCloseIpcHandle";
