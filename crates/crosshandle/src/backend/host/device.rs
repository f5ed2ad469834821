//! The host device: there is always exactly one.

use super::memory::{HostRange, HostSegment, PhysicalFile};
use super::queue::HostQueue;
use crate::backend::{
    AddressRange, Backend, BackendContext, BackendDevice, BackendQueue, Capabilities, DeviceInfo,
    MemoryKind, QueueOrder, Segment,
};
use crate::error::Result;
use crate::handle::{BackendKind, DeviceUuid};
use crate::os::mapping::{Access, page_size};
use crate::os::process;
use crate::sharing::Shared;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The host's memory and threads.
pub(crate) struct HostBackend;

impl Backend for HostBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Host
    }

    fn devices(&self) -> Vec<Arc<dyn BackendDevice>> {
        vec![Arc::new(HostDevice(describe()))]
    }

    fn status(&self) -> std::result::Result<String, String> {
        Ok("needs no driver".into())
    }
}

struct HostDevice(DeviceInfo);

impl BackendDevice for HostDevice {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn create_context(&self) -> Result<Arc<dyn BackendContext>> {
        Ok(Arc::new(HostContext))
    }
}

struct HostContext;

impl BackendContext for HostContext {
    fn granularity(&self) -> usize {
        page_size()
    }

    fn create_segment(&self, _kind: MemoryKind, len: usize) -> Result<Arc<dyn Segment>> {
        Ok(Arc::new(HostSegment::create(len)?))
    }

    fn import_segment(
        &self,
        file: Arc<OwnedFd>,
        len: usize,
        access: Access,
    ) -> Result<Arc<dyn Segment>> {
        Ok(Arc::new(HostSegment::import(&file, len, access)?))
    }

    fn create_physical(&self, len: usize) -> Result<Arc<dyn Shared>> {
        Ok(Arc::new(PhysicalFile::create(len)?))
    }

    fn import_physical(&self, file: Arc<OwnedFd>, len: usize) -> Result<Arc<dyn Shared>> {
        Ok(Arc::new(PhysicalFile::import(file, len)?))
    }

    fn reserve(&self, len: usize, align: usize) -> Result<Box<dyn AddressRange>> {
        Ok(Box::new(HostRange::reserve(len, align)?))
    }

    fn create_queue(&self, order: QueueOrder) -> Result<Box<dyn BackendQueue>> {
        Ok(Box::new(HostQueue::new(order)))
    }
}

fn describe() -> DeviceInfo {
    let system = rustix::system::uname();
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(b"xh-host\0");
    uuid[8..].copy_from_slice(&process::host_identity().to_be_bytes());
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
    DeviceInfo {
        name: line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "Host CPU".into()),
        vendor: line_of("/proc/cpuinfo", "vendor_id").unwrap_or_else(|| "unknown".into()),
        driver_version: system.release().to_string_lossy().into_owned(),
        backend: BackendKind::Host,
        index: 0,
        uuid: DeviceUuid::from_bytes(uuid),
        total_memory: total_memory(),
        compute_units: cpus as u32,
        granularity: page_size(),
        capabilities: Capabilities {
            memory_sharing: true,
            physical_memory_sharing: true,
            event_sharing: true,
            read_only_memory: true,
            host_accessible_memory: true,
            timer_resolution: Duration::from_nanos(1),
        },
    }
}

fn total_memory() -> u64 {
    let kibibytes = line_of("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
}

/// The value behind the first `name : value` line of a file.
fn line_of(path: &str, name: &str) -> Option<String> {
    fs::read_to_string(path).ok()?.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}
