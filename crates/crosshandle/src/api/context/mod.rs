//! Contexts: they allocate, export and open memory and events on one device.

mod bundle;
mod fabric;
mod file;
mod native;
mod tuning;

pub use bundle::PackedBundle;
pub use native::NativeEvent;

use crate::api::command::Command;
use crate::api::command::graph::Graph;
use crate::api::core::{Allocation, ContextCore, ContextOptions};
use crate::api::device::Device;
use crate::api::event::{Event, EventOptions};
use crate::api::image::{ExternalMemory, Image, ImageView, LevelledImage, Sampler};
use crate::api::memory::{Buffer, Memory, MemoryPool, MemoryPoolOptions, MemoryRange};
use crate::api::physical::PhysicalMemory;
use crate::api::program::Program;
use crate::api::queue::Queue;
use crate::api::virtual_range::VirtualRange;
use crosshandle_handle::{EventHandle, HandleKind, MemoryHandle, PhysicalMemoryHandle};
use crosshandle_ipc::{OpenDeadline, late_completion};
use crosshandle_os::threads::driver_jobs;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{
    Access, AllocationOptions, ImageDescription, MemoryKind, Pod, ProgramImage, ProgramOptions,
    QueueOrder, SamplerDescription, Sampling, observe,
};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zerocopy::IntoBytes;

/// A device in use. A context allocates, exports and opens memory, and creates events and queues.
///
/// Cloning is cheap, and any thread may use a context. Objects of a context stay usable after the
/// context is dropped. Its exports can then no longer be opened, unless one of its objects still
/// exists.
///
/// Dropping the last clone may block for a second or two until threads of this library have closed
/// what they are closing. A process that then ends does not race with them. The drop does not wait
/// for commands that wait for other processes.
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
    inner: Arc<Inner>,
}

/// The parts of a context that end when the last `Context` is dropped, even if objects keep the
/// core alive. The order of the fields is the order of their drops.
struct Inner {
    /// The queue that waits for native events and records them. Each of its commands runs as soon
    /// as its waits have ended.
    native_events: OnceLock<Queue>,
    core: Arc<ContextCore>,
    /// Dropped after the core, which the exchange thread may be dropping at the same time.
    _exchange: DriverJobsBarrier,
}

impl Drop for Inner {
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
    /// [`Error`](crate::Error) if the driver or the operating system refuses.
    pub fn new(device: &Device) -> Result<Self> {
        Self::with_options(device, ContextOptions::new())
    }

    /// Creates a context on `device` with options.
    ///
    /// # Errors
    /// [`Error`](crate::Error) if the driver or the operating system refuses.
    pub fn with_options(device: &Device, options: ContextOptions) -> Result<Self> {
        let core = ContextCore::new(device.clone(), options, |device| device.create_context())?;
        Ok(Self::of(core))
    }

    fn of(core: ContextCore) -> Self {
        Self {
            inner: Arc::new(Inner {
                native_events: OnceLock::new(),
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

    /// Allocates device memory for `len` elements, whose contents are arbitrary.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate). Also
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `T` has size 0.
    pub fn allocate_buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>> {
        let options = AllocationOptions::new(Buffer::<T>::bytes_of(len)?);
        let align = options.align.max(align_of::<T>());
        Buffer::from_memory(self.allocate_with(options.align(align))?)
    }

    /// Allocates device memory for the elements of a slice, and copies them into it. If the host
    /// cannot access the device's memory, a temporary queue copies them, and this call blocks until
    /// the copy is complete.
    ///
    /// # Errors
    /// As [`allocate_buffer`](Self::allocate_buffer). Also [`Error::Driver`](crate::Error::Driver)
    /// if the driver refuses.
    pub fn allocate_buffer_from<T: Pod>(&self, elements: &[T]) -> Result<Buffer<T>> {
        let buffer = self.allocate_buffer::<T>(elements.len())?;
        match buffer.write(0, elements) {
            Err(Error::Unsupported(_)) => {}
            written => return written.map(|()| buffer),
        }
        let options = AllocationOptions::new(size_of_val(elements)).kind(MemoryKind::Host);
        let staging = self.allocate_with(options)?;
        staging.write(0, elements.as_bytes())?;
        let queue = self.create_queue()?;
        queue.submit(Command::copy(staging.all(), buffer.all())?)?;
        queue.finish()?;
        Ok(buffer)
    }

    /// Creates a pool whose memory is kept apart from all other memory of this context, and is
    /// accounted for.
    pub fn create_memory_pool(&self, options: MemoryPoolOptions) -> MemoryPool {
        MemoryPool::create(self.core(), options)
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
        // `inspect_err` would move the memory once more.
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
        let _mapped = (handles.len() > 1).then(|| {
            let fields: Vec<_> = handles.iter().map(MemoryHandle::fields).collect();
            self.core().map_ahead(&fields, access)
        });
        let open = |handle| match access {
            Access::ReadWrite => self.open_memory(handle),
            Access::ReadOnly => self.open_memory_read_only(handle),
        };
        handles.iter().map(open).collect()
    }

    /// Opens exported memory as elements of a type. The handle does not contain the exporter's
    /// type.
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory). Also
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the memory is not aligned for
    /// `T`, or its length is not a multiple of the size of `T`.
    pub fn open_buffer<T: Pod>(&self, handle: &MemoryHandle) -> Result<Buffer<T>> {
        Buffer::from_memory(self.open_memory(handle)?)
    }

    /// Opens exported memory as elements of a type, for reading only.
    ///
    /// # Errors
    /// As [`open_buffer`](Self::open_buffer).
    pub fn open_buffer_read_only<T: Pod>(&self, handle: &MemoryHandle) -> Result<Buffer<T>> {
        Buffer::from_memory(self.open_memory_read_only(handle)?)
    }

    /// Creates `len` bytes of physical memory, which is not mapped anywhere yet. It is zeroed on
    /// the host. On other devices its contents are arbitrary.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `len` is a positive
    ///   multiple of the device's granularity.
    /// - [`Error::OutOfMemory`](crate::Error::OutOfMemory) or
    ///   [`Error::LimitReached`](crate::Error::LimitReached) if memory or a limit of the system is
    ///   used up.
    pub fn create_physical_memory(&self, len: usize) -> Result<PhysicalMemory> {
        PhysicalMemory::create(self.core(), len)
    }

    /// Opens physical memory that another process has exported.
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory).
    pub fn open_physical_memory(&self, handle: &PhysicalMemoryHandle) -> Result<PhysicalMemory> {
        let opened = PhysicalMemory::open(self.core(), handle, Access::ReadWrite);
        if let Err(error) = &opened {
            observe::not_opened(HandleKind::PhysicalMemory, error);
        }
        opened
    }

    /// Opens physical memory for reading only.
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory).
    pub fn open_physical_memory_read_only(
        &self,
        handle: &PhysicalMemoryHandle,
    ) -> Result<PhysicalMemory> {
        let opened = PhysicalMemory::open(self.core(), handle, Access::ReadOnly);
        if let Err(error) = &opened {
            observe::not_opened(HandleKind::PhysicalMemory, error);
        }
        opened
    }

    /// Reserves `len` bytes of addresses, into which physical memory can be mapped.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `len` is a positive
    /// multiple of the device's granularity.
    pub fn reserve(&self, len: usize) -> Result<VirtualRange> {
        VirtualRange::reserve(self.core(), 0, len)
    }

    /// Reserves `len` bytes of addresses, if possible those that start at `address`. This can
    /// extend an existing range. The address is a hint: if some of the addresses are taken, others
    /// are reserved. [`VirtualRange::as_ptr`] shows which ones.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_at(&self, address: *const u8, len: usize) -> Result<VirtualRange> {
        VirtualRange::reserve(self.core(), address.addr(), len)
    }

    /// Creates an event that can be shared. It is complete, because no signal was submitted yet.
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
    /// [`Error`](crate::Error) if the driver or the operating system refuses.
    pub fn create_queue(&self) -> Result<Queue> {
        self.create_queue_with(QueueOrder::InOrder)
    }

    /// Creates a queue that runs its commands in order or as soon as possible.
    ///
    /// # Errors
    /// [`Error`](crate::Error) if the driver or the operating system refuses.
    pub fn create_queue_with(&self, order: QueueOrder) -> Result<Queue> {
        let queue = self.core().backend().create_queue(order)?;
        let copied = self.core().exporter().copied();
        Ok(Queue::new(queue, order, self.device().info(), copied))
    }

    /// Creates an empty graph, to which commands can be added.
    pub fn create_graph(&self) -> Graph {
        Graph::new(self.core())
    }

    /// Creates an image, whose pixels are arbitrary.
    ///
    /// # Errors
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the device has no images
    ///   ([`Device::images`](crate::Device::images)), or none of this format.
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a size that the device does
    ///   not support.
    /// - [`Error`](crate::Error) if a limit of the driver is reached.
    pub fn create_image(&self, description: &ImageDescription) -> Result<Image> {
        Image::create(self.core(), description)
    }

    /// Creates an image of several mipmap levels, whose pixels are arbitrary.
    ///
    /// # Errors
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the device has no views of images
    ///   ([`ImageLimits::views`](crate::image::ImageLimits::views)), or no images of this format.
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a size that the device does
    ///   not support, or for more levels than an image of this size can have
    ///   ([`ImageDescription::most_levels`]).
    pub fn create_levelled_image(
        &self,
        description: &ImageDescription,
        levels: u32,
    ) -> Result<LevelledImage> {
        LevelledImage::create(self.core(), description, levels)
    }

    /// Imports memory of another API of the same device, such as Vulkan. `file` is the opaque file
    /// descriptor that the other API exported, for `len` bytes. Memory of another process's context
    /// is opened by its handle instead.
    ///
    /// # Errors
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the device has no views of images.
    /// - [`Error::Driver`](crate::Error::Driver) if the driver refuses.
    pub fn import_external_memory(&self, file: OwnedFd, len: u64) -> Result<ExternalMemory> {
        ExternalMemory::import(self.core(), file, len)
    }

    /// Checks that an image with this number of levels could have views, without creating it.
    ///
    /// # Errors
    /// As [`create_levelled_image`](Self::create_levelled_image), except errors of the driver,
    /// which is not called.
    pub fn check_view(&self, description: &ImageDescription, levels: u32) -> Result<()> {
        ImageView::check(self.core(), description, levels)
    }

    /// Checks that memory with this row pitch could be viewed as an image, at some address.
    ///
    /// # Errors
    /// As [`view_memory`](Self::view_memory).
    pub fn check_memory_view(
        &self,
        description: &ImageDescription,
        row_pitch: usize,
    ) -> Result<()> {
        ImageView::check_memory(self.core(), description, row_pitch)
    }

    /// Creates a view through which kernels sample memory as an image of one or two dimensions. The
    /// rows start every `row_pitch` bytes. The view keeps the memory alive.
    ///
    /// # Errors
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the device has no views of images, or
    ///   no images of this format.
    /// - [`Error::InvalidArgument`](crate::Error::InvalidArgument) for another kind of image, for
    ///   rows that do not fit into the memory, and for a size, a pitch or a start that
    ///   [`ViewLimits`](crate::image::ViewLimits) excludes.
    pub fn view_memory(
        &self,
        memory: &MemoryRange,
        description: &ImageDescription,
        row_pitch: usize,
        sampling: &Sampling,
    ) -> Result<ImageView> {
        ImageView::of_memory(self.core(), memory, description, row_pitch, sampling)
    }

    /// Creates a sampler.
    ///
    /// # Errors
    /// As [`create_image`](Self::create_image).
    pub fn create_sampler(&self, description: &SamplerDescription) -> Result<Sampler> {
        Sampler::create(self.core(), description)
    }

    /// Loads a program, so that its kernels can be launched
    /// ([`Command::launch`](crate::Command::launch)).
    ///
    /// With some drivers this call blocks until the device has completed all submitted work. Load
    /// programs before you submit commands that wait for the calling thread.
    ///
    /// # Errors
    /// - [`Error::Unsupported`](crate::Error::Unsupported) if the device runs no programs
    ///   ([`Device::kernels`](crate::Device::kernels)).
    /// - [`Error::Program`](crate::Error::Program), with the compiler's log, if the driver refuses
    ///   the image.
    pub fn load_program(&self, image: ProgramImage<'_>) -> Result<Program> {
        Program::load(self.core(), &[image], &ProgramOptions::new())
    }

    /// Loads a program with options. Several images are linked into one program.
    ///
    /// # Errors
    /// As [`load_program`](Self::load_program). Also
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if `images` is empty.
    pub fn load_program_with(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Program> {
        Program::load(self.core(), images, options)
    }

    /// Returns freed memory that is kept for reuse to the system.
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
