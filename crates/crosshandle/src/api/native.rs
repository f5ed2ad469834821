//! Native contexts, queues, events, programs and memory, for programs that also call the driver.

use crate::api::command::Command;
use crate::api::context::Context;
use crate::api::core::{ContextCore, ContextOptions};
use crate::api::device::Device;
use crate::api::event::{Event, EventOptions};
use crate::api::memory::Memory;
use crate::api::program::Program;
use crate::api::program::kernel::Kernel;
use crate::api::queue::Queue;
use crosshandle_hal::{BackendDevice, NativeContext, Work};
use crosshandle_handle::BackendKind;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{DriverAllocation, NativeObject, Ownership, QueueOrder};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// A driver's event that happens when a signal of an [`Event`] is finished. It is destroyed on
/// drop. Waits for a `CUevent` that were already submitted stay valid after the drop. Waits for a
/// `ze_event_handle_t` must have ended before the drop.
pub struct NativeEvent {
    inner: Arc<dyn crosshandle_hal::NativeEvent>,
    backend: BackendKind,
}

impl NativeEvent {
    /// Returns a driver's event that happens when the latest signal of `event` succeeds or fails.
    /// If no signal was submitted yet, the driver's event happens at once.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the driver has no events.
    /// - [`Error::Driver`] if the driver refuses.
    pub fn new(context: &Context, event: &Event) -> Result<Self> {
        let inner = context.native_context()?.create_event()?;
        let recorded = Arc::clone(&inner);
        let record = Command::new(Work::Native(Box::new(move |queue| {
            // SAFETY: the queue belongs to this backend and to the same context.
            #[allow(unsafe_code)]
            unsafe {
                recorded.record(queue)
            }
        })));
        context
            .native_events()?
            .submit(record.after_submitted(event))?;
        Ok(Self {
            inner,
            backend: context.device().info().backend,
        })
    }

    /// Returns the driver's event, which is valid as long as `self` exists.
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

/// Commands that the program records by calling the driver, as one node of a
/// [`Graph`](crate::graph::Graph).
///
/// The program appends commands to [`native`](Self::native), which is a `CUgraph` on CUDA, and a
/// `ze_command_list_handle_t` on Level Zero that has to be neither closed nor executed.
/// [`command`](Self::command) then ends the recording. On CUDA the commands become nodes of the
/// driver's graph. On Level Zero a thread of this library executes the list in each run, and waits
/// for it. On the host, the object is the OpenCL runtime's `cl_command_buffer_khr`, with one queue,
/// and runs in the same way.
pub struct NativeRecording {
    inner: Arc<dyn crosshandle_hal::NativeRecording>,
    backend: BackendKind,
}

impl NativeRecording {
    /// Creates an empty recording.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no driver, or the driver lacks functions for
    ///   graphs. On the host, also if no OpenCL runtime is installed.
    /// - [`Error::Driver`] if the driver refuses.
    pub fn new(context: &Context) -> Result<Self> {
        let inner = match context.device().inner.kernel_runtime() {
            Some(runtime) => runtime.create_recording()?,
            None => context.native_context()?.create_recording()?,
        };
        Ok(Self {
            inner,
            backend: context.device().info().backend,
        })
    }

    /// Returns the driver's object, which is valid as long as `self` exists.
    pub fn native(&self) -> NativeObject {
        NativeObject::new(self.backend, self.inner.raw())
    }

    /// Ends the recording, and returns a command for graphs of the same context.
    ///
    /// # Errors
    /// [`Error::Driver`] if the driver refuses.
    ///
    /// # Safety
    /// The program appends nothing afterwards. Everything that the commands use stays valid until
    /// no run of a graph with the command is in progress and all these graphs are dropped.
    #[allow(unsafe_code)] // The promise is the caller's; the device acts on it.
    pub unsafe fn command(self) -> Result<Command> {
        Ok(Command::new(self.inner.finish()?))
    }
}

impl fmt::Debug for NativeRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeRecording")
            .field("native", &self.native())
            .finish_non_exhaustive()
    }
}

/// The OpenCL runtime's `cl_mem` for memory on the host. The runtime uses the memory in place. The
/// `cl_mem` is released on drop.
pub struct RuntimeMemory(Arc<dyn crosshandle_hal::BackendRuntimeMemory>);

impl RuntimeMemory {
    /// Creates a `cl_mem` for `len` bytes at `start`.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] as for [`Device::native_runtime`].
    /// - [`Error::Driver`] if the runtime refuses.
    ///
    /// # Safety
    /// The memory stays valid for reads and writes until the result is dropped and no command of
    /// the runtime uses the `cl_mem`.
    #[allow(unsafe_code)] // The promise is the caller's; the runtime acts on it.
    pub unsafe fn new(device: &Device, start: NonNull<u8>, len: usize) -> Result<Self> {
        let lacks = || Error::Unsupported("this device has no OpenCL runtime".into());
        let runtime = device.inner.kernel_runtime().ok_or_else(lacks)?;
        // SAFETY: promised by the caller.
        Ok(Self(unsafe { runtime.create_memory(start, len) }?))
    }

    /// Returns the `cl_mem` as a number, which is valid as long as `self` exists.
    pub fn raw(&self) -> usize {
        self.0.raw()
    }
}

impl fmt::Debug for RuntimeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RuntimeMemory").field(&self.raw()).finish()
    }
}

/// Returns the pointer or number of a native object, and an error if the object belongs to another
/// backend.
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

    /// Returns the driver's own context, for programs that also call the driver. Returns `None` if
    /// the backend has no such object. The driver's context exists at least as long as `self`.
    pub fn native(&self) -> Option<NativeObject> {
        let value = self.core().backend().native()?.raw().ok()?;
        Some(NativeObject::new(self.device().info().backend, value))
    }

    /// Adopts a driver's context that the program made. The queues, native events and kernels of
    /// the result belong to it. The program remains responsible for destroying the driver's
    /// context.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for a context of another device or backend.
    /// - The errors of [`new`](Self::new).
    ///
    /// # Safety
    /// `native` is a context of the driver. It exists until everything made from the result is
    /// dropped and all submitted work is complete, which [`Queue::finish`] has confirmed before
    /// each queue was dropped. It also outlives every event of another context that takes
    /// timestamps and was signalled in this one.
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

    /// Waits until the device has completed everything that was submitted to the driver's context,
    /// by this library or by other code. A driver's own `free` does the same. Call this before
    /// memory is reused for which unknown code may have submitted work.
    ///
    /// The call also waits for streams that wait for events, however long that takes. Stream
    /// captures, in any thread, continue undisturbed.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the backend cannot do this.
    /// - [`Error::Driver`] if the driver refuses.
    pub fn synchronize(&self) -> Result<()> {
        let barrier = self.native_context()?.barrier().ok_or_else(|| {
            Error::Unsupported(
                "this driver cannot wait for all of a context's work: finish each queue".into(),
            )
        });
        barrier?.synchronize()
    }

    /// Returns the driver's allocation that contains `address`, whether this library made it or
    /// not. Returns `None` if the driver does not know the address, or if the address belongs to
    /// another device.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] on devices without a driver.
    /// - [`Error::Driver`] if the driver refuses.
    pub fn allocation_at(&self, address: *const u8) -> Result<Option<DriverAllocation>> {
        self.native_context()?.allocation_at(address.addr())
    }
}

impl Queue {
    /// Adopts a driver's queue that the program made. The result submits to it in between the
    /// program's own commands, and all commands run in the order of the calls.
    /// [`finish`](Self::finish) and [`is_idle`](Self::is_idle) cover the program's commands too.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for a queue of another context, or of a kind that cannot be
    ///   adopted.
    /// - [`Error::Unsupported`] if the backend has no native queues.
    ///
    /// While the driver captures what is submitted to the queue instead of running it, submissions
    /// fail.
    ///
    /// # Safety
    /// `native` is a queue of the driver. If it is [borrowed](Ownership::Borrowed), it exists until
    /// the result is dropped and has no work left.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt(
        context: &Context,
        native: NativeObject,
        ownership: Ownership,
    ) -> Result<Self> {
        let value = raw_for(context.device(), native)?;
        // SAFETY: promised by the caller.
        let queue = unsafe { context.native_context()?.adopt_queue(value, ownership)? };
        let copied = context.core().exporter().copied();
        let device = context.device().info();
        Ok(Self::new(queue, QueueOrder::InOrder, device, copied))
    }
}

impl Kernel {
    /// Adopts a kernel that other code made with the runtime that runs the host's kernels. Returns
    /// its program, and the kernel of the same name in that program. Arguments that were already
    /// set are not taken over. An [owned](Ownership::Owned) kernel is released.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for a kernel of another backend.
    /// - [`Error::Unsupported`] if a kernel of this backend does not reveal its program.
    ///
    /// # Safety
    /// `native` is a kernel of the runtime. The caller releases it only if it is
    /// [borrowed](Ownership::Borrowed).
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt(
        context: &Context,
        native: NativeObject,
        ownership: Ownership,
    ) -> Result<(Program, Self)> {
        let raw = raw_for(context.device(), native)?;
        // SAFETY: promised by the caller.
        unsafe { Program::adopt_kernel(context.core(), raw, ownership) }
    }
}

impl Program {
    /// Adopts a driver's program that was loaded without this crate. An [owned](Ownership::Owned)
    /// program is unloaded when the result and all its kernels are dropped.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for a program of another backend.
    /// - [`Error::Unsupported`] if the device runs no programs.
    ///
    /// # Safety
    /// `native` is a program of the driver on the context's device, and stays loaded as long as
    /// the result or one of its kernels exists. The caller unloads it only if it is
    /// [borrowed](Ownership::Borrowed).
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt(
        context: &Context,
        native: NativeObject,
        ownership: Ownership,
    ) -> Result<Self> {
        let raw = raw_for(context.device(), native)?;
        // SAFETY: promised by the caller.
        unsafe { Self::adopt_raw(context.core(), raw, ownership) }
    }
}

impl Event {
    /// Adopts a driver's event, in the state of its latest record. The result is complete when the
    /// driver's event has happened. An [owned](Ownership::Owned) event is destroyed as soon as
    /// possible.
    ///
    /// # Errors
    /// As [`NativeEvent::new`].
    ///
    /// # Safety
    /// `native` is an event of the driver. If it is [borrowed](Ownership::Borrowed), it exists
    /// until the result is complete. (A `CUevent` may be destroyed at once, because its driver
    /// keeps it.)
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt(
        context: &Context,
        native: NativeObject,
        ownership: Ownership,
        options: EventOptions,
    ) -> Result<Self> {
        let value = raw_for(context.device(), native)?;
        context.native_context()?;
        let event = context.create_event_with(options)?;
        let backend = Arc::clone(context.core().backend());
        // The object that keeps the driver's event. The command keeps it until the command is
        // complete.
        let kept = Mutex::new(None);
        let wait = Command::new(Work::Native(Box::new(move |queue| {
            let native = backend.native().expect("checked above");
            // SAFETY: the queue belongs to this backend, and the caller vouches for the event.
            let keep = unsafe { native.wait_for_event(queue, value, ownership)? };
            *kept.lock() = keep;
            Ok(())
        })));
        context.native_events()?.submit(wait.signal(&event))?;
        Ok(event)
    }
}

impl Memory {
    /// Adopts `len` bytes of device memory at `address` that the program allocated with the driver,
    /// or with a library on top of it. Commands can use the result, and it can be shared like any
    /// other memory. Its [handles](Self::handle) carry the driver's own kind of handle for the
    /// allocation, and importers map the whole allocation.
    ///
    /// The bytes may span several allocations that the driver maps side by side, such as torch's
    /// expandable segments on CUDA. A handle names the allocations that are mapped there now,
    /// whatever is mapped around them or in their place later.
    ///
    /// The program frees the memory. What happens to importers depends on the driver. If the driver
    /// counts importers, they keep the bytes. Otherwise they must have closed the memory before.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] unless all bytes are inside one allocation of this device, or
    ///   inside several that can be mapped side by side.
    /// - [`Error::Unsupported`] if the driver cannot share that kind of allocation.
    ///
    /// # Safety
    /// The allocation exists until the result is dropped and all commands that use it are complete.
    /// If the driver does not count importers, it also exists until all of them have closed it.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt(context: &Context, address: NonNull<u8>, len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Error::invalid("no bytes are no memory"));
        }
        let start = address.addr().get();
        // SAFETY: promised by the caller.
        let (segment, offset) = unsafe { context.native_context()?.adopt_memory(start, len)? };
        Ok(Self::adopted(context.core(), segment, offset, len))
    }

    /// Adopts several parts of memory, each given by its address and length in bytes, as
    /// [`adopt`](Self::adopt) does. Parts that lie in one allocation, or in
    /// allocations side by side, are mapped only once by each importer.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt), for any of the parts.
    ///
    /// # Safety
    /// As for [`adopt`](Self::adopt), for each part.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_parts(
        context: &Context,
        parts: &[(NonNull<u8>, usize)],
    ) -> Result<Vec<Self>> {
        if parts.iter().any(|(_, len)| *len == 0) {
            return Err(Error::invalid("no bytes are no memory"));
        }
        let places = parts.iter().map(|(start, len)| (start.addr().get(), *len));
        let places: Vec<_> = places.collect();
        // SAFETY: promised by the caller.
        let adopted = unsafe { context.native_context()?.adopt_memory_parts(&places)? };
        let memory = |((segment, offset), (_, len)): ((_, usize), &(_, usize))| {
            Self::adopted(context.core(), segment, offset, *len)
        };
        Ok(adopted.into_iter().zip(parts).map(memory).collect())
    }

    /// Adopts an allocation, from `address` to the end of the allocation. `address` must be the
    /// first address of an [owned](Ownership::Owned) allocation, which is freed when nothing uses
    /// it any more.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the backend cannot adopt whole allocations.
    /// - The errors of [`adopt`](Self::adopt).
    ///
    /// # Safety
    /// As for [`adopt`](Self::adopt). An owned allocation is freed by no other code.
    #[allow(unsafe_code)] // The promise is passed on to the backend.
    pub unsafe fn adopt_allocation(
        context: &Context,
        address: NonNull<u8>,
        ownership: Ownership,
    ) -> Result<Self> {
        let start = address.addr().get();
        let adopter = context.native_context()?.allocations().ok_or_else(|| {
            Error::Unsupported(
                "whole allocations cannot be adopted here; say how many bytes".into(),
            )
        })?;
        // SAFETY: promised by the caller.
        let adopted = unsafe { adopter.adopt_allocation(start, ownership)? };
        let (segment, offset, len) = adopted;
        Ok(Self::adopted(context.core(), segment, offset, len))
    }
}
