//! Contexts: what allocates, exports and opens on one device.

mod core;
mod import;
mod native;
mod options;

pub(crate) use core::{ContextCore, Pool, Pools, pool_of, record_of, trim};
pub(crate) use import::Imported;
pub use native::NativeEvent;
pub use options::{AllocationOptions, ContextOptions, EventOptions};

use crate::api::device::Device;
use crate::api::event::Event;
use crate::api::memory::{Allocation, Memory, MemoryPool, MemoryPoolOptions};
use crate::api::physical::PhysicalMemory;
use crate::api::program::Program;
use crate::api::queue::Queue;
use crate::api::virtual_range::VirtualRange;
use crate::error::Result;
use crate::handle::{EventHandle, MemoryHandle, PhysicalMemoryHandle};
use crate::ipc::EventCore;
use crate::ipc::broker;
use crate::os::process;
use crate::types::Access;
use crate::types::QueueOrder;
use crate::types::{ProgramImage, ProgramOptions};
use std::fmt;
use std::sync::Arc;

/// Allocates, exports and opens on one device.
///
/// Cheap to clone; any thread may use it. Objects made by it stay usable after it is dropped; what
/// it has exported can then be opened no more, unless an object of it is still there. Dropping the
/// last clone may wait a second or two for threads of this library that are letting go of something, so
/// that a process which ends then does not end beside them; it does not wait for commands that wait for
/// other processes.
///
/// # Trust
/// The context is the trust boundary: whoever opened one of its handles can disturb its other
/// shared events and the memory that shares a segment with what was opened, and nothing else. Use
/// a second context for what a peer must not reach.
///
/// # fork
/// Not usable in a child made by `fork` without `exec`. Start peers with `exec` (as
/// `std::process::Command` does).
#[derive(Clone)]
pub struct Context {
    handle: Arc<Lifetime>,
}

/// Empties the lists of freed memory when the last `Context` goes; they keep the core alive.
struct Lifetime(Arc<ContextCore>, Settled);

impl Drop for Lifetime {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        self.0.close();
    }
}

/// Comes after the core: the exchange thread may have that too at the moment.
struct Settled;

impl Drop for Settled {
    fn drop(&mut self) {
        broker::settle();
    }
}

impl Context {
    /// A context on `device` with the usual options.
    ///
    /// # Errors
    /// [`Error`](crate::Error) if the driver or the operating system refuses.
    pub fn new(device: &Device) -> Result<Self> {
        Self::with_options(device, ContextOptions::new())
    }

    /// A context on `device`.
    ///
    /// # Errors
    /// [`Error`](crate::Error) if the driver or the operating system refuses.
    pub fn with_options(device: &Device, options: ContextOptions) -> Result<Self> {
        let core = ContextCore::new(device.clone(), options, |device| device.create_context())?;
        Ok(Self::of(core))
    }

    fn of(core: ContextCore) -> Self {
        Self {
            handle: Arc::new(Lifetime(Arc::new(core), Settled)),
        }
    }

    fn core(&self) -> &Arc<ContextCore> {
        &self.handle.0
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        self.core().device()
    }

    /// Allocates `len` bytes of device memory, whose contents are arbitrary.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for no bytes,
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) and limits of the system otherwise.
    #[inline]
    pub fn allocate(&self, len: usize) -> Result<Memory> {
        self.allocate_with(AllocationOptions::new(len))
    }

    /// Allocates memory of a kind, at an alignment.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), also for an alignment that is no power of two or more than
    /// 2 MiB.
    #[inline]
    pub fn allocate_with(&self, options: AllocationOptions) -> Result<Memory> {
        let core = self.core();
        Allocation::allocate(core, core.pool(options.kind), options)
    }

    /// Creates a pool of memory that is kept apart from all other memory of this context, and
    /// accounted for.
    pub fn create_memory_pool(&self, options: MemoryPoolOptions) -> MemoryPool {
        MemoryPool::create(self.core(), options)
    }

    /// A handle to the memory that `pointer` points into, starting there. `pointer` may be any
    /// address inside an allocation of this context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a pointer that isn't.
    pub fn memory_handle(&self, pointer: *const u8) -> Result<MemoryHandle> {
        let (allocation, offset) = self.core().find(pointer.addr())?;
        allocation.handle(offset, Access::ReadWrite)
    }

    /// Opens memory that a process has exported: the same bytes, mapped here too. May be done any
    /// number of times; each open is closed by itself, by dropping it. The memory may be another
    /// device's of the same backend, if this context's device can reach that.
    ///
    /// # Errors
    /// A handle for another host or backend, or for a device out of reach; [`Error::Stale`](crate::Error::Stale) and
    /// [`Error::ExporterGone`](crate::Error::ExporterGone);
    /// [`Error::ReadOnly`](crate::Error::ReadOnly) for a read-only handle; limits of the system.
    #[inline]
    pub fn open_memory(&self, handle: &MemoryHandle) -> Result<Memory> {
        Memory::open(self.core(), handle, Access::ReadWrite)
    }

    /// Opens memory for reading only. For host memory the exporter sends a descriptor that allows no
    /// more; for other devices' this process's own driver sees to it.
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory).
    pub fn open_memory_read_only(&self, handle: &MemoryHandle) -> Result<Memory> {
        Memory::open(self.core(), handle, Access::ReadOnly)
    }

    /// Creates `len` bytes of physical memory, mapped nowhere yet. It is zeroed on the host; on
    /// other devices its contents are arbitrary.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `len` is a positive
    /// multiple of the device's granularity; limits of the system.
    pub fn create_physical_memory(&self, len: usize) -> Result<PhysicalMemory> {
        PhysicalMemory::create(self.core(), len)
    }

    /// Opens physical memory that a process has exported.
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory).
    pub fn open_physical_memory(&self, handle: &PhysicalMemoryHandle) -> Result<PhysicalMemory> {
        PhysicalMemory::open(self.core(), handle, Access::ReadWrite)
    }

    /// Opens physical memory for reading only.
    ///
    /// # Errors
    /// As [`open_memory`](Self::open_memory).
    pub fn open_physical_memory_read_only(
        &self,
        handle: &PhysicalMemoryHandle,
    ) -> Result<PhysicalMemory> {
        PhysicalMemory::open(self.core(), handle, Access::ReadOnly)
    }

    /// Reserves `len` bytes of addresses, to map physical memory into.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) unless `len` is a positive
    /// multiple of the device's granularity.
    pub fn reserve(&self, len: usize) -> Result<VirtualRange> {
        VirtualRange::reserve(self.core(), 0, len)
    }

    /// Reserves `len` bytes of addresses that start at `address`, say to make a range longer; or
    /// others, if some of them are taken.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_at(&self, address: *const u8, len: usize) -> Result<VirtualRange> {
        VirtualRange::reserve(self.core(), address.addr(), len)
    }

    /// Creates an event that can be shared. It is complete, and its value is 0.
    ///
    /// # Errors
    /// [`Error::LimitReached`](crate::Error::LimitReached) if the context has a million objects.
    pub fn create_event(&self) -> Result<Event> {
        self.create_event_with(EventOptions::new())
    }

    /// Creates an event.
    ///
    /// # Errors
    /// As [`create_event`](Self::create_event);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an event that shall both be
    /// shareable and take timestamps.
    pub fn create_event_with(&self, options: EventOptions) -> Result<Event> {
        Event::create(self.core(), options)
    }

    /// Opens an event that a process has exported: one state, signalled and waited on from both. Its
    /// device doesn't matter: a context on any device of this host can open it.
    ///
    /// # Errors
    /// A handle for another host; [`Error::Stale`](crate::Error::Stale) and
    /// [`Error::ExporterGone`](crate::Error::ExporterGone); limits of the system.
    #[inline]
    pub fn open_event(&self, handle: &EventHandle) -> Result<Event> {
        self.open_event_with(handle, EventOptions::new())
    }

    /// Opens an event, say to wait on it in low-power mode. Of the options, only that one counts.
    ///
    /// # Errors
    /// As [`open_event`](Self::open_event).
    #[inline]
    pub fn open_event_with(&self, handle: &EventHandle, options: EventOptions) -> Result<Event> {
        let fields = handle.fields();
        let core = self.core();
        core.check_event(&fields)?;
        let attachment = core.attachment(&fields)?;
        let record = record_of(&fields);
        let native = match fields.backend == core.device().info().backend {
            true => core.backend().driver_events(),
            false => None,
        };
        EventCore::open(attachment, record, options.mode(), native).map(Event::opened)
    }

    /// Creates a queue that runs its commands in order.
    ///
    /// # Errors
    /// If the driver or the operating system refuses.
    pub fn create_queue(&self) -> Result<Queue> {
        self.create_queue_with(QueueOrder::InOrder)
    }

    /// Creates a queue.
    ///
    /// # Errors
    /// If the driver or the operating system refuses.
    pub fn create_queue_with(&self, order: QueueOrder) -> Result<Queue> {
        let backend = self.device().info().backend;
        let queue = self.core().backend().create_queue(order)?;
        Ok(Queue::new(queue, order, backend))
    }

    /// Loads a program, so that its kernels can be launched ([`Command::launch`](crate::Command::launch)).
    ///
    /// Drivers may let this wait until the device has done all that it was given: load programs
    /// before you submit what waits for this thread.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device runs no programs
    /// ([`DeviceInfo::kernels`](crate::DeviceInfo::kernels));
    /// [`Error::Program`](crate::Error::Program), with its compiler's log, if the driver refuses it.
    pub fn load_program(&self, image: ProgramImage<'_>) -> Result<Program> {
        Program::load(self.core(), &[image], &ProgramOptions::new())
    }

    /// Loads a program with options, linked from several images if there are more than one.
    ///
    /// # Errors
    /// As [`load_program`](Self::load_program);
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for no image.
    pub fn load_program_with(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Program> {
        Program::load(self.core(), images, options)
    }

    /// Gives freed memory back to the system that is kept for reuse.
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
