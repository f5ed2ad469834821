//! The driver's library `libcuda` and its functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, bail};
use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUgraph, CUgraphExec, CUipcEventHandle,
    CUipcMemHandle, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool, CUstream,
};

/// The result of a call, as a number, because a newer driver may return codes that the bindings
/// lack.
type Code = c_uint;

macro_rules! library {
    ($($name:ident = $symbol:ident($($argument:ty),* $(,)?);)*) => {
        /// The functions of the driver that the benchmarks use.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Library {
            fn load() -> Result<Self> {
                // SAFETY: this loads the driver's own library, whose constructors have no
                // requirements.
                if !unsafe { sys::is_culib_present() } {
                    bail!("there is no NVIDIA driver");
                }
                // SAFETY: this loads the driver's own library. It is present, so the call does not
                // panic.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    // SAFETY: the type is that of the function in cuda.h. The result, a C
                    // enumeration, is represented by a number. The library is never unloaded.
                    $($name: *unsafe {
                        library.get(concat!(stringify!($symbol), "\0").as_bytes())
                    }
                    .context(concat!("the driver has no ", stringify!($symbol)))?,)*
                })
            }
        }
    };
}

library! {
    init = cuInit(c_uint);
    error_name = cuGetErrorName(c_uint, *mut *const c_char);
    device_count = cuDeviceGetCount(*mut c_int);
    device_get = cuDeviceGet(*mut CUdevice, c_int);
    device_name = cuDeviceGetName(*mut c_char, c_int, CUdevice);
    primary_ctx_retain = cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    ctx_set_current = cuCtxSetCurrent(CUcontext);

    mem_alloc = cuMemAlloc_v2(*mut CUdeviceptr, usize);
    mem_free = cuMemFree_v2(CUdeviceptr);
    mem_alloc_async = cuMemAllocAsync(*mut CUdeviceptr, usize, CUstream);
    mem_free_async = cuMemFreeAsync(CUdeviceptr, CUstream);
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
    mem_reserve = cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    mem_address_free = cuMemAddressFree(CUdeviceptr, usize);
    mem_map = cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    mem_unmap = cuMemUnmap(CUdeviceptr, usize);
    mem_set_access = cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    pool_create = cuMemPoolCreate(*mut CUmemoryPool, *const CUmemPoolProps);
    pool_export = cuMemPoolExportToShareableHandle(*mut c_void, CUmemoryPool, c_uint, c_ulonglong);
    pool_import =
        cuMemPoolImportFromShareableHandle(*mut CUmemoryPool, *mut c_void, c_uint, c_ulonglong);
    pool_set_access = cuMemPoolSetAccess(CUmemoryPool, *const CUmemAccessDesc, usize);
    pool_alloc_async = cuMemAllocFromPoolAsync(*mut CUdeviceptr, usize, CUmemoryPool, CUstream);
    pool_export_pointer = cuMemPoolExportPointer(*mut CUmemPoolPtrExportData, CUdeviceptr);
    pool_import_pointer =
        cuMemPoolImportPointer(*mut CUdeviceptr, CUmemoryPool, *mut CUmemPoolPtrExportData);
    mem_host_register = cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    mem_host_pointer = cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
    memcpy = cuMemcpyAsync(CUdeviceptr, CUdeviceptr, usize, CUstream);
    memset_32 = cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream);
    memcpy_to_host = cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);

    stream_create = cuStreamCreate(*mut CUstream, c_uint);
    stream_synchronize = cuStreamSynchronize(CUstream);
    stream_wait_event = cuStreamWaitEvent(CUstream, CUevent, c_uint);
    stream_write_64 = cuStreamWriteValue64_v2(CUstream, CUdeviceptr, u64, c_uint);
    stream_wait_64 = cuStreamWaitValue64_v2(CUstream, CUdeviceptr, u64, c_uint);

    stream_begin_capture = cuStreamBeginCapture_v2(CUstream, c_uint);
    stream_end_capture = cuStreamEndCapture(CUstream, *mut CUgraph);
    graph_instantiate = cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, c_ulonglong);
    graph_launch = cuGraphLaunch(CUgraphExec, CUstream);

    event_create = cuEventCreate(*mut CUevent, c_uint);
    event_destroy = cuEventDestroy_v2(CUevent);
    event_record = cuEventRecord(CUevent, CUstream);

    ipc_get_event = cuIpcGetEventHandle(*mut CUipcEventHandle, CUevent);
    ipc_open_event = cuIpcOpenEventHandle(*mut CUevent, CUipcEventHandle);
    ipc_get_memory = cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
    ipc_open_memory = cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    ipc_close_memory = cuIpcCloseMemHandle(CUdeviceptr);
}

/// Returns the driver's library. The first call loads and initialises it.
pub(super) fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let start = || {
        let library = Library::load().map_err(|error| format!("{error:#}"))?;
        // SAFETY: any thread may call this function at any time, and 0 is the only valid argument.
        let code = unsafe { (library.init)(0) };
        let started = library.check("cuInit", code);
        started.map_err(|error| format!("{error:#}"))?;
        Ok(library)
    };
    let library = LIBRARY.get_or_init(start).as_ref();
    library.map_err(|reason| anyhow!("{reason}"))
}

impl Library {
    /// Returns an error unless the call succeeded.
    #[inline]
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(self.error(call, code))
    }

    #[cold]
    fn error(&self, call: &'static str, code: Code) -> anyhow::Error {
        let mut name = ptr::null();
        // SAFETY: `name` is valid for the result; the driver returns an error for unknown codes.
        let found = unsafe { (self.error_name)(code, &mut name) };
        if found != 0 || name.is_null() {
            return anyhow!("{call}: error {code}");
        }
        // SAFETY: the driver returned a constant text that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        anyhow!("{call}: {}", name.to_string_lossy())
    }
}
