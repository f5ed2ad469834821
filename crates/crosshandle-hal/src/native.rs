//! Objects of drivers, for programs that call the driver too.

use super::{BackendContext, BackendProgram, BackendQueue, BackendSegment, Launch, Work};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{DriverAllocation, Ownership};
use std::any::Any;
use std::sync::Arc;

/// A device whose driver the program may call too.
pub trait NativeDevice {
    /// Returns the driver's device.
    fn raw(&self) -> usize;

    /// Returns the object that stands for the driver itself, if the driver has one.
    fn driver(&self) -> Option<usize> {
        None
    }

    /// Creates a backend context on a driver context that the program created.
    ///
    /// # Safety
    /// `context` belongs to the driver, and lives as long as anything that was created from the
    /// result.
    unsafe fn adopt_context(&self, context: usize) -> Result<Arc<dyn BackendContext>>;
}

/// A context whose driver the program may call too. If the driver has a current context for each
/// thread, no method changes it.
pub trait NativeContext {
    /// Returns the driver's context.
    fn raw(&self) -> Result<usize>;

    /// Creates a queue that submits to a driver queue of the program, among the program's own
    /// commands. Each command is submitted in order, and before the call returns.
    ///
    /// # Safety
    /// `queue` belongs to the driver, and lives until the result is dropped and its commands have
    /// finished.
    unsafe fn adopt_queue(
        &self,
        queue: usize,
        ownership: Ownership,
    ) -> Result<Box<dyn BackendQueue>>;

    /// Creates an event of the driver, which is not recorded yet.
    fn create_event(&self) -> Result<Arc<dyn NativeEvent>>;

    /// Makes all work that is later submitted to a driver queue wait for an event of the driver.
    /// The caller keeps the returned object until the queue has waited.
    ///
    /// # Safety
    /// `queue` and `event` belong to the driver. A borrowed event lives until the queue has waited
    /// for it, unless the driver keeps the event alive.
    unsafe fn wait_for_event(
        &self,
        queue: usize,
        event: usize,
        ownership: Ownership,
    ) -> Result<Option<Box<dyn Any + Send>>>;

    /// Makes a call that uses the driver in a way that the driver may otherwise refuse during a
    /// capture.
    fn beside_captures(&self, call: &mut dyn FnMut()) {
        call();
    }

    /// Creates an empty recording, to which the program appends commands.
    fn create_recording(&self) -> Result<Arc<dyn NativeRecording>>;

    /// Returns the barrier of the context, if the driver can wait for all of a context's work.
    fn barrier(&self) -> Option<&dyn NativeBarrier> {
        None
    }

    /// Returns the program's allocation at an address. Returns `None` if the driver does not know
    /// the address, or if it belongs to another device.
    fn allocation_at(&self, address: usize) -> Result<Option<DriverAllocation>>;

    /// Adopts memory that the program allocated with the driver. Returns the allocation that
    /// contains the address, and the offset of the address in it.
    ///
    /// # Safety
    /// The allocation lives until the result is dropped and all commands that use it have finished.
    unsafe fn adopt_memory(
        &self,
        address: usize,
        len: usize,
    ) -> Result<(Arc<dyn BackendSegment>, usize)>;

    /// Adopts several parts of memory, each given as an address and a length. Parts of one
    /// allocation may share one segment, and so may parts of adjacent allocations.
    ///
    /// # Safety
    /// As for [`adopt_memory`](Self::adopt_memory), for each part.
    unsafe fn adopt_memory_parts(
        &self,
        parts: &[(usize, usize)],
    ) -> Result<Vec<(Arc<dyn BackendSegment>, usize)>> {
        let parts = parts.iter();
        // SAFETY: promised by the caller.
        let adopt = |(address, len): &(usize, usize)| unsafe { self.adopt_memory(*address, *len) };
        parts.map(adopt).collect()
    }

    /// Returns the adopter of whole allocations, if the backend's programs expect that.
    fn allocations(&self) -> Option<&dyn NativeAllocations> {
        None
    }
}

/// Commands that the program records by calling the driver. They become one node of a graph.
pub trait NativeRecording: Send + Sync {
    /// Returns the driver's object to which the program appends commands.
    fn raw(&self) -> usize;

    /// Ends the recording, and returns the work of the node. This is work for graphs of the driver
    /// ([`Work::Recorded`]), or a function that runs the commands and waits for them.
    fn finish(self: Arc<Self>) -> Result<Work>;
}

/// A driver that can wait for all work of a context.
pub trait NativeBarrier {
    /// Waits until the driver's context has completed all work of this library and of the program.
    fn synchronize(&self) -> Result<()>;
}

/// An adopter of whole allocations.
pub trait NativeAllocations {
    /// Adopts an allocation from an address to its end. Returns the allocation, the offset of the
    /// address in it, and the number of bytes from the address to the end. If the result owns the
    /// allocation, it frees the allocation on drop.
    ///
    /// # Safety
    /// As for [`NativeContext::adopt_memory`]. If the result owns the allocation, no other code
    /// frees it.
    unsafe fn adopt_allocation(
        &self,
        address: usize,
        ownership: Ownership,
    ) -> Result<(Arc<dyn BackendSegment>, usize, usize)>;
}

/// A loader that adopts programs of the driver.
pub trait NativePrograms {
    /// Adopts a program that other code has loaded with the driver.
    ///
    /// # Safety
    /// `program` belongs to the driver and this device, and stays loaded as long as the result
    /// lives. If the result owns it, no other code unloads it.
    unsafe fn adopt(&self, program: usize, ownership: Ownership)
    -> Result<Arc<dyn BackendProgram>>;

    /// Returns the adopter of kernels, if the driver reveals a kernel's program.
    fn kernels(&self) -> Option<&dyn NativeKernels> {
        None
    }
}

/// A loader that adopts kernels of the driver.
pub trait NativeKernels {
    /// Adopts the program of a kernel that other code has created, and returns the kernel's name.
    ///
    /// # Safety
    /// `kernel` belongs to the driver and this device. If the result owns it, no other code
    /// destroys it.
    unsafe fn adopt_kernel(
        &self,
        kernel: usize,
        ownership: Ownership,
    ) -> Result<(Arc<dyn BackendProgram>, String)>;
}

/// A queue whose driver the program may call too.
pub trait NativeQueue {
    /// Returns the driver's queue. If there are several, returns the one that barriers use. From
    /// now on the program may submit to it, and [`finish`](super::BackendQueue::finish) and
    /// [`is_idle`](super::BackendQueue::is_idle) include the program's commands.
    fn share(&self) -> usize;

    /// Returns the driver's number of the capture that records what is submitted to the queue
    /// instead of running it. Returns `None` if there is no capture.
    fn capture(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the nearest known nodes before the next command, in the graph that is being
    /// captured. Each path from an earlier known node to the command goes through one of them.
    /// Returns `None` if the driver does not tell. Only during a capture.
    fn recorded_before(&self, _is_known: &dyn Fn(usize) -> bool) -> Result<Option<Vec<usize>>> {
        Ok(None)
    }

    /// Adds a launch to the graph that is being captured, which keeps the launch. Returns the
    /// driver's node, which no other node of the capture has. Only during a capture.
    #[expect(clippy::boxed_local, reason = "implementations keep the box")]
    fn record(&self, _launch: Box<Launch>) -> Result<usize> {
        Err(Error::Unsupported("this queue cannot be captured".into()))
    }
}

/// An event of the driver, which is destroyed on drop.
pub trait NativeEvent: Any + Send + Sync {
    /// Returns the driver's event.
    fn raw(&self) -> usize;

    /// Records the event. It completes when a driver queue has completed everything that was
    /// submitted to it before this call.
    ///
    /// # Safety
    /// `queue` belongs to the driver and to the same context.
    unsafe fn record(&self, queue: usize) -> Result<()>;
}
