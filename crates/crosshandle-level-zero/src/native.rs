//! Access to the driver's contexts, lists and events: those that this library creates, and those
//! that a program passes in.

use super::context::LevelZeroContext;
use super::device::Gpu;
use super::driver::{CreatedEvent, DriverContext, Handle, List, ProgramEvent, RecordedList};
use super::memory::LevelZeroSegment;
use super::queue;
use crosshandle_hal::{
    BackendContext, BackendObject, BackendQueue, BackendSegment, NativeAllocations, NativeContext,
    NativeDevice, NativeEvent, NativeRecording,
};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{DriverAllocation, Ownership};
use std::any::Any;
use std::ptr;
use std::sync::Arc;

/// Creates a handle from a number that the program passed.
fn object<T>(value: usize) -> Handle<T> {
    Handle(ptr::with_exposed_provenance_mut(value))
}

impl NativeDevice for Gpu {
    fn raw(&self) -> usize {
        Gpu::handle(self).0.expose_provenance()
    }

    fn driver(&self) -> Option<usize> {
        Some(Gpu::driver(self).handle.0.expose_provenance())
    }

    unsafe fn adopt_context(&self, context: usize) -> Result<Arc<dyn BackendContext>> {
        let driver = Gpu::driver(self);
        let context = match driver.existing_context() {
            Some(existing) if existing.handle == object(context) => existing,
            // SAFETY: promised by the caller.
            _ => Arc::new(unsafe { DriverContext::adopt(driver, object(context)) }),
        };
        Ok(Arc::new(LevelZeroContext::new(self.shared()?, context)))
    }
}

impl NativeContext for LevelZeroContext {
    fn raw(&self) -> Result<usize> {
        Ok(self.context().handle.0.expose_provenance())
    }

    unsafe fn adopt_queue(
        &self,
        list: usize,
        ownership: Ownership,
    ) -> Result<Box<dyn BackendQueue>> {
        let is_given = ownership == Ownership::Owned;
        // SAFETY: promised by the caller.
        let list = unsafe { List::adopt(self.context(), object(list), is_given)? };
        queue::adopt(self.queue_common(), list)
    }

    fn create_recording(&self) -> Result<Arc<dyn NativeRecording>> {
        let gpu = self.gpu();
        let list = RecordedList::create(self.context(), Gpu::handle(gpu), gpu.group())?;
        Ok(Arc::new(list))
    }

    fn create_event(&self) -> Result<Arc<dyn NativeEvent>> {
        Ok(Arc::new(ProgramEvent::create(self.context())?))
    }

    unsafe fn wait_for_event(
        &self,
        list: usize,
        event: usize,
        ownership: Ownership,
    ) -> Result<Option<Box<dyn Any + Send>>> {
        // SAFETY: promised by the caller.
        unsafe { List::borrow(self.context(), object(list)).wait(&[object(event)], None)? };
        // SAFETY: the caller promises that it has given the event away.
        let keep = (ownership == Ownership::Owned)
            .then(|| unsafe { CreatedEvent::given(self.context(), object(event)) });
        Ok(keep.map(|event| Box::new(event) as _))
    }

    fn allocation_at(&self, address: usize) -> Result<Option<DriverAllocation>> {
        Ok(LevelZeroSegment::find(self.gpu(), self.context(), address))
    }

    unsafe fn adopt_memory(
        &self,
        address: usize,
        len: usize,
    ) -> Result<(Arc<dyn BackendSegment>, usize)> {
        let (segment, offset) =
            LevelZeroSegment::adopt(self.gpu(), self.context(), address, false)?;
        let rest = segment.len() - offset;
        if rest < len {
            return Err(Error::invalid(format!(
                "{len} bytes at {address:#x} are not all in one allocation of the driver, but only \
                 the first {rest}"
            )));
        }
        Ok((Arc::new(segment), offset))
    }

    fn allocations(&self) -> Option<&dyn NativeAllocations> {
        Some(self)
    }
}

impl NativeAllocations for LevelZeroContext {
    unsafe fn adopt_allocation(
        &self,
        address: usize,
        ownership: Ownership,
    ) -> Result<(Arc<dyn BackendSegment>, usize, usize)> {
        let is_given = ownership == Ownership::Owned;
        let adopted = LevelZeroSegment::adopt(self.gpu(), self.context(), address, is_given);
        let (segment, offset) = adopted?;
        let rest = segment.len() - offset;
        Ok((Arc::new(segment), offset, rest))
    }
}

impl NativeEvent for ProgramEvent {
    fn raw(&self) -> usize {
        ProgramEvent::handle(self).0.expose_provenance()
    }

    unsafe fn record(&self, list: usize) -> Result<()> {
        // SAFETY: promised by the caller. The waiter keeps the event.
        unsafe { List::borrow(self.context(), object(list)).signal(ProgramEvent::handle(self)) }
    }
}
