//! The host device. There is exactly one, which can be divided into parts.

use super::context::HostContext;
use super::program::{self, Units};
use super::{image, info};
use crosshandle_hal::{
    Backend, BackendBlob, BackendContext, BackendDevice, BackendPartitions, BackendRuntime,
};
use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_types::error::Result;
use crosshandle_types::{
    AffinityDomain, DeviceInfo, ImageLimits, KernelLimits, Partition, PartitionLimits,
};
use std::borrow::Cow;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The backend for the host's memory and threads.
pub struct HostBackend;

impl Backend for HostBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Host
    }

    fn devices(&self) -> Vec<Arc<dyn BackendDevice>> {
        vec![Arc::new(HostDevice {
            info: Cow::Borrowed(info::host()),
            units: Units::default(),
        })]
    }

    fn status(&self) -> std::result::Result<String, String> {
        Ok("needs no driver".into())
    }

    fn owns_descriptor(&self, _file: BorrowedFd<'_>, _note: &BackendBlob) -> bool {
        false
    }
}

/// The host, or a part of it. A part has the same memory, but only some of the compute units.
struct HostDevice {
    info: Cow<'static, DeviceInfo>,
    units: Units,
}

impl BackendDevice for HostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn free_memory(&self) -> Option<u64> {
        info::free_memory()
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        info::is_host(device)
    }

    fn kernels(&self) -> Option<std::result::Result<&KernelLimits, String>> {
        Some(program::limits())
    }

    fn loaded_kernels(&self) -> Option<&KernelLimits> {
        program::loaded_limits()
    }

    fn kernel_runtime(&self) -> Option<&dyn BackendRuntime> {
        Some(&self.units)
    }

    fn images(&self) -> Option<std::result::Result<&ImageLimits, String>> {
        Some(image::limits())
    }

    fn partitions(&self) -> Option<&dyn BackendPartitions> {
        Some(self)
    }

    fn survives_fork(&self) -> bool {
        true
    }

    fn create_context(&self) -> Result<Arc<dyn BackendContext>> {
        Ok(Arc::new(HostContext::new(&self.units)))
    }
}

impl BackendPartitions for HostDevice {
    fn limits(&self) -> std::result::Result<PartitionLimits, String> {
        self.units.partitions()
    }

    fn divide(&self, how: &Partition) -> Result<Vec<Arc<dyn BackendDevice>>> {
        let parts = self.units.partition(how)?.into_iter();
        let parts = parts.map(|(units, compute_units)| {
            let info = DeviceInfo {
                compute_units,
                ..self.info().clone()
            };
            let part: Arc<dyn BackendDevice> = Arc::new(Self {
                info: Cow::Owned(info),
                units,
            });
            part
        });
        Ok(parts.collect())
    }

    fn affinity(&self) -> Option<AffinityDomain> {
        self.units.affinity()
    }
}
