//! Contexts, queues, events, programs and memory of the driver, for programs that use it too.

use super::Context;
use crate::api::command::Command;
use crate::api::core::{ContextCore, ContextOptions};
use crate::api::device::Device;
use crate::api::event::{Event, EventOptions};
use crate::api::memory::Memory;
use crate::api::program::Program;
use crate::api::program::kernel::Kernel;
use crate::api::queue::Queue;
use crate::error::{Error, Result};
use crate::hal;
use crate::hal::{BackendDevice, NativeContext, Work};
use crate::handle::BackendKind;
use crate::sync::Mutex;
use crate::types::{DriverAllocation, NativeObject, Ownership, QueueOrder};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// An event of the driver that happens when a signal of an [`Event`] is finished. It is destroyed
/// on drop: submitted waits for a `CUevent` stay valid, waits for a `ze_event_handle_t` must be
/// over by then.
pub struct NativeEvent {
    inner: Arc<dyn hal::NativeEvent>,
    backend: BackendKind,
}

impl NativeEvent {
    /// Returns the driver's event. It lives as long as `self`.
    pub fn native(&self) -> NativeObject {
        NativeObject::new(self.backend, self.inner.raw())
    }
}

impl fmt::Debug for NativeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeEvent")
            .field("native", &self.native())
            .finish_non_exhaustive()
    }
}

/// Returns the pointer or number of an object of the device's driver, and refuses other drivers'.
fn raw_for(device: &Device, native: NativeObject) -> Result<usize> {
    let own = device.info().backend;
    if native.backend() == own {
        return Ok(native.raw());
    }
    Err(Error::invalid(format!(
        "an object of {} is none of {own}",
        native.backend()
    )))
}

fn unsupported(device: &dyn BackendDevice) -> Error {
    Error::Unsupported(format!(
        "{} has no driver that programs could use besides",
        device.info().name
    ))
}

impl Context {
    fn native_context(&self) -> Result<&dyn NativeContext> {
        let native = self.core().backend().native();
        native.ok_or_else(|| unsupported(&*self.device().inner))
    }

    /// Returns the driver's own context, for programs that use the driver too; `None` where the backend
    /// has none. It lives at least as long as `self`.
    pub fn native(&self) -> Option<NativeObject> {
        let value = self.core().backend().native()?.raw().ok()?;
        Some(NativeObject::new(self.device().info().backend, value))
    }

    /// Adopts a context of the driver that the program made. Queues, events of the driver and kernels
    /// of the result belong to it. The driver's context stays the program's to destroy.
    ///
    /// # Errors
    /// A context of another device, or of another backend's; as [`new`](Self::new).
    ///
    /// # Safety
    /// `native` is a context of the driver, and lives until everything made of the result is
    /// dropped and all that was submitted is done, as [`Queue::finish`] has said before the queues
    /// were dropped. So do events of other contexts that take timestamps and were signalled in it.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt(
        device: &Device,
        native: NativeObject,
        options: ContextOptions,
    ) -> Result<Self> {
        let value = raw_for(device, native)?;
        let adopt = |device: &dyn BackendDevice| {
            let adopted = device.native().ok_or_else(|| unsupported(device))?;
            // SAFETY: promised by the caller.
            unsafe { adopted.adopt_context(value) }
        };
        ContextCore::new(device.clone(), options, adopt).map(Self::of)
    }

    /// Adopts a queue of the driver that the program made. The result submits to it among the
    /// program's own commands, and all run in the order of the calls. [`Queue::finish`] and
    /// [`Queue::is_idle`] count the program's commands too.
    ///
    /// # Errors
    /// A queue of another context, or a kind that cannot be adopted; [`Error::Unsupported`] where
    /// the backend has no queue of a driver. While the driver records what is submitted to the
    /// queue instead of running it, submitting is refused.
    ///
    /// # Safety
    /// `native` is a queue of the driver, and, if it is [borrowed](Ownership::Borrowed), lives
    /// until the result is dropped and has nothing left to do.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_queue(&self, native: NativeObject, ownership: Ownership) -> Result<Queue> {
        let value = raw_for(self.device(), native)?;
        // SAFETY: promised by the caller.
        let queue = unsafe { self.native_context()?.adopt_queue(value, ownership)? };
        let copied = self.core().exporter().copied();
        let backend = native.backend();
        Ok(Queue::new(queue, QueueOrder::InOrder, backend, copied))
    }

    /// Adopts a kernel that other code has made with the runtime that runs the host's kernels: returns its
    /// program, and the kernel of the same name in it. Arguments that were set are not taken over. A
    /// kernel that is [owned](Ownership::Owned) is released.
    ///
    /// # Errors
    /// A kernel of another backend; [`Error::Unsupported`] where a kernel does not tell its program.
    ///
    /// # Safety
    /// `native` is a kernel of the runtime. The caller releases it only if it is
    /// [borrowed](Ownership::Borrowed).
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_kernel(
        &self,
        native: NativeObject,
        ownership: Ownership,
    ) -> Result<(Program, Kernel)> {
        let raw = raw_for(self.device(), native)?;
        // SAFETY: promised by the caller.
        unsafe { Program::adopt_kernel(self.core(), raw, ownership) }
    }

    /// Adopts a program of the driver that was loaded without this crate. A program that is
    /// [owned](Ownership::Owned) is unloaded when neither the result nor a kernel of it is left.
    ///
    /// # Errors
    /// A program of another backend; [`Error::Unsupported`] if the device runs no programs.
    ///
    /// # Safety
    /// `native` is a program of the driver on this context's device, and stays loaded as long as
    /// the result or a kernel of it lives. The caller unloads it only if it is
    /// [borrowed](Ownership::Borrowed).
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_program(
        &self,
        native: NativeObject,
        ownership: Ownership,
    ) -> Result<Program> {
        let raw = raw_for(self.device(), native)?;
        // SAFETY: promised by the caller.
        unsafe { Program::adopt(self.core(), raw, ownership) }
    }

    /// Returns an event of the driver that happens when the latest signal of `event` is finished,
    /// well or not. If there is no signal so far, it happens at once.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the driver has no events; [`Error::Driver`] if it refuses.
    pub fn native_event(&self, event: &Event) -> Result<NativeEvent> {
        let inner = self.native_context()?.create_event()?;
        let recorded = Arc::clone(&inner);
        let record = Command::new(Work::Native(Box::new(move |queue| {
            // SAFETY: the queue of the backend, and of the same context.
            #[allow(unsafe_code)]
            unsafe {
                recorded.record(queue)
            }
        })));
        self.event_queue()?.submit(record.after_submitted(event))?;
        Ok(NativeEvent {
            inner,
            backend: self.device().info().backend,
        })
    }

    /// Adopts an event of the driver, as it was recorded last: the result is complete when it has
    /// happened. One that is [owned](Ownership::Owned) is destroyed as soon as that is possible.
    ///
    /// # Errors
    /// As [`native_event`](Self::native_event).
    ///
    /// # Safety
    /// `native` is an event of the driver, and, if it is [borrowed](Ownership::Borrowed), lives
    /// until the result is complete. (A `CUevent` may be destroyed at once: its driver keeps it.)
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_event(
        &self,
        native: NativeObject,
        ownership: Ownership,
        options: EventOptions,
    ) -> Result<Event> {
        let value = raw_for(self.device(), native)?;
        self.native_context()?;
        let event = self.create_event_with(options)?;
        let backend = Arc::clone(self.core().backend());
        // Kept for as long as the command.
        let kept = Mutex::new(None);
        let wait = Command::new(Work::Native(Box::new(move |queue| {
            let native = backend.native().expect("checked above");
            // SAFETY: the queue of the backend; the event is promised by the caller.
            let keep = unsafe { native.wait_for_event(queue, value, ownership)? };
            *kept.lock() = keep;
            Ok(())
        })));
        self.event_queue()?.submit(wait.signal(&event))?;
        Ok(event)
    }

    /// Returns the queue that waits for native events and records them.
    fn event_queue(&self) -> Result<&Queue> {
        let place = &self.inner.native_events;
        if let Some(queue) = place.get() {
            return Ok(queue);
        }
        let queue = self.create_queue_with(QueueOrder::OutOfOrder)?;
        Ok(place.get_or_init(|| queue))
    }

    /// Waits until the device has done everything that was submitted to the driver's context, by this
    /// library or by others. Before memory is used again of which nobody knows who submitted work, this is
    /// what a driver's own `free` does.
    ///
    /// It waits for streams that wait for events as well, however long that is.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the backend cannot; [`Error::Driver`] if the driver refuses. A
    /// capture of a stream, in whatever thread, goes on undisturbed.
    pub fn synchronize(&self) -> Result<()> {
        self.native_context()?.synchronize()
    }

    /// Returns the allocation of the driver that `address` points into, made by this library or not;
    /// `None` if the address is nothing to the driver, or another device's.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on devices without a driver; [`Error::Driver`] if the driver refuses.
    pub fn allocation_at(&self, address: *const u8) -> Result<Option<DriverAllocation>> {
        self.native_context()?.allocation_at(address.addr())
    }

    /// Adopts device memory that the program allocated with the driver or with a library above it:
    /// `len` bytes at `address`, to be used in commands and shared as any other. Its
    /// [handles](Memory::handle) carry the driver's kind of handle for that allocation, and
    /// importers map the whole allocation.
    ///
    /// Where the driver maps many allocations side by side (torch's expandable segments on CUDA, for
    /// example), the bytes may lie in several of them. A handle is for those that are mapped there now,
    /// whatever is mapped around them or in their place later.
    ///
    /// The program frees the memory. The consequence for importers depends on the driver: where it
    /// counts importers they keep the bytes, otherwise they must have closed the memory before.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for bytes that are not all inside one allocation of this device, or
    /// several that can be mapped side by side;
    /// [`Error::Unsupported`] where the driver cannot share that kind of allocation.
    ///
    /// # Safety
    /// The allocation lives until the result is dropped and all commands that use it are done;
    /// and, where the driver does not count importers, until all of them have closed it.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_memory(&self, address: NonNull<u8>, len: usize) -> Result<Memory> {
        if len == 0 {
            return Err(Error::invalid("no bytes are no memory"));
        }
        let start = address.addr().get();
        // SAFETY: promised by the caller.
        let (segment, offset) = unsafe { self.native_context()?.adopt_memory(start, len)? };
        Ok(Memory::adopted(self.core(), segment, offset, len))
    }

    /// Adopts several parts of memory, each an address and a number of bytes, as
    /// [`adopt_memory`](Self::adopt_memory) does. Parts that lie in the same allocation, or in
    /// allocations side by side, are mapped once by each importer, however many of them it opens.
    ///
    /// # Errors
    /// As [`adopt_memory`](Self::adopt_memory), for any of the parts.
    ///
    /// # Safety
    /// As for [`adopt_memory`](Self::adopt_memory), for each part.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_memory_parts(&self, parts: &[(NonNull<u8>, usize)]) -> Result<Vec<Memory>> {
        if parts.iter().any(|(_, len)| *len == 0) {
            return Err(Error::invalid("no bytes are no memory"));
        }
        let places = parts.iter().map(|(start, len)| (start.addr().get(), *len));
        let places: Vec<_> = places.collect();
        // SAFETY: promised by the caller.
        let adopted = unsafe { self.native_context()?.adopt_memory_parts(&places)? };
        let memory = |((segment, offset), (_, len)): ((_, usize), &(_, usize))| {
            Memory::adopted(self.core(), segment, offset, *len)
        };
        Ok(adopted.into_iter().zip(parts).map(memory).collect())
    }

    /// Adopts an allocation from an address to its end. One that is [owned](Ownership::Owned),
    /// which needs its first address, is freed when nothing uses it any more.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the backend cannot adopt whole allocations; as
    /// [`adopt_memory`](Self::adopt_memory).
    ///
    /// # Safety
    /// As for [`adopt_memory`](Self::adopt_memory); one that is owned is freed by no other code.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_allocation(
        &self,
        address: NonNull<u8>,
        ownership: Ownership,
    ) -> Result<Memory> {
        let start = address.addr().get();
        // SAFETY: promised by the caller.
        let adopted = unsafe { self.native_context()?.adopt_allocation(start, ownership)? };
        let (segment, offset, len) = adopted;
        Ok(Memory::adopted(self.core(), segment, offset, len))
    }
}
