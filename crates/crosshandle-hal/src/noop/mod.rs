//! A complete backend without a device: commands complete and signal, but compute nothing.
//!
//! It has two uses. Tests of the object layer run on it without a driver. A new backend starts as a
//! copy of it, and replaces one method after the other by calls of its driver:
//! - `mod.rs` has the driver, its one device and the contexts on it. The memory consists of memfd
//!   files (`common::host_memory`), so other processes can open it.
//! - `queue.rs` has queues without a thread.
//! - `program.rs` has programs that contain every kernel.
//!
//! The other parts of the contract are absent: images, graphs, views of native objects, native
//! mirrors. A run of a graph replays its nodes.

mod program;
mod queue;

use crate::common::host_memory::{HostRange, HostSegment, PhysicalFile};
use crate::{
    Backend, BackendBlob, BackendContext, BackendDevice, BackendDriverHandles, BackendObject,
    BackendPrograms, BackendQueue, BackendRange, BackendSegment, Import,
};
use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_os::mapping::{HUGE_PAGE, page_size};
use crosshandle_os::process;
use crosshandle_types::error::Result;
use crosshandle_types::{
    Access, Capabilities, DeviceInfo, KernelLimits, MemoryKind, QueueOrder, dlpack,
};
use program::NoopPrograms;
use queue::NoopQueue;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The backend. Handles of its objects never leave tests, so it has no kind of its own and
/// pretends to be the backend of this kind.
pub struct NoopBackend(pub BackendKind);

impl Backend for NoopBackend {
    fn kind(&self) -> BackendKind {
        self.0
    }

    fn devices(&self) -> Vec<Arc<dyn BackendDevice>> {
        vec![Arc::new(NoopDevice(describe(self.0)))]
    }

    fn status(&self) -> std::result::Result<String, String> {
        Ok("needs no driver and computes nothing".into())
    }

    fn owns_descriptor(&self, _file: BorrowedFd<'_>, _note: &BackendBlob) -> bool {
        false
    }
}

/// The device.
struct NoopDevice(DeviceInfo);

fn describe(backend: BackendKind) -> DeviceInfo {
    DeviceInfo {
        name: "a device that computes nothing".into(),
        vendor: "unknown".into(),
        vendor_id: None,
        device_id: None,
        pci_address: None,
        driver_version: "none".into(),
        backend,
        index: 0,
        uuid: uuid(),
        total_memory: 1 << 40,
        max_allocation: 1 << 40,
        memory_clock_rate: None,
        memory_bus_width: None,
        cache_size: None,
        cache_line: None,
        compute_units: 1,
        clock_rate: None,
        vector_width: None,
        granularity: page_size(),
        import_alignment: HUGE_PAGE,
        dlpack_type: dlpack::CPU,
        capabilities: Capabilities {
            memory_sharing: true,
            physical_memory_sharing: true,
            event_sharing: true,
            read_only_memory: true,
            host_accessible_memory: true,
            host_memory_only: true,
            partial_mappings: true,
            fabric_memory: false,
            late_failures: true,
            native_graphs: false,
            unified_memory: true,
            system_memory: true,
            error_correction: false,
            half_precision: false,
            double_precision: false,
            fused_multiply_add: false,
            timer_resolution: Duration::from_nanos(1),
        },
    }
}

/// Returns the identity of this machine's device.
fn uuid() -> DeviceUuid {
    let mut uuid = *b"xh-noop\0........";
    uuid[8..].copy_from_slice(&process::host_identity().to_be_bytes());
    DeviceUuid::from_bytes(uuid)
}

const KERNELS: KernelLimits = KernelLimits {
    architecture: (1, 0),
    block_threads: program::BLOCK_THREADS,
    block: [program::BLOCK_THREADS; 3],
    grid: [u32::MAX; 3],
    subgroup: 1,
    subgroups: &[1],
    shared_memory: 0,
    registers: 0,
    constant_memory: 0,
    arguments: 4096,
    cooperative: true,
    cooperative_blocks: 1,
    clusters: false,
    local_arguments: true,
    offsets: true,
    intermediate_languages: "",
    extensions: "",
    block_choice: true,
    linking: true,
};

impl BackendDevice for NoopDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn free_memory(&self) -> Option<u64> {
        None
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        device == self.0.uuid
    }

    fn kernels(&self) -> Option<std::result::Result<&KernelLimits, String>> {
        Some(Ok(&KERNELS))
    }

    fn survives_fork(&self) -> bool {
        true
    }

    fn create_context(&self) -> Result<Arc<dyn BackendContext>> {
        Ok(Arc::new(NoopContext::default()))
    }
}

/// A context on the device.
#[derive(Default)]
pub struct NoopContext {
    driver_handles: Option<Box<dyn BackendDriverHandles + Send + Sync>>,
}

impl NoopContext {
    /// Creates a context that opens memory without a descriptor by `driver_handles`.
    pub fn with_driver_handles(
        driver_handles: impl BackendDriverHandles + Send + Sync + 'static,
    ) -> Self {
        Self {
            driver_handles: Some(Box::new(driver_handles)),
        }
    }
}

impl BackendContext for NoopContext {
    fn granularity(&self) -> usize {
        page_size()
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        device == uuid()
    }

    fn create_segment(&self, _kind: MemoryKind, len: usize) -> Result<Arc<dyn BackendSegment>> {
        Ok(Arc::new(HostSegment::create(len)?))
    }

    fn import_segment(&self, import: Import, access: Access) -> Result<Arc<dyn BackendSegment>> {
        let segment = HostSegment::import(&import.file, import.len, access)?;
        Ok(Arc::new(segment))
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
        Ok(Box::new(NoopQueue::new(order)))
    }

    fn driver_handles(&self) -> Option<&dyn BackendDriverHandles> {
        Some(&**self.driver_handles.as_ref()?)
    }

    fn programs(&self) -> Option<&dyn BackendPrograms> {
        Some(&NoopPrograms)
    }
}
