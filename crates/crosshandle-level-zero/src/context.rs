//! Contexts on GPUs.

use super::device::Gpu;
use super::driver::DriverContext;
use super::event::LevelZeroEvents;
use super::memory::{LevelZeroPhysical, LevelZeroRange, LevelZeroSegment};
use super::queue::{self, Drain, QueueCommon};
use crosshandle_hal::{
    BackendContext, BackendEvents, BackendImages, BackendObject, BackendPrograms, BackendQueue,
    BackendRange, BackendSegment, Import, NativeContext,
};
use crosshandle_handle::DeviceUuid;
use crosshandle_types::error::Result;
use crosshandle_types::{Access, MemoryKind, QueueOrder};
use std::sync::Arc;

/// Bytes of a segment of device memory that small allocations share.
const DEVICE_SEGMENT_BYTES: usize = 64 << 20;

/// Bytes of a segment of host memory that small allocations share. The whole segment is pinned when
/// it is allocated.
const HOST_SEGMENT_BYTES: usize = 16 << 20;

/// A context on one GPU, which allocates memory, maps it and creates queues.
pub(super) struct LevelZeroContext {
    gpu: Arc<Gpu>,
    context: Arc<DriverContext>,
    events: Arc<LevelZeroEvents>,
    drain: Arc<Drain>,
}

impl Drop for LevelZeroContext {
    fn drop(&mut self) {
        self.drain.join_idle();
    }
}

impl LevelZeroContext {
    pub(super) fn new(gpu: Arc<Gpu>, context: Arc<DriverContext>) -> Self {
        let events = Arc::new(LevelZeroEvents {
            gpu: Arc::clone(&gpu),
            context: Arc::clone(&context),
        });
        Self {
            gpu,
            context,
            events,
            drain: Arc::default(),
        }
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(super) fn context(&self) -> &Arc<DriverContext> {
        &self.context
    }

    /// Creates the state that the lists of a new queue share.
    pub(super) fn queue_common(&self) -> Arc<QueueCommon> {
        QueueCommon::new(&self.gpu, &self.context, &self.drain)
    }
}

impl BackendContext for LevelZeroContext {
    fn granularity(&self) -> usize {
        self.gpu.info().granularity
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        self.gpu.reaches(device)
    }

    fn close(&self) {
        self.drain.close();
    }

    fn reuses_shared_memory(&self) -> bool {
        // Intel's driver keeps freed memory for some seconds, in pieces of up to 256 MiB. In a
        // context of the program, this library cannot delay the release of memory for that long.
        // The program may destroy its context as soon as all objects of this library are gone.
        self.context.is_ours()
    }

    fn shared_segment(&self, kind: MemoryKind) -> usize {
        match kind {
            MemoryKind::Device => DEVICE_SEGMENT_BYTES,
            // A host segment is pinned as a whole when it is allocated, which takes time and
            // memory.
            MemoryKind::Host | MemoryKind::Shared => HOST_SEGMENT_BYTES,
        }
    }

    fn create_segment(&self, kind: MemoryKind, len: usize) -> Result<Arc<dyn BackendSegment>> {
        let segment = LevelZeroSegment::create(&self.gpu, &self.context, kind, len)?;
        Ok(Arc::new(segment))
    }

    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn BackendSegment>> {
        let segment = LevelZeroSegment::import(&self.gpu, &self.context, &import, access)?;
        Ok(Arc::new(segment))
    }

    fn create_physical(&self, len: usize) -> Result<Arc<dyn BackendObject>> {
        let memory = LevelZeroPhysical::create(&self.gpu, &self.context, len)?;
        Ok(Arc::new(memory))
    }

    fn import_physical(&self, import: Import) -> Result<Arc<dyn BackendObject>> {
        let memory = LevelZeroPhysical::import(&self.gpu, &self.context, &import)?;
        Ok(Arc::new(memory))
    }

    fn reserve(&self, wish: usize, len: usize, align: usize) -> Result<Box<dyn BackendRange>> {
        let range = LevelZeroRange::reserve(&self.context, wish, len, align)?;
        Ok(Box::new(range))
    }

    fn driver_events(&self) -> Option<Arc<dyn BackendEvents>> {
        Some(Arc::clone(&self.events) as _)
    }

    fn create_queue(&self, order: QueueOrder) -> Result<Box<dyn BackendQueue>> {
        Ok(queue::create(self.queue_common(), order))
    }

    fn native(&self) -> Option<&dyn NativeContext> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn BackendImages> {
        Some(self)
    }

    fn programs(&self) -> Option<&dyn BackendPrograms> {
        Some(self)
    }
}
