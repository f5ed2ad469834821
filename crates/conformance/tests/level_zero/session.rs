//! Calls of the driver through the stock loader, without the library.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute_copy;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use level_zero_sys::*;

/// Calls a function of the loader and evaluates to its result code.
macro_rules! ze {
    ($loader:ident.$function:ident($($argument:expr),* $(,)?)) => {{
        let function = $loader.$function;
        // SAFETY: the arguments satisfy the function's contract, or are the misuse that a test is
        // about.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use ze;

/// Calls a function of the loader and checks that it succeeds.
macro_rules! ok {
    ($loader:ident.$function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(
            $crate::session::ze!($loader.$function($($argument),*)),
            $crate::session::SUCCESS,
            "{}",
            stringify!($function)
        )
    };
}
pub(crate) use ok;

/// Creates a structure whose `stype` is set and whose other fields are zero.
macro_rules! description {
    ($type:ident, $stype:ident) => {{
        // SAFETY: zeros are a valid value of every structure of Level Zero.
        let mut value: $type = unsafe { std::mem::zeroed() };
        value.stype = ze_structure_type_t::$stype;
        value
    }};
}
pub(crate) use description;

pub(crate) const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;
pub(crate) const NO_EVENT: ze_event_handle_t = ptr::null_mut();

/// The bytes of a handle that other processes open.
pub(crate) type Handle = [c_char; ZE_MAX_IPC_HANDLE_SIZE as usize];

/// A context on the first device of the first driver.
pub(crate) struct Session {
    loader: Loader,
    pub(crate) driver: ze_driver_handle_t,
    pub(crate) device: ze_device_handle_t,
    pub(crate) context: ze_context_handle_t,
    create_event: <zex_pfnCounterBasedEventCreate2_t as Pointer>::Function,
    get_event: <zex_pfnCounterBasedEventGetIpcHandle_t as Pointer>::Function,
    open_event: <zex_pfnCounterBasedEventOpenIpcHandle_t as Pointer>::Function,
    close_event: <zex_pfnCounterBasedEventCloseIpcHandle_t as Pointer>::Function,
}

impl Deref for Session {
    type Target = Loader;

    fn deref(&self) -> &Loader {
        &self.loader
    }
}

impl Session {
    pub(crate) fn open() -> Self {
        let loader = Loader::load().unwrap_or_else(|reason| panic!("{reason}"));
        let (mut driver, mut device) = (ptr::null_mut(), ptr::null_mut());
        ok!(loader.zeInit(ZE_INIT_FLAG_GPU_ONLY));
        ok!(loader.zeDriverGet(&mut 1, &mut driver));
        ok!(loader.zeDeviceGet(driver, &mut 1, &mut device));
        // SAFETY: the driver's functions with these names have the types of the fields.
        unsafe {
            Self {
                loader,
                driver,
                device,
                context: context(&loader, driver),
                create_event: find(&loader, driver, ZEX_COUNTER_BASED_EVENT_CREATE2),
                get_event: find(&loader, driver, ZEX_COUNTER_BASED_EVENT_GET_IPC_HANDLE),
                open_event: find(&loader, driver, ZEX_COUNTER_BASED_EVENT_OPEN_IPC_HANDLE),
                close_event: find(&loader, driver, ZEX_COUNTER_BASED_EVENT_CLOSE_IPC_HANDLE),
            }
        }
    }

    pub(crate) fn alloc(&self) -> *mut c_void {
        let desc = description!(
            ze_device_mem_alloc_desc_t,
            ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC
        );
        let mut memory = ptr::null_mut();
        ok!(self.zeMemAllocDevice(self.context, &desc, 4096, 64, self.device, &mut memory));
        memory
    }

    pub(crate) fn free(&self, memory: *mut c_void) {
        ok!(self.zeMemFree(self.context, memory));
    }

    /// Creates an immediate list.
    pub(crate) fn list(&self, flags: ze_command_queue_flags_t) -> ze_command_list_handle_t {
        let mut desc = description!(
            ze_command_queue_desc_t,
            ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC
        );
        desc.flags = flags;
        desc.mode = ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
        let mut list = ptr::null_mut();
        let (context, device) = (self.context, self.device);
        ok!(self.zeCommandListCreateImmediate(context, device, &desc, &mut list));
        list
    }

    /// Creates an event that the host can see, in a new pool of one event.
    pub(crate) fn pooled_event(&self) -> (ze_event_pool_handle_t, ze_event_handle_t) {
        let mut desc = description!(ze_event_pool_desc_t, ZE_STRUCTURE_TYPE_EVENT_POOL_DESC);
        desc.flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE;
        desc.count = 1;
        let (mut pool, mut event) = (ptr::null_mut(), ptr::null_mut());
        ok!(self.zeEventPoolCreate(self.context, &desc, 0, ptr::null_mut(), &mut pool));
        let desc = description!(ze_event_desc_t, ZE_STRUCTURE_TYPE_EVENT_DESC);
        ok!(self.zeEventCreate(pool, &desc, &mut event));
        (pool, event)
    }

    /// Creates a counter-based event that other processes may open.
    pub(crate) fn shared_event(&self) -> ze_event_handle_t {
        let mut desc = description!(
            ze_event_counter_based_desc_t,
            ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC
        );
        desc.stype = ZEX_STRUCTURE_COUNTER_BASED_EVENT_DESC;
        desc.flags = ZE_EVENT_COUNTER_BASED_FLAG_IPC | ZE_EVENT_COUNTER_BASED_FLAG_HOST_VISIBLE;
        let mut event = ptr::null_mut();
        // SAFETY: the handles are live, and `event` receives the result.
        let code = unsafe { (self.create_event)(self.context, self.device, &desc, &mut event) };
        assert_eq!(code, SUCCESS);
        event
    }

    pub(crate) fn event_handle(&self, event: ze_event_handle_t) -> Handle {
        let mut handle = ze_ipc_event_counter_based_handle_t { data: [0; 64] };
        // SAFETY: the event is live, and `handle` receives the result.
        assert_eq!(unsafe { (self.get_event)(event, &mut handle) }, SUCCESS);
        handle.data
    }

    pub(crate) fn open_event(&self, data: Handle) -> Result<ze_event_handle_t, ze_result_t> {
        let mut event = ptr::null_mut();
        let handle = ze_ipc_event_counter_based_handle_t { data };
        // SAFETY: the context is live, and `event` receives the result.
        match unsafe { (self.open_event)(self.context, handle, &mut event) } {
            SUCCESS => Ok(event),
            code => Err(code),
        }
    }

    pub(crate) fn close_event(&self, event: ze_event_handle_t) -> ze_result_t {
        // SAFETY: the argument satisfies the function's contract, or is the misuse that a test is
        // about.
        unsafe { (self.close_event)(event) }
    }

    pub(crate) fn memory_handle(&self, memory: *mut c_void) -> Handle {
        let mut handle = ze_ipc_mem_handle_t { data: [0; 64] };
        ok!(self.zeMemGetIpcHandle(self.context, memory, &mut handle));
        handle.data
    }

    pub(crate) fn open_memory(&self, data: Handle) -> Result<*mut c_void, ze_result_t> {
        let mut memory = ptr::null_mut();
        let handle = ze_ipc_mem_handle_t { data };
        match ze!(self.zeMemOpenIpcHandle(self.context, self.device, handle, 0, &mut memory)) {
            SUCCESS => Ok(memory),
            code => Err(code),
        }
    }
}

/// Finds a function that only the driver knows.
///
/// # Safety
///
/// `F` must be the type of the pointer to this function.
unsafe fn find<F>(loader: &Loader, driver: ze_driver_handle_t, name: &CStr) -> F {
    let mut function: *mut c_void = ptr::null_mut();
    ok!(loader.zeDriverGetExtensionFunctionAddress(driver, name.as_ptr(), &mut function));
    assert_eq!(size_of::<F>(), size_of_val(&function));
    // SAFETY: the caller names the type of the function.
    unsafe { transmute_copy(&function) }
}

/// Creates a context.
pub(crate) fn context(loader: &Loader, driver: ze_driver_handle_t) -> ze_context_handle_t {
    let desc = description!(ze_context_desc_t, ZE_STRUCTURE_TYPE_CONTEXT_DESC);
    let mut context = ptr::null_mut();
    ok!(loader.zeContextCreate(driver, &desc, &mut context));
    context
}

/// Returns the offset of the descriptor number. It comes first, or after eight zero bytes.
fn place_of_number(handle: &Handle) -> usize {
    if handle[..8] == [0; 8] { 8 } else { 0 }
}

/// Returns the descriptor in a handle that this process exported.
pub(crate) fn descriptor(handle: &Handle) -> BorrowedFd<'_> {
    let at = place_of_number(handle);
    let number = i32::from_ne_bytes(std::array::from_fn(|byte| handle[at + byte] as u8));
    // SAFETY: the driver keeps the descriptor open as long as the exported object.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// Puts another descriptor of this process into a handle.
pub(crate) fn patch(handle: &mut Handle, descriptor: &OwnedFd) {
    patch_number(handle, descriptor.as_raw_fd());
}

/// Puts another descriptor number into a handle.
pub(crate) fn patch_number(handle: &mut Handle, number: i32) {
    let at = place_of_number(handle);
    for (to, from) in handle[at..].iter_mut().zip(number.to_ne_bytes()) {
        *to = from as c_char;
    }
}
