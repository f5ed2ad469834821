//! The stock Level Zero loader, loaded at run time.

use core::error::Error;
use core::ffi::c_void;

use libloading::os::unix::Library;

use crate::*;

/// Names under which the loader is looked for: first that of its run-time package, then that of its
/// development package.
const NAMES: [&str; 2] = ["libze_loader.so.1", "libze_loader.so"];

/// A type `ze_pfn…_t`, with access to the function pointer inside its `Option`.
pub trait Pointer {
    /// The type of the function pointer that is not null.
    type Function;
}

impl<F> Pointer for Option<F> {
    type Function = F;
}

/// The type of `zelLoaderTranslateHandle`, which translates a loader's handle into the driver's.
///
/// With several drivers present, older loaders return handles of their own. There is no way back
/// from a driver's handle. Functions found by `zeDriverGetExtensionFunctionAddress` take and return
/// the driver's handles.
pub type zel_pfnLoaderTranslateHandle_t = Option<
    unsafe extern "C" fn(
        handleType: core::ffi::c_int,
        handleIn: *mut c_void,
        handleOut: *mut *mut c_void,
    ) -> ze_result_t,
>;

/// The kind of handle to translate: a driver. The number is that of `ze_loader.h`.
pub const ZEL_HANDLE_DRIVER: core::ffi::c_int = 0;

macro_rules! loader {
    (
        required { $($name:ident: $pointer:ident,)* }
        optional { $($(#[$doc:meta])* $optional:ident: $optional_pointer:ident,)* }
    ) => {
        /// The functions of the loader that this project calls, each under its C name. All fields
        /// are plain function pointers; their callers must fulfil the contract of Level Zero.
        ///
        /// The library is never unloaded, because drivers have threads that run its code.
        #[derive(Debug, Clone, Copy)]
        pub struct Loader {
            $(pub $name: <$pointer as Pointer>::Function,)*
            $($(#[$doc])* pub $optional: $optional_pointer,)*
        }

        impl Loader {
            /// Loads the library and finds its functions. The error says what was looked for and
            /// where, or which function the library lacks. A machine without a driver is not an
            /// error here: `zeInit` reports that.
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
            // The dynamic linker's own text is in the source.
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
        zeDeviceGetProperties: ze_pfnDeviceGetProperties_t,
        zeDeviceGetComputeProperties: ze_pfnDeviceGetComputeProperties_t,
        zeDeviceGetModuleProperties: ze_pfnDeviceGetModuleProperties_t,
        zeDeviceGetImageProperties: ze_pfnDeviceGetImageProperties_t,
        zeDeviceGetCommandQueueGroupProperties: ze_pfnDeviceGetCommandQueueGroupProperties_t,
        zeDeviceGetMemoryProperties: ze_pfnDeviceGetMemoryProperties_t,
        zeDeviceGetCacheProperties: ze_pfnDeviceGetCacheProperties_t,
        zeDeviceGetExternalMemoryProperties: ze_pfnDeviceGetExternalMemoryProperties_t,
        zeDeviceCanAccessPeer: ze_pfnDeviceCanAccessPeer_t,

        zeContextCreate: ze_pfnContextCreate_t,
        zeContextDestroy: ze_pfnContextDestroy_t,

        zeCommandQueueCreate: ze_pfnCommandQueueCreate_t,
        zeCommandQueueDestroy: ze_pfnCommandQueueDestroy_t,
        zeCommandQueueExecuteCommandLists: ze_pfnCommandQueueExecuteCommandLists_t,
        zeCommandQueueSynchronize: ze_pfnCommandQueueSynchronize_t,

        zeCommandListCreate: ze_pfnCommandListCreate_t,
        zeCommandListClose: ze_pfnCommandListClose_t,
        zeCommandListCreateImmediate: ze_pfnCommandListCreateImmediate_t,
        zeCommandListDestroy: ze_pfnCommandListDestroy_t,
        zeCommandListAppendBarrier: ze_pfnCommandListAppendBarrier_t,
        zeCommandListAppendMemoryCopy: ze_pfnCommandListAppendMemoryCopy_t,
        zeCommandListAppendMemoryCopyRegion: ze_pfnCommandListAppendMemoryCopyRegion_t,
        zeCommandListAppendMemoryFill: ze_pfnCommandListAppendMemoryFill_t,
        zeCommandListAppendSignalEvent: ze_pfnCommandListAppendSignalEvent_t,
        zeCommandListAppendWaitOnEvents: ze_pfnCommandListAppendWaitOnEvents_t,

        zeCommandListAppendLaunchKernel: ze_pfnCommandListAppendLaunchKernel_t,
        zeCommandListAppendLaunchCooperativeKernel:
            ze_pfnCommandListAppendLaunchCooperativeKernel_t,

        zeImageCreate: ze_pfnImageCreate_t,
        zeImageDestroy: ze_pfnImageDestroy_t,
        zeSamplerCreate: ze_pfnSamplerCreate_t,
        zeSamplerDestroy: ze_pfnSamplerDestroy_t,
        zeCommandListAppendImageCopyRegion: ze_pfnCommandListAppendImageCopyRegion_t,
        zeCommandListAppendImageCopyToMemory: ze_pfnCommandListAppendImageCopyToMemory_t,
        zeCommandListAppendImageCopyFromMemory: ze_pfnCommandListAppendImageCopyFromMemory_t,

        zeModuleCreate: ze_pfnModuleCreate_t,
        zeModuleDestroy: ze_pfnModuleDestroy_t,
        zeModuleGetNativeBinary: ze_pfnModuleGetNativeBinary_t,
        zeModuleGetGlobalPointer: ze_pfnModuleGetGlobalPointer_t,
        zeModuleGetKernelNames: ze_pfnModuleGetKernelNames_t,
        zeModuleBuildLogDestroy: ze_pfnModuleBuildLogDestroy_t,
        zeModuleBuildLogGetString: ze_pfnModuleBuildLogGetString_t,

        zeKernelCreate: ze_pfnKernelCreate_t,
        zeKernelDestroy: ze_pfnKernelDestroy_t,
        zeKernelSetGroupSize: ze_pfnKernelSetGroupSize_t,
        zeKernelSuggestGroupSize: ze_pfnKernelSuggestGroupSize_t,
        zeKernelSuggestMaxCooperativeGroupCount: ze_pfnKernelSuggestMaxCooperativeGroupCount_t,
        zeKernelSetArgumentValue: ze_pfnKernelSetArgumentValue_t,
        zeKernelSetIndirectAccess: ze_pfnKernelSetIndirectAccess_t,
        zeKernelGetProperties: ze_pfnKernelGetProperties_t,

        zeEventPoolCreate: ze_pfnEventPoolCreate_t,
        zeEventPoolDestroy: ze_pfnEventPoolDestroy_t,
        zeEventCreate: ze_pfnEventCreate_t,
        zeEventDestroy: ze_pfnEventDestroy_t,
        zeEventHostSignal: ze_pfnEventHostSignal_t,
        zeEventHostSynchronize: ze_pfnEventHostSynchronize_t,
        zeEventHostReset: ze_pfnEventHostReset_t,
        zeEventQueryStatus: ze_pfnEventQueryStatus_t,

        zeMemAllocDevice: ze_pfnMemAllocDevice_t,
        zeMemAllocHost: ze_pfnMemAllocHost_t,
        zeMemFree: ze_pfnMemFree_t,
        zeMemGetAllocProperties: ze_pfnMemGetAllocProperties_t,
        zeMemGetAddressRange: ze_pfnMemGetAddressRange_t,
        zeMemGetIpcHandle: ze_pfnMemGetIpcHandle_t,
        zeMemOpenIpcHandle: ze_pfnMemOpenIpcHandle_t,
        zeMemCloseIpcHandle: ze_pfnMemCloseIpcHandle_t,

        zePhysicalMemCreate: ze_pfnPhysicalMemCreate_t,
        zePhysicalMemDestroy: ze_pfnPhysicalMemDestroy_t,
        zeVirtualMemReserve: ze_pfnVirtualMemReserve_t,
        zeVirtualMemFree: ze_pfnVirtualMemFree_t,
        zeVirtualMemMap: ze_pfnVirtualMemMap_t,
        zeVirtualMemUnmap: ze_pfnVirtualMemUnmap_t,
        zeVirtualMemSetAccessAttribute: ze_pfnVirtualMemSetAccessAttribute_t,
    }
    optional {
        /// Since 1.1, where the driver has the extension for it.
        zeKernelSetGlobalOffsetExp: ze_pfnKernelSetGlobalOffsetExp_t,
        /// Since 1.2.
        zeDevicePciGetPropertiesExt: ze_pfnDevicePciGetPropertiesExt_t,
        /// Since 1.6. Without it, a caller waits for an immediate list by an event that the list
        /// signals.
        zeCommandListHostSynchronize: ze_pfnCommandListHostSynchronize_t,
        /// Since 1.9.
        zeCommandListIsImmediate: ze_pfnCommandListIsImmediate_t,
        /// Since 1.9.
        zeCommandListGetContextHandle: ze_pfnCommandListGetContextHandle_t,
        /// Since 1.15. For older drivers see [`zex`](crate::zex).
        zeEventCounterBasedCreate: ze_pfnEventCounterBasedCreate_t,
        /// Since 1.15.
        zeEventCounterBasedGetIpcHandle: ze_pfnEventCounterBasedGetIpcHandle_t,
        /// Since 1.15.
        zeEventCounterBasedOpenIpcHandle: ze_pfnEventCounterBasedOpenIpcHandle_t,
        /// Since 1.15.
        zeEventCounterBasedCloseIpcHandle: ze_pfnEventCounterBasedCloseIpcHandle_t,
        /// Since 1.15.
        zePhysicalMemGetProperties: ze_pfnPhysicalMemGetProperties_t,
        /// A function of the loader alone, in its later versions for 1.4.
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
