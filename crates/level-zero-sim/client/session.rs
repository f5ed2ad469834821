//! The driver, a context, and helpers that most scenarios need.

use std::ffi::{CStr, c_char, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use level_zero_sys::*;
use libloading::Library;

/// Calls a function of the loader and evaluates to its result code.
macro_rules! ze {
    ($session:ident.$function:ident($($argument:expr),* $(,)?)) => {{
        let function = $session.loader.$function;
        // SAFETY: the arguments satisfy the function's contract, or are the misuse that a test is
        // about.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use ze;

/// Calls a function of the loader and checks that it succeeds.
macro_rules! ok {
    ($session:ident.$function:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(
            $crate::session::ze!($session.$function($($argument),*)),
            ze_result_t::ZE_RESULT_SUCCESS,
            "{}",
            stringify!($function)
        )
    };
}
pub(crate) use ok;

pub(crate) const SUCCESS: ze_result_t = ze_result_t::ZE_RESULT_SUCCESS;
pub(crate) const NOT_READY: ze_result_t = ze_result_t::ZE_RESULT_NOT_READY;
pub(crate) const INVALID_ARGUMENT: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
/// Timeout that is long enough for everything, in nanoseconds.
pub(crate) const LONG: u64 = 20_000_000_000;
/// Time after which a test concludes that nothing happens, in nanoseconds.
pub(crate) const SHORT: u64 = 20_000_000;

/// The bytes of a handle that other processes open.
pub(crate) type Handle = [c_char; ZE_MAX_IPC_HANDLE_SIZE as usize];

pub(crate) const NO_EVENT: ze_event_handle_t = ptr::null_mut();

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

/// The functions of counter-based events, under the names that both the loader and the driver know.
pub(crate) struct CounterEvents {
    pub(crate) stype: ze_structure_type_t,
    pub(crate) create: <ze_pfnEventCounterBasedCreate_t as Pointer>::Function,
    pub(crate) get: <ze_pfnEventCounterBasedGetIpcHandle_t as Pointer>::Function,
    pub(crate) open: <ze_pfnEventCounterBasedOpenIpcHandle_t as Pointer>::Function,
    pub(crate) close: <ze_pfnEventCounterBasedCloseIpcHandle_t as Pointer>::Function,
}

pub(crate) struct Session {
    pub(crate) loader: Loader,
    pub(crate) driver: ze_driver_handle_t,
    pub(crate) devices: Vec<ze_device_handle_t>,
    pub(crate) device: ze_device_handle_t,
    pub(crate) context: ze_context_handle_t,
}

// SAFETY: Level Zero allows calls of these functions on the same handles from several threads.
unsafe impl Sync for Session {}

impl Session {
    pub(crate) fn open() -> Self {
        let loader = Loader::load().unwrap_or_else(|reason| panic!("{reason}"));
        let mut session = Self {
            loader,
            driver: ptr::null_mut(),
            devices: Vec::new(),
            device: ptr::null_mut(),
            context: ptr::null_mut(),
        };
        ok!(session.zeInit(ZE_INIT_FLAG_GPU_ONLY));
        let mut count = 1;
        ok!(session.zeDriverGet(&mut count, &mut session.driver));
        let driver = session.driver;
        count = 0;
        ok!(session.zeDeviceGet(driver, &mut count, ptr::null_mut()));
        session.devices = vec![ptr::null_mut(); count as usize];
        ok!(session.zeDeviceGet(driver, &mut count, session.devices.as_mut_ptr()));
        session.device = session.devices[0];
        let desc = description!(ze_context_desc_t, ZE_STRUCTURE_TYPE_CONTEXT_DESC);
        ok!(session.zeContextCreate(driver, &desc, &mut session.context));
        session
    }

    pub(crate) fn close(self) {
        ok!(self.zeContextDestroy(self.context));
    }

    /// Returns the driver's report, by the function that the driver exports for it.
    pub(crate) fn report(&self) -> String {
        type Report = unsafe extern "C" fn(*mut u8, usize) -> usize;
        let driver = std::env::var_os("ZE_ENABLE_ALT_DRIVERS").expect("the driver");
        // SAFETY: the library is loaded already and stays loaded.
        let driver = unsafe { Library::new(driver) }.expect("the driver");
        // SAFETY: the exported function has this type.
        let report = unsafe { driver.get::<Report>(c"crosshandle_sim_report") };
        let report = report.expect("the function");
        // SAFETY: the function writes nothing without a buffer.
        let mut text = vec![0; unsafe { report(ptr::null_mut(), 0) } + 4096];
        // SAFETY: the buffer has that size.
        let size = unsafe { report(text.as_mut_ptr(), text.len()) };
        text.truncate(size);
        String::from_utf8(text).expect("a text")
    }

    /// Returns a function that only the driver knows.
    pub(crate) fn extension<F: Copy>(&self, name: &CStr) -> Option<F> {
        let mut address: *mut c_void = ptr::null_mut();
        let code =
            ze!(self.zeDriverGetExtensionFunctionAddress(self.driver, name.as_ptr(), &mut address));
        if code != SUCCESS {
            return None;
        }
        assert_eq!(size_of::<F>(), size_of_val(&address));
        // SAFETY: both types are pointers of one size, and the caller names the type of the
        // function.
        Some(unsafe { std::mem::transmute_copy(&address) })
    }

    /// Returns the minor version of Level Zero that the driver implements.
    pub(crate) fn minor_version(&self) -> u32 {
        let mut version = ze_api_version_t(0);
        ok!(self.zeDriverGetApiVersion(self.driver, &mut version));
        version.0 & 0xffff
    }

    pub(crate) fn counter_events(&self) -> Option<CounterEvents> {
        let stype = ze_structure_type_t::ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC;
        if self.minor_version() >= 15 && self.loader.zeEventCounterBasedCreate.is_some() {
            return Some(CounterEvents {
                stype,
                create: self.loader.zeEventCounterBasedCreate?,
                get: self.loader.zeEventCounterBasedGetIpcHandle?,
                open: self.loader.zeEventCounterBasedOpenIpcHandle?,
                close: self.loader.zeEventCounterBasedCloseIpcHandle?,
            });
        }
        Some(CounterEvents {
            stype: ZEX_STRUCTURE_COUNTER_BASED_EVENT_DESC,
            create: self.extension(ZEX_COUNTER_BASED_EVENT_CREATE2)?,
            get: self.extension(ZEX_COUNTER_BASED_EVENT_GET_IPC_HANDLE)?,
            open: self.extension(ZEX_COUNTER_BASED_EVENT_OPEN_IPC_HANDLE)?,
            close: self.extension(ZEX_COUNTER_BASED_EVENT_CLOSE_IPC_HANDLE)?,
        })
    }

    pub(crate) fn alloc(&self, size: usize) -> *mut c_void {
        let desc = description!(
            ze_device_mem_alloc_desc_t,
            ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC
        );
        let mut memory = ptr::null_mut();
        ok!(self.zeMemAllocDevice(self.context, &desc, size, 64, self.device, &mut memory));
        memory
    }

    pub(crate) fn alloc_host(&self, size: usize) -> *mut c_void {
        let desc = description!(
            ze_host_mem_alloc_desc_t,
            ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC
        );
        let mut memory = ptr::null_mut();
        ok!(self.zeMemAllocHost(self.context, &desc, size, 64, &mut memory));
        memory
    }

    pub(crate) fn free(&self, memory: *mut c_void) {
        ok!(self.zeMemFree(self.context, memory));
    }

    pub(crate) fn list(
        &self,
        flags: ze_command_queue_flags_t,
        mode: ze_command_queue_mode_t,
    ) -> ze_command_list_handle_t {
        let mut desc = description!(
            ze_command_queue_desc_t,
            ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC
        );
        desc.flags = flags;
        desc.mode = mode;
        let mut list = ptr::null_mut();
        let (context, device) = (self.context, self.device);
        ok!(self.zeCommandListCreateImmediate(context, device, &desc, &mut list));
        list
    }

    /// Creates an immediate list that executes each command before the append returns.
    pub(crate) fn synchronous(&self) -> ze_command_list_handle_t {
        let mode = ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
        self.list(ZE_COMMAND_QUEUE_FLAG_IN_ORDER, mode)
    }

    pub(crate) fn in_order(&self) -> ze_command_list_handle_t {
        let mode = ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
        self.list(ZE_COMMAND_QUEUE_FLAG_IN_ORDER, mode)
    }

    pub(crate) fn out_of_order(&self) -> ze_command_list_handle_t {
        self.list(
            0,
            ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS,
        )
    }

    /// Fills device memory, and returns when that is done.
    pub(crate) fn fill(&self, memory: *mut c_void, byte: u8, size: usize) {
        let list = self.synchronous();
        let from: *const u8 = &byte;
        let no = ptr::null_mut();
        ok!(self.zeCommandListAppendMemoryFill(
            list,
            memory,
            from.cast(),
            1,
            size,
            NO_EVENT,
            0,
            no
        ));
        ok!(self.zeCommandListDestroy(list));
    }

    /// Copies device memory to the host.
    pub(crate) fn read(&self, memory: *mut c_void, size: usize) -> Vec<u8> {
        let list = self.synchronous();
        let mut bytes = vec![0; size];
        let (to, no) = (bytes.as_mut_ptr().cast(), ptr::null_mut());
        ok!(self.zeCommandListAppendMemoryCopy(list, to, memory, size, NO_EVENT, 0, no));
        ok!(self.zeCommandListDestroy(list));
        bytes
    }

    /// Creates an event that the host can see, in a new pool of one event.
    pub(crate) fn pooled_event(&self) -> (ze_event_pool_handle_t, ze_event_handle_t) {
        let pool = self.pool(ZE_EVENT_POOL_FLAG_HOST_VISIBLE, 1);
        (pool, self.event_of(pool, 0))
    }

    pub(crate) fn pool(&self, flags: ze_event_pool_flags_t, count: u32) -> ze_event_pool_handle_t {
        let mut desc = description!(ze_event_pool_desc_t, ZE_STRUCTURE_TYPE_EVENT_POOL_DESC);
        desc.flags = flags;
        desc.count = count;
        let mut pool = ptr::null_mut();
        ok!(self.zeEventPoolCreate(self.context, &desc, 0, ptr::null_mut(), &mut pool));
        pool
    }

    pub(crate) fn event_of(&self, pool: ze_event_pool_handle_t, index: u32) -> ze_event_handle_t {
        let mut desc = description!(ze_event_desc_t, ZE_STRUCTURE_TYPE_EVENT_DESC);
        desc.index = index;
        let mut event = ptr::null_mut();
        ok!(self.zeEventCreate(pool, &desc, &mut event));
        event
    }

    pub(crate) fn create_event(
        &self,
        flags: ze_event_counter_based_flags_t,
    ) -> Result<ze_event_handle_t, ze_result_t> {
        let events = self.counter_events().expect("counter-based events");
        let mut desc = description!(
            ze_event_counter_based_desc_t,
            ZE_STRUCTURE_TYPE_EVENT_COUNTER_BASED_DESC
        );
        desc.stype = events.stype;
        desc.flags = flags;
        let mut event = ptr::null_mut();
        // SAFETY: as the function wants it.
        match unsafe { (events.create)(self.context, self.device, &desc, &mut event) } {
            SUCCESS => Ok(event),
            code => Err(code),
        }
    }

    /// Creates a counter-based event that other processes may open.
    pub(crate) fn shared_event(&self) -> ze_event_handle_t {
        let flags = ZE_EVENT_COUNTER_BASED_FLAG_IPC | ZE_EVENT_COUNTER_BASED_FLAG_HOST_VISIBLE;
        self.create_event(flags).expect("an event")
    }

    pub(crate) fn event_handle(&self, event: ze_event_handle_t) -> Handle {
        let events = self.counter_events().expect("counter-based events");
        let mut handle = ze_ipc_event_counter_based_handle_t { data: [0; 64] };
        // SAFETY: as the function wants it.
        assert_eq!(unsafe { (events.get)(event, &mut handle) }, SUCCESS);
        handle.data
    }

    pub(crate) fn open_event(&self, data: Handle) -> Result<ze_event_handle_t, ze_result_t> {
        let events = self.counter_events().expect("counter-based events");
        let mut event = ptr::null_mut();
        let handle = ze_ipc_event_counter_based_handle_t { data };
        // SAFETY: as the function wants it.
        match unsafe { (events.open)(self.context, handle, &mut event) } {
            SUCCESS => Ok(event),
            code => Err(code),
        }
    }

    pub(crate) fn close_event(&self, event: ze_event_handle_t) -> ze_result_t {
        let events = self.counter_events().expect("counter-based events");
        // SAFETY: the argument satisfies the function's contract, or is the misuse that a test is
        // about.
        unsafe { (events.close)(event) }
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

/// Returns the descriptor number in a handle.
pub(crate) fn number(handle: &Handle) -> i32 {
    let at = place_of_number(handle);
    i32::from_ne_bytes(std::array::from_fn(|byte| handle[at + byte] as u8))
}

/// Returns the offset of the descriptor number. It comes first, or after eight zero bytes.
fn place_of_number(handle: &Handle) -> usize {
    if handle[..8] == [0; 8] { 8 } else { 0 }
}

/// Returns the descriptor in a handle that this process exported.
pub(crate) fn descriptor(handle: &Handle) -> BorrowedFd<'_> {
    // SAFETY: the driver keeps the descriptor open as long as the exported object.
    unsafe { BorrowedFd::borrow_raw(number(handle)) }
}

/// Puts the number of a descriptor of this process into a handle.
pub(crate) fn patch(handle: &mut Handle, descriptor: &OwnedFd) {
    let number = descriptor.as_raw_fd().to_ne_bytes();
    let at = place_of_number(handle);
    for (to, from) in handle[at..].iter_mut().zip(number) {
        *to = from as c_char;
    }
}

/// Returns whether the driver fetches the descriptor of an event's handle itself. Such a handle
/// contains the exporting process's number.
pub(crate) fn is_fetched(handle: &Handle) -> bool {
    handle[48..52] != [0; 4]
}

/// Converts a handle to the bytes of a message.
pub(crate) fn bytes(handle: &Handle) -> Vec<u8> {
    handle.iter().map(|&byte| byte as u8).collect()
}

pub(crate) fn handle(bytes: &[u8]) -> Handle {
    let bytes: [u8; 64] = bytes.try_into().expect("64 bytes");
    bytes.map(|byte| byte as c_char)
}
