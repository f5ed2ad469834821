//! Contexts on the device.

use super::device::uuid;
use super::queue::NoopQueue;
use crate::common::host_memory::{HostRange, HostSegment, PhysicalFile};
use crate::{
    BackendContext, BackendDriverHandles, BackendObject, BackendQueue, BackendRange,
    BackendSegment, Import,
};
use crosshandle_handle::DeviceUuid;
use crosshandle_os::mapping::page_size;
use crosshandle_types::error::Result;
use crosshandle_types::{Access, MemoryKind, QueueOrder};
use std::sync::Arc;

/// A context on the device.
#[derive(Default)]
pub struct NoopContext {
    driver_handles: Option<Box<dyn BackendDriverHandles + Send + Sync>>,
}

impl NoopContext {
    /// Creates a context that opens memory without a descriptor by `driver_handles`.
    pub fn with_driver_handles(
        driver_handles: impl BackendDriverHandles + Send + Sync + 'static,
    ) -> Self {
        Self {
            driver_handles: Some(Box::new(driver_handles)),
        }
    }
}

impl BackendContext for NoopContext {
    fn granularity(&self) -> usize {
        page_size()
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        device == uuid()
    }

    fn create_segment(&self, _kind: MemoryKind, len: usize) -> Result<Arc<dyn BackendSegment>> {
        Ok(Arc::new(HostSegment::create(len)?))
    }

    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn BackendSegment>> {
        let segment = HostSegment::import(&import.file, import.len, access)?;
        Ok(Arc::new(segment))
    }

    fn create_physical(&self, len: usize) -> Result<Arc<dyn BackendObject>> {
        Ok(Arc::new(PhysicalFile::create(len)?))
    }

    fn import_physical(&self, import: Import) -> Result<Arc<dyn BackendObject>> {
        Ok(Arc::new(PhysicalFile::import(import.file, import.len)?))
    }

    fn reserve(&self, wish: usize, len: usize, align: usize) -> Result<Box<dyn BackendRange>> {
        Ok(Box::new(HostRange::reserve(wish, len, align)?))
    }

    fn create_queue(&self, order: QueueOrder) -> Result<Box<dyn BackendQueue>> {
        Ok(Box::new(NoopQueue::new(order)))
    }

    fn driver_handles(&self) -> Option<&dyn BackendDriverHandles> {
        Some(&**self.driver_handles.as_ref()?)
    }
}
