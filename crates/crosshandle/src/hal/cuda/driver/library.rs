//! `libcuda` and its functions.

use super::Code;
use cudarc::driver::sys;
use cudarc::driver::sys::{
    CUDA_MEMCPY3D, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUipcMemHandle,
    CUlaunchConfig, CUlinkState, CUmemAccessDesc, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmodule, CUstream, CUstreamBatchMemOpParams, CUuuid,
};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

macro_rules! library {
    ($($name:ident = $symbol:ident($($argument:ty),* $(,)?);)*) => {
        /// The functions of the driver that are used here. All of them are there in drivers for
        /// CUDA 12 and later.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            /// Those for programs, if they all are there.
            pub(super) programs: Option<ProgramLibrary>,
        }

        impl Library {
            /// Loads it and finds all functions, or says what is missing.
            pub(super) fn load() -> Result<Self, String> {
                // SAFETY: loads the driver's own library, whose constructors are sound.
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
                // SAFETY: it was found a moment ago, so this doesn't panic.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    // SAFETY: the type is that of the function in cuda.h, with the result as a
                    // number. The library is never unloaded.
                    $($name: *unsafe {
                        library.get(concat!(stringify!($symbol), "\0").as_bytes())
                    }
                    .map_err(|_| {
                        format!(
                            "the NVIDIA driver is too old: it has no {}; CUDA 12 or later is \
                             needed",
                            stringify!($symbol)
                        )
                    })?,)*
                    programs: ProgramLibrary::find(),
                })
            }
        }
    };
}

/// A function of the library, if there is one of this name, which ends with a zero.
///
/// # Safety
/// The library was found, and `T` is a pointer to a function of the type that it has in cuda.h,
/// with the result as a number.
unsafe fn find<T: Copy>(symbol: &str) -> Option<T> {
    // SAFETY: promised by the caller. The library is never unloaded.
    unsafe {
        sys::culib()
            .get::<T>(symbol.as_bytes())
            .ok()
            .map(|found| *found)
    }
}

macro_rules! program_library {
    (required { $($name:ident = $symbol:ident($($argument:ty),* $(,)?);)* }
     optional { $($newer:ident = $newer_symbol:ident($($newer_argument:ty),* $(,)?);)* }) => {
        /// The functions for programs and kernels. A driver without them has devices that run none.
        pub(super) struct ProgramLibrary {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            $(pub(super) $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> Code>,)*
        }

        impl ProgramLibrary {
            /// `None` if one is missing that is not newer than CUDA 12. The library was found.
            fn find() -> Option<Self> {
                // SAFETY: the types are those in cuda.h.
                unsafe {
                    Some(Self {
                        $($name: find(concat!(stringify!($symbol), "\0"))?,)*
                        $($newer: find(concat!(stringify!($newer_symbol), "\0")),)*
                    })
                }
            }
        }
    };
}

/// Names under which the library really occurs, among all those that are tried.
fn is_usual(name: &str) -> bool {
    name == "libcuda.so" || name.starts_with("libcuda.so.")
}

library! {
    init = cuInit(c_uint);
    driver_get_version = cuDriverGetVersion(*mut c_int);
    get_error_name = cuGetErrorName(c_uint, *mut *const c_char);

    device_get_count = cuDeviceGetCount(*mut c_int);
    device_get = cuDeviceGet(*mut CUdevice, c_int);
    device_get_name = cuDeviceGetName(*mut c_char, c_int, CUdevice);
    device_get_uuid = cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    device_get_attribute = cuDeviceGetAttribute(*mut c_int, c_uint, CUdevice);
    device_total_mem = cuDeviceTotalMem_v2(*mut usize, CUdevice);
    device_can_access_peer = cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
    primary_ctx_retain = cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    ctx_get_current = cuCtxGetCurrent(*mut CUcontext);
    ctx_set_current = cuCtxSetCurrent(CUcontext);
    ctx_get_device = cuCtxGetDevice(*mut CUdevice);

    mem_get_info = cuMemGetInfo_v2(*mut usize, *mut usize);
    mem_get_allocation_granularity =
        cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, c_uint);
    mem_create = cuMemCreate(
        *mut CUmemGenericAllocationHandle,
        usize,
        *const CUmemAllocationProp,
        c_ulonglong,
    );
    mem_release = cuMemRelease(CUmemGenericAllocationHandle);
    mem_export = cuMemExportToShareableHandle(
        *mut c_void,
        CUmemGenericAllocationHandle,
        c_uint,
        c_ulonglong,
    );
    mem_import =
        cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, c_uint);
    mem_address_reserve =
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    mem_address_free = cuMemAddressFree(CUdeviceptr, usize);
    mem_map = cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    mem_unmap = cuMemUnmap(CUdeviceptr, usize);
    mem_set_access = cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    pointer_get_attribute = cuPointerGetAttribute(*mut c_void, c_uint, CUdeviceptr);
    mem_get_address_range = cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    mem_retain = cuMemRetainAllocationHandle(*mut CUmemGenericAllocationHandle, *mut c_void);
    ipc_get_mem_handle = cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    ipc_open_mem_handle = cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    ipc_close_mem_handle = cuIpcCloseMemHandle(CUdeviceptr);
    mem_host_register = cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    mem_host_unregister = cuMemHostUnregister(*mut c_void);
    mem_host_get_device_pointer =
        cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);


    stream_create = cuStreamCreate(*mut CUstream, c_uint);
    stream_destroy = cuStreamDestroy_v2(CUstream);
    stream_query = cuStreamQuery(CUstream);
    stream_get_ctx = cuStreamGetCtx(CUstream, *mut CUcontext);
    stream_is_capturing = cuStreamIsCapturing(CUstream, *mut c_uint);
    thread_exchange_capture_mode = cuThreadExchangeStreamCaptureMode(*mut c_uint);
    stream_wait_event = cuStreamWaitEvent(CUstream, CUevent, c_uint);
    stream_wait_value_32 = cuStreamWaitValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
    stream_write_value_32 = cuStreamWriteValue32_v2(CUstream, CUdeviceptr, u32, c_uint);
    stream_batch_mem_op =
        cuStreamBatchMemOp_v2(CUstream, c_uint, *mut CUstreamBatchMemOpParams, c_uint);
    launch_host_func =
        cuLaunchHostFunc(CUstream, unsafe extern "C" fn(*mut c_void), *mut c_void);
    memcpy = cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
    memcpy_3d = cuMemcpy3DAsync_v2(*const CUDA_MEMCPY3D, CUstream);
    memset_8 = cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
    memset_16 = cuMemsetD16Async(CUdeviceptr, u16, usize, CUstream);
    memset_32 = cuMemsetD32Async(CUdeviceptr, u32, usize, CUstream);
    event_create = cuEventCreate(*mut CUevent, c_uint);
    event_destroy = cuEventDestroy_v2(CUevent);
    event_record = cuEventRecord(CUevent, CUstream);
    event_query = cuEventQuery(CUevent);
    event_elapsed_time = cuEventElapsedTime(*mut f32, CUevent, CUevent);
}

program_library! {
    required {
        module_load =
            cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
        module_unload = cuModuleUnload(CUmodule);
        module_get_function = cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        module_get_global =
            cuModuleGetGlobal_v2(*mut CUdeviceptr, *mut usize, CUmodule, *const c_char);
        link_create = cuLinkCreate_v2(c_uint, *mut c_uint, *mut *mut c_void, *mut CUlinkState);
        link_add_data = cuLinkAddData_v2(
            CUlinkState,
            c_uint,
            *mut c_void,
            usize,
            *const c_char,
            c_uint,
            *mut c_uint,
            *mut *mut c_void,
        );
        link_complete = cuLinkComplete(CUlinkState, *mut *mut c_void, *mut usize);
        link_destroy = cuLinkDestroy(CUlinkState);
        func_get_attribute = cuFuncGetAttribute(*mut c_int, c_uint, CUfunction);
        func_set_attribute = cuFuncSetAttribute(CUfunction, c_uint, c_int);
        launch = cuLaunchKernelEx(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void);
        occupancy_blocks =
            cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, CUfunction, c_int, usize);
        occupancy_block_size = cuOccupancyMaxPotentialBlockSize(
            *mut c_int,
            *mut c_int,
            CUfunction,
            Option<unsafe extern "C" fn(c_int) -> usize>,
            usize,
            c_int,
        );
    }
    optional {
        func_get_param_info = cuFuncGetParamInfo(CUfunction, usize, *mut usize, *mut usize);
        func_load = cuFuncLoad(CUfunction);
    }
}
