//! The backend, and the GPUs of all Level Zero drivers.

use super::context::LevelZeroContext;
use super::driver::{DeviceHandle, Driver};
use super::info::{self, Details};
use crosshandle_hal::{Backend, BackendBlob, BackendContext, BackendDevice, NativeDevice};
use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_os::{descriptor, memfd};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{DeviceInfo, ImageLimits, KernelLimits};
use level_zero_sys::{ze_external_memory_type_flags_t, ze_result_t};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

/// The backend for the devices of all Level Zero drivers.
pub struct LevelZeroBackend;

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

    fn owns_descriptor(&self, file: BorrowedFd<'_>, note: &BackendBlob) -> bool {
        // The memory is that of Intel's driver, or of a driver in software, which uses memfds. The
        // note of both is the driver's handle. Host memory of this library has no note.
        descriptor::is_dma_buf(file) || !note.as_bytes().is_empty() && memfd::is_memory(file)
    }
}

/// Returns all GPUs. The first call looks for them.
pub(super) fn gpus() -> std::result::Result<&'static [Arc<Gpu>], &'static str> {
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

/// A GPU.
pub(super) struct Gpu {
    driver: &'static Driver,
    handle: DeviceHandle,
    info: DeviceInfo,
    details: Details,
    /// The limits of kernels, or the reason why the device has none. Filled on the first request.
    kernels: OnceLock<std::result::Result<KernelLimits, String>>,
    /// The limits of images, or the reason why the device has none. Filled on the first request.
    images: OnceLock<std::result::Result<ImageLimits, String>>,
    /// The other devices whose memory this device can map. Filled on the first request.
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
            kernels: OnceLock::new(),
            images: OnceLock::new(),
            peers: OnceLock::new(),
        })
    }

    pub(super) fn handle(&self) -> DeviceHandle {
        self.handle
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Returns the shared reference to this GPU from the list of all GPUs.
    pub(super) fn shared(&self) -> Result<Arc<Self>> {
        let gpu = gpus().ok().and_then(|gpus| gpus.get(self.info.index));
        let gpu = gpu.ok_or_else(|| Error::invalid("this device is none of the driver's"))?;
        Ok(Arc::clone(gpu))
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Returns the limits of kernels, or the reason why the device has none. The first call queries
    /// the driver.
    pub(super) fn kernels(&self) -> std::result::Result<&KernelLimits, &str> {
        let describe = || info::kernels::describe(self.driver, self.handle, &self.details);
        let kernels = self.kernels.get_or_init(describe).as_ref();
        kernels.map_err(|reason| &**reason)
    }

    /// Returns the limits of images, or the reason why the device has none. The first call queries
    /// the driver.
    pub(super) fn images(&self) -> std::result::Result<&ImageLimits, &str> {
        let describe = || info::images::describe(self.driver, self.handle);
        let images = self.images.get_or_init(describe).as_ref();
        images.map_err(|reason| &**reason)
    }

    /// Returns the ordinal of the queue group on which lists are created.
    pub(super) fn group(&self) -> u32 {
        self.details.group
    }

    /// Returns the maximum length of a fill pattern, in bytes.
    pub(super) fn max_pattern(&self) -> usize {
        self.details.max_pattern
    }

    /// Returns the type of descriptor that allocated memory can be exported as, if any.
    pub(super) fn exportable_memory(&self) -> Option<ze_external_memory_type_flags_t> {
        self.details.exportable_memory
    }

    /// Returns the type of descriptor that physical memory can be exported and imported as, if any.
    pub(super) fn external_memory(&self) -> Option<ze_external_memory_type_flags_t> {
        self.details.external_memory
    }

    /// Returns whether this device can map the memory of `device`.
    pub(super) fn reaches(&self, device: DeviceUuid) -> bool {
        let peers = || self.peers.get_or_init(|| self.find_peers());
        device == self.info.uuid || peers().contains(&device)
    }

    /// Queries the driver for the devices whose memory this device can map. If the query for a
    /// device fails, the device is left out.
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
        Gpu::info(self)
    }

    fn free_memory(&self) -> Option<u64> {
        // Only the management interface (Sysman) reports free memory.
        None
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        Gpu::reaches(self, device)
    }

    fn kernels(&self) -> Option<std::result::Result<&KernelLimits, String>> {
        Some(Gpu::kernels(self).map_err(str::to_owned))
    }

    fn images(&self) -> Option<std::result::Result<&ImageLimits, String>> {
        Some(Gpu::images(self).map_err(str::to_owned))
    }

    fn create_context(&self) -> Result<Arc<dyn BackendContext>> {
        let context = self.driver().context()?;
        Ok(Arc::new(LevelZeroContext::new(self.shared()?, context)))
    }

    fn native(&self) -> Option<&dyn NativeDevice> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn memory_of_a_driver_in_software_has_a_note() {
        let memory = memfd::create_unsealed("ze_sim", 4096).expect("memory");
        let note = BackendBlob::new(b"a driver's handle");
        assert!(LevelZeroBackend.owns_descriptor(memory.as_fd(), &note));
        assert!(!LevelZeroBackend.owns_descriptor(memory.as_fd(), &BackendBlob::NONE));
    }
}
