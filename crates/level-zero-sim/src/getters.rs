//! Functions that the loader looks up by name. Each one fills a table of function pointers. It
//! fills as many entries as both the loader's and the driver's version of Level Zero have. Entries
//! that this crate does not implement contain a function that returns "unsupported", because old
//! loaders refuse a driver that lacks a function of Level Zero 1.4.

use std::ffi::c_void;

use level_zero_sys::*;

use crate::call::{INVALID_NULL_POINTER, Result, UNSUPPORTED_FEATURE, UNSUPPORTED_VERSION};
use crate::switches::switches;

/// A minor version, and the number of functions that a table has since that version.
type Step = (u32, usize);

/// Takes the place of every missing function. It ignores its arguments.
extern "C" fn unsupported() -> ze_result_t {
    UNSUPPORTED_FEATURE
}

/// Creates a table in which every entry is [`unsupported`].
///
/// # Safety
///
/// `T` must consist of function pointers only, all of which return a `ze_result_t`.
unsafe fn nothing<T>() -> T {
    let mut table = std::mem::MaybeUninit::<T>::uninit();
    let entries = size_of::<T>() / size_of::<usize>();
    let function: extern "C" fn() -> ze_result_t = unsupported;
    for i in 0..entries {
        // SAFETY: the entry is in the table. In this machine's C interface, a function may be
        // called with more arguments than it reads.
        unsafe {
            table
                .as_mut_ptr()
                .cast::<extern "C" fn() -> ze_result_t>()
                .add(i)
                .write(function)
        };
    }
    // SAFETY: every entry was written.
    unsafe { table.assume_init() }
}

/// Copies the entries that both the loader and the driver know.
fn give<T>(version: ze_api_version_t, to: *mut T, table: &T, steps: &[Step]) -> Result<()> {
    if to.is_null() {
        return Err(INVALID_NULL_POINTER);
    }
    if version.0 >> 16 != 1 {
        return Err(UNSUPPORTED_VERSION);
    }
    let minor = (version.0 & 0xffff).min(switches().minor_version);
    let known = steps.iter().take_while(|(since, _)| *since <= minor).last();
    let entries = known.map_or(0, |(_, entries)| *entries);
    let bytes = (entries * size_of::<usize>()).min(size_of::<T>());
    let from: *const T = table;
    // SAFETY: the loader's table has at least as many entries as its version has.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.cast(), bytes) };
    Ok(())
}

macro_rules! tables {
    ($(
        $getter:ident $table:ident [$($since:literal: $entries:literal),*]
            $($field:ident = $module:ident::$function:ident)*;
    )*) => {$(
        /// # Safety
        ///
        /// The loader calls it, and `to` points to a table of that version.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $getter(
            version: ze_api_version_t,
            to: *mut $table,
        ) -> ze_result_t {
            static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
            crate::call::call(stringify!($getter), &CALLS, || {
                // SAFETY: a Level Zero table consists of such function pointers only.
                #[allow(unused_mut)]
                let mut table: $table = unsafe { nothing() };
                $(if !switches().missing(stringify!($function)) {
                    table.$field = Some(crate::$module::$function);
                })*
                give(version, to, &table, &[$(($since, $entries)),*])
            })
        }
    )*};
}

tables! {
    zeGetGlobalProcAddrTable ze_global_dditable_t [0: 1, 10: 2]
        pfnInit = driver::zeInit
        pfnInitDrivers = driver::zeInitDrivers;
    zeGetDriverProcAddrTable ze_driver_dditable_t [0: 5, 1: 6, 6: 7, 13: 8, 14: 9]
        pfnGet = driver::zeDriverGet
        pfnGetApiVersion = driver::zeDriverGetApiVersion
        pfnGetProperties = driver::zeDriverGetProperties
        pfnGetIpcProperties = driver::zeDriverGetIpcProperties
        pfnGetExtensionProperties = driver::zeDriverGetExtensionProperties
        pfnGetExtensionFunctionAddress = driver::zeDriverGetExtensionFunctionAddress;
    zeGetDeviceProcAddrTable ze_device_dditable_t
        [0: 14, 1: 15, 2: 17, 3: 18, 7: 19, 12: 21, 13: 22, 14: 23, 15: 24, 16: 27, 17: 28]
        pfnGet = driver::zeDeviceGet
        pfnGetProperties = device_info::zeDeviceGetProperties
        pfnGetComputeProperties = device_info::zeDeviceGetComputeProperties
        pfnGetModuleProperties = device_info::zeDeviceGetModuleProperties
        pfnGetImageProperties = image::zeDeviceGetImageProperties
        pfnGetCommandQueueGroupProperties = device_info::zeDeviceGetCommandQueueGroupProperties
        pfnGetMemoryProperties = device_info::zeDeviceGetMemoryProperties
        pfnGetCacheProperties = device_info::zeDeviceGetCacheProperties
        pfnGetExternalMemoryProperties = device_info::zeDeviceGetExternalMemoryProperties
        pfnCanAccessPeer = device::zeDeviceCanAccessPeer
        pfnPciGetPropertiesExt = device_info::zeDevicePciGetPropertiesExt;
    zeGetContextProcAddrTable ze_context_dditable_t [0: 8, 1: 9]
        pfnCreate = context::zeContextCreate
        pfnDestroy = context::zeContextDestroy;
    zeGetCommandQueueProcAddrTable ze_command_queue_dditable_t [0: 4, 9: 6, 17: 9]
        pfnCreate = command_queue::zeCommandQueueCreate
        pfnDestroy = command_queue::zeCommandQueueDestroy
        pfnExecuteCommandLists = command_queue::zeCommandQueueExecuteCommandLists
        pfnSynchronize = command_queue::zeCommandQueueSynchronize;
    zeGetCommandListProcAddrTable ze_command_list_dditable_t
        [0: 26, 3: 28, 6: 29, 9: 34, 12: 36, 14: 38, 16: 41, 17: 52]
        pfnCreate = list::zeCommandListCreate
        pfnClose = list::zeCommandListClose
        pfnCreateImmediate = list::zeCommandListCreateImmediate
        pfnDestroy = list::zeCommandListDestroy
        pfnAppendBarrier = append::zeCommandListAppendBarrier
        pfnAppendMemoryCopy = append::zeCommandListAppendMemoryCopy
        pfnAppendMemoryFill = append::zeCommandListAppendMemoryFill
        pfnAppendMemoryCopyRegion = append::zeCommandListAppendMemoryCopyRegion
        pfnAppendImageCopyRegion = image::zeCommandListAppendImageCopyRegion
        pfnAppendImageCopyToMemory = image::zeCommandListAppendImageCopyToMemory
        pfnAppendImageCopyFromMemory = image::zeCommandListAppendImageCopyFromMemory
        pfnAppendSignalEvent = append::zeCommandListAppendSignalEvent
        pfnAppendWaitOnEvents = append::zeCommandListAppendWaitOnEvents
        pfnAppendLaunchKernel = kernel::zeCommandListAppendLaunchKernel
        pfnAppendLaunchCooperativeKernel = kernel::zeCommandListAppendLaunchCooperativeKernel
        pfnHostSynchronize = list::zeCommandListHostSynchronize
        pfnGetContextHandle = list::zeCommandListGetContextHandle
        pfnIsImmediate = list::zeCommandListIsImmediate;
    zeGetFenceProcAddrTable ze_fence_dditable_t [0: 5];
    zeGetEventPoolProcAddrTable ze_event_pool_dditable_t [0: 5, 6: 6, 9: 8]
        pfnCreate = event_pool::zeEventPoolCreate
        pfnDestroy = event_pool::zeEventPoolDestroy;
    zeGetEventProcAddrTable ze_event_dditable_t [0: 7, 6: 8, 9: 11, 15: 16, 17: 17]
        pfnCreate = event::zeEventCreate
        pfnDestroy = event::zeEventDestroy
        pfnHostSignal = event::zeEventHostSignal
        pfnHostSynchronize = event::zeEventHostSynchronize
        pfnQueryStatus = event::zeEventQueryStatus
        pfnHostReset = event::zeEventHostReset
        pfnCounterBasedCreate = counter_event::zeEventCounterBasedCreate
        pfnCounterBasedGetIpcHandle = counter_event::zeEventCounterBasedGetIpcHandle
        pfnCounterBasedOpenIpcHandle = counter_event::zeEventCounterBasedOpenIpcHandle
        pfnCounterBasedCloseIpcHandle = counter_event::zeEventCounterBasedCloseIpcHandle;
    zeGetMemProcAddrTable ze_mem_dditable_t [0: 9, 3: 10, 6: 11, 9: 12, 15: 13]
        pfnAllocDevice = memory::zeMemAllocDevice
        pfnAllocHost = memory::zeMemAllocHost
        pfnFree = memory::zeMemFree
        pfnGetAllocProperties = memory_info::zeMemGetAllocProperties
        pfnGetAddressRange = memory_info::zeMemGetAddressRange
        pfnGetIpcHandle = memory_ipc::zeMemGetIpcHandle
        pfnOpenIpcHandle = memory_ipc::zeMemOpenIpcHandle
        pfnCloseIpcHandle = memory_ipc::zeMemCloseIpcHandle;
    zeGetPhysicalMemProcAddrTable ze_physical_mem_dditable_t [0: 2, 15: 3]
        pfnCreate = physical::zePhysicalMemCreate
        pfnDestroy = physical::zePhysicalMemDestroy
        pfnGetProperties = physical::zePhysicalMemGetProperties;
    zeGetVirtualMemProcAddrTable ze_virtual_mem_dditable_t [0: 7]
        pfnReserve = virtual_memory::zeVirtualMemReserve
        pfnFree = virtual_memory::zeVirtualMemFree
        pfnMap = virtual_memory::zeVirtualMemMap
        pfnUnmap = virtual_memory::zeVirtualMemUnmap
        pfnSetAccessAttribute = virtual_memory::zeVirtualMemSetAccessAttribute;

    zeGetModuleProcAddrTable ze_module_dditable_t [0: 8, 3: 9]
        pfnCreate = module::zeModuleCreate
        pfnDestroy = module::zeModuleDestroy
        pfnGetNativeBinary = module::zeModuleGetNativeBinary
        pfnGetGlobalPointer = module::zeModuleGetGlobalPointer
        pfnGetKernelNames = module::zeModuleGetKernelNames;
    zeGetModuleBuildLogProcAddrTable ze_module_build_log_dditable_t [0: 2]
        pfnDestroy = module::zeModuleBuildLogDestroy
        pfnGetString = module::zeModuleBuildLogGetString;
    zeGetKernelProcAddrTable ze_kernel_dditable_t [0: 12]
        pfnCreate = kernel::zeKernelCreate
        pfnDestroy = kernel::zeKernelDestroy
        pfnSetGroupSize = kernel::zeKernelSetGroupSize
        pfnSuggestGroupSize = kernel::zeKernelSuggestGroupSize
        pfnSuggestMaxCooperativeGroupCount = kernel::zeKernelSuggestMaxCooperativeGroupCount
        pfnSetArgumentValue = kernel::zeKernelSetArgumentValue
        pfnSetIndirectAccess = kernel::zeKernelSetIndirectAccess
        pfnGetProperties = kernel::zeKernelGetProperties;
    zeGetKernelExpProcAddrTable ze_kernel_exp_dditable_t [1: 1, 2: 2, 12: 3, 14: 4]
        pfnSetGlobalOffsetExp = kernel::zeKernelSetGlobalOffsetExp;

    zeGetDeviceExpProcAddrTable ze_device_exp_dditable_t [4: 1];
    zeGetEventExpProcAddrTable ze_event_exp_dditable_t [2: 1];
    zeGetImageProcAddrTable ze_image_dditable_t [0: 3, 3: 4, 5: 5]
        pfnCreate = image::zeImageCreate
        pfnDestroy = image::zeImageDestroy;
    zeGetImageExpProcAddrTable ze_image_exp_dditable_t [2: 2, 9: 3];
    zeGetSamplerProcAddrTable ze_sampler_dditable_t [0: 2]
        pfnCreate = image::zeSamplerCreate
        pfnDestroy = image::zeSamplerDestroy;
    zeGetFabricVertexExpProcAddrTable ze_fabric_vertex_exp_dditable_t [4: 4];
    zeGetFabricEdgeExpProcAddrTable ze_fabric_edge_exp_dditable_t [4: 3];
}

/// Defines getters of the tables for tools and for system management. They leave the tables empty.
macro_rules! empty_tables {
    ($($getter:ident)*) => {$(
        /// # Safety
        ///
        /// There are no requirements, because the function accesses no memory.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $getter(
            _: ze_api_version_t,
            _: *mut c_void,
        ) -> ze_result_t {
            ze_result_t::ZE_RESULT_SUCCESS
        }
    )*};
}

empty_tables! {
    zetGetCommandListProcAddrTable zetGetContextProcAddrTable zetGetDebugProcAddrTable
    zetGetDeviceProcAddrTable zetGetKernelProcAddrTable zetGetMetricGroupExpProcAddrTable
    zetGetMetricGroupProcAddrTable zetGetMetricProcAddrTable zetGetMetricQueryPoolProcAddrTable
    zetGetMetricQueryProcAddrTable zetGetMetricStreamerProcAddrTable zetGetModuleProcAddrTable
    zetGetTracerExpProcAddrTable
    zesGetDeviceProcAddrTable zesGetDiagnosticsProcAddrTable zesGetDriverProcAddrTable
    zesGetEngineProcAddrTable zesGetFabricPortProcAddrTable zesGetFanProcAddrTable
    zesGetFirmwareProcAddrTable zesGetFrequencyProcAddrTable zesGetLedProcAddrTable
    zesGetMemoryProcAddrTable zesGetPerformanceFactorProcAddrTable zesGetPowerProcAddrTable
    zesGetPsuProcAddrTable zesGetRasProcAddrTable zesGetSchedulerProcAddrTable
    zesGetStandbyProcAddrTable zesGetTemperatureProcAddrTable
}
