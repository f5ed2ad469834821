//! The backend, and its GPUs. Each GPU is in one of the driver's contexts.

mod clock;
mod context_guard;
mod stream_pool;

pub(super) use clock::CommandTimes;
pub(super) use context_guard::await_condition;

use super::context::CudaContext;
use super::driver::{ContextHandle, Current, DeviceHandle, Driver};
use super::info;
use super::memory::{KeptRanges, NVIDIA_MAJOR};
use super::scheduler::Scheduler;
use clock::Clock;
use context_guard::ContextGuard;
use crosshandle_hal::{Backend, BackendBlob, BackendContext, BackendDevice, NativeDevice};
use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_os::descriptor::{self, FileKind};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{DeviceInfo, ImageLimits, KernelLimits};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::{env, fs};
use stream_pool::StreamPool;

/// The driver's devices.
pub struct CudaBackend;

impl Backend for CudaBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn devices(&self) -> Vec<Arc<dyn BackendDevice>> {
        gpus()
            .unwrap_or_default()
            .iter()
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

    fn owns_descriptor(&self, file: BorrowedFd<'_>, _note: &BackendBlob) -> bool {
        let nvidia = FileKind::CharacterDevice {
            major: NVIDIA_MAJOR,
        };
        descriptor::kind(file) == Ok(nvidia) || descriptor::is_dma_buf(file)
    }

    fn work_outlives_process(&self) -> Option<String> {
        let what = mps()?;
        Some(format!(
            "{what}, and MPS does the work of many processes in one: stop it (echo quit | \
             nvidia-cuda-mps-control)"
        ))
    }

    fn runs_processes_together(&self) -> Option<std::result::Result<String, String>> {
        let has_devices = gpus().is_ok_and(|gpus| !gpus.is_empty());
        has_devices.then(|| runs_together(mps()))
    }
}

/// Returns whether kernels of several processes run at the same time, for a machine on which
/// [`mps`] has found this.
fn runs_together(mps: Option<String>) -> std::result::Result<String, String> {
    mps.map(|what| format!("with MPS, at the same time ({what})"))
        .ok_or_else(|| "without MPS, one after the other, each for a time slice".to_owned())
}

/// Returns a text that says why a daemon may do CUDA work for other processes, if one may.
fn mps() -> Option<String> {
    let directory = env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let directory = directory.map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from);
    let control = directory.join("control");
    if control.exists() {
        return Some(format!("{} exists", control.display()));
    }
    let entries = fs::read_dir("/proc").ok()?;
    entries.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        // The kernel keeps only 15 bytes of a program's name.
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let is_mps = name.starts_with("nvidia-cuda-mps");
        is_mps.then(|| format!("process {pid} is a daemon of MPS"))
    })
}

/// Returns all GPUs. The first call searches for them.
pub(super) fn gpus() -> std::result::Result<&'static [Arc<Gpu>], &'static str> {
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

/// Returns the first GPU, for tests.
#[cfg(test)]
pub(super) fn first_gpu() -> Option<Arc<Gpu>> {
    gpus().ok()?.first().cloned()
}

/// A device, in one of the driver's contexts.
pub(super) struct Gpu {
    driver: &'static Driver,
    handle: DeviceHandle,
    info: DeviceInfo,
    kernels: Option<KernelLimits>,
    images: Option<ImageLimits>,
    /// The device's primary context, or another context that the program created. The primary
    /// context is retained when it is first needed, and never released. Other libraries in this
    /// process use it too, and creating it takes a large part of a second.
    context: OnceLock<ContextHandle>,
    /// The same device in its primary context, if this one is in another context.
    primary: Option<Arc<Gpu>>,
    clock: Clock,
    peer_devices: OnceLock<Vec<DeviceHandle>>,
    kept_ranges: KeptRanges,
    pool: Arc<StreamPool>,
    guard: Arc<ContextGuard>,
    /// The scheduler of the device's context, shared by all `Gpu`s of the context.
    scheduler: Arc<Scheduler>,
}

impl Gpu {
    fn new(driver: &'static Driver, handle: DeviceHandle, index: usize) -> Result<Self> {
        Ok(Self {
            driver,
            handle,
            info: info::describe(driver, handle, index)?,
            kernels: info::kernel_limits(driver, handle),
            images: info::images::limits(driver, handle),
            context: OnceLock::new(),
            primary: None,
            clock: Clock::default(),
            peer_devices: OnceLock::new(),
            kept_ranges: KeptRanges::default(),
            pool: Arc::default(),
            guard: Arc::default(),
            scheduler: Scheduler::new(),
        })
    }

    /// Returns the device in a context that the program created and keeps at least as long as the
    /// result.
    pub(super) fn inside(self: &Arc<Self>, context: ContextHandle) -> Arc<Self> {
        Arc::new(Self {
            driver: self.driver,
            handle: self.handle,
            info: self.info.clone(),
            kernels: self.kernels,
            images: self.images,
            context: OnceLock::from(context),
            primary: Some(Arc::clone(self.primary())),
            pool: Arc::default(),
            guard: Arc::default(),
            scheduler: Scheduler::of(context),
            clock: Clock::default(),
            peer_devices: OnceLock::new(),
            kept_ranges: KeptRanges::default(),
        })
    }

    /// Returns the device in its primary context, which is never destroyed. It is used for objects
    /// that other contexts share.
    pub(super) fn primary(self: &Arc<Self>) -> &Arc<Self> {
        self.primary.as_ref().unwrap_or(self)
    }

    /// Returns whether the device's context is the primary one.
    pub(super) fn is_primary(&self) -> bool {
        self.primary.is_none()
    }

    /// Returns the driver's context. It is the primary one unless the program created another.
    pub(super) fn context(&self) -> Result<ContextHandle> {
        drop(self.enter()?);
        Ok(*self.context.get().expect("set by entering it"))
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Returns the limits of kernels, if the driver has all functions for programs.
    pub(super) fn kernels(&self) -> Option<&KernelLimits> {
        self.kernels.as_ref()
    }

    /// Returns the limits of images, if the driver has all functions for them.
    pub(super) fn images(&self) -> Option<&ImageLimits> {
        self.images.as_ref()
    }

    pub(super) fn handle(&self) -> DeviceHandle {
        self.handle
    }

    /// Returns the scheduler of the device's context.
    pub(super) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.scheduler
    }

    /// Returns the pool of streams for the device's queues.
    pub(super) fn pool(&self) -> &Arc<StreamPool> {
        &self.pool
    }

    /// Returns the reserved addresses that nothing uses. A device in a context of the program keeps
    /// none, because the program ends the context.
    pub(super) fn kept_ranges(&self) -> Option<&KeptRanges> {
        self.is_primary().then_some(&self.kept_ranges)
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Makes the device's context current on the calling thread until the result is dropped. The
    /// thread's previous context is then current again. Almost every driver call needs this.
    #[inline]
    pub(super) fn enter(&self) -> Result<Current> {
        match self.context.get() {
            Some(context) => self.driver.enter(*context),
            None => self.enter_first(),
        }
    }

    /// Returns whether both devices are in the same driver context. The result is reliable once
    /// both were entered.
    pub(super) fn is_in_context_of(&self, other: &Self) -> bool {
        let context = self.context.get();
        context.is_some() && context == other.context.get()
    }

    /// Returns whether the device's context is current on the calling thread.
    #[cfg(test)]
    pub(super) fn is_current(&self) -> Result<bool> {
        let context = self.context.get();
        context.map_or(Ok(false), |context| self.driver.is_current(*context))
    }

    #[cold]
    fn enter_first(&self) -> Result<Current> {
        // Two threads may do this at the same time. Both get the same context, which is then
        // retained once too often.
        let primary = self.driver.retain_primary_context(self.handle)?;
        self.driver.enter(*self.context.get_or_init(|| primary))
    }

    /// Returns whether this device can map another device's memory. Returns `false` if the driver
    /// cannot tell.
    fn reaches_peer(&self, peer: &Self) -> bool {
        let can = self.driver.can_access_peer(self.handle, peer.handle);
        peer.handle != self.handle && can.unwrap_or(false)
    }

    /// Returns the other devices whose memory this device can map.
    pub(super) fn peers(&self) -> Vec<DeviceUuid> {
        let all = gpus().unwrap_or_default().iter();
        all.filter(|peer| self.reaches_peer(peer))
            .map(|peer| peer.info.uuid)
            .collect()
    }

    /// Returns the other devices that can map this device's memory.
    pub(super) fn peer_devices(&self) -> &[DeviceHandle] {
        self.peer_devices.get_or_init(|| {
            let all = gpus().unwrap_or_default().iter();
            all.filter(|peer| peer.reaches_peer(self))
                .map(|peer| peer.handle)
                .collect()
        })
    }

    /// Returns the reference to this device that the whole process shares.
    pub(super) fn shared(&self) -> Result<&'static Arc<Self>> {
        let gpu = gpus().ok().and_then(|gpus| gpus.get(self.info.index));
        gpu.ok_or_else(|| Error::invalid("this device does not belong to the driver"))
    }

    /// Runs a function with the context current, for use in a `drop`. In a forked child it does
    /// nothing, because a forked child must not call the driver.
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

    fn kernels(&self) -> Option<std::result::Result<&KernelLimits, String>> {
        let limits = Gpu::kernels(self);
        Some(limits.ok_or_else(|| "this NVIDIA driver is too old to run programs here".into()))
    }

    fn images(&self) -> Option<std::result::Result<&ImageLimits, String>> {
        let limits = Gpu::images(self);
        Some(limits.ok_or_else(|| "this NVIDIA driver is too old to provide images here".into()))
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

impl Drop for Gpu {
    fn drop(&mut self) {
        // The program may end its context after this drop.
        if !self.is_primary() && !process::is_forked() {
            self.guard.shut();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_daemon_of_mps_is_seen() {
        let directory = std::env::temp_dir().join(format!("xh-mps-{}", std::process::id()));
        fs::create_dir(&directory).expect("a directory");
        let program = directory.join("nvidia-cuda-mps-server");
        fs::copy("/bin/sleep", &program).expect("a copy");
        let mut daemon = Command::new(&program)
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .expect("a process");
        // The kernel gives the child its new name a moment after the parent continues.
        let begin = std::time::Instant::now();
        let name = || fs::read_to_string(format!("/proc/{}/comm", daemon.id())).unwrap_or_default();
        while !name().starts_with("nvidia-cuda-mps")
            && begin.elapsed() < std::time::Duration::from_secs(10)
        {
            std::thread::yield_now();
        }
        let seen = mps();
        daemon.kill().expect("it lives");
        daemon.wait().expect("our child");
        fs::remove_dir_all(&directory).expect("removed");
        assert!(seen.is_some(), "{seen:?}");
        let together = runs_together(seen).expect("with a daemon");
        assert!(together.starts_with("with MPS"), "{together}");
        assert!(runs_together(None).is_err());
    }
}
