//! The stock loader, with the adapter that it loads.

use std::ffi::c_void;
use std::ptr;

use anyhow::{Context as _, Result, ensure};
use libloading::Library;
use unified_runtime_sys as sys;
use unified_runtime_sys::{
    ur_adapter_handle_t, ur_context_handle_t, ur_device_handle_t, ur_event_handle_t,
    ur_platform_handle_t, ur_queue_handle_t, ur_result_t,
};

/// Environment variable with the directory of `libur_loader.so.0`.
///
/// `cargo xtask bench ur` sets it, and sets `UR_ADAPTERS_FORCE_LOAD` to the adapter.
const DIRECTORY_VARIABLE: &str = "UR_RUNTIME_LIB_DIR";

/// The type of `urLoaderInit`, which is in no table of the bindings.
type LoaderInit = unsafe extern "C" fn(
    sys::ur_device_init_flags_t,
    sys::ur_loader_config_handle_t,
) -> ur_result_t;

macro_rules! functions {
    ($($field:ident: $type:ident = $name:ident,)*) => {
        /// The loader's functions, as a program that is linked with the loader calls them.
        struct Functions {
            $($field: sys::$type,)*
        }

        impl Functions {
            fn of(library: &Library) -> Result<Self> {
                Ok(Self {
                    // SAFETY: the loader's headers declare each of these with this type.
                    $($field: unsafe {
                        *library.get::<sys::$type>(stringify!($name))
                            .with_context(|| concat!("the loader has no ", stringify!($name)))?
                    },)*
                })
            }
        }
    };
}

functions! {
    adapter_get: ur_pfnAdapterGet_t = urAdapterGet,
    platform_get: ur_pfnPlatformGet_t = urPlatformGet,
    device_get: ur_pfnDeviceGet_t = urDeviceGet,
    context_create: ur_pfnContextCreate_t = urContextCreate,
    queue_create: ur_pfnQueueCreate_t = urQueueCreate,
    event_create: ur_pfnEventCreateExp_t = urEventCreateExp,
    event_wait: ur_pfnEventWait_t = urEventWait,
    event_release: ur_pfnEventRelease_t = urEventRelease,
    barrier: ur_pfnEnqueueEventsWaitWithBarrierExt_t = urEnqueueEventsWaitWithBarrierExt,
    device_alloc: ur_pfnUSMDeviceAlloc_t = urUSMDeviceAlloc,
    get_memory: ur_pfnIPCGetMemHandleExp_t = urIPCGetMemHandleExp,
    put_memory: ur_pfnIPCPutMemHandleExp_t = urIPCPutMemHandleExp,
    get_event: ur_pfnIPCGetEventHandleExp_t = urIPCGetEventHandleExp,
    put_event: ur_pfnIPCPutEventHandleExp_t = urIPCPutEventHandleExp,
}

/// A context and an in-order queue on the adapter's first device, which live as long as the
/// process.
pub(super) struct Runtime {
    functions: Functions,
    device: ur_device_handle_t,
    context: ur_context_handle_t,
    queue: ur_queue_handle_t,
    _library: Library,
}

/// The bytes of a handle that the adapter has created and that was not put back yet.
pub(super) struct HandleData(*mut c_void);

/// Memory that the adapter has allocated, and that lives as long as the process.
#[derive(Clone, Copy)]
pub(super) struct AllocatedMemory(*mut c_void);

/// A reusable event, released when dropped.
pub(super) struct Event<'a> {
    runtime: &'a Runtime,
    handle: ur_event_handle_t,
}

/// Calls a function of the loader. The arguments must be valid for the function.
macro_rules! call {
    ($runtime:expr, $function:ident($($argument:expr),* $(,)?)) => {{
        let function = $runtime.functions.$function.context("a null function")?;
        // SAFETY: the callers below pass handles and memory that the loader has returned and that
        // are still alive, and pointers to their own variables and slices.
        let result = unsafe { function($($argument),*) };
        check(result, stringify!($function))
    }};
}

/// Returns an error unless the call succeeded.
#[inline]
fn check(result: ur_result_t, function: &str) -> Result<()> {
    ensure!(
        result == ur_result_t::UR_RESULT_SUCCESS,
        "{function}: UR error {}",
        result.0
    );
    Ok(())
}

impl Runtime {
    /// Loads the loader, and creates a context and a queue.
    pub(super) fn start() -> Result<Self> {
        let directory = std::env::var(DIRECTORY_VARIABLE).with_context(|| {
            format!("{DIRECTORY_VARIABLE} is not set; run `cargo xtask bench ur`")
        })?;
        let path = format!("{directory}/libur_loader.so.0");
        // SAFETY: the stock loader's initialisers have no requirements.
        let library = unsafe { Library::new(&path) }.with_context(|| path.clone())?;
        // SAFETY: the loader's headers declare the function with this type.
        let init = unsafe { *library.get::<LoaderInit>("urLoaderInit")? };
        // SAFETY: the function may be called at any time, and 0 and null select the defaults.
        check(unsafe { init(0, ptr::null_mut()) }, "urLoaderInit")?;
        let mut this = Self {
            functions: Functions::of(&library)?,
            device: ptr::null_mut(),
            context: ptr::null_mut(),
            queue: ptr::null_mut(),
            _library: library,
        };
        let (mut adapter, mut platform): (ur_adapter_handle_t, ur_platform_handle_t) =
            (ptr::null_mut(), ptr::null_mut());
        call!(this, adapter_get(1, &mut adapter, ptr::null_mut()))?;
        call!(
            this,
            platform_get(adapter, 1, &mut platform, ptr::null_mut())
        )?;
        let any = sys::ur_device_type_t::UR_DEVICE_TYPE_ALL;
        let mut device = ptr::null_mut();
        call!(
            this,
            device_get(platform, any, 1, &mut device, ptr::null_mut())
        )?;
        this.device = device;
        let mut context = ptr::null_mut();
        call!(
            this,
            context_create(1, &this.device, ptr::null(), &mut context)
        )?;
        this.context = context;
        let mut queue = ptr::null_mut();
        call!(this, queue_create(context, device, ptr::null(), &mut queue))?;
        this.queue = queue;
        Ok(this)
    }

    pub(super) fn create_event(&self) -> Result<Event<'_>> {
        let desc = sys::ur_exp_event_desc_t {
            stype: sys::ur_structure_type_t::UR_STRUCTURE_TYPE_EXP_EVENT_DESC,
            pNext: ptr::null(),
            flags: sys::UR_EXP_EVENT_FLAG_IPC_EXP,
        };
        let mut handle = ptr::null_mut();
        call!(
            self,
            event_create(self.context, self.device, &desc, &mut handle)
        )?;
        Ok(Event {
            runtime: self,
            handle,
        })
    }

    /// Allocates memory that lives as long as the process.
    pub(super) fn allocate(&self, len: usize) -> Result<AllocatedMemory> {
        let mut memory = ptr::null_mut();
        let (desc, pool) = (ptr::null(), ptr::null_mut());
        call!(
            self,
            device_alloc(self.context, self.device, desc, pool, len, &mut memory)
        )?;
        Ok(AllocatedMemory(memory))
    }

    #[inline]
    pub(super) fn get_memory(&self, memory: AllocatedMemory) -> Result<HandleData> {
        let (mut data, mut size) = (ptr::null_mut(), 0);
        call!(
            self,
            get_memory(self.context, memory.0, &mut data, &mut size)
        )?;
        Ok(HandleData(data))
    }

    #[inline]
    pub(super) fn put_memory(&self, handle: HandleData) -> Result<()> {
        call!(self, put_memory(self.context, handle.0))
    }

    #[inline]
    pub(super) fn put_event(&self, handle: HandleData) -> Result<()> {
        call!(self, put_event(self.context, handle.0))
    }
}

impl Event<'_> {
    /// Submits a barrier that signals the event.
    #[inline]
    pub(super) fn signal(&mut self) -> Result<()> {
        let runtime = self.runtime;
        call!(
            runtime,
            barrier(runtime.queue, ptr::null(), 0, ptr::null(), &mut self.handle)
        )
    }

    /// Waits for the latest signal of the event.
    #[inline]
    pub(super) fn wait(&self) -> Result<()> {
        call!(self.runtime, event_wait(1, &self.handle))
    }

    #[inline]
    pub(super) fn get(&self) -> Result<HandleData> {
        let (mut data, mut size) = (ptr::null_mut(), 0);
        call!(self.runtime, get_event(self.handle, &mut data, &mut size))?;
        Ok(HandleData(data))
    }
}

impl Drop for Event<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(release) = self.runtime.functions.event_release {
            // SAFETY: this object owns the event and releases it once.
            unsafe { release(self.handle) };
        }
    }
}
