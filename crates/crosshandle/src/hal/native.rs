//! Objects of drivers, for programs that call the driver too.

use super::{BackendContext, BackendQueue, Segment};
use crate::error::{Error, Result};
use crate::types::{DriverAllocation, Ownership};
use std::any::Any;
use std::sync::Arc;

/// A device whose driver programs may call too.
pub(crate) trait NativeDevice {
    /// Returns the driver's device.
    fn raw(&self) -> usize;

    /// Returns the driver's object for the driver itself, if it has one.
    fn driver(&self) -> Option<usize> {
        None
    }

    /// Makes a backend's context inside a context of the driver that the program made.
    ///
    /// # Safety
    /// `context` is one of the driver's, and lives as long as anything that is made of the result.
    unsafe fn adopt_context(&self, context: usize) -> Result<Arc<dyn BackendContext>>;
}

/// A context whose driver programs may call too. Where a driver has a current context of each thread,
/// no method changes it.
pub(crate) trait NativeContext {
    /// Returns the driver's context.
    fn raw(&self) -> Result<usize>;

    /// Makes a queue that submits to one that the program made, among the program's own commands: in
    /// order, and never later than the call.
    ///
    /// # Safety
    /// `queue` is one of the driver's, and lives until the result is dropped and has nothing left to
    /// do.
    unsafe fn adopt_queue(
        &self,
        queue: usize,
        ownership: Ownership,
    ) -> Result<Box<dyn BackendQueue>>;

    /// Makes an event of the driver, which is not recorded yet.
    fn create_event(&self) -> Result<Arc<dyn NativeEvent>>;

    /// Makes all work that is submitted later to a queue of the driver wait for an event of the
    /// driver. The caller keeps the returned object until the queue has waited.
    ///
    /// # Safety
    /// Both are the driver's. A borrowed event lives until the queue is past it, unless the driver
    /// keeps it.
    unsafe fn wait_for_event(
        &self,
        queue: usize,
        event: usize,
        ownership: Ownership,
    ) -> Result<Option<Box<dyn Any + Send>>>;

    /// Waits until the driver's context has done everything that this library or the program submitted.
    fn synchronize(&self) -> Result<()> {
        Err(Error::Unsupported(
            "this driver cannot wait for all of a context's work: finish each queue".into(),
        ))
    }

    /// Returns the allocation of the program that an address lies in; `None` if the address is nothing
    /// to the driver, or another device's.
    fn allocation_at(&self, address: usize) -> Result<Option<DriverAllocation>>;

    /// Adopts memory that the program allocated with the driver. Returns the allocation that an address
    /// lies in, and the address's offset there.
    ///
    /// # Safety
    /// The allocation lives until the result is dropped and all commands that use it are done.
    unsafe fn adopt_memory(&self, address: usize, len: usize) -> Result<(Arc<dyn Segment>, usize)>;

    /// Adopts several parts of memory, each an address and a length, as [`adopt_memory`](Self::adopt_memory)
    /// does. Parts of the same allocation may have one segment, and so may parts of allocations that lie
    /// side by side.
    ///
    /// # Safety
    /// As for `adopt_memory`, for each part.
    unsafe fn adopt_memory_parts(
        &self,
        parts: &[(usize, usize)],
    ) -> Result<Vec<(Arc<dyn Segment>, usize)>> {
        let parts = parts.iter();
        // SAFETY: promised by the caller.
        let adopt = |(address, len): &(usize, usize)| unsafe { self.adopt_memory(*address, *len) };
        parts.map(adopt).collect()
    }

    /// Adopts all of an allocation from an address on, for backends whose programs expect that. Returns
    /// the allocation, the address's offset there, and the bytes from there on. One that is owned is
    /// freed with the result.
    ///
    /// # Safety
    /// As for `adopt_memory`; no other code frees an allocation that is owned.
    unsafe fn adopt_allocation(
        &self,
        _address: usize,
        _ownership: Ownership,
    ) -> Result<(Arc<dyn Segment>, usize, usize)> {
        Err(Error::Unsupported(
            "whole allocations cannot be adopted here; say how many bytes".into(),
        ))
    }
}

/// A queue whose driver programs may call too.
pub(crate) trait NativeQueue {
    /// Returns the driver's queue: the one for barriers, where there are several. From now on the
    /// program may submit to it, and its commands count in
    /// [`finish`](super::BackendQueue::finish) and [`is_idle`](super::BackendQueue::is_idle).
    fn share(&self) -> usize;
}

/// An event of a driver, made here and destroyed on drop.
pub(crate) trait NativeEvent: Any + Send + Sync {
    /// Returns the driver's event.
    fn raw(&self) -> usize;

    /// Records the event: it happens when a queue of the driver has done everything submitted up to
    /// now.
    ///
    /// # Safety
    /// `queue` is one of the driver's, in the same context.
    unsafe fn record(&self, queue: usize) -> Result<()>;
}
