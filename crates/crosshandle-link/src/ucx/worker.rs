//! A UCX worker with one endpoint. It registers local memory for the peer, and reads and writes the
//! peer's memory. Only one thread at a time may call a worker.

use super::context::new_context;
use super::library::{self, Ucx};
use super::sys::*;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI8, AtomicU64, Ordering};

/// The UCX settings for a link.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// UCX's name of the only network interface to use.
    pub interface: Option<String>,
    /// The transports that UCX may choose from, in the format of `UCX_TLS`.
    pub transports: Option<String>,
}

/// A UCX worker with its own UCX context and at most one endpoint.
pub struct Worker {
    ucx: &'static Ucx,
    context: ucp_context_h,
    worker: ucp_worker_h,
    /// The number of `worker`, which is unique in this process.
    number: u64,
    endpoint: Option<ucp_ep_h>,
    /// The registered memory, by the number of its registration.
    registered: HashMap<u64, ucp_mem_h>,
    event_fd: Option<OwnedFd>,
    /// The status with which the endpoint failed, or 0. UCX passes this value's address to the
    /// error callback.
    failed: Arc<AtomicI8>,
}

// SAFETY: any thread may call a UCX worker of mode "serialized", but only one at a time. `Worker`
// is not `Sync`, so only one thread at a time can use it.
unsafe impl Send for Worker {}

/// A registration of local memory that the peer can access.
#[derive(Debug)]
pub struct Registration {
    /// The number of the registration, which is unique in this process.
    number: u64,
    /// The memory's address in this process, which the peer needs for an access.
    pub address: u64,
    /// The memory's packed key, which the peer needs for an access.
    pub key: Vec<u8>,
}

/// An unpacked key for memory of the peer.
#[derive(Clone, Copy, Debug)]
pub struct RemoteKey(ucp_rkey_h);

// SAFETY: only unsafe functions use the handle. Their callers ensure that it is passed to the
// worker that unpacked it, and only one thread at a time calls a worker.
unsafe impl Send for RemoteKey {}
// SAFETY: a reference to a key only allows copying the key. The unsafe functions that use the copy
// have the contract that makes `Send` sound.
unsafe impl Sync for RemoteKey {}

/// An operation in flight. Call [`Worker::is_done`] with it until the result is `true`.
#[derive(Debug)]
#[must_use]
pub struct Request {
    handle: ucs_status_ptr_t,
    /// The number of the worker that started the request.
    worker: u64,
}

// SAFETY: only the worker that started the request uses the handle, and only one thread at a time
// calls that worker.
unsafe impl Send for Request {}

unsafe extern "C" fn endpoint_failed(arg: *mut c_void, _: ucp_ep_h, status: ucs_status_t) {
    // SAFETY: `arg` is the address of `Worker::failed`, which lives until the worker is destroyed.
    let failed = unsafe { &*arg.cast::<AtomicI8>() };
    failed.store(status, Ordering::Release);
}

/// Returns a number that this process has not used for a worker or a registration before.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Worker {
    /// Creates a worker without an endpoint.
    ///
    /// # Errors
    /// Returns [`Error::NoUcx`] if UCX cannot be loaded, or the error from UCX.
    pub fn new(settings: &Settings) -> Result<Self> {
        let ucx = library::get()?;
        let mut made = Self {
            ucx,
            context: new_context(ucx, settings)?,
            worker: ptr::null_mut(),
            number: next_number(),
            endpoint: None,
            registered: HashMap::new(),
            event_fd: None,
            failed: Arc::default(),
        };
        (made.worker, made.event_fd) = made.new_worker()?;
        Ok(made)
    }

    fn new_worker(&self) -> Result<(ucp_worker_h, Option<OwnedFd>)> {
        let params = ucp_worker_params_t {
            field_mask: UCP_WORKER_PARAM_FIELD_THREAD_MODE.into(),
            thread_mode: UCS_THREAD_MODE_SERIALIZED,
            ..Default::default()
        };
        let (ucx, mut worker) = (self.ucx, ptr::null_mut());
        // SAFETY: the context and the parameters are valid, and the results are written to
        // variables of the right types. The worker is destroyed once if an error occurs. Its
        // descriptor is open while the worker exists.
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
                    // Duplicate the descriptor, so that no thread polls a descriptor that the
                    // worker has closed.
                    rustix::io::fcntl_dupfd_cloexec(BorrowedFd::borrow_raw(fd), 0)
                        .map_err(Error::os("copying UCX's descriptor"))
                })
                .inspect_err(|_| (ucx.call.ucp_worker_destroy)(worker))?;
            Ok((worker, Some(copied)))
        }
    }

    /// Replaces the worker and its connections by a new worker. The new worker has another address
    /// and another descriptor, so it never gets messages for the old worker. Registrations stay
    /// valid. After an error, the old worker still exists.
    ///
    /// # Safety
    /// The caller must ensure that all requests are done and that all unpacked keys were destroyed.
    pub unsafe fn renew(&mut self) -> Result<()> {
        let (worker, event_fd) = self.new_worker()?;
        self.close_endpoint();
        // SAFETY: the worker is valid, and is destroyed once. The caller ensures that no request
        // and no key of the worker is used later.
        unsafe { (self.ucx.call.ucp_worker_destroy)(self.worker) };
        (self.worker, self.event_fd) = (worker, event_fd);
        self.number = next_number();
        self.failed = Arc::default();
        Ok(())
    }

    /// Takes the descriptor that becomes readable when an [armed](Self::arm) worker has work to do.
    pub fn take_event_fd(&mut self) -> Option<OwnedFd> {
        self.event_fd.take()
    }

    /// Returns the address that the peer needs to connect to this worker.
    pub fn address(&mut self) -> Result<Vec<u8>> {
        let call = &self.ucx.call;
        let (mut address, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the worker is valid. UCX returns an address of `len` bytes, which is read before
        // it is released.
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

    /// Connects to the peer's worker.
    ///
    /// # Safety
    /// The caller must ensure that a trusted peer's worker returned the address, because UCX does
    /// not check it.
    pub unsafe fn connect(&mut self, address: &[u8]) -> Result<()> {
        if self.endpoint.is_some() {
            return Err(Error::Protocol("it sends its data endpoint twice"));
        }
        if address.is_empty() {
            return Err(Error::Protocol("its data endpoint has no address"));
        }
        let params = ucp_ep_params_t {
            field_mask: (UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
                | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                | UCP_EP_PARAM_FIELD_ERR_HANDLER)
                .into(),
            address: address.as_ptr().cast(),
            err_mode: UCP_ERR_HANDLING_MODE_PEER,
            err_handler: ucp_err_handler_t {
                cb: Some(endpoint_failed),
                arg: Arc::as_ptr(&self.failed).cast_mut().cast(),
            },
            ..Default::default()
        };
        let mut endpoint = ptr::null_mut();
        // SAFETY: the worker and the parameters are valid, the caller guarantees that the address
        // is valid, and `failed` outlives the worker's endpoints.
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
            (None, None) => Err(Error::Protocol("it has not sent its data endpoint yet")),
        }
    }

    /// Returns the error with which the endpoint failed, or `None`.
    pub fn failure(&self) -> Option<Error> {
        match self.failed.load(Ordering::Acquire) {
            0 => None,
            status => Some(self.ucx.error("the data connection", status)),
        }
    }

    /// Registers `len` bytes of local memory at `start`, so that the peer can access them.
    ///
    /// # Safety
    /// The caller must ensure that the memory stays mapped with this access until the registration
    /// is passed to [`unregister`](Self::unregister) or the worker is dropped.
    pub unsafe fn register(
        &mut self,
        start: *mut u8,
        len: usize,
        is_writable: bool,
    ) -> Result<Registration> {
        // SAFETY: the caller upholds the contract of `register`.
        unsafe { self.register_as(None, start, len, is_writable) }
    }

    /// Registers `len` bytes of CUDA GPU memory at `start`, so that the peer can access them.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`register`](Self::register).
    pub unsafe fn register_cuda(
        &mut self,
        start: *mut u8,
        len: usize,
        is_writable: bool,
    ) -> Result<Registration> {
        // SAFETY: the caller upholds the contract of `register`.
        unsafe { self.register_as(Some(UCS_MEMORY_TYPE_CUDA), start, len, is_writable) }
    }

    /// # Safety
    /// The caller must uphold the contract of [`register`](Self::register). It must also ensure
    /// that `memory_type` is the actual type of the memory, or `None`, with which UCX detects the
    /// type.
    unsafe fn register_as(
        &mut self,
        memory_type: Option<ucs_memory_type_t>,
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
            field_mask: (UCP_MEM_MAP_PARAM_FIELD_ADDRESS
                | UCP_MEM_MAP_PARAM_FIELD_LENGTH
                | UCP_MEM_MAP_PARAM_FIELD_PROT
                | known)
                .into(),
            address: start.cast(),
            length: len,
            prot,
            memory_type: memory_type.unwrap_or_default(),
            ..Default::default()
        };
        let call = &self.ucx.call;
        let mut memory = ptr::null_mut();
        // SAFETY: the context and the parameters are valid, the caller guarantees that the memory
        // is mapped, and the result is written to a variable of the right type.
        let status = unsafe { (call.ucp_mem_map)(self.context, &params, &mut memory) };
        self.ucx.check("ucp_mem_map", status)?;
        let (mut key, mut size) = (ptr::null_mut(), 0);
        // SAFETY: the memory was registered above, and the results are written to variables of the
        // right types.
        let status = unsafe { (call.ucp_rkey_pack)(self.context, memory, &mut key, &mut size) };
        if let Err(error) = self.ucx.check("ucp_rkey_pack", status) {
            // SAFETY: the registration was created above and is not used elsewhere.
            unsafe { (call.ucp_mem_unmap)(self.context, memory) };
            return Err(error);
        }
        // SAFETY: UCX has returned a key of `size` bytes, which is read before it is released.
        let bytes = unsafe {
            let bytes = std::slice::from_raw_parts(key.cast::<u8>(), size).to_vec();
            (call.ucp_rkey_buffer_release)(key);
            bytes
        };
        let number = next_number();
        self.registered.insert(number, memory);
        Ok(Registration {
            number,
            address: start.addr() as u64,
            key: bytes,
        })
    }

    /// Returns `true` if the loaded UCX supports CUDA, so that it can access GPU memory.
    pub fn knows_cuda(&self) -> Result<bool> {
        let mut attributes = ucp_context_attr_t {
            field_mask: UCP_ATTR_FIELD_MEMORY_TYPES.into(),
            ..Default::default()
        };
        // SAFETY: the context is valid, and the result is written to a variable of the right type.
        let status = unsafe { (self.ucx.call.ucp_context_query)(self.context, &mut attributes) };
        self.ucx.check("ucp_context_query", status)?;
        Ok(attributes.memory_types & 1 << UCS_MEMORY_TYPE_CUDA != 0)
    }

    /// Returns the sorted names of the transports that the endpoint uses.
    pub fn transports(&self) -> Result<Vec<String>> {
        let endpoint = self.endpoint()?;
        let mut entries = [ucp_transport_entry_t::default(); MAX_TRANSPORTS];
        let mut attributes = ucp_ep_attr_t {
            field_mask: UCP_EP_ATTR_FIELD_TRANSPORTS.into(),
            transports: ucp_transports_t {
                entries: entries.as_mut_ptr(),
                num_entries: MAX_TRANSPORTS as c_uint,
                entry_size: size_of::<ucp_transport_entry_t>(),
            },
            ..Default::default()
        };
        // SAFETY: the endpoint is valid, and the attributes contain the capacity of the list of
        // entries.
        let status = unsafe { (self.ucx.call.ucp_ep_query)(endpoint, &mut attributes) };
        self.ucx.check("ucp_ep_query", status)?;
        let count = attributes.transports.num_entries as usize;
        let named = entries.iter().take(count);
        let mut names: Vec<_> = named
            .filter(|entry| !entry.transport_name.is_null())
            // SAFETY: the name is not null. UCX's names are C strings that live until the endpoint
            // is closed.
            .map(|entry| unsafe { CStr::from_ptr(entry.transport_name) })
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Ends a registration. Does nothing if another worker created it or if it has already ended.
    pub fn unregister(&mut self, registration: &Registration) {
        if let Some(memory) = self.registered.remove(&registration.number) {
            // SAFETY: this worker's context created the handle, which was in the map until now, so
            // it is unmapped once.
            unsafe { (self.ucx.call.ucp_mem_unmap)(self.context, memory) };
        }
    }

    /// Unpacks a key for memory of the peer.
    ///
    /// # Safety
    /// The caller must ensure that the key comes from the trusted peer to which this worker is
    /// connected, because UCX does not check it.
    pub unsafe fn unpack(&mut self, key: &[u8]) -> Result<RemoteKey> {
        if key.is_empty() {
            return Err(Error::Protocol("its memory has no key"));
        }
        let endpoint = self.endpoint()?;
        let mut unpacked = ptr::null_mut();
        // SAFETY: the endpoint is valid, and the caller guarantees that the key is valid.
        let status = unsafe {
            (self.ucx.call.ucp_ep_rkey_unpack)(endpoint, key.as_ptr().cast(), &mut unpacked)
        };
        self.ucx.check("ucp_ep_rkey_unpack", status)?;
        Ok(RemoteKey(unpacked))
    }

    /// Destroys an unpacked key.
    ///
    /// # Safety
    /// The caller must ensure that this worker unpacked the key, that the worker has not been
    /// [renewed](Self::renew) since, and that the key is not used any more.
    pub unsafe fn destroy_key(&mut self, key: RemoteKey) {
        // SAFETY: the caller guarantees that this worker unpacked the key and that it is not used
        // again.
        unsafe { (self.ucx.call.ucp_rkey_destroy)(key.0) };
    }

    /// Starts to write `len` bytes from `from` to address `to` in the peer's memory. Returns `None`
    /// if UCX has already sent the bytes, so that there is nothing to wait for.
    ///
    /// # Safety
    /// The caller must ensure that `len` bytes at `from` can be read until the request is done,
    /// and that `key` is a key of this worker that has not been destroyed.
    pub unsafe fn put(
        &mut self,
        from: *const u8,
        len: usize,
        to: u64,
        key: RemoteKey,
    ) -> Result<Option<Request>> {
        let endpoint = self.endpoint()?;
        // SAFETY: the endpoint is valid, and the caller guarantees that the local bytes and the key
        // are valid.
        let status = unsafe {
            (self.ucx.call.ucp_put_nbx)(endpoint, from.cast(), len, to, key.0, &Default::default())
        };
        self.started("ucp_put_nbx", status)
    }

    /// Starts to read `len` bytes from address `from` in the peer's memory to `into`. Returns
    /// `None` if the bytes have already arrived.
    ///
    /// # Safety
    /// The caller must ensure that `len` bytes at `into` can be written until the request is done,
    /// and that `key` is a key of this worker that has not been destroyed.
    pub unsafe fn get(
        &mut self,
        into: *mut u8,
        len: usize,
        from: u64,
        key: RemoteKey,
    ) -> Result<Option<Request>> {
        let endpoint = self.endpoint()?;
        // SAFETY: the endpoint is valid, and the caller guarantees that the local bytes and the key
        // are valid.
        let status = unsafe {
            (self.ucx.call.ucp_get_nbx)(
                endpoint,
                into.cast(),
                len,
                from,
                key.0,
                &Default::default(),
            )
        };
        self.started("ucp_get_nbx", status)
    }

    /// Starts an operation that completes when all written bytes are in the peer's memory. Returns
    /// `None` if that is already the case.
    pub fn flush(&mut self) -> Result<Option<Request>> {
        let endpoint = self.endpoint()?;
        // SAFETY: the endpoint is valid.
        let status = unsafe { (self.ucx.call.ucp_ep_flush_nbx)(endpoint, &Default::default()) };
        self.started("ucp_ep_flush_nbx", status)
    }

    fn started(&self, call: &'static str, status: ucs_status_ptr_t) -> Result<Option<Request>> {
        match status.addr() {
            0 => Ok(None),
            // UCX may return an error code instead of a pointer. The last hundred addresses
            // represent error codes.
            code if code >= UCS_ERR_LAST as isize as usize => {
                Err(self.ucx.error(call, code as isize as ucs_status_t))
            }
            _ => Ok(Some(Request {
                handle: status,
                worker: self.number,
            })),
        }
    }

    /// Returns `true` if a request is complete, and frees the request in that case.
    ///
    /// # Errors
    /// Returns the error with which the operation failed. Also returns an error if another worker
    /// started the request.
    pub fn is_done(&mut self, request: &mut Option<Request>) -> Result<bool> {
        let Some(Request { handle, worker }) = *request else {
            return Ok(true);
        };
        if worker != self.number {
            return Err(Error::invalid("another UCX worker started the request"));
        }
        // SAFETY: this worker started the request, which was not freed yet.
        let status = unsafe { (self.ucx.call.ucp_request_check_status)(handle) };
        if status == UCS_INPROGRESS {
            return Ok(false);
        }
        *request = None;
        // SAFETY: this worker started the request, which is complete, and `request` was its only
        // owner.
        unsafe { (self.ucx.call.ucp_request_free)(handle) };
        self.ucx.check("moving memory", status).map(|()| true)
    }

    /// Lets UCX process pending work. Returns `true` if there was any.
    pub fn progress(&mut self) -> bool {
        // SAFETY: the worker is valid.
        unsafe { (self.ucx.call.ucp_worker_progress)(self.worker) != 0 }
    }

    /// Arms the worker's descriptor for the next event. Returns `false` if an event has already
    /// arrived.
    pub fn arm(&mut self) -> Result<bool> {
        // SAFETY: the worker is valid.
        match unsafe { (self.ucx.call.ucp_worker_arm)(self.worker) } {
            UCS_ERR_BUSY => Ok(false),
            status => self.ucx.check("ucp_worker_arm", status).map(|()| true),
        }
    }

    /// Closes the endpoint. All operations that are in flight fail.
    pub fn close_endpoint(&mut self) {
        let Some(endpoint) = self.endpoint.take() else {
            return;
        };
        let param = ucp_request_param_t {
            op_attr_mask: UCP_OP_ATTR_FIELD_FLAGS,
            flags: UCP_EP_CLOSE_FLAG_FORCE,
            ..Default::default()
        };
        // SAFETY: the endpoint is valid, and is not used any more.
        let status = unsafe { (self.ucx.call.ucp_ep_close_nbx)(endpoint, &param) };
        if let Ok(mut request @ Some(_)) = self.started("ucp_ep_close_nbx", status) {
            // A forced close does not wait for the peer.
            for _ in 0..MAX_CLOSING_STEPS {
                self.progress();
                if !matches!(self.is_done(&mut request), Ok(false)) {
                    break;
                }
            }
        }
    }
}

/// Maximum number of transports that are reported for an endpoint. UCX has at most 16.
const MAX_TRANSPORTS: usize = 32;
/// Maximum number of progress calls for closing an endpoint. After that, the endpoint is assumed to
/// be closed.
const MAX_CLOSING_STEPS: u32 = 1_000_000;

impl Drop for Worker {
    fn drop(&mut self) {
        self.close_endpoint();
        // SAFETY: the handles are valid, and each is destroyed once. Keys and requests cannot be
        // used without this worker.
        unsafe {
            for memory in self.registered.values() {
                (self.ucx.call.ucp_mem_unmap)(self.context, *memory);
            }
            if !self.worker.is_null() {
                (self.ucx.call.ucp_worker_destroy)(self.worker);
            }
            (self.ucx.call.ucp_cleanup)(self.context);
        }
    }
}
