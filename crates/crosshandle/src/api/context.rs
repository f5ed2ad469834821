//! Contexts: they allocate, export and open memory and events on one device.

use crate::api::command::Command;
use crate::api::core::{Allocation, ContextCore, ContextOptions};
use crate::api::device::Device;
use crate::api::event::device::{HostWord, Recorder};
use crate::api::event::{Event, EventOptions};
use crate::api::memory::Memory;
use crate::api::queue::Queue;
use crosshandle_handle::{EventHandle, HandleKind, MemoryHandle};
use crosshandle_ipc::{OpenDeadline, late_completion};
use crosshandle_os::threads::driver_jobs;
use crosshandle_types::error::Result;
use crosshandle_types::sync::Deadline;
use crosshandle_types::{Access, AllocationOptions, QueueOrder, observe};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Maximum time that the fill of new memory takes. Other work of the device may delay it.
const FILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A device in use. A context allocates, exports and opens memory, and creates events and queues.
///
/// Cloning is cheap, and any thread may use a context. Objects of a context stay usable after the
/// context is dropped. Its exports can then no longer be opened, unless one of its objects still
/// exists.
///
/// Dropping the last clone may block for a second or two, until background threads of this library
/// have released the driver's objects that they own. A process that ends after the drop therefore
/// does not race with these threads. The drop does not wait for commands that wait for other
/// processes.
///
/// In this example, a program starts itself as a second process, which opens memory and an event:
///
/// ```standalone_crate
/// use crosshandle::{Context, Device};
/// use std::env;
/// use std::process::Command;
/// use std::time::Duration;
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let context = Context::new(&Device::find("host")?)?;
///     let arguments: Vec<String> = env::args().skip(1).collect();
///     if let [memory, ready] = &arguments[..] {
///         // The second process opens both objects.
///         let memory = context.open_memory(&memory.parse()?)?;
///         let ready = context.open_event(&ready.parse()?)?;
///         memory.write(0, b"hello")?;
///         ready.signal()?;
///         return Ok(());
///     }
///     let memory = context.allocate(1 << 20)?;
///     let ready = context.create_event()?;
///     let mut second = Command::new(env::current_exe()?)
///         .args([memory.handle()?.to_string(), ready.handle()?.to_string()])
///         .spawn()?;
///     ready.wait_timeout(Duration::from_secs(30))?;
///     let mut text = [0; 5];
///     memory.read(0, &mut text)?;
///     assert_eq!(&text, b"hello");
///     assert!(second.wait()?.success());
///     Ok(())
/// }
/// ```
///
/// # Trust
/// The context is the trust boundary. A process that has opened one of its handles can disturb the
/// context's other shared events, and memory in the same segment as the opened memory, but nothing
/// else. Use a second context for objects that a peer must not reach.
///
/// # fork
/// A child made by `fork` without `exec` starts afresh on the host, where it can make contexts of
/// its own. It can read and write host memory that it has inherited. Inherited contexts, events and
/// queues, and all other devices, fail with [`Error::Unsupported`](crate::Error::Unsupported).
/// Start peers that need these with `exec`, as `std::process::Command` does.
#[derive(Clone)]
pub struct Context {
    inner: Arc<OpenContext>,
}

/// The parts of a context that end when the last `Context` is dropped, even if objects keep the
/// core alive. The order of the fields is the order of their drops.
pub(crate) struct OpenContext {
    /// The queue that waits for native events and records them. Each of its commands runs as soon
    /// as its waits have ended.
    native_events: OnceLock<Queue>,
    /// The word that tells code on the device to stop, and the kernels that signal and wait.
    abort: OnceLock<Arc<HostWord>>,
    recorder: OnceLock<Recorder>,
    /// The host context of channels.
    companion: OnceLock<Context>,
    core: Arc<ContextCore>,
    /// Dropped after the core, which the exchange thread may be dropping at the same time.
    _exchange: DriverJobsBarrier,
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        if self.core.is_inherited() {
            // Threads of the parent may have held locks that the drop of the core would take.
            std::mem::forget(Arc::clone(&self.core));
            return;
        }
        self.core.close();
    }
}

/// Waits for background jobs on drop. These jobs may own the last of the driver's objects, which
/// must not be freed while the process ends.
struct DriverJobsBarrier;

impl Drop for DriverJobsBarrier {
    fn drop(&mut self) {
        late_completion::wait_for_round();
        driver_jobs::wait();
    }
}

impl Context {
    /// Returns whether both are clones of the same context.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Creates a context on `device` with the default options.
    ///
    /// # Errors
    /// [`Error`](crate::Error) if the driver or the operating system reports an error.
    pub fn new(device: &Device) -> Result<Self> {
        Self::with_options(device, ContextOptions::new())
    }

    /// Creates a context on `device` with options.
    ///
    /// # Errors
    /// [`Error`](crate::Error) if the driver or the operating system reports an error.
    pub fn with_options(device: &Device, options: ContextOptions) -> Result<Self> {
        let core = ContextCore::new(device.clone(), options, |device| device.create_context())?;
        Ok(Self::of(core))
    }

    pub(super) fn of(core: ContextCore) -> Self {
        Self {
            inner: Arc::new(OpenContext {
                native_events: OnceLock::new(),
                abort: OnceLock::new(),
                recorder: OnceLock::new(),
                companion: OnceLock::new(),
                core: Arc::new(core),
                _exchange: DriverJobsBarrier,
            }),
        }
    }

    #[inline]
    pub(crate) fn core(&self) -> &Arc<ContextCore> {
        &self.inner.core
    }

    /// Returns the device that the context is on.
    pub fn device(&self) -> &Device {
        self.core().device()
    }

    /// Allocates `len` bytes of device memory, whose contents are arbitrary.
    ///
    /// The driver provides all of a device's memory at once. The kernel provides host memory page
    /// by page on first access, so an access may end the process if too little memory is left.
    /// [`AllocationOptions::populate`] makes the allocation take all pages, or fail.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `len` is 0.
    /// - [`Error::OutOfMemory`](crate::Error::OutOfMemory) or
    ///   [`Error::LimitReached`](crate::Error::LimitReached) if memory or a limit of the system is
    ///   used up.
    #[inline]
    pub fn allocate(&self, len: usize) -> Result<Memory> {
        self.allocate_with(AllocationOptions::new(len))
    }

    /// Allocates memory with options, for instance of another kind or with a larger alignment.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate). Also
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an alignment that is not a
    /// power of two, or is larger than 2 MiB.
    #[inline]
    pub fn allocate_with(&self, options: AllocationOptions) -> Result<Memory> {
        let core = self.core();
        Allocation::allocate(core, core.pool(options.kind), options).map(Memory::owned)
    }

    /// Returns a handle to the allocation that contains `pointer`. The handle's memory starts at
    /// `pointer` and extends to the end of the allocation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the pointer is not inside an
    /// allocation of this context.
    pub fn memory_handle(&self, pointer: *const u8) -> Result<MemoryHandle> {
        let (allocation, offset) = self.core().find(pointer.addr())?;
        allocation.handle(offset, Access::ReadWrite)
    }

    /// Opens memory that another process has exported, and maps it into this process. A handle can
    /// be opened any number of times, and each result is closed separately, by dropping it. The
    /// memory may be on another device of the same backend, if this context's device can reach that
    /// device.
    ///
    /// # Errors
    /// - [`Error::WrongHost`](crate::Error::WrongHost),
    ///   [`Error::WrongBackend`](crate::Error::WrongBackend) and
    ///   [`Error::WrongDevice`](crate::Error::WrongDevice) for a handle that cannot be opened here.
    /// - [`Error::Stale`](crate::Error::Stale) if the exporter has freed the memory.
    /// - [`Error::ExporterGone`](crate::Error::ExporterGone) if the exporter has ended.
    /// - [`Error::ReadOnly`](crate::Error::ReadOnly) for a read-only handle.
    /// - [`Error::LimitReached`](crate::Error::LimitReached) if a limit of the system or of this
    ///   crate is reached.
    #[inline]
    pub fn open_memory(&self, handle: &MemoryHandle) -> Result<Memory> {
        self.open_by(handle, Access::ReadWrite, &self.core().deadline())
    }

    /// Opens memory for reading only. For host memory, the exporter sends a descriptor that permits
    /// no writes. For device memory, this process's own driver refuses writes.
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory).
    pub fn open_memory_read_only(&self, handle: &MemoryHandle) -> Result<Memory> {
        self.open_by(handle, Access::ReadOnly, &self.core().deadline())
    }

    /// Opens memory as [`open_memory`](Self::open_memory) or
    /// [`open_memory_read_only`](Self::open_memory_read_only) does, but waits for other processes
    /// for at most `timeout`. The timeout replaces the context's
    /// [`exchange_timeout`](ContextOptions::exchange_timeout).
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory). Also [`Error::TimedOut`](crate::Error::TimedOut).
    pub fn open_memory_timeout(
        &self,
        handle: &MemoryHandle,
        access: Access,
        timeout: Duration,
    ) -> Result<Memory> {
        self.open_by(handle, access, &OpenDeadline::after(timeout))
    }

    #[inline]
    fn open_by(&self, handle: &MemoryHandle, access: Access, by: &OpenDeadline) -> Result<Memory> {
        let opened = Memory::open(self.core(), handle, access, by);
        // This is not `inspect_err`, which would move the opened memory once more.
        if let Err(error) = &opened {
            observe::not_opened(HandleKind::Memory, error);
        }
        opened
    }

    /// Opens the memory of several handles, and returns it in their order. Each is opened as
    /// [`open_memory`](Self::open_memory) or [`open_memory_read_only`](Self::open_memory_read_only)
    /// does.
    ///
    /// For memory that this process has not opened yet, this is faster than opening one handle
    /// after the other. The exporter prepares the next reply while this process maps the memory of
    /// the last one.
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory), for the first handle that cannot be opened. No memory
    /// stays open then.
    pub fn open_memories(&self, handles: &[MemoryHandle], access: Access) -> Result<Vec<Memory>> {
        self.open_each_by(handles, access, || self.core().deadline())
    }

    /// Opens the memory of several handles as [`open_memories`](Self::open_memories) does, but
    /// waits for other processes for at most `timeout` in all.
    ///
    /// # Errors
    /// As [`open_memories`](Self::open_memories). Also
    /// [`Error::TimedOut`](crate::Error::TimedOut).
    pub fn open_memories_timeout(
        &self,
        handles: &[MemoryHandle],
        access: Access,
        timeout: Duration,
    ) -> Result<Vec<Memory>> {
        let deadline = Deadline::after(timeout);
        self.open_each_by(handles, access, || OpenDeadline::after(deadline.timeout()))
    }

    fn open_each_by(
        &self,
        handles: &[MemoryHandle],
        access: Access,
        by: impl Fn() -> OpenDeadline,
    ) -> Result<Vec<Memory>> {
        let _mapped = (handles.len() > 1).then(|| {
            let fields: Vec<_> = handles.iter().map(MemoryHandle::fields).collect();
            self.core().map_ahead(&fields, access, &by())
        });
        let open = |handle| self.open_by(handle, access, &by());
        handles.iter().map(open).collect()
    }

    /// Creates an event that can be shared. Until a signal is submitted, the event is complete.
    ///
    /// # Errors
    /// [`Error::LimitReached`](crate::Error::LimitReached) if the context already shares a million
    /// objects.
    pub fn create_event(&self) -> Result<Event> {
        self.create_event_with(EventOptions::new())
    }

    /// Creates an event with options.
    ///
    /// # Errors
    /// As [`create_event`](Self::create_event). Also
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for options that ask for both
    /// sharing and timestamps.
    pub fn create_event_with(&self, options: EventOptions) -> Result<Event> {
        Event::create(self.core(), options)
    }

    /// Opens an event that another process has exported. Both processes signal the same event and
    /// wait for it. A context on any device of this host can open it.
    ///
    /// # Errors
    /// - [`Error::WrongHost`](crate::Error::WrongHost) for a handle of another host.
    /// - [`Error::Stale`](crate::Error::Stale) if the exporter has dropped the event.
    /// - [`Error::ExporterGone`](crate::Error::ExporterGone) if the exporter has ended.
    /// - [`Error::LimitReached`](crate::Error::LimitReached) if a limit of the system or of this
    ///   crate is reached.
    #[inline]
    pub fn open_event(&self, handle: &EventHandle) -> Result<Event> {
        self.open_event_with(handle, EventOptions::new())
    }

    /// Opens an event with options, for instance to wait for it in low-power mode.
    ///
    /// # Errors
    /// As [`open_event`](Self::open_event). Also
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for options that only the event's
    /// creator can choose, which are [`shareable`](EventOptions::shareable) and
    /// [`profiling`](EventOptions::profiling).
    #[inline]
    pub fn open_event_with(&self, handle: &EventHandle, options: EventOptions) -> Result<Event> {
        self.open_event_by(handle, options, &self.core().deadline())
    }

    /// Opens an event as [`open_event`](Self::open_event) does, but waits for its exporter for at
    /// most `timeout`. The timeout replaces the context's
    /// [`exchange_timeout`](ContextOptions::exchange_timeout).
    ///
    /// # Errors
    /// As [`open_event`](Self::open_event). Also [`Error::TimedOut`](crate::Error::TimedOut).
    pub fn open_event_timeout(&self, handle: &EventHandle, timeout: Duration) -> Result<Event> {
        self.open_event_by(handle, EventOptions::new(), &OpenDeadline::after(timeout))
    }

    #[inline]
    fn open_event_by(
        &self,
        handle: &EventHandle,
        options: EventOptions,
        by: &OpenDeadline,
    ) -> Result<Event> {
        let opened = Event::open(self.core(), handle, options, by);
        if let Err(error) = &opened {
            observe::not_opened(HandleKind::Event, error);
        }
        opened
    }

    /// Creates a queue that runs its commands in order.
    ///
    /// # Errors
    /// [`Error`](crate::Error) if the driver or the operating system reports an error.
    pub fn create_queue(&self) -> Result<Queue> {
        self.create_queue_with(QueueOrder::InOrder)
    }

    /// Creates a queue that runs its commands in order, or each command as soon as possible.
    ///
    /// # Errors
    /// [`Error`](crate::Error) if the driver or the operating system reports an error.
    pub fn create_queue_with(&self, order: QueueOrder) -> Result<Queue> {
        let queue = self.core().backend().create_queue(order)?;
        let copied = self.core().exporter().copied();
        Ok(Queue::new(queue, order, self, copied))
    }

    /// Returns a reference that does not keep the context open.
    pub(super) fn downgrade(&self) -> Weak<OpenContext> {
        Arc::downgrade(&self.inner)
    }

    /// Returns the context that [`downgrade`](Self::downgrade) was called for, unless it was
    /// dropped.
    pub(super) fn upgrade(weak: &Weak<OpenContext>) -> Option<Self> {
        weak.upgrade().map(|inner| Self { inner })
    }

    /// Returns the word that tells code on the device to stop.
    pub(super) fn abort_word(&self) -> Result<Arc<HostWord>> {
        let place = &self.inner.abort;
        if let Some(word) = place.get() {
            return Ok(Arc::clone(word));
        }
        let word = Arc::new(HostWord::new(self)?);
        Ok(Arc::clone(place.get_or_init(|| word)))
    }

    /// Returns the kernels that signal events and wait for them.
    pub(super) fn recorder(&self) -> Result<&Recorder> {
        let place = &self.inner.recorder;
        if let Some(recorder) = place.get() {
            return Ok(recorder);
        }
        let recorder = Recorder::new(self)?;
        Ok(place.get_or_init(|| recorder))
    }

    /// Makes driver calls that this thread may otherwise not make while it, or another thread,
    /// captures a stream.
    pub(super) fn beside_captures<R>(&self, call: impl FnOnce() -> R) -> R {
        let mut call = Some(call);
        let mut result = None;
        let mut run = || result = call.take().map(|call| call());
        match self.core().backend().native() {
            Some(native) => native.beside_captures(&mut run),
            None => run(),
        }
        result.expect("the backend makes the call")
    }

    /// Fills new memory with a repeated pattern, and waits for the end of the fill, at most
    /// [`FILL_TIMEOUT`].
    pub(super) fn fill_now(&self, memory: &Memory, pattern: &[u8]) -> Result<()> {
        if memory.bytes().is_ok() {
            let repeated = pattern.iter().copied().cycle().take(memory.len());
            return memory.write(0, &repeated.collect::<Vec<_>>());
        }
        let queue = self.create_queue()?;
        queue.submit(Command::fill(memory.all(), pattern)?)?;
        queue.finish_timeout(FILL_TIMEOUT)
    }

    /// Returns the queue that waits for native events and records them.
    pub(super) fn native_events(&self) -> Result<&Queue> {
        let place = &self.inner.native_events;
        if let Some(queue) = place.get() {
            return Ok(queue);
        }
        let queue = self.create_queue_with(QueueOrder::OutOfOrder)?;
        Ok(place.get_or_init(|| queue))
    }

    /// Returns a host context without pooling, in the same socket directory. Channels share host
    /// memory through it, so a peer gets no other memory of this context.
    pub(super) fn companion(&self) -> Result<Self> {
        let place = &self.inner.companion;
        if let Some(companion) = place.get() {
            return Ok(companion.clone());
        }
        let options = self.core().companion_options();
        let companion = Self::with_options(&Device::find("host")?, options)?;
        Ok(place.get_or_init(|| companion).clone())
    }

    /// Returns freed memory that is kept for reuse to the system. Also unmaps memory of other
    /// processes that is not open.
    pub fn trim(&self) {
        self.core().trim();
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device().to_string())
            .finish_non_exhaustive()
    }
}
