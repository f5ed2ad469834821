//! The driver's contexts, lists and events, the program's and ours.

use super::device::{Gpu, LevelZeroContext};
use super::driver::{Core, CreatedEvent, Handle, List};
use super::memory::LevelZeroSegment;
use super::pooled::Shown;
use super::queue;
use crate::error::{Error, Result};
use crate::hal::{BackendContext, BackendQueue, NativeContext, NativeDevice, NativeEvent, Segment};
use crate::ipc::Shared;
use crate::types::Ownership;
use std::any::Any;
use std::ptr;
use std::sync::Arc;

/// An object of the driver that a program named.
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
        let core = match driver.shared_core() {
            Some(core) if core.handle == object(context) => core,
            // SAFETY: promised by the caller.
            _ => Arc::new(unsafe { Core::adopt(driver, object(context)) }),
        };
        Ok(Arc::new(LevelZeroContext::new(self.shared()?, core)))
    }
}

impl NativeContext for LevelZeroContext {
    fn raw(&self) -> Result<usize> {
        Ok(self.core().handle.0.expose_provenance())
    }

    unsafe fn adopt_queue(
        &self,
        list: usize,
        ownership: Ownership,
    ) -> Result<Box<dyn BackendQueue>> {
        let is_given = ownership == Ownership::Owned;
        // SAFETY: promised by the caller.
        let list = unsafe { List::adopt(self.core(), object(list), is_given)? };
        queue::adopt(self.gpu(), self.core(), self.leaving(), list)
    }

    fn create_event(&self) -> Result<Arc<dyn NativeEvent>> {
        Ok(Arc::new(Shown::create(self.core())?))
    }

    unsafe fn wait_for_event(
        &self,
        list: usize,
        event: usize,
        ownership: Ownership,
    ) -> Result<Option<Box<dyn Any + Send>>> {
        // SAFETY: promised by the caller.
        unsafe { List::borrow(self.core(), object(list)).wait(&[object(event)], None)? };
        // SAFETY: given away, says the caller.
        let keep = (ownership == Ownership::Owned)
            .then(|| unsafe { CreatedEvent::given(self.core(), object(event)) });
        Ok(keep.map(|event| Box::new(event) as _))
    }

    unsafe fn adopt_memory(&self, address: usize, len: usize) -> Result<(Arc<dyn Segment>, usize)> {
        let (segment, offset) = LevelZeroSegment::adopt(self.gpu(), self.core(), address, false)?;
        let rest = segment.len() - offset;
        if rest < len {
            return Err(Error::invalid(format!(
                "{len} bytes at {address:#x} are not all in one allocation of the driver, but only \
                 the first {rest}"
            )));
        }
        Ok((Arc::new(segment), offset))
    }

    unsafe fn adopt_allocation(
        &self,
        address: usize,
        ownership: Ownership,
    ) -> Result<(Arc<dyn Segment>, usize, usize)> {
        let is_given = ownership == Ownership::Owned;
        let adopted = LevelZeroSegment::adopt(self.gpu(), self.core(), address, is_given);
        let (segment, offset) = adopted?;
        let rest = segment.len() - offset;
        Ok((Arc::new(segment), offset, rest))
    }
}

impl NativeEvent for Shown {
    fn raw(&self) -> usize {
        Shown::handle(self).0.expose_provenance()
    }

    unsafe fn record(&self, list: usize) -> Result<()> {
        // SAFETY: promised by the caller; who waits for the event keeps it.
        unsafe { List::borrow(self.core(), object(list)).signal(Shown::handle(self)) }
    }
}
