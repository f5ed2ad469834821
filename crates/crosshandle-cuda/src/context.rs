//! Contexts on GPUs.

use super::device::Gpu;
use super::memory::{self, CudaPhysical, CudaRange};
use super::queue;
use crosshandle_hal::{
    BackendContext, BackendDriverHandles, BackendFabric, BackendGraphs, BackendImages,
    BackendObject, BackendPrograms, BackendQueue, BackendRange, BackendSegment, Import,
    NativeContext,
};
use crosshandle_handle::DeviceUuid;
use crosshandle_ipc::EventCore;
use crosshandle_types::error::Result;
use crosshandle_types::{Access, MemoryKind, QueueOrder};
use std::sync::Arc;

/// A context on one GPU, which allocates memory, maps it and creates queues.
pub(super) struct CudaContext {
    gpu: Arc<Gpu>,
    /// Other devices whose memory this context can map.
    peers: Vec<DeviceUuid>,
}

impl CudaContext {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            peers: gpu.peers(),
        }
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl BackendContext for CudaContext {
    fn granularity(&self) -> usize {
        self.gpu.info().granularity
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        device == self.gpu.info().uuid || self.peers.contains(&device)
    }

    fn shared_segment(&self, kind: MemoryKind) -> usize {
        match kind {
            MemoryKind::Device => 64 << 20,
            // A segment of host memory is pinned as a whole, which takes time and commits its
            // memory at once.
            MemoryKind::Host | MemoryKind::Shared => 16 << 20,
        }
    }

    fn create_segment(&self, kind: MemoryKind, len: usize) -> Result<Arc<dyn BackendSegment>> {
        memory::create(&self.gpu, kind, len)
    }

    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn BackendSegment>> {
        memory::import(&self.gpu, &import.file, import.len, access)
    }

    fn driver_handles(&self) -> Option<&dyn BackendDriverHandles> {
        Some(self)
    }

    fn fabric(&self) -> Option<&dyn BackendFabric> {
        let capabilities = &self.gpu.info().capabilities;
        capabilities.fabric_memory.then_some(self as _)
    }

    fn create_physical(&self, len: usize) -> Result<Arc<dyn BackendObject>> {
        Ok(Arc::new(CudaPhysical::create(&self.gpu, len)?))
    }

    fn import_physical(&self, import: Import) -> Result<Arc<dyn BackendObject>> {
        Ok(Arc::new(CudaPhysical::import(
            &self.gpu,
            &import.file,
            import.len,
        )?))
    }

    fn reserve(&self, wish: usize, len: usize, align: usize) -> Result<Box<dyn BackendRange>> {
        Ok(Box::new(CudaRange::reserve(&self.gpu, wish, len, align)?))
    }

    fn create_queue(&self, order: QueueOrder) -> Result<Box<dyn BackendQueue>> {
        queue::create(&self.gpu, order)
    }

    fn native(&self) -> Option<&dyn NativeContext> {
        Some(self)
    }

    fn graphs(&self) -> Option<&dyn BackendGraphs> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn BackendImages> {
        self.gpu.images().is_some().then_some(self as _)
    }

    fn event_words(&self, event: &EventCore) -> Option<Result<usize>> {
        let pinner = memory::WordPinner(&self.gpu);
        let can = self.gpu.info().capabilities.device_signals;
        can.then(|| event.slot_address(Some(&pinner)))
    }

    fn programs(&self) -> Option<&dyn BackendPrograms> {
        self.gpu.kernels().is_some().then_some(self as _)
    }
}
