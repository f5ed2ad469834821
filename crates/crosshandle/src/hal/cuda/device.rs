//! The GPUs, and contexts on them.

use super::driver::{ContextHandle, Current, DeviceHandle, Driver};
use super::gate::Gate;
use super::info;
use super::memory::{self, CudaPhysical};
use super::queue;
use super::range::CudaRange;
use super::stock::Stock;
use super::times::Clock;
use super::waits::Traffic;
use crate::error::{Error, Result};
use crate::hal::{
    AddressRange, Backend, BackendContext, BackendDevice, BackendQueue, NativeContext,
    NativeDevice, Programs, Segment,
};
use crate::handle::{BackendKind, DeviceUuid};
use crate::ipc::Import;
use crate::ipc::Shared;
use crate::os::process;
use crate::types::Access;
use crate::types::{DeviceInfo, MemoryKind, QueueOrder};

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The driver's devices.
pub(crate) struct CudaBackend;

impl Backend for CudaBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn devices(&self) -> Vec<Arc<dyn BackendDevice>> {
        let gpus = gpus().unwrap_or_default();
        gpus.iter()
            .map(|gpu| Arc::clone(gpu) as Arc<dyn BackendDevice>)
            .collect()
    }

    fn status(&self) -> std::result::Result<String, String> {
        let gpus = gpus()?;
        let driver = Driver::get()?;
        Ok(format!(
            "the NVIDIA driver for CUDA {}, {} device(s)",
            driver.version(),
            gpus.len()
        ))
    }
}

/// All GPUs, found with the first call.
fn gpus() -> std::result::Result<&'static [Arc<Gpu>], &'static str> {
    static GPUS: OnceLock<std::result::Result<Vec<Arc<Gpu>>, String>> = OnceLock::new();
    let gpus = GPUS.get_or_init(|| {
        let driver = Driver::get()?;
        let devices = driver.devices().map_err(|error| error.to_string())?;
        devices
            .into_iter()
            .enumerate()
            .map(|(index, handle)| Gpu::new(driver, handle, index).map(Arc::new))
            .collect::<Result<_>>()
            .map_err(|error| error.to_string())
    });
    gpus.as_deref().map_err(|reason| &**reason)
}

/// What goes on in a context of the program's, however often that was adopted.
fn traffic_of(context: ContextHandle) -> Arc<Traffic> {
    static ALL: Mutex<Vec<(ContextHandle, Weak<Traffic>)>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, traffic)| traffic.strong_count() > 0);
    let mut known = all.iter().filter(|(other, _)| *other == context);
    if let Some(traffic) = known.find_map(|(_, traffic)| traffic.upgrade()) {
        return traffic;
    }
    let traffic = Arc::default();
    all.push((context, Arc::downgrade(&traffic)));
    traffic
}

/// The first GPU, for tests.
#[cfg(test)]
pub(super) fn first_gpu() -> Option<Arc<Gpu>> {
    gpus().ok()?.first().cloned()
}

/// A device.
pub(super) struct Gpu {
    driver: &'static Driver,
    handle: DeviceHandle,
    info: DeviceInfo,
    /// The device's primary context. Retained when it is first needed, and never released: other
    /// libraries in this process use the same one, and making it takes a good part of a second.
    /// Or another context, which is the program's.
    primary: OnceLock<ContextHandle>,
    /// The device in its primary context, if this is it in another one.
    lasting: Option<Arc<Gpu>>,
    clock: Clock,
    visitors: OnceLock<Vec<DeviceHandle>>,
    stock: Arc<Stock>,
    /// Into its context.
    gate: Arc<Gate>,
    /// That of its context, which others may use too.
    traffic: Arc<Traffic>,
}

impl Gpu {
    fn new(driver: &'static Driver, handle: DeviceHandle, index: usize) -> Result<Self> {
        Ok(Self {
            driver,
            handle,
            info: info::describe(driver, handle, index)?,
            primary: OnceLock::new(),
            lasting: None,
            clock: Clock::default(),
            visitors: OnceLock::new(),
            stock: Arc::default(),
            gate: Arc::default(),
            traffic: Arc::default(),
        })
    }

    /// The same device, in a context that the program made and keeps as long as this.
    pub(super) fn inside(self: &Arc<Self>, context: ContextHandle) -> Arc<Self> {
        Arc::new(Self {
            driver: self.driver,
            handle: self.handle,
            info: self.info.clone(),
            primary: OnceLock::from(context),
            lasting: Some(Arc::clone(self.lasting())),
            stock: Arc::default(),
            gate: Arc::default(),
            traffic: traffic_of(context),
            clock: Clock::default(),
            visitors: OnceLock::new(),
        })
    }

    /// The same device in the context that is never destroyed: for what others use too.
    pub(super) fn lasting(self: &Arc<Self>) -> &Arc<Self> {
        self.lasting.as_ref().unwrap_or(self)
    }

    /// Whether its context is that one.
    pub(super) fn is_lasting(&self) -> bool {
        self.lasting.is_none()
    }

    /// Its context, which is the primary one unless the program made another.
    pub(super) fn context(&self) -> Result<ContextHandle> {
        drop(self.enter()?);
        Ok(*self.primary.get().expect("set by entering it"))
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub(super) fn handle(&self) -> DeviceHandle {
        self.handle
    }

    /// What its context's streams wait for.
    pub(super) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Streams for its queues.
    pub(super) fn stock(&self) -> &Arc<Stock> {
        &self.stock
    }

    /// What threads of ours go through who do something in its context later.
    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Makes the device's context the calling thread's current one while the result lives; the
    /// caller's own comes back after it. Every call of the driver below needs that.
    #[inline]
    pub(super) fn enter(&self) -> Result<Current> {
        match self.primary.get() {
            Some(primary) => self.driver.enter(*primary),
            None => self.enter_first(),
        }
    }

    /// Whether both are in the same of the driver's contexts, once they were entered.
    pub(super) fn is_in_context_of(&self, other: &Self) -> bool {
        let context = self.primary.get();
        context.is_some() && context == other.primary.get()
    }

    /// Whether its context is the calling thread's.
    #[cfg(test)]
    pub(super) fn is_current(&self) -> Result<bool> {
        let primary = self.primary.get();
        primary.map_or(Ok(false), |primary| self.driver.is_current(*primary))
    }

    #[cold]
    fn enter_first(&self) -> Result<Current> {
        // Two threads may do it at once: both get the same context, retained once too often.
        let primary = self.driver.retain_primary_context(self.handle)?;
        self.driver.enter(*self.primary.get_or_init(|| primary))
    }

    /// Whether this device can map another one's memory. What the driver can't say it can't reach.
    fn reaches_peer(&self, peer: &Self) -> bool {
        let can = self.driver.can_access_peer(self.handle, peer.handle);
        peer.handle != self.handle && can.unwrap_or(false)
    }

    /// Other devices whose memory this one can map.
    fn peers(&self) -> Vec<DeviceUuid> {
        let all = gpus().unwrap_or_default().iter();
        all.filter(|peer| self.reaches_peer(peer))
            .map(|peer| peer.info.uuid)
            .collect()
    }

    /// Other devices that can map this one's memory.
    pub(super) fn visitors(&self) -> &[DeviceHandle] {
        self.visitors.get_or_init(|| {
            let all = gpus().unwrap_or_default().iter();
            all.filter(|peer| peer.reaches_peer(self))
                .map(|peer| peer.handle)
                .collect()
        })
    }

    /// Itself, as everybody here refers to it.
    pub(super) fn shared(&self) -> Result<&'static Arc<Self>> {
        let gpu = gpus().ok().and_then(|gpus| gpus.get(self.info.index));
        gpu.ok_or_else(|| Error::invalid("this device is none of the driver's"))
    }

    /// Runs something with the context current, for a `drop`: not at all in a forked child, which
    /// must not call the driver.
    pub(super) fn release(&self, what: &'static str, release: impl FnOnce(&Driver) -> Result<()>) {
        if process::is_forked() {
            return;
        }
        let released = match self.enter() {
            Ok(_current) => release(self.driver),
            Err(error) => Err(error),
        };
        if let Err(error) = released {
            tracing::warn!(%error, what, "could not release");
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The program may end its context after this.
        if !self.is_lasting() && !process::is_forked() {
            self.gate.shut();
        }
    }
}

impl BackendDevice for Gpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_memory(&self) -> Option<u64> {
        let _current = self.enter().ok()?;
        self.driver.free_memory().ok()
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        device == self.info.uuid || self.peers().contains(&device)
    }

    fn create_context(&self) -> Result<Arc<dyn BackendContext>> {
        let gpu = self.shared()?;
        // So that a device that doesn't work is found out here.
        drop(gpu.enter()?);
        Ok(Arc::new(CudaContext::new(gpu)))
    }

    fn native(&self) -> Option<&dyn NativeDevice> {
        Some(self)
    }
}

/// What allocates, maps and queues on one GPU.
pub(super) struct CudaContext {
    gpu: Arc<Gpu>,
    /// Other devices whose memory this one can map.
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
        self.gpu.info.granularity
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        device == self.gpu.info.uuid || self.peers.contains(&device)
    }

    fn shared_segment(&self, kind: MemoryKind) -> usize {
        match kind {
            MemoryKind::Device => 64 << 20,
            // Pinned as a whole, which takes time and memory at once.
            MemoryKind::Host | MemoryKind::Shared => 16 << 20,
        }
    }

    fn create_segment(&self, kind: MemoryKind, len: usize) -> Result<Arc<dyn Segment>> {
        memory::create(&self.gpu, kind, len)
    }

    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn Segment>> {
        memory::import(&self.gpu, &import.file, import.len, access)
    }

    fn create_physical(&self, len: usize) -> Result<Arc<dyn Shared>> {
        Ok(Arc::new(CudaPhysical::create(&self.gpu, len)?))
    }

    fn import_physical(&self, import: Import) -> Result<Arc<dyn Shared>> {
        Ok(Arc::new(CudaPhysical::import(
            &self.gpu,
            &import.file,
            import.len,
        )?))
    }

    fn reserve(&self, wish: usize, len: usize, align: usize) -> Result<Box<dyn AddressRange>> {
        Ok(Box::new(CudaRange::reserve(&self.gpu, wish, len, align)?))
    }

    fn create_queue(&self, order: QueueOrder) -> Result<Box<dyn BackendQueue>> {
        queue::create(&self.gpu, order)
    }

    fn native(&self) -> Option<&dyn NativeContext> {
        Some(self)
    }

    fn programs(&self) -> Option<&dyn Programs> {
        self.gpu.info.kernels.is_some().then_some(self as _)
    }
}
