//! GPU memory of CUDA's driver, allocated without this library, as programs that use plain UCX do.

use libloading::Library;
use std::ffi::{c_int, c_uint, c_void};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Memory of `cuMemAlloc`. It stays allocated until the process ends.
pub(crate) struct GpuBytes {
    driver: Library,
    pub(crate) start: u64,
    pub(crate) len: usize,
}

fn check(call: &str, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        code => Err(format!("{call}: CUDA's code {code}").into()),
    }
}

impl GpuBytes {
    /// Allocates memory of a device such as `cuda:0`, in its primary context.
    pub(crate) fn new(device: &str, len: usize) -> Result<Self> {
        let index = device.strip_prefix("cuda:").ok_or("this is no CUDA GPU")?;
        let index: c_int = index.parse()?;
        // SAFETY: the functions have these types in every version of the driver since CUDA 7, and
        // get places of the right types.
        unsafe {
            let driver = Library::new("libcuda.so.1")?;
            let init: unsafe extern "C" fn(c_uint) -> c_int = *driver.get("cuInit\0")?;
            check("cuInit", init(0))?;
            let (mut device, mut context, mut start) = (0, std::ptr::null_mut::<c_void>(), 0_u64);
            let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int =
                *driver.get("cuDeviceGet\0")?;
            check("cuDeviceGet", get(&mut device, index))?;
            let retain: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int =
                *driver.get("cuDevicePrimaryCtxRetain\0")?;
            check("cuDevicePrimaryCtxRetain", retain(&mut context, device))?;
            let set: unsafe extern "C" fn(*mut c_void) -> c_int =
                *driver.get("cuCtxSetCurrent\0")?;
            check("cuCtxSetCurrent", set(context))?;
            let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int =
                *driver.get("cuMemAlloc_v2\0")?;
            check("cuMemAlloc", allocate(&mut start, len))?;
            Ok(Self { driver, start, len })
        }
    }

    /// Returns the start of the memory as a pointer, which the host must not use.
    pub(crate) fn pointer(&self) -> *mut u8 {
        std::ptr::without_provenance_mut(self.start as usize)
    }

    pub(crate) fn fill(&self, value: u8) -> Result<()> {
        // SAFETY: the functions have these types, and the bytes are inside the memory.
        unsafe {
            let set: unsafe extern "C" fn(u64, u8, usize) -> c_int =
                *self.driver.get("cuMemsetD8_v2\0")?;
            check("cuMemsetD8", set(self.start, value, self.len))?;
            let synchronize: unsafe extern "C" fn() -> c_int =
                *self.driver.get("cuCtxSynchronize\0")?;
            check("cuCtxSynchronize", synchronize())
        }
    }

    /// Returns whether the first `len` bytes have this value.
    pub(crate) fn holds(&self, value: u8, len: usize) -> Result<bool> {
        let mut bytes = vec![0; len.min(self.len)];
        // SAFETY: the function has this type, and the bytes are inside the memory.
        unsafe {
            let copy: unsafe extern "C" fn(*mut u8, u64, usize) -> c_int =
                *self.driver.get("cuMemcpyDtoH_v2\0")?;
            check(
                "cuMemcpyDtoH",
                copy(bytes.as_mut_ptr(), self.start, bytes.len()),
            )?;
        }
        Ok(bytes.iter().all(|byte| *byte == value))
    }
}
