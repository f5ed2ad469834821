//! The host device. There is exactly one, which can be divided into parts.

use super::info;
use super::program::{self, HostImages, HostPrograms, Units};
use super::queue::HostQueue;
use crosshandle_hal::common::host_memory::{HostRange, HostSegment, PhysicalFile};
use crosshandle_hal::{
    Backend, BackendContext, BackendDevice, BackendImages, BackendObject, BackendPrograms,
    BackendQueue, BackendRange, BackendSegment, Import,
};
use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_os::mapping::page_size;
use crosshandle_types::error::Result;
use crosshandle_types::{
    Access, AffinityDomain, DeviceInfo, ImageLimits, KernelLimits, MemoryKind, NativeRuntime,
    Partition, PartitionLimits, QueueOrder,
};
use std::borrow::Cow;
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

    fn kernels(&self) -> std::result::Result<&KernelLimits, String> {
        program::limits()
    }

    fn loaded_kernels(&self) -> Option<&KernelLimits> {
        program::loaded_limits()
    }

    fn native_runtime(&self) -> std::result::Result<NativeRuntime, String> {
        self.units.native()
    }

    fn kernel_runtime(&self) -> Option<String> {
        program::description()
    }

    fn images(&self) -> std::result::Result<&ImageLimits, String> {
        program::image_limits()
    }

    fn partitions(&self) -> std::result::Result<PartitionLimits, String> {
        self.units.partitions()
    }

    fn partition(&self, how: &Partition) -> Result<Vec<Arc<dyn BackendDevice>>> {
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

    fn create_context(&self) -> Result<Arc<dyn BackendContext>> {
        Ok(Arc::new(HostContext {
            programs: HostPrograms::new(&self.units),
            images: HostImages::new(&self.units),
            units: self.units.clone(),
        }))
    }
}

struct HostContext {
    units: Units,
    programs: HostPrograms,
    images: HostImages,
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
