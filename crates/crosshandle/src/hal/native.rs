//! Objects of drivers, for programs that use the driver too.

use super::{BackendContext, BackendQueue, Segment};
use crate::error::{Error, Result};
use crate::types::Ownership;
use std::any::Any;
use std::sync::Arc;

/// A device whose driver programs may use besides.
pub(crate) trait NativeDevice {
    /// The driver's device.
    fn raw(&self) -> usize;

    /// The driver's own object for itself, if it has one.
    fn driver(&self) -> Option<usize> {
        None
    }

    /// What allocates and queues in a context that the program made.
    ///
    /// # Safety
    /// It is a context of the driver, and lives as long as anything that is made of it.
    unsafe fn adopt_context(&self, context: usize) -> Result<Arc<dyn BackendContext>>;
}

/// A context whose driver programs may use besides. Nothing here changes which context is the
/// calling thread's current one, where a driver knows such a thing.
pub(crate) trait NativeContext {
    /// The driver's context.
    fn raw(&self) -> Result<usize>;

    /// A queue that submits to one that the program made, among the program's own commands: in
    /// order, and never later than the call.
    ///
    /// # Safety
    /// It is a queue of the driver, and lives until this one is dropped and has nothing left to
    /// do.
    unsafe fn adopt_queue(
        &self,
        queue: usize,
        ownership: Ownership,
    ) -> Result<Box<dyn BackendQueue>>;

    /// An event of the driver, which was not recorded yet.
    fn create_event(&self) -> Result<Arc<dyn NativeEvent>>;

    /// Lets whatever is submitted to one of the driver's queues later wait for an event. What comes
    /// back is to be kept until the queue has done so.
    ///
    /// # Safety
    /// Both are the driver's. An event that is not given away lives until the queue is past it,
    /// unless the driver keeps it.
    unsafe fn wait_for_event(
        &self,
        queue: usize,
        event: usize,
        ownership: Ownership,
    ) -> Result<Option<Box<dyn Any + Send>>>;

    /// Memory that the program allocated with the driver: the allocation that an address lies in,
    /// and how far inside.
    ///
    /// # Safety
    /// The allocation lives until the result is dropped and all commands that use it are done.
    unsafe fn adopt_memory(&self, address: usize, len: usize) -> Result<(Arc<dyn Segment>, usize)>;

    /// The same for all of the allocation from the address on, which is freed here if it is given
    /// away: also how many bytes that are. For backends whose programs expect it.
    ///
    /// # Safety
    /// As for `adopt_memory`; nobody else frees what is given away.
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

/// A queue whose driver programs may use besides.
pub(crate) trait NativeQueue {
    /// The driver's queue: the one for barriers, where there are several. From now on others may
    /// submit to it, and their commands count as this queue's where it is asked what is left to
    /// do.
    fn share(&self) -> usize;
}

/// An event of a driver, made here and destroyed on drop.
pub(crate) trait NativeEvent: Any + Send + Sync {
    /// The driver's event.
    fn raw(&self) -> usize;

    /// Lets it happen when one of the driver's queues has done everything up to now.
    ///
    /// # Safety
    /// It is a queue of the driver, in the same context.
    unsafe fn record(&self, queue: usize) -> Result<()>;
}
