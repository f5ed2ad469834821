//! Physical memory of a device.

use super::device::Gpu;
use super::driver::{Core, IPC_HANDLE, PhysicalHandle, VirtualMemory};
use super::family::Family;
use super::note::{self, Subject};
use crate::error::{Error, Result};
use crate::ipc::Import;
use crate::ipc::Shared;
use crate::ipc::broker::protocol::BackendBlob;
use crate::os::descriptor;
use crate::types::Access;
use crate::types::Address;
use level_zero_sys::ze_external_memory_type_flags_t;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

pub(super) struct LevelZeroPhysical {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    family: Arc<Family>,
    handle: PhysicalHandle,
    len: usize,
    /// Ours, of what the driver's leads to; made when the memory is first exported. Of imported
    /// memory, what it was imported from.
    descriptor: Mutex<Option<Arc<OwnedFd>>>,
    is_imported: bool,
    places: Places,
}

/// Where physical memory is mapped. Under the lock it stays there.
pub(super) type Places = Arc<Mutex<Vec<Address>>>;

impl LevelZeroPhysical {
    pub(super) fn create(gpu: &Arc<Gpu>, core: &Arc<Core>, len: usize) -> Result<Self> {
        let handle = VirtualMemory(core).create(gpu.handle(), len, gpu.external_memory())?;
        let family = Family::new(core, handle);
        Ok(Self::new(gpu, core, (family, handle), len, None))
    }

    /// Physical memory of another process. That there is as much as it says, the driver finds out.
    pub(super) fn import(gpu: &Arc<Gpu>, core: &Arc<Core>, import: &Import) -> Result<Self> {
        note::decode(core.driver, Subject::Physical, &import.note)?;
        if import.len == 0 || !import.len.is_multiple_of(gpu.info().granularity) {
            return Err(Error::Protocol("its memory is not of whole pages"));
        }
        let kind = gpu.external_memory().ok_or_else(|| unsupported(gpu))?;
        let opened = Family::import(gpu, core, import.len, kind, &import.file)?;
        let file = Some(Arc::clone(&import.file));
        Ok(Self::new(gpu, core, opened, import.len, file))
    }

    /// The same memory by another handle of the driver's: Intel's drivers map each only once at a
    /// time.
    pub(super) fn alias(&self) -> Result<Self> {
        let kind = self.gpu.external_memory();
        let kind = kind.ok_or_else(|| unsupported(&self.gpu))?;
        let file = self.file()?;
        let handle = self.family.take(&self.gpu, self.len, kind, &file)?;
        let alias = (Arc::clone(&self.family), handle);
        let (gpu, core) = (&self.gpu, &self.core);
        Ok(Self::new(gpu, core, alias, self.len, Some(file)))
    }

    fn new(
        gpu: &Arc<Gpu>,
        core: &Arc<Core>,
        (family, handle): (Arc<Family>, PhysicalHandle),
        len: usize,
        imported: Option<Arc<OwnedFd>>,
    ) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            core: Arc::clone(core),
            family,
            handle,
            len,
            is_imported: imported.is_some(),
            descriptor: Mutex::new(imported),
            places: Places::default(),
        }
    }

    /// Whether a context has it, so that its driver knows the handle.
    pub(super) fn is_of(&self, core: &Arc<Core>) -> bool {
        self.family.is_of(core)
    }

    pub(super) fn handle(&self) -> PhysicalHandle {
        self.handle
    }

    pub(super) fn operands(&self) -> &Places {
        &self.places
    }

    /// A descriptor of it, made now if there is none.
    fn file(&self) -> Result<Arc<OwnedFd>> {
        let made = &self.descriptor;
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*made {
            return Ok(Arc::clone(file));
        }
        let file = self.export()?;
        self.family.publish(&self.gpu, &file)?;
        Ok(Arc::clone(made.insert(Arc::new(file))))
    }

    fn export(&self) -> Result<OwnedFd> {
        let kind = self.gpu.external_memory();
        let kind = kind.ok_or_else(|| unsupported(&self.gpu))?;
        if let Some(number) = VirtualMemory(&self.core).descriptor_of(self.handle, kind) {
            return keep(number);
        }
        // Some drivers map it only once at a time, so where it is already, if it is.
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        match places.first() {
            Some(place) => keep(VirtualMemory(&self.core).descriptor(place.pointer(), kind)?),
            None => self.export_mapped(kind),
        }
    }

    /// Maps it for a moment, since drivers tell the descriptor of an address.
    fn export_mapped(&self, kind: ze_external_memory_type_flags_t) -> Result<OwnedFd> {
        let memory = VirtualMemory(&self.core);
        let start = memory.reserve(0, self.len)?;
        // SAFETY: reserved a moment ago.
        let mapped = unsafe { memory.map(start, self.len, self.handle, 0, Access::ReadWrite) };
        let file = mapped.and_then(|()| {
            let file = memory.descriptor(start, kind).and_then(keep);
            // SAFETY: mapped here, and used by nobody.
            unsafe { memory.unmap(start, self.len)? };
            file
        });
        // SAFETY: reserved here; what was mapped is unmapped.
        unsafe { memory.unreserve(start, self.len)? };
        file
    }
}

/// A descriptor of our own of what one of the driver's leads to.
fn keep(number: c_int) -> Result<OwnedFd> {
    descriptor::duplicate(number).map_err(Error::os("keeping a descriptor of the driver"))
}

fn unsupported(gpu: &Gpu) -> Error {
    Error::Unsupported(format!(
        "{} gives no descriptors of physical memory",
        gpu.info().name
    ))
}

impl Drop for LevelZeroPhysical {
    fn drop(&mut self) {
        // Mapped nowhere: whoever maps it keeps it.
        self.family.put(self.handle);
    }
}

impl Shared for LevelZeroPhysical {
    fn len(&self) -> usize {
        self.len
    }

    fn prepare(&self) -> Result<()> {
        self.descriptor(Access::ReadWrite).map(drop)
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        if self.is_imported {
            return Err(Error::invalid("only the exporter of memory can share it"));
        }
        self.file()
    }

    fn note(&self) -> BackendBlob {
        note::encode(self.core.driver, Subject::Physical, [0; IPC_HANDLE])
    }
}
