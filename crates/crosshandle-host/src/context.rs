//! Contexts on the host.

use super::image::HostImages;
use super::info;
use super::program::{HostPrograms, Units};
use super::queue::HostQueue;
use crosshandle_hal::common::host_memory::{HostRange, HostSegment, PhysicalFile};
use crosshandle_hal::{
    BackendContext, BackendImages, BackendObject, BackendPrograms, BackendQueue, BackendRange,
    BackendSegment, Import,
};
use crosshandle_handle::DeviceUuid;
use crosshandle_ipc::EventCore;
use crosshandle_os::mapping::page_size;
use crosshandle_types::error::Result;
use crosshandle_types::{Access, MemoryKind, QueueOrder};
use std::sync::Arc;

/// A context on the host or a part of it.
pub(super) struct HostContext {
    units: Units,
    programs: HostPrograms,
    images: HostImages,
}

impl HostContext {
    pub(super) fn new(units: &Units) -> Self {
        Self {
            programs: HostPrograms::new(units),
            images: HostImages::new(units),
            units: units.clone(),
        }
    }
}

impl BackendContext for HostContext {
    fn granularity(&self) -> usize {
        page_size()
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        info::is_host(device)
    }

    fn takes_memory_late(&self) -> bool {
        true
    }

    fn event_words(&self, event: &EventCore) -> Option<Result<usize>> {
        Some(event.slot_address(None))
    }

    fn create_segment(&self, _kind: MemoryKind, len: usize) -> Result<Arc<dyn BackendSegment>> {
        Ok(Arc::new(HostSegment::create(len)?))
    }

    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn BackendSegment>> {
        Ok(Arc::new(HostSegment::import(
            &import.file,
            import.len,
            access,
        )?))
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
        Ok(Box::new(HostQueue::new(order, &self.units)))
    }

    fn images(&self) -> Option<&dyn BackendImages> {
        Some(&self.images)
    }

    fn programs(&self) -> Option<&dyn BackendPrograms> {
        Some(&self.programs)
    }
}
