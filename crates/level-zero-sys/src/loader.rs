//! The stock loader, found at run time.

use core::error::Error;
use core::ffi::c_void;

use libloading::os::unix::Library;

use crate::*;

/// Under which names the loader is looked for: as programs link it, then as developers have it.
const NAMES: [&str; 2] = ["libze_loader.so.1", "libze_loader.so"];

/// A type `ze_pfn…_t`, for what it is without its `Option`.
pub trait Pointer {
    /// The function pointer that is not null.
    type Function;
}

impl<F> Pointer for Option<F> {
    type Function = F;
}

/// `zelLoaderTranslateHandle`: with several drivers at hand, older loaders give out handles of
/// their own, and this is the way from one to the driver's; from a driver's handle there is no way
/// back. Functions that `zeDriverGetExtensionFunctionAddress` found take and give the driver's.
pub type zel_pfnLoaderTranslateHandle_t = Option<
    unsafe extern "C" fn(
        handleType: core::ffi::c_int,
        handleIn: *mut c_void,
        handleOut: *mut *mut c_void,
    ) -> ze_result_t,
>;

/// What kind of handle is to be translated, as `ze_loader.h` numbers them.
pub const ZEL_HANDLE_DRIVER: core::ffi::c_int = 0;
/// See [`ZEL_HANDLE_DRIVER`].
pub const ZEL_HANDLE_DEVICE: core::ffi::c_int = 1;
/// See [`ZEL_HANDLE_DRIVER`].
pub const ZEL_HANDLE_CONTEXT: core::ffi::c_int = 2;

macro_rules! loader {
    (
        required { $($name:ident: $pointer:ident,)* }
        optional { $($(#[$doc:meta])* $optional:ident: $optional_pointer:ident,)* }
    ) => {
        /// The functions of the loader, each under its C name. All fields are plain function
        /// pointers: what they demand of their callers is Level Zero's own contract.
        ///
        /// The library is never unloaded: drivers have threads.
        #[derive(Debug, Clone, Copy)]
        pub struct Loader {
            $(pub $name: <$pointer as Pointer>::Function,)*
            $($(#[$doc])* pub $optional: $optional_pointer,)*
        }

        impl Loader {
            /// Loads the library and finds its functions. The error says what was looked for
            /// and where, or what the library lacks. It is no error that the machine has no
            /// driver: `zeInit` says that.
            pub fn load() -> Result<Self, String> {
                let library = open()?;
                let loader = Self {
                    $($name: find::<<$pointer as Pointer>::Function>(
                        &library,
                        stringify!($name),
                    )
                    .ok_or_else(|| {
                        format!(
                            "the Level Zero loader is too old: it has no {}",
                            stringify!($name)
                        )
                    })?,)*
                    $($optional: find(&library, stringify!($optional)),)*
                };
                let _: *mut c_void = library.into_raw();
                Ok(loader)
            }
        }
    };
}

fn open() -> Result<Library, String> {
    let mut reasons = Vec::new();
    for name in NAMES {
        // SAFETY: the loader's constructors only read the environment.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            // The linker's own words are in the source.
            Err(error) => reasons.push(match error.source() {
                Some(source) => source.to_string(),
                None => error.to_string(),
            }),
        }
    }
    Err(format!(
        "there is no Level Zero loader: looked for {} with the dynamic linker (in \
         LD_LIBRARY_PATH, ld.so.cache and the system's directories): {}",
        NAMES.join(", "),
        reasons[0]
    ))
}

fn find<F: Copy>(library: &Library, name: &str) -> Option<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    // SAFETY: the type is the one that `ze_ddi.h` has for the function of this name; it is a
    // function pointer, and the library stays loaded.
    unsafe { library.get::<F>(name.as_bytes()) }
        .ok()
        .map(|symbol| *symbol)
}

loader! {
    required {
        zeInit: ze_pfnInit_t,
        zeDriverGet: ze_pfnDriverGet_t,
        zeDriverGetApiVersion: ze_pfnDriverGetApiVersion_t,
        zeDriverGetProperties: ze_pfnDriverGetProperties_t,
        zeDriverGetIpcProperties: ze_pfnDriverGetIpcProperties_t,
        zeDriverGetExtensionProperties: ze_pfnDriverGetExtensionProperties_t,
        zeDriverGetExtensionFunctionAddress: ze_pfnDriverGetExtensionFunctionAddress_t,

        zeDeviceGet: ze_pfnDeviceGet_t,
        zeDeviceGetSubDevices: ze_pfnDeviceGetSubDevices_t,
        zeDeviceGetProperties: ze_pfnDeviceGetProperties_t,
        zeDeviceGetComputeProperties: ze_pfnDeviceGetComputeProperties_t,
        zeDeviceGetModuleProperties: ze_pfnDeviceGetModuleProperties_t,
        zeDeviceGetCommandQueueGroupProperties: ze_pfnDeviceGetCommandQueueGroupProperties_t,
        zeDeviceGetMemoryProperties: ze_pfnDeviceGetMemoryProperties_t,
        zeDeviceGetMemoryAccessProperties: ze_pfnDeviceGetMemoryAccessProperties_t,
        zeDeviceGetCacheProperties: ze_pfnDeviceGetCacheProperties_t,
        zeDeviceGetExternalMemoryProperties: ze_pfnDeviceGetExternalMemoryProperties_t,
        zeDeviceGetP2PProperties: ze_pfnDeviceGetP2PProperties_t,
        zeDeviceCanAccessPeer: ze_pfnDeviceCanAccessPeer_t,
        zeDeviceGetStatus: ze_pfnDeviceGetStatus_t,
        zeDeviceGetGlobalTimestamps: ze_pfnDeviceGetGlobalTimestamps_t,

        zeContextCreate: ze_pfnContextCreate_t,
        zeContextCreateEx: ze_pfnContextCreateEx_t,
        zeContextDestroy: ze_pfnContextDestroy_t,
        zeContextGetStatus: ze_pfnContextGetStatus_t,
        zeContextMakeMemoryResident: ze_pfnContextMakeMemoryResident_t,
        zeContextEvictMemory: ze_pfnContextEvictMemory_t,

        zeCommandQueueCreate: ze_pfnCommandQueueCreate_t,
        zeCommandQueueDestroy: ze_pfnCommandQueueDestroy_t,
        zeCommandQueueExecuteCommandLists: ze_pfnCommandQueueExecuteCommandLists_t,
        zeCommandQueueSynchronize: ze_pfnCommandQueueSynchronize_t,

        zeCommandListCreate: ze_pfnCommandListCreate_t,
        zeCommandListCreateImmediate: ze_pfnCommandListCreateImmediate_t,
        zeCommandListDestroy: ze_pfnCommandListDestroy_t,
        zeCommandListClose: ze_pfnCommandListClose_t,
        zeCommandListReset: ze_pfnCommandListReset_t,
        zeCommandListAppendWriteGlobalTimestamp: ze_pfnCommandListAppendWriteGlobalTimestamp_t,
        zeCommandListAppendBarrier: ze_pfnCommandListAppendBarrier_t,
        zeCommandListAppendMemoryCopy: ze_pfnCommandListAppendMemoryCopy_t,
        zeCommandListAppendMemoryCopyRegion: ze_pfnCommandListAppendMemoryCopyRegion_t,
        zeCommandListAppendMemoryFill: ze_pfnCommandListAppendMemoryFill_t,
        zeCommandListAppendMemoryPrefetch: ze_pfnCommandListAppendMemoryPrefetch_t,
        zeCommandListAppendMemAdvise: ze_pfnCommandListAppendMemAdvise_t,
        zeCommandListAppendSignalEvent: ze_pfnCommandListAppendSignalEvent_t,
        zeCommandListAppendWaitOnEvents: ze_pfnCommandListAppendWaitOnEvents_t,
        zeCommandListAppendEventReset: ze_pfnCommandListAppendEventReset_t,

        zeFenceCreate: ze_pfnFenceCreate_t,
        zeFenceDestroy: ze_pfnFenceDestroy_t,
        zeFenceHostSynchronize: ze_pfnFenceHostSynchronize_t,
        zeFenceQueryStatus: ze_pfnFenceQueryStatus_t,
        zeFenceReset: ze_pfnFenceReset_t,

        zeEventPoolCreate: ze_pfnEventPoolCreate_t,
        zeEventPoolDestroy: ze_pfnEventPoolDestroy_t,
        zeEventPoolGetIpcHandle: ze_pfnEventPoolGetIpcHandle_t,
        zeEventPoolOpenIpcHandle: ze_pfnEventPoolOpenIpcHandle_t,
        zeEventPoolCloseIpcHandle: ze_pfnEventPoolCloseIpcHandle_t,
        zeEventCreate: ze_pfnEventCreate_t,
        zeEventDestroy: ze_pfnEventDestroy_t,
        zeEventHostSignal: ze_pfnEventHostSignal_t,
        zeEventHostSynchronize: ze_pfnEventHostSynchronize_t,
        zeEventHostReset: ze_pfnEventHostReset_t,
        zeEventQueryStatus: ze_pfnEventQueryStatus_t,
        zeEventQueryKernelTimestamp: ze_pfnEventQueryKernelTimestamp_t,

        zeMemAllocDevice: ze_pfnMemAllocDevice_t,
        zeMemAllocHost: ze_pfnMemAllocHost_t,
        zeMemAllocShared: ze_pfnMemAllocShared_t,
        zeMemFree: ze_pfnMemFree_t,
        zeMemGetAllocProperties: ze_pfnMemGetAllocProperties_t,
        zeMemGetAddressRange: ze_pfnMemGetAddressRange_t,
        zeMemGetIpcHandle: ze_pfnMemGetIpcHandle_t,
        zeMemOpenIpcHandle: ze_pfnMemOpenIpcHandle_t,
        zeMemCloseIpcHandle: ze_pfnMemCloseIpcHandle_t,

        zePhysicalMemCreate: ze_pfnPhysicalMemCreate_t,
        zePhysicalMemDestroy: ze_pfnPhysicalMemDestroy_t,
        zeVirtualMemQueryPageSize: ze_pfnVirtualMemQueryPageSize_t,
        zeVirtualMemReserve: ze_pfnVirtualMemReserve_t,
        zeVirtualMemFree: ze_pfnVirtualMemFree_t,
        zeVirtualMemMap: ze_pfnVirtualMemMap_t,
        zeVirtualMemUnmap: ze_pfnVirtualMemUnmap_t,
        zeVirtualMemSetAccessAttribute: ze_pfnVirtualMemSetAccessAttribute_t,
        zeVirtualMemGetAccessAttribute: ze_pfnVirtualMemGetAccessAttribute_t,
    }
    optional {
        /// Since 1.2.
        zeDevicePciGetPropertiesExt: ze_pfnDevicePciGetPropertiesExt_t,
        /// Since 1.3.
        zeMemFreeExt: ze_pfnMemFreeExt_t,
        /// Since 1.6. Before, an immediate list is waited for by an event that it signals.
        zeCommandListHostSynchronize: ze_pfnCommandListHostSynchronize_t,
        /// Since 1.6.
        zeDriverGetLastErrorDescription: ze_pfnDriverGetLastErrorDescription_t,
        /// Since 1.6. Before, the driver keeps what a handle needs as long as the allocation.
        zeMemPutIpcHandle: ze_pfnMemPutIpcHandle_t,
        /// Since 1.9.
        zeCommandListIsImmediate: ze_pfnCommandListIsImmediate_t,
        /// Since 1.9.
        zeCommandListGetContextHandle: ze_pfnCommandListGetContextHandle_t,
        /// Since 1.9.
        zeEventPoolPutIpcHandle: ze_pfnEventPoolPutIpcHandle_t,
        /// Since 1.15. Before, see [`zex`](crate::zex).
        zeEventCounterBasedCreate: ze_pfnEventCounterBasedCreate_t,
        /// Since 1.15.
        zeEventCounterBasedGetIpcHandle: ze_pfnEventCounterBasedGetIpcHandle_t,
        /// Since 1.15.
        zeEventCounterBasedOpenIpcHandle: ze_pfnEventCounterBasedOpenIpcHandle_t,
        /// Since 1.15.
        zeEventCounterBasedCloseIpcHandle: ze_pfnEventCounterBasedCloseIpcHandle_t,
        /// Since 1.15.
        zePhysicalMemGetProperties: ze_pfnPhysicalMemGetProperties_t,
        /// The loader's own, with its later versions for 1.4.
        zelLoaderTranslateHandle: zel_pfnLoaderTranslateHandle_t,
    }
}

#[cfg(test)]
mod tests {
    use super::Loader;

    #[test]
    fn a_machine_without_the_loader_is_told_what_was_looked_for() {
        if let Err(reason) = Loader::load() {
            assert!(reason.contains("libze_loader.so.1"), "{reason}");
        }
    }
}
