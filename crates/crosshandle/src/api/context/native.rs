//! Contexts, queues, events and memory of the driver, for programs that use it too.

use super::core::ContextCore;
use super::{Context, ContextOptions, EventOptions};
use crate::api::command::Command;
use crate::api::device::Device;
use crate::api::event::Event;
use crate::api::memory::Memory;
use crate::api::program::Program;
use crate::api::queue::Queue;
use crate::error::{Error, Result};
use crate::hal;
use crate::hal::{BackendDevice, NativeContext, Work};
use crate::handle::BackendKind;
use crate::types::{NativeObject, Ownership, QueueOrder};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// An event of the driver, which happens when a signal of an [`Event`] does. Destroyed on drop: what
/// waits for a `CUevent` by then still does, for a `ze_event_handle_t` it must be over.
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

/// Refuses what is another driver's.
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

    /// The driver's own context, for programs that use the driver too; `None` where there is no
    /// such thing.
    pub fn native(&self) -> Option<NativeObject> {
        let value = self.core().backend().native()?.raw().ok()?;
        Some(NativeObject::new(self.device().info().backend, value))
    }

    /// A context on `device` inside one of the driver's that the program made. Queues, events of
    /// the driver and kernels then belong to that one.
    ///
    /// # Errors
    /// A context of another device, or of another backend's; as [`new`](Self::new).
    ///
    /// # Safety
    /// It is a context of the driver, and lives until everything made of this one is dropped and
    /// all that was submitted is done, as [`Queue::finish`] has said before the queues were
    /// dropped. So do events of other contexts that take timestamps and were signalled in it.
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

    /// A queue that submits to one of the driver's that the program made, among the program's own
    /// commands: everything in the order of the calls. [`Queue::finish`] and [`Queue::is_idle`]
    /// count the program's commands too.
    ///
    /// # Errors
    /// A queue of another context, or a kind that cannot be adopted; [`Error::Unsupported`] where
    /// there is no such thing. While the driver records what is submitted to the queue instead of
    /// running it, submitting is refused.
    ///
    /// # Safety
    /// It is a queue of the driver, and, unless it is given away, lives until the result is
    /// dropped and has nothing left to do.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_queue(&self, native: NativeObject, ownership: Ownership) -> Result<Queue> {
        let value = raw_for(self.device(), native)?;
        // SAFETY: promised by the caller.
        let queue = unsafe { self.native_context()?.adopt_queue(value, ownership)? };
        Ok(Queue::new(queue, QueueOrder::InOrder, native.backend()))
    }

    /// Adopts a program of the driver that was loaded without this crate. A program that is
    /// [owned](Ownership::Owned) is unloaded when neither the result nor a kernel of it is left.
    ///
    /// # Errors
    /// A program of another backend; [`Error::Unsupported`] if the device runs no programs.
    ///
    /// # Safety
    /// It is a program of the driver on this context's device, and stays loaded as long as the
    /// result or a kernel of it lives. The program unloads it only if it is
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

    /// An event of the driver that happens when the latest signal of `event` is finished, well or
    /// not.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the driver has no such thing; what it refuses.
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
        self.event_queue()?.submit(record.after(event))?;
        Ok(NativeEvent {
            inner,
            backend: self.device().info().backend,
        })
    }

    /// An event that is complete when one of the driver's has happened, as it was recorded last. One
    /// that is given away is destroyed here as soon as that is possible.
    ///
    /// # Errors
    /// As [`native_event`](Self::native_event).
    ///
    /// # Safety
    /// It is an event of the driver, and, unless it is given away, lives until the result is complete.
    /// (A `CUevent` may be destroyed at once: its driver keeps it.)
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
        // For as long as the command.
        let kept = Mutex::new(None);
        let wait = Command::new(Work::Native(Box::new(move |queue| {
            let native = backend.native().expect("checked above");
            // SAFETY: the queue of the backend; the event is promised by the caller.
            let keep = unsafe { native.wait_for_event(queue, value, ownership)? };
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = keep;
            Ok(())
        })));
        self.event_queue()?.submit(wait.signal(&event))?;
        Ok(event)
    }

    /// Where events of the driver and ours meet, each as soon as what it waits for is there.
    fn event_queue(&self) -> Result<&Queue> {
        let place = &self.core().native_events;
        if let Some(queue) = place.get() {
            return Ok(queue);
        }
        let queue = self.create_queue_with(QueueOrder::OutOfOrder)?;
        Ok(place.get_or_init(|| queue))
    }

    /// Device memory that the program allocated with the driver or with a library above it: `len`
    /// bytes at `address`, to be used in commands and shared as any other. Its
    /// [handles](Memory::handle) carry whatever the driver has for that kind of allocation, and
    /// importers map all of the allocation.
    ///
    /// The memory stays the program's, who frees it. What that means for importers is the
    /// driver's to say: where it counts them they keep the bytes, otherwise they must have closed
    /// it before.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what is not all inside one allocation of this device;
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

    /// The same for all of the allocation from an address on. One that is given away, by its start,
    /// is freed here when nothing uses it any more.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where a driver's programs don't give memory away; as
    /// [`adopt_memory`](Self::adopt_memory).
    ///
    /// # Safety
    /// As for [`adopt_memory`](Self::adopt_memory), unless it is given away: then nobody else frees
    /// it.
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
