//! The backend and its only device.

use super::context::NoopContext;
use crate::{Backend, BackendBlob, BackendContext, BackendDevice};
use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_os::mapping::{HUGE_PAGE, page_size};
use crosshandle_os::process;
use crosshandle_types::error::Result;
use crosshandle_types::{Capabilities, DeviceInfo, dlpack};
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
            device_signals: false,
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
pub(super) fn uuid() -> DeviceUuid {
    let mut uuid = *b"xh-noop\0........";
    uuid[8..].copy_from_slice(&process::host_identity().to_be_bytes());
    DeviceUuid::from_bytes(uuid)
}

impl BackendDevice for NoopDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn free_memory(&self) -> Option<u64> {
        None
    }

    fn reaches(&self, device: DeviceUuid) -> bool {
        device == uuid()
    }

    fn survives_fork(&self) -> bool {
        true
    }

    fn create_context(&self) -> Result<Arc<dyn BackendContext>> {
        Ok(Arc::new(NoopContext::default()))
    }
}
