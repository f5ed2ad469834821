//! Access to Level Zero: the driver's calls as methods that return `Result`.
//!
//! The library looks for the Level Zero loader at run time, and the loader finds the drivers. All
//! devices of a driver share one context of that driver. It is created on first use and destroyed
//! together with the last object in it.

mod context;
mod counter_event;
mod event_pool;
mod image;
mod known_memory;
mod list;
mod module;
mod recorded_list;
mod virtual_memory;

pub(super) use context::{DriverContext, IPC_HANDLE_BYTES};
use counter_event::CounterEvents;
pub(super) use counter_event::{CreatedEvent, OpenedEvent, missing};
pub(super) use event_pool::{PooledEvent, ProgramEvent, Signaller};
pub(super) use image::{DriverImage, DriverSampler, ImageRegion, ImageShape, small};
use known_memory::KnownMemory;
pub(super) use list::List;
pub(super) use module::{DriverKernel, Input, Module, ModuleFormat};
pub(super) use recorded_list::RecordedList;
pub(super) use virtual_memory::VirtualMemory;

use crosshandle_handle::BackendKind;
use crosshandle_os::descriptor;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use level_zero_sys::{
    Loader, ZE_INIT_FLAG_GPU_ONLY, ze_api_version_t, ze_driver_extension_properties_t,
    ze_driver_handle_t, ze_driver_ipc_properties_t, ze_driver_properties_t, ze_result_t,
};
use rustix::io::Errno;
use std::ffi::CStr;
use std::ptr;
use std::sync::{Arc, OnceLock, Weak};

/// Creates a zeroed structure of Level Zero and sets its `stype`.
macro_rules! description {
    ($type:ident, $stype:ident) => {{
        // SAFETY: zeros are a valid value of every structure of Level Zero.
        let mut value: level_zero_sys::$type = unsafe { std::mem::zeroed() };
        value.stype = level_zero_sys::ze_structure_type_t::$stype;
        value
    }};
}
pub(super) use description;

/// A handle of the driver. It is a plain value that may move between threads. The code that passes
/// it to the driver ensures that the object is alive.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Handle<T>(pub(super) *mut T);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

// SAFETY: the driver lets any thread use a handle, and this type only stores its value.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// Defines a handle type for each object type of the driver.
macro_rules! handle {
    ($($name:ident = $type:ident;)*) => {
        $(pub(super) type $name = Handle<level_zero_sys::$type>;)*
    };
}

handle! {
    DriverHandle = _ze_driver_handle_t;
    DeviceHandle = _ze_device_handle_t;
    ContextHandle = _ze_context_handle_t;
    ListHandle = _ze_command_list_handle_t;
    QueueHandle = _ze_command_queue_handle_t;
    PoolHandle = _ze_event_pool_handle_t;
    EventHandle = _ze_event_handle_t;
    PhysicalHandle = _ze_physical_mem_handle_t;
    ModuleHandle = _ze_module_handle_t;
    KernelHandle = _ze_kernel_handle_t;
    ImageHandle = _ze_image_handle_t;
    SamplerHandle = _ze_sampler_handle_t;
}

/// The version of Intel's driver 26.18, in the format of `Driver::version`.
pub(super) const INTEL_26_18: u32 = 0x0103_0000 + 38_308;

/// A driver that the loader found.
pub(super) struct Driver {
    pub(super) loader: Loader,
    pub(super) handle: DriverHandle,
    /// The API's major and minor version.
    pub(super) api: (u32, u32),
    /// The driver's own number for its build.
    pub(super) version: u32,
    /// Whether the driver can share memory between processes.
    pub(super) shares_memory: bool,
    counter_events: OnceLock<Option<CounterEvents>>,
    context: Mutex<Weak<DriverContext>>,
    extensions: OnceLock<Vec<String>>,
    /// The memory that this process has allocated in all contexts of the driver.
    pub(super) known_memory: KnownMemory,
}

impl Driver {
    /// Returns all drivers that have GPUs, or the reason why there are none. The process searches
    /// only once.
    pub(super) fn all() -> std::result::Result<&'static [Self], &'static str> {
        static DRIVERS: OnceLock<std::result::Result<Vec<Driver>, String>> = OnceLock::new();
        let drivers = DRIVERS.get_or_init(Self::find);
        drivers.as_deref().map_err(|reason| &**reason)
    }

    fn find() -> std::result::Result<Vec<Self>, String> {
        let loader = Loader::load()?;
        // SAFETY: this is the first call to the loader, and it passes a valid flag.
        let code = unsafe { (loader.zeInit)(ZE_INIT_FLAG_GPU_ONLY) };
        if code != ze_result_t::ZE_RESULT_SUCCESS {
            return Err(format!(
                "the Level Zero loader is there, but finds no driver with a GPU (zeInit: {}); \
                 look whether the driver is installed (libze_intel_gpu.so.1) and whether this \
                 user may open /dev/dri/renderD*",
                name_of(code)
            ));
        }
        let failed = |error: Error| error.to_string();
        let drivers = driver_handles(&loader)
            .map_err(failed)?
            .into_iter()
            .map(|handle| Self::new(loader, Handle(handle)))
            .collect::<Result<Vec<_>>>()
            .map_err(failed)?;
        Ok(drivers)
    }

    fn new(loader: Loader, handle: DriverHandle) -> Result<Self> {
        let mut api = ze_api_version_t(0);
        let mut properties: ze_driver_properties_t =
            description!(ze_driver_properties_t, ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES);
        let mut ipc: ze_driver_ipc_properties_t = description!(
            ze_driver_ipc_properties_t,
            ZE_STRUCTURE_TYPE_DRIVER_IPC_PROPERTIES
        );
        // SAFETY: a driver that the loader gave, and live results of the right types.
        unsafe {
            let code = (loader.zeDriverGetApiVersion)(handle.0, &mut api);
            check("zeDriverGetApiVersion", code)?;
            let code = (loader.zeDriverGetProperties)(handle.0, &mut properties);
            check("zeDriverGetProperties", code)?;
            let code = (loader.zeDriverGetIpcProperties)(handle.0, &mut ipc);
            check("zeDriverGetIpcProperties", code)?;
        }
        Ok(Self {
            loader,
            handle,
            api: (api.0 >> 16, api.0 & 0xffff),
            version: properties.driverVersion,
            shares_memory: ipc.flags & level_zero_sys::ZE_IPC_PROPERTY_FLAG_MEMORY != 0,
            counter_events: OnceLock::new(),
            context: Mutex::default(),
            extensions: OnceLock::new(),
            known_memory: KnownMemory::default(),
        })
    }

    /// Returns the driver's devices.
    pub(super) fn devices(&self) -> Result<Vec<DeviceHandle>> {
        let get = self.loader.zeDeviceGet;
        let handles = list_of("zeDeviceGet", ptr::null_mut(), |count, items| {
            // SAFETY: a driver that the loader gave, and room for `count` items.
            unsafe { get(self.handle.0, count, items) }
        })?;
        Ok(handles.into_iter().map(Handle).collect())
    }

    /// Returns whether the driver lists an extension. The first call queries the driver.
    pub(super) fn has_extension(&self, name: &CStr) -> bool {
        let extensions = self.extensions.get_or_init(|| {
            let get = self.loader.zeDriverGetExtensionProperties;
            let empty = ze_driver_extension_properties_t {
                name: [0; 256],
                version: 0,
            };
            let all = list_of("zeDriverGetExtensionProperties", empty, |count, items| {
                // SAFETY: a driver that the loader gave, and room for `count` items.
                unsafe { get(self.handle.0, count, items) }
            });
            let text = |extension: &ze_driver_extension_properties_t| {
                let name = extension.name.map(|byte| byte as u8);
                let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
                name.to_string_lossy().into_owned()
            };
            all.unwrap_or_default().iter().map(text).collect()
        });
        extensions
            .iter()
            .any(|known| known.as_bytes() == name.to_bytes())
    }

    /// Returns the functions for counter-based events. The first call looks them up.
    fn counter_events(&self) -> Option<&CounterEvents> {
        let find = || CounterEvents::find(self);
        self.counter_events.get_or_init(find).as_ref()
    }

    /// Returns the context that all devices of the driver share, if it exists.
    pub(super) fn existing_context(&self) -> Option<Arc<DriverContext>> {
        let place = self.context.lock();
        place.upgrade()
    }

    /// Returns the context that all devices of the driver share, and creates it if it does not
    /// exist. The lock is held meanwhile, because a second caller must get the same context.
    pub(super) fn context(&'static self) -> Result<Arc<DriverContext>> {
        let mut place = self.context.lock();
        if let Some(context) = place.upgrade() {
            return Ok(context);
        }
        let context = Arc::new(DriverContext::create(self)?);
        *place = Arc::downgrade(&context);
        Ok(context)
    }
}

/// Returns the handles of all drivers that the loader has found.
fn driver_handles(loader: &Loader) -> Result<Vec<ze_driver_handle_t>> {
    list_of("zeDriverGet", ptr::null_mut(), |count, items| {
        // SAFETY: room for `count` items.
        unsafe { (loader.zeDriverGet)(count, items) }
    })
}

/// Calls a function of the driver that returns a list. The first call passes a null pointer and
/// gets the count. The second call passes a buffer for that many items.
pub(super) fn list_of<T: Copy>(
    operation: &'static str,
    empty: T,
    get: impl Fn(&mut u32, *mut T) -> ze_result_t,
) -> Result<Vec<T>> {
    let mut count = 0;
    check(operation, get(&mut count, ptr::null_mut()))?;
    let mut items = vec![empty; count as usize];
    check(operation, get(&mut count, items.as_mut_ptr()))?;
    items.truncate(count as usize);
    Ok(items)
}

/// Converts the return code of a call to a result.
#[inline]
pub(super) fn check(operation: &'static str, code: ze_result_t) -> Result<()> {
    if code == ze_result_t::ZE_RESULT_SUCCESS {
        return Ok(());
    }
    Err(error(operation, code))
}

/// Converts the return code of a call that allocates `bytes` bytes to a result.
#[inline]
pub(super) fn check_memory(operation: &'static str, bytes: usize, code: ze_result_t) -> Result<()> {
    match code {
        ze_result_t::ZE_RESULT_SUCCESS => Ok(()),
        ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY
        | ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY => {
            // The driver does not say which resource is exhausted.
            if descriptor::are_exhausted() {
                return Err(Error::os(operation)(Errno::MFILE));
            }
            Err(Error::OutOfMemory {
                bytes: bytes as u64,
                code: Some(i64::from(code.0)),
                limit: None,
            })
        }
        code => Err(error(operation, code)),
    }
}

/// Logs the failure of a call that releases an object. Returns whether the call succeeded.
pub(super) fn log_failure(operation: &'static str, code: ze_result_t) -> bool {
    let released = check(operation, code);
    if let Err(error) = &released {
        tracing::warn!(%error, "could not release");
    }
    released.is_ok()
}

/// Returns whether the error says that the device is lost.
fn is_device_lost(error: &Error) -> bool {
    let lost = i64::from(ze_result_t::ZE_RESULT_ERROR_DEVICE_LOST.0);
    matches!(error, Error::Driver { code, .. } if *code == lost)
}

#[cold]
fn error(operation: &'static str, code: ze_result_t) -> Error {
    Error::Driver {
        backend: BackendKind::LevelZero,
        operation,
        code: i64::from(code.0),
        name: name_of(code).into(),
    }
}

/// Returns the name that `ze_api.h` gives to a code.
fn name_of(code: ze_result_t) -> &'static str {
    macro_rules! names {
        ($($name:ident)*) => {
            match code {
                $(ze_result_t::$name => stringify!($name),)*
                _ => "an unknown code",
            }
        };
    }
    names! {
        ZE_RESULT_SUCCESS
        ZE_RESULT_NOT_READY
        ZE_RESULT_ERROR_DEVICE_LOST
        ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY
        ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY
        ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS
        ZE_RESULT_ERROR_NOT_AVAILABLE
        ZE_RESULT_ERROR_DEPENDENCY_UNAVAILABLE
        ZE_RESULT_ERROR_UNINITIALIZED
        ZE_RESULT_ERROR_UNSUPPORTED_VERSION
        ZE_RESULT_ERROR_UNSUPPORTED_FEATURE
        ZE_RESULT_ERROR_INVALID_ARGUMENT
        ZE_RESULT_ERROR_INVALID_NULL_HANDLE
        ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE
        ZE_RESULT_ERROR_INVALID_NULL_POINTER
        ZE_RESULT_ERROR_INVALID_SIZE
        ZE_RESULT_ERROR_UNSUPPORTED_SIZE
        ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT
        ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT
        ZE_RESULT_ERROR_INVALID_ENUMERATION
        ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION
        ZE_RESULT_ERROR_OVERLAPPING_REGIONS
        ZE_RESULT_ERROR_MODULE_BUILD_FAILURE
        ZE_RESULT_ERROR_MODULE_LINK_FAILURE
        ZE_RESULT_ERROR_INVALID_NATIVE_BINARY
        ZE_RESULT_ERROR_INVALID_GLOBAL_NAME
        ZE_RESULT_ERROR_INVALID_KERNEL_NAME
        ZE_RESULT_ERROR_INVALID_FUNCTION_NAME
        ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION
        ZE_RESULT_ERROR_INVALID_GLOBAL_WIDTH_DIMENSION
        ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX
        ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE
        ZE_RESULT_ERROR_INVALID_KERNEL_ATTRIBUTE_VALUE
        ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED
        ZE_RESULT_ERROR_UNKNOWN
    }
}
