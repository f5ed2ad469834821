//! A worker of UCX with one endpoint: registers memory for the other side, and reads and writes the other
//! side's. The caller locks it, since one thread at a time may call it.

use super::context::new_context;
use super::library::{self, Ucx};
use super::sys::*;
use crate::error::{Error, Result};
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI8, Ordering};

/// What UCX is told for a link.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The network interface to use alone, as UCX names it.
    pub interface: Option<String>,
    /// The transports to choose from.
    pub transports: Option<String>,
    /// Whether UCX need not tell of connections that fail. A link needs that; without, UCX may use more transports
    /// within a host.
    pub ignores_failures: bool,
}

/// A worker, with a context of its own.
pub struct Worker {
    ucx: &'static Ucx,
    context: ucp_context_h,
    worker: ucp_worker_h,
    endpoint: Option<ucp_ep_h>,
    event_fd: Option<OwnedFd>,
    /// The status with which the endpoint failed; 0: it has not. UCX's callback has its address.
    failed: Arc<AtomicI8>,
    ignores_failures: bool,
}

// SAFETY: a worker of UCX's mode "serialized" may be called by any thread, one at a time, and all methods
// that call it take `&mut self`.
unsafe impl Send for Worker {}

/// Memory that the other side can reach.
#[derive(Debug)]
pub struct Registration {
    memory: ucp_mem_h,
    /// Its address, for the other side.
    pub address: u64,
    /// Its key, for the other side.
    pub key: Vec<u8>,
}

// SAFETY: the handle is only passed back to the worker that made it.
unsafe impl Send for Registration {}
// SAFETY: as above; that worker is called by one thread at a time.
unsafe impl Sync for Registration {}

/// The key of memory of the other side.
#[derive(Clone, Copy, Debug)]
pub struct RemoteKey(ucp_rkey_h);

// SAFETY: the handle is only passed back to the worker that made it.
unsafe impl Send for RemoteKey {}
// SAFETY: as above.
unsafe impl Sync for RemoteKey {}

/// An operation under way. It must be given to [`Worker::is_done`] until that says that it is.
#[derive(Debug)]
#[must_use]
pub struct Request(*mut c_void);

// SAFETY: the handle is only passed back to the worker that made it.
unsafe impl Send for Request {}

unsafe extern "C" fn endpoint_failed(arg: *mut c_void, _: ucp_ep_h, status: ucs_status_t) {
    // SAFETY: it is the address of `Worker::failed`, which lives until the endpoint is closed.
    let failed = unsafe { &*arg.cast::<AtomicI8>() };
    failed.store(status, Ordering::Release);
}

const NO_PARAM: ucp_request_param_t = ucp_request_param_t {
    op_attr_mask: 0,
    flags: 0,
    request: ptr::null_mut(),
    cb: ptr::null(),
    datatype: 0,
    user_data: ptr::null_mut(),
    reply_buffer: ptr::null_mut(),
    memory_type: 0,
    recv_info: ptr::null_mut(),
    memh: ptr::null_mut(),
    remote_datatype: 0,
    remote: ptr::null(),
    remote_count: 0,
};

impl Worker {
    /// Makes a worker.
    ///
    /// # Errors
    /// No UCX, or UCX's own error; so for all calls.
    pub fn new(settings: &Settings) -> Result<Self> {
        let ucx = library::get()?;
        let mut made = Self {
            ucx,
            context: new_context(ucx, settings)?,
            worker: ptr::null_mut(),
            endpoint: None,
            event_fd: None,
            failed: Arc::default(),
            ignores_failures: settings.ignores_failures,
        };
        (made.worker, made.event_fd) = made.new_worker()?;
        Ok(made)
    }

    fn new_worker(&self) -> Result<(ucp_worker_h, Option<OwnedFd>)> {
        let params = ucp_worker_params_t {
            field_mask: UCP_WORKER_PARAM_FIELD_THREAD_MODE,
            thread_mode: UCS_THREAD_MODE_SERIALIZED,
            cpu_mask: [0; 16],
            events: 0,
            user_data: ptr::null_mut(),
            event_fd: 0,
            flags: 0,
            name: ptr::null(),
            am_alignment: 0,
            client_id: 0,
        };
        let (ucx, mut worker) = (self.ucx, ptr::null_mut());
        // SAFETY: context and parameters are valid, and the results are written to places of their types.
        unsafe {
            ucx.check(
                "ucp_worker_create",
                (ucx.call.ucp_worker_create)(self.context, &params, &mut worker),
            )?;
            let mut fd: c_int = -1;
            let copied = ucx
                .check(
                    "ucp_worker_get_efd",
                    (ucx.call.ucp_worker_get_efd)(worker, &mut fd),
                )
                .and_then(|()| {
                    // A copy, so that nobody polls a number that the worker has closed.
                    rustix::io::fcntl_dupfd_cloexec(BorrowedFd::borrow_raw(fd), 0)
                        .map_err(Error::os("copying UCX's descriptor"))
                })
                .inspect_err(|_| (ucx.call.ucp_worker_destroy)(worker))?;
            Ok((worker, Some(copied)))
        }
    }

    /// Ends the worker, with its connections, and begins anew with another one, whose address and descriptor are
    /// other ones: what was sent to the old one never arrives. Registrations stay. After an error the old one is
    /// still there.
    ///
    /// # Safety
    /// All requests are done, and all keys of the other side's memory have been destroyed.
    pub unsafe fn renew(&mut self) -> Result<()> {
        let (worker, event_fd) = self.new_worker()?;
        self.close_endpoint();
        // SAFETY: the caller has given up all that was made of it.
        unsafe { (self.ucx.call.ucp_worker_destroy)(self.worker) };
        (self.worker, self.event_fd) = (worker, event_fd);
        self.failed = Arc::default();
        Ok(())
    }

    /// Takes the descriptor that can be read from when an [armed](Self::arm) worker has something to do.
    pub fn take_event_fd(&mut self) -> Option<OwnedFd> {
        self.event_fd.take()
    }

    /// Returns the address by which the other side reaches this worker.
    pub fn address(&mut self) -> Result<Vec<u8>> {
        let call = &self.ucx.call;
        let (mut address, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the worker is valid. UCX says how long the address is, and gets it back.
        unsafe {
            self.ucx.check(
                "ucp_worker_get_address",
                (call.ucp_worker_get_address)(self.worker, &mut address, &mut len),
            )?;
            let bytes = std::slice::from_raw_parts(address.cast::<u8>(), len).to_vec();
            (call.ucp_worker_release_address)(self.worker, address);
            Ok(bytes)
        }
    }

    /// Connects to the other side's worker. UCX does not check the address: it must come from a peer that
    /// has shown who it is.
    pub fn connect(&mut self, address: &[u8]) -> Result<()> {
        if self.endpoint.is_some() {
            return Err(Error::Protocol("it gives its data endpoint twice"));
        }
        if address.is_empty() {
            return Err(Error::Protocol("its data endpoint has no address"));
        }
        let params = ucp_ep_params_t {
            field_mask: UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                | UCP_EP_PARAM_FIELD_ERR_HANDLER,
            address: address.as_ptr().cast(),
            err_mode: match self.ignores_failures {
                false => UCP_ERR_HANDLING_MODE_PEER,
                true => UCP_ERR_HANDLING_MODE_NONE,
            },
            err_handler: ucp_err_handler_t {
                cb: Some(endpoint_failed),
                arg: Arc::as_ptr(&self.failed).cast_mut().cast(),
            },
            user_data: ptr::null_mut(),
            flags: 0,
            sockaddr: ucs_sock_addr_t {
                addr: ptr::null(),
                addrlen: 0,
            },
            conn_request: ptr::null_mut(),
            name: ptr::null(),
            local_sockaddr: ucs_sock_addr_t {
                addr: ptr::null(),
                addrlen: 0,
            },
        };
        let mut endpoint = ptr::null_mut();
        // SAFETY: worker and parameters are valid. The address is as a linked peer sent it.
        let status = unsafe { (self.ucx.call.ucp_ep_create)(self.worker, &params, &mut endpoint) };
        self.ucx.check("ucp_ep_create", status)?;
        self.endpoint = Some(endpoint);
        Ok(())
    }

    /// Returns the endpoint, unless it has failed.
    fn endpoint(&self) -> Result<ucp_ep_h> {
        match (self.endpoint, self.failure()) {
            (_, Some(failure)) => Err(failure),
            (Some(endpoint), None) => Ok(endpoint),
            (None, None) => Err(Error::Protocol("it has not given its data endpoint yet")),
        }
    }

    /// Returns the error with which the endpoint failed, if it has.
    pub fn failure(&self) -> Option<Error> {
        match self.failed.load(Ordering::Acquire) {
            0 => None,
            status => Some(self.ucx.error("the data connection", status)),
        }
    }

    /// Makes `len` bytes at `start` reachable for the other side.
    ///
    /// # Safety
    /// The memory stays mapped, with this access, until the registration is given to
    /// [`unregister`](Self::unregister) or the worker is dropped.
    pub unsafe fn register(
        &mut self,
        start: *mut u8,
        len: usize,
        is_writable: bool,
    ) -> Result<Registration> {
        // SAFETY: the caller's promise.
        unsafe { self.register_as(None, start, len, is_writable) }
    }

    /// Makes `len` bytes at `start`, memory of a GPU of CUDA, reachable for the other side.
    ///
    /// # Safety
    /// As [`register`](Self::register).
    pub unsafe fn register_cuda(
        &mut self,
        start: *mut u8,
        len: usize,
        is_writable: bool,
    ) -> Result<Registration> {
        // SAFETY: the caller's promise.
        unsafe { self.register_as(Some(UCS_MEMORY_TYPE_CUDA), start, len, is_writable) }
    }

    /// # Safety
    /// As [`register`](Self::register); `memory_type` is what the memory is, `None` for UCX to find out.
    unsafe fn register_as(
        &mut self,
        memory_type: Option<c_uint>,
        start: *mut u8,
        len: usize,
        is_writable: bool,
    ) -> Result<Registration> {
        let mut prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_REMOTE_READ;
        if is_writable {
            prot |= UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_WRITE;
        }
        let known = memory_type.map_or(0, |_| UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE);
        let params = ucp_mem_map_params_t {
            field_mask: UCP_MEM_MAP_PARAM_FIELD_ADDRESS
                | UCP_MEM_MAP_PARAM_FIELD_LENGTH
                | UCP_MEM_MAP_PARAM_FIELD_PROT
                | known,
            address: start.cast(),
            length: len,
            flags: 0,
            prot,
            memory_type: memory_type.unwrap_or_default(),
            exported_memh_buffer: ptr::null(),
        };
        let call = &self.ucx.call;
        let mut memory = ptr::null_mut();
        // SAFETY: the caller vouches for the memory; results go to places of their types.
        let status = unsafe { (call.ucp_mem_map)(self.context, &params, &mut memory) };
        self.ucx.check("ucp_mem_map", status)?;
        let (mut key, mut size) = (ptr::null_mut(), 0);
        // SAFETY: as above.
        let status = unsafe { (call.ucp_rkey_pack)(self.context, memory, &mut key, &mut size) };
        if let Err(error) = self.ucx.check("ucp_rkey_pack", status) {
            // SAFETY: it was made above, and nobody else has it.
            unsafe { (call.ucp_mem_unmap)(self.context, memory) };
            return Err(error);
        }
        // SAFETY: UCX says how long the key is, and gets it back.
        let bytes = unsafe {
            let bytes = std::slice::from_raw_parts(key.cast::<u8>(), size).to_vec();
            (call.ucp_rkey_buffer_release)(key);
            bytes
        };
        Ok(Registration {
            memory,
            address: start.addr() as u64,
            key: bytes,
        })
    }

    /// Returns whether UCX was found with support of CUDA, so that it moves memory of GPUs.
    pub fn knows_cuda(&self) -> Result<bool> {
        let mut attributes = ucp_context_attr_t {
            field_mask: UCP_ATTR_FIELD_MEMORY_TYPES,
            request_size: 0,
            thread_mode: 0,
            memory_types: 0,
            name: [0; UCP_ENTITY_NAME_MAX],
            device_counter_size: 0,
        };
        // SAFETY: the context is valid, and the result goes to a place of its type.
        let status = unsafe { (self.ucx.call.ucp_context_query)(self.context, &mut attributes) };
        self.ucx.check("ucp_context_query", status)?;
        Ok(attributes.memory_types & 1 << UCS_MEMORY_TYPE_CUDA != 0)
    }

    /// Returns the names of the transports that the endpoint uses, sorted.
    pub fn transports(&self) -> Result<Vec<String>> {
        const NONE: ucp_transport_entry_t = ucp_transport_entry_t {
            transport_name: ptr::null(),
            device_name: ptr::null(),
        };
        let endpoint = self.endpoint()?;
        let mut entries = [NONE; MAX_TRANSPORTS];
        let mut attributes = ucp_ep_attr_t {
            field_mask: UCP_EP_ATTR_FIELD_TRANSPORTS,
            name: [0; UCP_ENTITY_NAME_MAX],
            local_sockaddr: [0; 16],
            remote_sockaddr: [0; 16],
            transports: ucp_transports_t {
                entries: entries.as_mut_ptr(),
                num_entries: MAX_TRANSPORTS as c_uint,
                entry_size: size_of::<ucp_transport_entry_t>(),
            },
            user_data: ptr::null_mut(),
        };
        // SAFETY: the endpoint is valid, and UCX is told how many entries there is room for.
        let status = unsafe { (self.ucx.call.ucp_ep_query)(endpoint, &mut attributes) };
        self.ucx.check("ucp_ep_query", status)?;
        let count = attributes.transports.num_entries as usize;
        let named = entries.iter().take(count);
        let mut names: Vec<_> = named
            .filter(|entry| !entry.transport_name.is_null())
            // SAFETY: UCX's texts end with zeros, and live until the endpoint is closed.
            .map(|entry| unsafe { CStr::from_ptr(entry.transport_name) })
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Takes a registration back.
    pub fn unregister(&mut self, registration: &Registration) {
        // SAFETY: this worker's context made it, and its owner gives it up.
        unsafe { (self.ucx.call.ucp_mem_unmap)(self.context, registration.memory) };
    }

    /// Reads the key of memory of the other side.
    pub fn unpack(&mut self, key: &[u8]) -> Result<RemoteKey> {
        if key.is_empty() {
            return Err(Error::Protocol("its memory has no key"));
        }
        let endpoint = self.endpoint()?;
        let mut unpacked = ptr::null_mut();
        // SAFETY: the endpoint is valid. The key is as a linked peer sent it.
        let status = unsafe {
            (self.ucx.call.ucp_ep_rkey_unpack)(endpoint, key.as_ptr().cast(), &mut unpacked)
        };
        self.ucx.check("ucp_ep_rkey_unpack", status)?;
        Ok(RemoteKey(unpacked))
    }

    /// Forgets a key.
    pub fn destroy_key(&mut self, key: RemoteKey) {
        // SAFETY: this worker made it, and its owner gives it up.
        unsafe { (self.ucx.call.ucp_rkey_destroy)(key.0) };
    }

    /// Starts to write bytes to the other side. `None`: they are on their way already.
    ///
    /// # Safety
    /// `len` bytes at `from` can be read until the request is done.
    pub unsafe fn put(
        &mut self,
        from: *const u8,
        len: usize,
        to: u64,
        key: RemoteKey,
    ) -> Result<Option<Request>> {
        let endpoint = self.endpoint()?;
        // SAFETY: the caller vouches for the bytes; the key is this worker's.
        let status = unsafe {
            (self.ucx.call.ucp_put_nbx)(endpoint, from.cast(), len, to, key.0, &NO_PARAM)
        };
        self.started("ucp_put_nbx", status)
    }

    /// Starts to read bytes from the other side. `None`: they are here already.
    ///
    /// # Safety
    /// `len` bytes at `into` can be written until the request is done.
    pub unsafe fn get(
        &mut self,
        into: *mut u8,
        len: usize,
        from: u64,
        key: RemoteKey,
    ) -> Result<Option<Request>> {
        let endpoint = self.endpoint()?;
        // SAFETY: the caller vouches for the bytes; the key is this worker's.
        let status = unsafe {
            (self.ucx.call.ucp_get_nbx)(endpoint, into.cast(), len, from, key.0, &NO_PARAM)
        };
        self.started("ucp_get_nbx", status)
    }

    /// Starts to wait until all that was written is at the other side. `None`: it is.
    pub fn flush(&mut self) -> Result<Option<Request>> {
        let endpoint = self.endpoint()?;
        // SAFETY: the endpoint is valid.
        let status = unsafe { (self.ucx.call.ucp_ep_flush_nbx)(endpoint, &NO_PARAM) };
        self.started("ucp_ep_flush_nbx", status)
    }

    fn started(&self, call: &'static str, status: ucs_status_ptr_t) -> Result<Option<Request>> {
        match status.addr() {
            0 => Ok(None),
            // The last hundred addresses stand for errors.
            code if code >= UCS_ERR_LAST as isize as usize => {
                Err(self.ucx.error(call, code as isize as ucs_status_t))
            }
            _ => Ok(Some(Request(status))),
        }
    }

    /// Returns whether a request is done, and forgets it if it is.
    pub fn is_done(&mut self, request: &mut Option<Request>) -> Result<bool> {
        let Some(Request(pointer)) = request else {
            return Ok(true);
        };
        // SAFETY: the request is this worker's, and is freed once.
        let status = unsafe { (self.ucx.call.ucp_request_check_status)(*pointer) };
        if status == UCS_INPROGRESS {
            return Ok(false);
        }
        // SAFETY: as above.
        unsafe { (self.ucx.call.ucp_request_free)(*pointer) };
        *request = None;
        self.ucx.check("moving memory", status).map(|()| true)
    }

    /// Does what there is to do. Returns whether there was anything.
    pub fn progress(&mut self) -> bool {
        // SAFETY: the worker is valid.
        unsafe { (self.ucx.call.ucp_worker_progress)(self.worker) != 0 }
    }

    /// Makes the descriptor tell of what comes. `false`: something has come already.
    pub fn arm(&mut self) -> Result<bool> {
        // SAFETY: the worker is valid.
        match unsafe { (self.ucx.call.ucp_worker_arm)(self.worker) } {
            UCS_ERR_BUSY => Ok(false),
            status => self.ucx.check("ucp_worker_arm", status).map(|()| true),
        }
    }

    /// Ends the endpoint: all that is under way fails.
    pub fn close_endpoint(&mut self) {
        let Some(endpoint) = self.endpoint.take() else {
            return;
        };
        let param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_EP_CLOSE_FLAG_FORCE,
            ..NO_PARAM
        };
        // SAFETY: the endpoint is valid, and is not used any more.
        let status = unsafe { (self.ucx.call.ucp_ep_close_nbx)(endpoint, &param) };
        if let Ok(mut request @ Some(_)) = self.started("ucp_ep_close_nbx", status) {
            // Forced, it waits for nobody.
            for _ in 0..MAX_CLOSING_STEPS {
                self.progress();
                if !matches!(self.is_done(&mut request), Ok(false)) {
                    break;
                }
            }
        }
    }
}

/// Transports of an endpoint that are looked at; UCX has at most 16 for one.
const MAX_TRANSPORTS: usize = 32;
/// Steps after which a worker that is closing is taken to have closed.
const MAX_CLOSING_STEPS: u32 = 1_000_000;

impl Drop for Worker {
    fn drop(&mut self) {
        self.close_endpoint();
        // SAFETY: all that was made of them has been given up.
        unsafe {
            if !self.worker.is_null() {
                (self.ucx.call.ucp_worker_destroy)(self.worker);
            }
            (self.ucx.call.ucp_cleanup)(self.context);
        }
    }
}
