//! The GPUs, and contexts on them.

use super::driver::{Core, DeviceHandle, Driver};
use super::event::LevelZeroEvents;
use super::info::{self, Details};
use super::leaving::Leaving;
use super::memory::LevelZeroSegment;
use super::physical::LevelZeroPhysical;
use super::queue;
use super::range::LevelZeroRange;
use crate::error::{Error, Result};
use crate::hal::{
    AddressRange, Backend, BackendContext, BackendDevice, BackendQueue, NativeContext,
    NativeDevice, Segment,
};
use crate::handle::{BackendKind, DeviceUuid};
use crate::ipc::Shared;
use crate::ipc::{DriverEvents, Import};
use crate::types::Access;
use crate::types::{DeviceInfo, MemoryKind, QueueOrder};
use level_zero_sys::{ze_external_memory_type_flags_t, ze_result_t};
use std::sync::{Arc, OnceLock};

/// The devices of all Level Zero drivers.
pub(crate) struct LevelZeroBackend;

impl Backend for LevelZeroBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::LevelZero
    }

    fn devices(&self) -> Vec<Arc<dyn BackendDevice>> {
        let gpus = gpus().unwrap_or_default();
        gpus.iter()
            .map(|gpu| Arc::clone(gpu) as Arc<dyn BackendDevice>)
            .collect()
    }

    fn status(&self) -> std::result::Result<String, String> {
        let gpus = gpus()?;
        let versions: Vec<_> = Driver::all()?
            .iter()
            .map(|driver| format!("{}.{}", driver.api.0, driver.api.1))
            .collect();
        Ok(format!(
            "{} driver(s) for Level Zero {}, {} device(s)",
            versions.len(),
            versions.join(", "),
            gpus.len()
        ))
    }
}

/// All GPUs, found with the first call.
fn gpus() -> std::result::Result<&'static [Arc<Gpu>], &'static str> {
    static GPUS: OnceLock<std::result::Result<Vec<Arc<Gpu>>, String>> = OnceLock::new();
    let gpus = GPUS.get_or_init(|| {
        let mut gpus = Vec::new();
        for driver in Driver::all()? {
            for handle in driver.devices().map_err(|error| error.to_string())? {
                let gpu = Gpu::new(driver, handle, gpus.len());
                gpus.push(Arc::new(gpu.map_err(|error| error.to_string())?));
            }
        }
        Ok(gpus)
    });
    gpus.as_deref().map_err(|reason| &**reason)
}

/// A device.
pub(super) struct Gpu {
    driver: &'static Driver,
    handle: DeviceHandle,
    info: DeviceInfo,
    details: Details,
    /// Other devices whose memory this one can map, once that was asked for.
    peers: OnceLock<Vec<DeviceUuid>>,
}

impl Gpu {
    fn new(driver: &'static Driver, handle: DeviceHandle, index: usize) -> Result<Self> {
        let (info, details) = info::describe(driver, handle, index)?;
        Ok(Self {
            driver,
            handle,
            info,
            details,
            peers: OnceLock::new(),
        })
    }

    pub(super) fn handle(&self) -> DeviceHandle {
        self.handle
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// This, as the list of all has it.
    pub(super) fn shared(&self) -> Result<Arc<Self>> {
        let gpu = gpus().ok().and_then(|gpus| gpus.get(self.info.index));
        let gpu = gpu.ok_or_else(|| Error::invalid("this device is none of the driver's"))?;
        Ok(Arc::clone(gpu))
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The group of queues that commands go to.
    pub(super) fn group(&self) -> u32 {
        self.details.group
    }

    /// The longest pattern of a fill, in bytes.
    pub(super) fn max_pattern(&self) -> usize {
        self.details.max_pattern
    }

    /// As what allocated memory can be exported, if it can.
    pub(super) fn exportable_memory(&self) -> Option<ze_external_memory_type_flags_t> {
        self.details.exportable_memory
    }

    /// As what physical memory can be exported and imported, if it can.
    pub(super) fn external_memory(&self) -> Option<ze_external_memory_type_flags_t> {
        self.details.external_memory
    }

    /// Other devices whose memory this one can map. What the driver can't say it can't reach.
    fn find_peers(&self) -> Vec<DeviceUuid> {
        let can = self.driver.loader.zeDeviceCanAccessPeer;
        let reaches = |peer: &&Arc<Self>| {
            let mut value = 0;
            // SAFETY: two devices of one driver, and a live result.
            std::ptr::eq(self.driver, peer.driver)
                && self.handle != peer.handle
                && unsafe { can(self.handle.0, peer.handle.0, &mut value) }
                    == ze_result_t::ZE_RESULT_SUCCESS
                && value != 0
        };
        let all = gpus().unwrap_or_default().iter();
        all.filter(reaches).map(|peer| peer.info.uuid).collect()
    }
}

impl BackendDevice for Gpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_memory(&self) -> Option<u64> {
        // Only the management interface (sysman) knows.
        None
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        let peers = || self.peers.get_or_init(|| self.find_peers());
        device == self.info.uuid || peers().contains(&device)
    }

    fn create_context(&self) -> Result<Arc<dyn BackendContext>> {
        let core = self.driver.core()?;
        Ok(Arc::new(LevelZeroContext::new(self.shared()?, core)))
    }

    fn native(&self) -> Option<&dyn NativeDevice> {
        Some(self)
    }
}

/// What allocates, maps and queues on one GPU.
pub(super) struct LevelZeroContext {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    events: Arc<LevelZeroEvents>,
    leaving: Arc<Leaving>,
}

impl Drop for LevelZeroContext {
    fn drop(&mut self) {
        self.leaving.join();
    }
}

impl LevelZeroContext {
    pub(super) fn new(gpu: Arc<Gpu>, core: Arc<Core>) -> Self {
        let events = Arc::new(LevelZeroEvents {
            gpu: Arc::clone(&gpu),
            core: Arc::clone(&core),
        });
        Self {
            gpu,
            core,
            events,
            leaving: Arc::default(),
        }
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(super) fn leaving(&self) -> &Arc<Leaving> {
        &self.leaving
    }
}

impl BackendContext for LevelZeroContext {
    fn granularity(&self) -> usize {
        self.gpu.info.granularity
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        self.gpu.reaches(device)
    }

    fn close(&self) {
        self.leaving.close();
    }

    fn reuses_shared_memory(&self) -> bool {
        // Intel's keeps what is freed, up to 256 MiB a piece, for some seconds. In the program's own
        // context nothing can be kept for that long: it may end that when all of ours has gone.
        self.core.is_ours()
    }

    fn shared_segment(&self, kind: MemoryKind) -> usize {
        match kind {
            MemoryKind::Device => 64 << 20,
            // Pinned as a whole, which takes time and memory at once.
            MemoryKind::Host | MemoryKind::Shared => 16 << 20,
        }
    }

    fn create_segment(&self, kind: MemoryKind, len: usize) -> Result<Arc<dyn Segment>> {
        let segment = LevelZeroSegment::create(&self.gpu, &self.core, kind, len)?;
        Ok(Arc::new(segment))
    }

    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn Segment>> {
        let segment = LevelZeroSegment::import(&self.gpu, &self.core, &import, access)?;
        Ok(Arc::new(segment))
    }

    fn create_physical(&self, len: usize) -> Result<Arc<dyn Shared>> {
        let memory = LevelZeroPhysical::create(&self.gpu, &self.core, len)?;
        Ok(Arc::new(memory))
    }

    fn import_physical(&self, import: Import) -> Result<Arc<dyn Shared>> {
        let memory = LevelZeroPhysical::import(&self.gpu, &self.core, &import)?;
        Ok(Arc::new(memory))
    }

    fn reserve(&self, wish: usize, len: usize, align: usize) -> Result<Box<dyn AddressRange>> {
        let range = LevelZeroRange::reserve(&self.core, wish, len, align)?;
        Ok(Box::new(range))
    }

    fn driver_events(&self) -> Option<Arc<dyn DriverEvents>> {
        Some(Arc::clone(&self.events) as _)
    }

    fn create_queue(&self, order: QueueOrder) -> Result<Box<dyn BackendQueue>> {
        Ok(queue::create(&self.gpu, &self.core, &self.leaving, order))
    }

    fn native(&self) -> Option<&dyn NativeContext> {
        Some(self)
    }
}
