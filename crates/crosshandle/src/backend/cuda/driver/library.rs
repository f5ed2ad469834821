//! `libcuda` and its functions.

use super::Code;
use cudarc::driver::sys;
use cudarc::driver::sys::{
    CUDA_MEMCPY3D, CUcontext, CUdevice, CUdeviceptr, CUevent, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUstream, CUuuid,
};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

macro_rules! library {
    ($($name:ident = $symbol:ident($($argument:ty),* $(,)?);)*) => {
        /// The functions of the driver that are used here. All of them are there in drivers for
        /// CUDA 12 and later.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
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
                })
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
    event_synchronize = cuEventSynchronize(CUevent);
    event_elapsed_time = cuEventElapsedTime(*mut f32, CUevent, CUevent);
}
