//! The CUDA driver: its calls as methods that return `Result`.
//!
//! `libcuda` is loaded at run time. The types come from `cudarc`, but this module looks up all
//! functions itself, for two reasons. A missing function is then the reason why there is no device,
//! instead of a later panic. And a driver that is newer than the bindings may return codes that
//! `cudarc`'s result type does not know, so codes are numbers here.

mod capture;
mod external;
mod fabric;
mod function;
mod graph;
mod handle;
mod image;
mod library;
mod memory;
mod native;
mod program;
mod stream;
mod words;

use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_types::error::{Error, Result};
use cudarc::driver::sys::{CUdevice, CUdevice_attribute};
use library::Library;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;
use std::sync::OnceLock;

pub(super) use cudarc::driver::sys;
pub(super) use function::Grid;
pub(super) use graph::{Graph, Step};
pub(crate) use handle::GraphHandle;
pub(super) use handle::{
    ArrayHandle, ContextHandle, EventHandle, ExternalHandle, FunctionHandle, LevelsHandle,
    ModuleHandle, StreamHandle,
};
use handle::{GraphNodeHandle, GraphRunHandle, UserObjectHandle};
pub(super) use image::{ArrayShape, Pixel, TextureRules, TextureSource};
pub(super) use memory::{Allocation, DeviceAddress, Home};
pub(super) use native::{Found, LegacyHandle};
pub(super) use program::{Image, ImageKind};
pub(super) use stream::{CudaEvent, FillWord, RectCopy, Rows, Side, Stream, is_capturing};
pub(super) use words::WordOp;

/// The status code that a call returns.
type Code = c_uint;

const SUCCESS: Code = 0;
const INVALID_VALUE: Code = 1;
const OUT_OF_MEMORY: Code = 2;
const NO_DEVICE: Code = 100;
const NOT_FOUND: Code = 500;
const NOT_READY: Code = 600;
const PEER_ACCESS_UNSUPPORTED: Code = 217;

/// The loaded and initialised driver.
pub(super) struct Driver {
    library: Library,
    version: c_int,
}

/// Allows the calling thread to query its streams while another thread records a graph. Does
/// nothing without a driver. Threads of this library call this first.
pub(super) fn ignore_captures() {
    if let Ok(driver) = Driver::get() {
        driver.ignore_captures();
    }
}

/// The driver's number of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DeviceHandle(CUdevice);

impl DeviceHandle {
    /// Returns the driver's number for the device.
    pub(super) fn number(self) -> c_int {
        self.0
    }
}

impl Driver {
    /// Returns the driver, or the reason why there is none. The first call loads and initialises
    /// the driver. The result stays the same for the life of the process.
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
        let code = (driver.library.init)(0);
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
        let code = (driver.library.driver_get_version)(&mut version);
        if code == SUCCESS {
            driver.version = version;
        }
        Ok(driver)
    }

    /// Returns the version of the API that the driver implements, such as `13.0`.
    pub(super) fn version(&self) -> String {
        format!("{}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    /// Returns all devices, in the driver's order.
    pub(super) fn devices(&self) -> Result<Vec<DeviceHandle>> {
        let mut count = 0;
        self.check(
            "cuDeviceGetCount",
            (self.library.device_get_count)(&mut count),
        )?;
        (0..count)
            .map(|ordinal| {
                let mut device = 0;
                self.check(
                    "cuDeviceGet",
                    (self.library.device_get)(&mut device, ordinal),
                )?;
                Ok(DeviceHandle(device))
            })
            .collect()
    }

    pub(super) fn device_name(&self, device: DeviceHandle) -> Result<String> {
        let mut name: [c_char; 256] = [0; 256];
        // SAFETY: the buffer has the given length, and the driver ends its text with a zero.
        self.check("cuDeviceGetName", unsafe {
            (self.library.device_get_name)(name.as_mut_ptr(), name.len() as c_int, device.0)
        })?;
        let bytes = name.map(|byte| byte as u8);
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    pub(super) fn device_uuid(&self, device: DeviceHandle) -> Result<DeviceUuid> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        self.check(
            "cuDeviceGetUuid",
            (self.library.device_get_uuid)(&mut uuid, device.0),
        )?;
        Ok(DeviceUuid::from_bytes(uuid.bytes.map(|byte| byte as u8)))
    }

    pub(super) fn device_attribute(
        &self,
        device: DeviceHandle,
        attribute: CUdevice_attribute,
    ) -> Result<i32> {
        let mut value = 0;
        self.check(
            "cuDeviceGetAttribute",
            (self.library.device_get_attribute)(&mut value, attribute as c_uint, device.0),
        )?;
        Ok(value)
    }

    /// Returns the size of a device's memory in bytes.
    pub(super) fn device_memory(&self, device: DeviceHandle) -> Result<u64> {
        let mut bytes = 0;
        self.check(
            "cuDeviceTotalMem",
            (self.library.device_total_mem)(&mut bytes, device.0),
        )?;
        Ok(bytes as u64)
    }

    /// Returns the number of free bytes on the device whose context is current.
    pub(super) fn free_memory(&self) -> Result<u64> {
        let (mut free, mut total) = (0, 0);
        self.check(
            "cuMemGetInfo",
            (self.library.mem_get_info)(&mut free, &mut total),
        )?;
        Ok(free as u64)
    }

    /// Returns whether `device` can map the memory of `peer`.
    pub(super) fn can_access_peer(&self, device: DeviceHandle, peer: DeviceHandle) -> Result<bool> {
        let mut can = 0;
        let code = (self.library.device_can_access_peer)(&mut can, device.0, peer.0);
        if code == PEER_ACCESS_UNSUPPORTED {
            return Ok(false);
        }
        self.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// Returns the device's primary context, which the runtime API and the libraries above it use
    /// too. The driver counts references to it. This library never releases its reference, and
    /// neither does the runtime API.
    pub(super) fn retain_primary_context(&self, device: DeviceHandle) -> Result<ContextHandle> {
        let mut context = ContextHandle::NONE;
        self.check(
            "cuDevicePrimaryCtxRetain",
            (self.library.primary_ctx_retain)(&mut context, device.0),
        )?;
        Ok(context)
    }

    /// Makes a context current on the calling thread until the result is dropped. Then the thread's
    /// previous context is current again. If the context is current already, this only queries it.
    #[inline]
    pub(super) fn enter(&'static self, context: ContextHandle) -> Result<Current> {
        let mut previous = ContextHandle::NONE;
        self.check(
            "cuCtxGetCurrent",
            (self.library.ctx_get_current)(&mut previous),
        )?;
        if previous == context {
            return Ok(Current(None));
        }
        self.check("cuCtxSetCurrent", (self.library.ctx_set_current)(context))?;
        Ok(Current(Some((self, previous))))
    }

    #[cfg(test)]
    pub(super) fn is_current(&self, context: ContextHandle) -> Result<bool> {
        let mut current = ContextHandle::NONE;
        self.check(
            "cuCtxGetCurrent",
            (self.library.ctx_get_current)(&mut current),
        )?;
        Ok(current == context)
    }

    #[inline]
    fn check(&self, operation: &'static str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(self.error(operation, code))
    }

    /// Maps the status of a call that allocates memory.
    #[inline]
    fn check_memory(&self, operation: &'static str, bytes: usize, code: Code) -> Result<()> {
        match code {
            SUCCESS => Ok(()),
            OUT_OF_MEMORY => Err(Error::OutOfMemory {
                bytes: bytes as u64,
                code: Some(i64::from(code)),
                limit: None,
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
        let found = (self.library.get_error_name)(code, &mut name);
        if found != SUCCESS || name.is_null() {
            return "unknown code".into();
        }
        // SAFETY: this is a constant text of the driver, which ends with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

/// Keeps a context current on the calling thread. Not `Send`, because the current context belongs
/// to the thread.
#[must_use = "the context is current only as long as this lives"]
pub(super) struct Current(Option<(&'static Driver, ContextHandle)>);

impl Drop for Current {
    #[inline]
    fn drop(&mut self) {
        if let Some((driver, previous)) = self.0 {
            let code = (driver.library.ctx_set_current)(previous);
            if code != SUCCESS {
                tracing::warn!(
                    code,
                    "could not make the caller's CUDA context current again"
                );
            }
        }
    }
}
