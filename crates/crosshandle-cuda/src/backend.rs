//! The backend, its devices and its contexts, as `hal` uses them.

use super::device::{self, Gpu};
use super::driver::Driver;
use super::memory::{self, CudaPhysical, CudaRange};
use super::{image, program, queue};
use crosshandle_hal::{
    Backend, BackendBlob, BackendContext, BackendDevice, BackendDriverHandles,
    BackendExternalMemory, BackendFabric, BackendGraph, BackendGraphs, BackendImage, BackendImages,
    BackendLevels, BackendObject, BackendProgram, BackendPrograms, BackendQueue, BackendRange,
    BackendSampler, BackendSegment, BackendView, BackendViews, GraphNodes, Import, NativeContext,
    NativeDevice, PreparedNode, ViewSource, Work,
};
use crosshandle_handle::{BackendKind, DRIVER_HANDLE_SIZE, DeviceUuid};
use crosshandle_types::error::Result;
use crosshandle_types::{
    Access, DeviceInfo, ImageDescription, ImageFormat, ImageLimits, KernelLimits, MemoryKind,
    Ownership, ProgramImage, ProgramOptions, QueueOrder, SamplerDescription, Sampling,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The driver's devices.
pub struct CudaBackend;

impl Backend for CudaBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn devices(&self) -> Vec<Arc<dyn BackendDevice>> {
        let gpus = device::gpus().unwrap_or_default();
        gpus.iter()
            .map(|gpu| Arc::clone(gpu) as Arc<dyn BackendDevice>)
            .collect()
    }

    fn status(&self) -> std::result::Result<String, String> {
        let gpus = device::gpus()?;
        let driver = Driver::get()?;
        Ok(format!(
            "the NVIDIA driver for CUDA {}, {} device(s)",
            driver.version(),
            gpus.len()
        ))
    }
}

impl BackendDevice for Gpu {
    fn info(&self) -> &DeviceInfo {
        Gpu::info(self)
    }

    fn free_memory(&self) -> Option<u64> {
        let _current = self.enter().ok()?;
        self.driver().free_memory().ok()
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        device == self.info().uuid || self.peers().contains(&device)
    }

    fn kernels(&self) -> std::result::Result<&KernelLimits, String> {
        let limits = Gpu::kernels(self);
        limits.ok_or_else(|| "this NVIDIA driver is too old to run programs here".into())
    }

    fn images(&self) -> std::result::Result<&ImageLimits, String> {
        let limits = Gpu::images(self);
        limits.ok_or_else(|| "this NVIDIA driver is too old to provide images here".into())
    }

    fn create_context(&self) -> Result<Arc<dyn BackendContext>> {
        let gpu = self.shared()?;
        // Entering the context here detects a device that does not work.
        drop(gpu.enter()?);
        Ok(Arc::new(CudaContext::new(gpu)))
    }

    fn native(&self) -> Option<&dyn NativeDevice> {
        Some(self)
    }
}

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

impl BackendDriverHandles for CudaContext {
    fn import_handle(&self, handle: &BackendBlob, len: usize) -> Result<Arc<dyn BackendSegment>> {
        memory::external::open_legacy(&self.gpu, handle, len)
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

    fn programs(&self) -> Option<&dyn BackendPrograms> {
        self.gpu.kernels().is_some().then_some(self as _)
    }
}

impl BackendGraphs for CudaContext {
    fn prepare(&self, work: &Work) -> Result<PreparedNode> {
        queue::graph::prepare(&self.gpu, work)
    }

    fn instantiate(&self, nodes: &GraphNodes) -> Result<Arc<dyn BackendGraph>> {
        queue::graph::instantiate(&self.gpu, nodes)
    }
}

impl BackendImages for CudaContext {
    fn create(&self, description: &ImageDescription) -> Result<Arc<dyn BackendImage>> {
        image::create(&self.gpu, description)
    }

    fn create_sampler(&self, sampler: &SamplerDescription) -> Result<Arc<dyn BackendSampler>> {
        Ok(image::create_sampler(sampler))
    }

    fn views(&self) -> Option<&dyn BackendViews> {
        Some(self)
    }
}

impl BackendViews for CudaContext {
    fn check_format(&self, format: ImageFormat) -> Result<()> {
        image::check_format(format)
    }

    fn create_levelled(
        &self,
        description: &ImageDescription,
        levels: u32,
    ) -> Result<Arc<dyn BackendLevels>> {
        image::create_levels(&self.gpu, description, levels)
    }

    fn sampled(
        &self,
        source: &ViewSource<'_>,
        description: &ImageDescription,
        sampling: &Sampling,
    ) -> Result<Arc<dyn BackendView>> {
        image::sampled(&self.gpu, source, description, sampling)
    }

    fn unsampled(&self, image: &Arc<dyn BackendImage>) -> Result<Arc<dyn BackendView>> {
        image::unsampled(image)
    }

    fn import_external(&self, file: OwnedFd, len: u64) -> Result<Arc<dyn BackendExternalMemory>> {
        image::import(&self.gpu, file, len)
    }
}

impl BackendPrograms for CudaContext {
    fn load(
        &self,
        images: &[ProgramImage<'_>],
        options: &ProgramOptions,
    ) -> Result<Arc<dyn BackendProgram>> {
        program::load(&self.gpu, images, options)
    }

    unsafe fn adopt(
        &self,
        program: usize,
        ownership: Ownership,
    ) -> Result<Arc<dyn BackendProgram>> {
        // SAFETY: promised by the caller.
        Ok(unsafe { program::adopt(&self.gpu, program, ownership) })
    }
}

impl BackendFabric for CudaContext {
    fn create_segment(
        &self,
        len: usize,
    ) -> Result<(Arc<dyn BackendSegment>, [u8; DRIVER_HANDLE_SIZE])> {
        memory::create_for_fabric(&self.gpu, len)
    }

    fn import_segment(
        &self,
        handle: &[u8; DRIVER_HANDLE_SIZE],
        len: usize,
    ) -> Result<Arc<dyn BackendSegment>> {
        memory::import_from_fabric(&self.gpu, handle, len)
    }
}
