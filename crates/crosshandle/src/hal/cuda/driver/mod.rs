//! The CUDA driver: its calls as methods that return `Result`.
//!
//! `libcuda` is looked for at run time. The types are `cudarc`'s; the functions are looked up here,
//! all at once, for two reasons: a missing one is then a reason why there is no device instead of
//! a panic in the middle of something, and a driver newer than the bindings may return codes that
//! `cudarc`'s result type does not know, so they are taken as numbers.

mod function;
mod library;
mod memory;
mod native;
mod program;
mod stream;
mod words;

use crate::error::{Error, Result};
use crate::handle::{BackendKind, DeviceUuid};
use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute};
use library::Library;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;
use std::sync::OnceLock;

pub(super) use cudarc::driver::sys;
pub(super) use function::{FunctionHandle, Grid};
pub(super) use memory::{Allocation, DeviceAddress};
pub(super) use native::{Found, LegacyHandle};
pub(super) use program::{Image, ImageKind, ModuleHandle};
pub(super) use stream::{CudaEvent, EventHandle, FillWord, Stream, StreamHandle, is_capturing};
pub(super) use words::WordOp;

/// What a call returns.
type Code = c_uint;

const SUCCESS: Code = 0;
const OUT_OF_MEMORY: Code = 2;
const NO_DEVICE: Code = 100;
const NOT_READY: Code = 600;
const PEER_ACCESS_UNSUPPORTED: Code = 217;

/// The loaded and initialised driver.
pub(super) struct Driver {
    library: Library,
    version: c_int,
}

/// Lets the calling thread ask about its streams while another thread records a graph, where there is
/// a driver. Threads of this library call it first.
pub(super) fn ignore_captures() {
    if let Ok(driver) = Driver::get() {
        driver.ignore_captures();
    }
}

/// A device of the driver. Only a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DeviceHandle(CUdevice);

impl DeviceHandle {
    /// The driver's number for it.
    pub(super) fn number(self) -> c_int {
        self.0
    }
}

impl Driver {
    /// The driver, loaded and initialised with the first call; why not, where there is none. That
    /// stays so for the life of the process.
    pub(super) fn get() -> std::result::Result<&'static Self, &'static str> {
        static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
        DRIVER
            .get_or_init(Self::start)
            .as_ref()
            .map_err(|reason| &**reason)
    }

    fn start() -> std::result::Result<Self, String> {
        let library = Library::load()?;
        let mut driver = Self {
            library,
            version: 0,
        };
        // SAFETY: the first call to the driver, with the only flags there are: none.
        let code = unsafe { (driver.library.init)(0) };
        if code == NO_DEVICE {
            return Err("the CUDA driver is there, but finds no GPU (cuInit: \
                 CUDA_ERROR_NO_DEVICE); look at `nvidia-smi`, CUDA_VISIBLE_DEVICES and, in a \
                 container, whether it was given GPUs"
                .into());
        }
        if code != SUCCESS {
            let name = driver.name_of(code);
            return Err(format!(
                "the CUDA driver is there, but does not start (cuInit: {name}, {code}); look at \
                 `nvidia-smi`"
            ));
        }
        let mut version = 0;
        // SAFETY: the result is a live integer.
        let code = unsafe { (driver.library.driver_get_version)(&mut version) };
        if code == SUCCESS {
            driver.version = version;
        }
        Ok(driver)
    }

    /// The version of the API that the driver implements: `13.0`, say.
    pub(super) fn version(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// All devices, in the driver's order.
    pub(super) fn devices(&self) -> Result<Vec<DeviceHandle>> {
        let mut count = 0;
        // SAFETY: the result is a live integer.
        self.check("cuDeviceGetCount", unsafe {
            (self.library.device_get_count)(&mut count)
        })?;
        (0..count)
            .map(|ordinal| {
                let mut device = 0;
                // SAFETY: the result is live, and the ordinal one that the driver counted.
                self.check("cuDeviceGet", unsafe {
                    (self.library.device_get)(&mut device, ordinal)
                })?;
                Ok(DeviceHandle(device))
            })
            .collect()
    }

    pub(super) fn device_name(&self, device: DeviceHandle) -> Result<String> {
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the buffer is as long as said; the driver ends what it writes with a zero.
        self.check("cuDeviceGetName", unsafe {
            (self.library.device_get_name)(name.as_mut_ptr(), name.len() as c_int, device.0)
        })?;
        let bytes = name.map(|byte| byte as u8);
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    pub(super) fn device_uuid(&self, device: DeviceHandle) -> Result<DeviceUuid> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the result is live.
        self.check("cuDeviceGetUuid", unsafe {
            (self.library.device_get_uuid)(&mut uuid, device.0)
        })?;
        Ok(DeviceUuid::from_bytes(uuid.bytes.map(|byte| byte as u8)))
    }

    pub(super) fn device_attribute(
        &self,
        device: DeviceHandle,
        attribute: CUdevice_attribute,
    ) -> Result<i32> {
        let mut value = 0;
        // SAFETY: the result is live; an attribute that the driver doesn't know is an error.
        self.check("cuDeviceGetAttribute", unsafe {
            (self.library.device_get_attribute)(&mut value, attribute as c_uint, device.0)
        })?;
        Ok(value)
    }

    /// Bytes of memory that a device has.
    pub(super) fn device_memory(&self, device: DeviceHandle) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the result is live.
        self.check("cuDeviceTotalMem", unsafe {
            (self.library.device_total_mem)(&mut bytes, device.0)
        })?;
        Ok(bytes as u64)
    }

    /// Bytes of memory that are free on the device whose context is current.
    pub(super) fn free_memory(&self) -> Result<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the results are live.
        self.check("cuMemGetInfo", unsafe {
            (self.library.mem_get_info)(&mut free, &mut total)
        })?;
        Ok(free as u64)
    }

    /// Whether `device` can map memory of `peer`.
    pub(super) fn can_access_peer(&self, device: DeviceHandle, peer: DeviceHandle) -> Result<bool> {
        let mut can = 0;
        // SAFETY: the result is live.
        let code = unsafe { (self.library.device_can_access_peer)(&mut can, device.0, peer.0) };
        if code == PEER_ACCESS_UNSUPPORTED {
            return Ok(false);
        }
        self.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// The context of a device that the runtime API and libraries above it use too. It is counted;
    /// we never release it, as the runtime API doesn't either.
    pub(super) fn retain_primary_context(&self, device: DeviceHandle) -> Result<ContextHandle> {
        let mut context = ptr::null_mut();
        // SAFETY: the result is live.
        self.check("cuDevicePrimaryCtxRetain", unsafe {
            (self.library.primary_ctx_retain)(&mut context, device.0)
        })?;
        Ok(ContextHandle(context))
    }

    /// Makes a context the calling thread's current one, until the result is dropped; then the
    /// thread has again what it had. Costs no more than a look if it is current already.
    #[inline]
    pub(super) fn enter(&'static self, context: ContextHandle) -> Result<Current> {
        let mut previous = ptr::null_mut();
        // SAFETY: the result is live.
        self.check("cuCtxGetCurrent", unsafe {
            (self.library.ctx_get_current)(&mut previous)
        })?;
        if previous == context.0 {
            return Ok(Current(None));
        }
        // SAFETY: a primary context that we retained, or one that the program promised to keep.
        self.check("cuCtxSetCurrent", unsafe {
            (self.library.ctx_set_current)(context.0)
        })?;
        Ok(Current(Some((self, previous))))
    }

    #[cfg(test)]
    pub(super) fn is_current(&self, context: ContextHandle) -> Result<bool> {
        let mut current = ptr::null_mut();
        // SAFETY: the result is live.
        self.check("cuCtxGetCurrent", unsafe {
            (self.library.ctx_get_current)(&mut current)
        })?;
        Ok(current == context.0)
    }

    #[inline]
    fn check(&self, operation: &'static str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(self.error(operation, code))
    }

    /// The same for a call that asks for memory.
    #[inline]
    fn check_memory(&self, operation: &'static str, bytes: usize, code: Code) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            OUT_OF_MEMORY => Err(Error::OutOfMemory {
                bytes: bytes as u64,
                code: Some(i64::from(code)),
            }),
            code => Err(self.error(operation, code)),
        }
    }

    #[cold]
    fn error(&self, operation: &'static str, code: Code) -> Error {
        Error::Driver {
            backend: BackendKind::Cuda,
            operation,
            code: i64::from(code),
            name: self.name_of(code),
        }
    }

    fn name_of(&self, code: Code) -> String {
        let mut name = ptr::null();
        // SAFETY: the result is live; a code that the driver doesn't know is an error.
        let found = unsafe { (self.library.get_error_name)(code, &mut name) };
        if found != SUCCESS || name.is_null() {
            return "an unknown code".into();
        }
        // SAFETY: a constant text of the driver, ended by a zero.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

/// A context that lives as long as it is used: the primary one, or one that the program keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ContextHandle(pub(super) CUcontext);

// SAFETY: the driver lets any thread use a context; here it is only a value.
unsafe impl Send for ContextHandle {}
// SAFETY: as above.
unsafe impl Sync for ContextHandle {}

/// A context is the calling thread's current one while this lives. Not `Send`: it belongs to the
/// thread.
#[must_use = "the context is current only as long as this lives"]
pub(super) struct Current(Option<(&'static Driver, CUcontext)>);

impl Drop for Current {
    #[inline]
    fn drop(&mut self) {
        if let Some((driver, previous)) = self.0 {
            // SAFETY: what was current on this thread before, or none.
            let code = unsafe { (driver.library.ctx_set_current)(previous) };
            if code != SUCCESS {
                tracing::warn!(
                    code,
                    "could not make the caller's CUDA context current again"
                );
            }
        }
    }
}
