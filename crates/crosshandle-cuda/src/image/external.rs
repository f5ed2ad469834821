//! Memory of other interfaces, as memory and as images.

use super::format;
use super::object::CudaLevels;
use crate::device::Gpu;
use crate::driver::{DeviceAddress, ExternalHandle};
use crate::memory::NVIDIA_MAJOR;
use crate::scheduler::Urgency;
use crosshandle_hal::{BackendExternalMapping, BackendExternalMemory, BackendLevels};
use crosshandle_os::descriptor::{self, FileKind};
use crosshandle_os::process;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Address, ImageDescription};
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Imported memory. A deferred call releases it when no stream waits, after all its mappings.
pub(super) struct CudaExternal {
    gpu: Arc<Gpu>,
    handle: ExternalHandle,
    len: u64,
}

/// A mapped part of imported memory.
struct CudaMapping {
    memory: Arc<CudaExternal>,
    start: NonNull<u8>,
}

// SAFETY: the address is one of the device, and this type does not access it.
unsafe impl Send for CudaMapping {}
// SAFETY: the address is one of the device, and this type does not access it.
unsafe impl Sync for CudaMapping {}

/// Imports memory. The caller holds no lock, because the driver may wait for streams.
pub(super) fn import(
    gpu: &Arc<Gpu>,
    file: OwnedFd,
    len: u64,
) -> Result<Arc<dyn BackendExternalMemory>> {
    let kind = descriptor::kind(&file).map_err(Error::os("looking at imported memory"))?;
    // The driver must not see a descriptor of anything else.
    if !matches!(kind, FileKind::CharacterDevice { major } if major == NVIDIA_MAJOR) {
        return Err(Error::invalid(
            "this descriptor is not one that the NVIDIA driver has exported memory as",
        ));
    }
    let _current = gpu.enter()?;
    let driver = gpu.driver();
    let handle = driver.beside_captures(|| driver.import_external(file, len))?;
    Ok(Arc::new(CudaExternal {
        gpu: Arc::clone(gpu),
        handle,
        len,
    }))
}

impl CudaExternal {
    fn later(&self, what: &'static str, mapped: Option<DeviceAddress>) {
        if process::is_forked() {
            return;
        }
        let handle = self.handle;
        let release = self.gpu.later(what, move |driver| {
            let driver = driver?;
            // SAFETY: the mapping or the memory was created for this object, and nothing uses it
            // any more. A mapping keeps its memory, so the mapping is released first.
            unsafe {
                match mapped {
                    Some(start) => driver.unmap_external(start),
                    None => driver.release_external(handle),
                }
            }
        });
        // The importer claims the length, so it is limited to the size of the device's memory.
        let bytes = match mapped {
            Some(_) => 0,
            None => self.len.min(self.gpu.info().total_memory) as usize,
        };
        let scheduler = self.gpu.scheduler();
        scheduler.call(Urgency::WhenQuiet, bytes, release);
    }
}

impl Drop for CudaExternal {
    fn drop(&mut self) {
        self.later("releasing memory of another interface", None);
    }
}

impl Drop for CudaMapping {
    fn drop(&mut self) {
        let start = self.start.as_ptr().expose_provenance() as DeviceAddress;
        let what = "unmapping memory of another interface";
        self.memory.later(what, Some(start));
    }
}

impl BackendExternalMemory for CudaExternal {
    fn map(self: Arc<Self>, offset: u64, len: u64) -> Result<Arc<dyn BackendExternalMapping>> {
        let _current = self.gpu.enter()?;
        let driver = self.gpu.driver();
        let map = || driver.map_external(self.handle, offset, len);
        let start = driver.beside_captures(map)?;
        let start = NonNull::new(ptr::with_exposed_provenance_mut(start as usize));
        let start = start.ok_or_else(|| Error::invalid("the driver has mapped nothing"))?;
        Ok(Arc::new(CudaMapping {
            memory: Arc::clone(&self),
            start,
        }))
    }

    fn levels(
        self: Arc<Self>,
        image: &ImageDescription,
        levels: u32,
    ) -> Result<Arc<dyn BackendLevels>> {
        let (pixel, shape) = (format::pixel(image.format)?, format::shape(image));
        let _current = self.gpu.enter()?;
        let driver = self.gpu.driver();
        let map = || driver.external_levels(self.handle, &shape, pixel, levels);
        let handle = driver.beside_captures(map)?;
        Ok(Arc::new(CudaLevels::of_external(
            &self.gpu,
            handle,
            (image.kind, pixel),
            Arc::clone(&self) as _,
        )))
    }
}

impl BackendExternalMapping for CudaMapping {
    fn start(&self) -> Address {
        Address::new(self.start)
    }
}
