//! Physical memory of a device.

use super::device::Gpu;
use super::driver::{Core, IPC_HANDLE, PhysicalHandle, VirtualMemory};
use super::note::{self, Subject};
use crate::backend::Import;
use crate::error::{Error, Result};
use crate::exchange::protocol::Note;
use crate::os::descriptor;
use crate::os::mapping::Access;
use crate::sharing::Shared;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

pub(super) struct LevelZeroPhysical {
    gpu: Arc<Gpu>,
    core: Arc<Core>,
    handle: PhysicalHandle,
    len: usize,
    /// Ours, of what the driver's leads to; made when the memory is first exported.
    descriptor: Mutex<Option<Arc<OwnedFd>>>,
    is_imported: bool,
}

impl LevelZeroPhysical {
    pub(super) fn create(gpu: &Arc<Gpu>, core: &Arc<Core>, len: usize) -> Result<Self> {
        let handle = VirtualMemory(core).create(gpu.handle(), len, gpu.external_memory())?;
        Ok(Self::new(gpu, core, handle, len, false))
    }

    /// Physical memory of another process. That there is as much as it says, the driver finds out.
    pub(super) fn import(gpu: &Arc<Gpu>, core: &Arc<Core>, import: &Import) -> Result<Self> {
        note::decode(core.driver, Subject::Physical, &import.note)?;
        if import.len == 0 || !import.len.is_multiple_of(gpu.info().granularity) {
            return Err(Error::Protocol("its memory is not of whole pages"));
        }
        let kind = gpu.external_memory().ok_or_else(|| unsupported(gpu))?;
        let memory = VirtualMemory(core);
        let handle = memory.import(gpu.handle(), import.len, kind, import.file.as_fd())?;
        Ok(Self::new(gpu, core, handle, import.len, true))
    }

    fn new(
        gpu: &Arc<Gpu>,
        core: &Arc<Core>,
        handle: PhysicalHandle,
        len: usize,
        is_imported: bool,
    ) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            core: Arc::clone(core),
            handle,
            len,
            descriptor: Mutex::default(),
            is_imported,
        }
    }

    pub(super) fn handle(&self) -> PhysicalHandle {
        self.handle
    }

    /// Drivers tell the descriptor of an address, so the memory is mapped for a moment.
    fn export(&self) -> Result<OwnedFd> {
        let kind = self.gpu.external_memory();
        let kind = kind.ok_or_else(|| unsupported(&self.gpu))?;
        let memory = VirtualMemory(&self.core);
        let start = memory.reserve(0, self.len)?;
        // SAFETY: reserved a moment ago.
        let mapped = unsafe { memory.map(start, self.len, self.handle, 0, Access::ReadWrite) };
        let file = mapped.and_then(|()| {
            let number = memory.descriptor(start, kind);
            let file = number.and_then(|number| {
                descriptor::duplicate(number)
                    .map_err(Error::os("keeping a descriptor of the driver"))
            });
            // SAFETY: mapped here, and used by nobody.
            unsafe { memory.unmap(start, self.len)? };
            file
        });
        // SAFETY: reserved here; what was mapped is unmapped.
        unsafe { memory.unreserve(start, self.len)? };
        file
    }
}

fn unsupported(gpu: &Gpu) -> Error {
    Error::Unsupported(format!(
        "{} gives no descriptors of physical memory",
        gpu.info().name
    ))
}

impl Drop for LevelZeroPhysical {
    fn drop(&mut self) {
        self.core.release("physical memory", |core| {
            // SAFETY: ours; whoever maps it keeps it.
            unsafe { VirtualMemory(core).destroy(self.handle) }
        });
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
        let made = &self.descriptor;
        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*made {
            return Ok(Arc::clone(file));
        }
        let file = self.export()?;
        Ok(Arc::clone(made.insert(Arc::new(file))))
    }

    fn note(&self) -> Note {
        note::encode(self.core.driver, Subject::Physical, [0; IPC_HANDLE])
    }
}
