//! `libcuda` and its functions.

use super::{
    ArrayHandle, Code, ContextHandle, EventHandle, ExternalHandle, FunctionHandle, GraphHandle,
    GraphNodeHandle, GraphRunHandle, LevelsHandle, ModuleHandle, StreamHandle, UserObjectHandle,
};
use cudarc::driver::sys;
use cudarc::driver::sys::{
    CUDA_ARRAY3D_DESCRIPTOR, CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC, CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS, CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC,
    CUdevice, CUdeviceptr, CUipcMemHandle, CUlaunchAttributeValue, CUlaunchConfig, CUlinkState,
    CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUstreamBatchMemOpParams,
    CUuuid,
};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

macro_rules! library {
    (safe { $($safe:ident = $safe_symbol:ident($($safe_argument:ty),* $(,)?);)* }
     unsafe { $($name:ident = $symbol:ident($($argument:ty),* $(,)?);)* }) => {
        /// The driver functions that this library uses. All drivers for CUDA 12 and later have
        /// them.
        ///
        /// The safe functions are sound for all arguments of their types. Results are live places,
        /// handles belong to live objects, and the driver returns an error for numbers that mean
        /// nothing to it.
        pub(super) struct Library {
            $(pub(super) $safe: extern "C" fn($($safe_argument),*) -> Code,)*
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            /// The functions for programs, if the driver has all of them.
            pub(super) programs: Option<ProgramLibrary>,
            /// The functions for graphs, if the driver has all of them.
            pub(super) graphs: Option<GraphLibrary>,
            /// The functions for images, if the driver has all of them.
            pub(super) images: Option<ImageLibrary>,
            /// The functions for captures by other code, if the driver has all of them.
            pub(super) captures: Option<CaptureLibrary>,
        }

        impl Library {
            /// Loads the library and finds all functions. Returns a description of what is missing
            /// otherwise.
            pub(super) fn load() -> Result<Self, String> {
                // SAFETY: this loads the driver's own library, whose constructors are sound.
                if !unsafe { sys::is_culib_present() } {
                    let names = cudarc::get_lib_name_candidates("cuda");
                    let mut names: Vec<_> =
                        names.iter().map(String::as_str).filter(|name| is_usual(name)).collect();
                    names.dedup();
                    return Err(format!(
                        "there is no NVIDIA driver: looked for {} with the dynamic linker (in \
                         LD_LIBRARY_PATH, ld.so.cache and the system's directories)",
                        names.join(", ")
                    ));
                }
                // SAFETY: the types are those of the functions in cuda.h, except that results are
                // numbers, and that places and live objects are references.
                unsafe {
                    Ok(Self {
                        $($safe: required(stringify!($safe_symbol))?,)*
                        $($name: required(stringify!($symbol))?,)*
                        programs: ProgramLibrary::find(),
                        graphs: GraphLibrary::find(),
                        images: ImageLibrary::find(),
                        captures: CaptureLibrary::find(),
                    })
                }
            }
        }
    };
}

/// Returns a function of the library, or an error that says that it is missing.
///
/// # Safety
/// As for [`find`].
unsafe fn required<T: Copy>(symbol: &str) -> Result<T, String> {
    // SAFETY: promised by the caller.
    unsafe { find(symbol) }.ok_or_else(|| {
        format!("the NVIDIA driver is too old: it has no {symbol}; CUDA 12 or later is needed")
    })
}

/// Returns the function of the library with this name, if it exists.
///
/// # Safety
/// The library was found. `T` is a pointer to a function with the type from cuda.h, except that its
/// result is a number.
unsafe fn find<T: Copy>(symbol: &str) -> Option<T> {
    let symbol = format!("{symbol}\0");
    // SAFETY: promised by the caller. The library is never unloaded.
    unsafe {
        sys::culib()
            .get::<T>(symbol.as_bytes())
            .ok()
            .map(|found| *found)
    }
}

macro_rules! library_of_some {
    ($(#[$meta:meta])* $library:ident
     safe { $($safe:ident = $safe_symbol:ident($($safe_argument:ty),* $(,)?);)* }
     unsafe { $($name:ident = $symbol:ident($($argument:ty),* $(,)?);)* }
     optional { $($newer:ident = $newer_symbol:ident($($newer_argument:ty),* $(,)?);)* }) => {
        $(#[$meta])*
        /// The safe functions are sound for the reason given at [`Library`].
        pub(super) struct $library {
            $(pub(super) $safe: extern "C" fn($($safe_argument),*) -> Code,)*
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            $(pub(super) $newer: Option<extern "C" fn($($newer_argument),*) -> Code>,)*
        }

        impl $library {
            /// Finds the functions in the loaded library. Returns `None` if a function that CUDA 12
            /// has is missing.
            fn find() -> Option<Self> {
                // SAFETY: the types of the functions are those in `cuda.h`.
                unsafe {
                    Some(Self {
                        $($safe: find(stringify!($safe_symbol))?,)*
                        $($name: find(stringify!($symbol))?,)*
                        $($newer: find(stringify!($newer_symbol)),)*
                    })
                }
            }
        }
    };
}

/// Returns whether the library actually occurs under this name, among all the names that are tried.
fn is_usual(name: &str) -> bool {
    name == "libcuda.so" || name.starts_with("libcuda.so.")
}

library! {
    safe {
        init = cuInit(c_uint);
        driver_get_version = cuDriverGetVersion(&mut c_int);
        get_error_name = cuGetErrorName(c_uint, &mut *const c_char);
        device_get_count = cuDeviceGetCount(&mut c_int);
        device_get = cuDeviceGet(&mut CUdevice, c_int);
        device_get_uuid = cuDeviceGetUuid_v2(&mut CUuuid, CUdevice);
        device_get_attribute = cuDeviceGetAttribute(&mut c_int, c_uint, CUdevice);
        device_total_mem = cuDeviceTotalMem_v2(&mut usize, CUdevice);
        device_can_access_peer = cuDeviceCanAccessPeer(&mut c_int, CUdevice, CUdevice);
        primary_ctx_retain = cuDevicePrimaryCtxRetain(&mut ContextHandle, CUdevice);
        ctx_get_current = cuCtxGetCurrent(&mut ContextHandle);
        ctx_set_current = cuCtxSetCurrent(ContextHandle);
        ctx_get_device = cuCtxGetDevice(&mut CUdevice);
        mem_get_info = cuMemGetInfo_v2(&mut usize, &mut usize);
        mem_get_allocation_granularity = cuMemGetAllocationGranularity(&mut usize, &CUmemAllocationProp, c_uint);
        mem_create = cuMemCreate(&mut CUmemGenericAllocationHandle, usize, &CUmemAllocationProp, c_ulonglong);
        mem_address_reserve = cuMemAddressReserve(&mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        mem_get_address_range = cuMemGetAddressRange_v2(&mut CUdeviceptr, &mut usize, CUdeviceptr);
        mem_retain = cuMemRetainAllocationHandle(&mut CUmemGenericAllocationHandle, *mut c_void);
        ipc_get_mem_handle = cuIpcGetMemHandle(&mut CUipcMemHandle, CUdeviceptr);
        ipc_open_mem_handle = cuIpcOpenMemHandle_v2(&mut CUdeviceptr, CUipcMemHandle, c_uint);
        stream_create = cuStreamCreate(&mut StreamHandle, c_uint);
        stream_query = cuStreamQuery(StreamHandle);
        stream_get_ctx = cuStreamGetCtx(StreamHandle, &mut ContextHandle);
        stream_is_capturing = cuStreamIsCapturing(StreamHandle, &mut c_uint);
        thread_exchange_capture_mode = cuThreadExchangeStreamCaptureMode(&mut c_uint);
        stream_wait_event = cuStreamWaitEvent(StreamHandle, EventHandle, c_uint);
        event_create = cuEventCreate(&mut EventHandle, c_uint);
        event_record = cuEventRecord(EventHandle, StreamHandle);
        event_query = cuEventQuery(EventHandle);
        event_elapsed_time = cuEventElapsedTime(&mut f32, EventHandle, EventHandle);
    }
    unsafe {
        device_get_name = cuDeviceGetName(*mut c_char, c_int, CUdevice);
        mem_release = cuMemRelease(CUmemGenericAllocationHandle);
        mem_export = cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, c_uint, c_ulonglong);
        mem_import = cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, c_uint);
        mem_address_free = cuMemAddressFree(CUdeviceptr, usize);
        mem_map = cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        mem_unmap = cuMemUnmap(CUdeviceptr, usize);
        mem_set_access = cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        pointer_get_attribute = cuPointerGetAttribute(*mut c_void, c_uint, CUdeviceptr);
        pointer_get_attributes =
            cuPointerGetAttributes(c_uint, *const c_uint, *const *mut c_void, CUdeviceptr);
        ipc_close_mem_handle = cuIpcCloseMemHandle(CUdeviceptr);
        mem_host_alloc = cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        mem_free_host = cuMemFreeHost(*mut c_void);
        mem_host_register = cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        mem_host_unregister = cuMemHostUnregister(*mut c_void);
        mem_host_get_device_pointer = cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        stream_destroy = cuStreamDestroy_v2(StreamHandle);
        stream_wait_value_32 = cuStreamWaitValue32_v2(StreamHandle, CUdeviceptr, u32, c_uint);
        stream_write_value_32 = cuStreamWriteValue32_v2(StreamHandle, CUdeviceptr, u32, c_uint);
        stream_batch_mem_op = cuStreamBatchMemOp_v2(StreamHandle, c_uint, *mut CUstreamBatchMemOpParams, c_uint);
        launch_host_func = cuLaunchHostFunc(StreamHandle, unsafe extern "C" fn(*mut c_void), *mut c_void);
        memcpy = cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, StreamHandle);
        memcpy_3d = cuMemcpy3DAsync_v2(*const CUDA_MEMCPY3D, StreamHandle);
        memset_8 = cuMemsetD8Async(CUdeviceptr, u8, usize, StreamHandle);
        memset_16 = cuMemsetD16Async(CUdeviceptr, u16, usize, StreamHandle);
        memset_32 = cuMemsetD32Async(CUdeviceptr, u32, usize, StreamHandle);
        event_destroy = cuEventDestroy_v2(EventHandle);
    }
}

library_of_some! {
    /// The functions for programs and kernels. Without them, the driver's devices run no programs.
    ProgramLibrary
    safe {
        func_get_attribute = cuFuncGetAttribute(&mut c_int, c_uint, FunctionHandle);
        func_set_attribute = cuFuncSetAttribute(FunctionHandle, c_uint, c_int);
        occupancy_blocks = cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut c_int, FunctionHandle, c_int, usize);
        occupancy_block_size = cuOccupancyMaxPotentialBlockSize(&mut c_int, &mut c_int, FunctionHandle, Option<extern "C" fn(c_int) -> usize>, usize, c_int);
    }
    unsafe {
        module_load = cuModuleLoadDataEx(*mut ModuleHandle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        module_unload = cuModuleUnload(ModuleHandle);
        module_get_function = cuModuleGetFunction(*mut FunctionHandle, ModuleHandle, *const c_char);
        module_get_global = cuModuleGetGlobal_v2(*mut CUdeviceptr, *mut usize, ModuleHandle, *const c_char);
        link_create = cuLinkCreate_v2(c_uint, *mut c_uint, *mut *mut c_void, *mut CUlinkState);
        link_add_data = cuLinkAddData_v2(CUlinkState, c_uint, *mut c_void, usize, *const c_char, c_uint, *mut c_uint, *mut *mut c_void);
        link_complete = cuLinkComplete(CUlinkState, *mut *mut c_void, *mut usize);
        link_destroy = cuLinkDestroy(CUlinkState);
        launch = cuLaunchKernelEx(*const CUlaunchConfig, FunctionHandle, *mut *mut c_void, *mut *mut c_void);
    }
    optional {
        func_get_param_info = cuFuncGetParamInfo(FunctionHandle, usize, &mut usize, &mut usize);
        func_load = cuFuncLoad(FunctionHandle);
    }
}

library_of_some! {
    /// The functions for graphs. Without them, the driver's devices run no graphs.
    GraphLibrary
    safe {
        graph_create = cuGraphCreate(&mut GraphHandle, c_uint);
        graph_instantiate = cuGraphInstantiateWithFlags(&mut GraphRunHandle, GraphHandle, c_ulonglong);
    }
    unsafe {
        graph_destroy = cuGraphDestroy(GraphHandle);
        graph_add_empty = cuGraphAddEmptyNode(*mut GraphNodeHandle, GraphHandle, *const GraphNodeHandle, usize);
        graph_add_child = cuGraphAddChildGraphNode(*mut GraphNodeHandle, GraphHandle, *const GraphNodeHandle, usize, GraphHandle);
        graph_add_kernel = cuGraphAddKernelNode_v2(*mut GraphNodeHandle, GraphHandle, *const GraphNodeHandle, usize, *const CUDA_KERNEL_NODE_PARAMS_v2);
        graph_add_memcpy = cuGraphAddMemcpyNode(*mut GraphNodeHandle, GraphHandle, *const GraphNodeHandle, usize, *const CUDA_MEMCPY3D, ContextHandle);
        graph_add_memset = cuGraphAddMemsetNode(*mut GraphNodeHandle, GraphHandle, *const GraphNodeHandle, usize, *const CUDA_MEMSET_NODE_PARAMS, ContextHandle);
        graph_set_attribute = cuGraphKernelNodeSetAttribute(GraphNodeHandle, c_uint, *const CUlaunchAttributeValue);
        graph_run_destroy = cuGraphExecDestroy(GraphRunHandle);
        graph_run_set_kernel = cuGraphExecKernelNodeSetParams_v2(GraphRunHandle, GraphNodeHandle, *const CUDA_KERNEL_NODE_PARAMS_v2);
        graph_run_set_memcpy = cuGraphExecMemcpyNodeSetParams(GraphRunHandle, GraphNodeHandle, *const CUDA_MEMCPY3D, ContextHandle);
        graph_run_set_memset = cuGraphExecMemsetNodeSetParams(GraphRunHandle, GraphNodeHandle, *const CUDA_MEMSET_NODE_PARAMS, ContextHandle);
        graph_upload = cuGraphUpload(GraphRunHandle, StreamHandle);
        graph_launch = cuGraphLaunch(GraphRunHandle, StreamHandle);
    }
    optional {}
}

library_of_some! {
    /// The functions for images. Without them, the driver's devices have no images.
    ImageLibrary
    safe {
        array_create = cuArray3DCreate_v2(&mut ArrayHandle, &CUDA_ARRAY3D_DESCRIPTOR);
        levels_create = cuMipmappedArrayCreate(&mut LevelsHandle, &CUDA_ARRAY3D_DESCRIPTOR, c_uint);
        levels_get = cuMipmappedArrayGetLevel(&mut ArrayHandle, LevelsHandle, c_uint);
    }
    unsafe {
        array_destroy = cuArrayDestroy(ArrayHandle);
        levels_destroy = cuMipmappedArrayDestroy(LevelsHandle);
        texture_create = cuTexObjectCreate(*mut c_ulonglong, *const CUDA_RESOURCE_DESC, *const CUDA_TEXTURE_DESC, *const CUDA_RESOURCE_VIEW_DESC);
        texture_destroy = cuTexObjectDestroy(c_ulonglong);
        surface_create = cuSurfObjectCreate(*mut c_ulonglong, *const CUDA_RESOURCE_DESC);
        surface_destroy = cuSurfObjectDestroy(c_ulonglong);
        external_import = cuImportExternalMemory(*mut ExternalHandle, *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC);
        external_map = cuExternalMemoryGetMappedBuffer(*mut CUdeviceptr, ExternalHandle, *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC);
        external_levels = cuExternalMemoryGetMappedMipmappedArray(*mut LevelsHandle, ExternalHandle, *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC);
        external_destroy = cuDestroyExternalMemory(ExternalHandle);
        mem_free = cuMemFree_v2(CUdeviceptr);
    }
    optional {}
}

library_of_some! {
    /// The functions for streams that other code captures. Without them, nothing can be recorded.
    CaptureLibrary
    safe {}
    unsafe {
        capture_info = cuStreamGetCaptureInfo_v2(StreamHandle, *mut c_uint, *mut c_ulonglong, *mut GraphHandle, *mut *const GraphNodeHandle, *mut usize);
        user_object_create = cuUserObjectCreate(*mut UserObjectHandle, *mut c_void, unsafe extern "C" fn(*mut c_void), c_uint, c_uint);
        user_object_release = cuUserObjectRelease(UserObjectHandle, c_uint);
        graph_retain = cuGraphRetainUserObject(GraphHandle, UserObjectHandle, c_uint, c_uint);
        node_dependencies = cuGraphNodeGetDependencies(GraphNodeHandle, *mut GraphNodeHandle, *mut usize);
    }
    optional {}
}
