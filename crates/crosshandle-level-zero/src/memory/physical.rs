//! Physical memory of a device.

use super::check_extent;
use super::physical_handles::PhysicalHandles;
use crate::device::Gpu;
use crate::driver::{DriverContext, IPC_HANDLE_BYTES, PhysicalHandle, VirtualMemory};
use crate::ipc_handle::{self, Subject};
use crosshandle_hal::{BackendBlob, BackendObject, Import};
use crosshandle_os::descriptor;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use crosshandle_types::{Access, Address};
use level_zero_sys::ze_external_memory_type_flags_t;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Physical memory, with one of the driver's handles to it.
pub(crate) struct LevelZeroPhysical {
    gpu: Arc<Gpu>,
    context: Arc<DriverContext>,
    handles: Arc<PhysicalHandles>,
    handle: PhysicalHandle,
    len: usize,
    /// A duplicate of the driver's descriptor, which is created on the first export. For imported
    /// memory, this is the descriptor by which it was imported. The lock is held during an export,
    /// which waits for no command.
    descriptor: Mutex<Option<Arc<OwnedFd>>>,
    is_imported: bool,
    places: Places,
}

/// The addresses at which physical memory is mapped. The memory stays mapped while the lock is
/// held.
pub(super) type Places = Arc<Mutex<Vec<Address>>>;

impl LevelZeroPhysical {
    pub(crate) fn create(gpu: &Arc<Gpu>, context: &Arc<DriverContext>, len: usize) -> Result<Self> {
        let handle = VirtualMemory(context).create(gpu.handle(), len, gpu.external_memory())?;
        let handles = PhysicalHandles::new(context, handle);
        Ok(Self::new(gpu, context, (handles, handle), len, None))
    }

    /// Imports physical memory of another process. If its file has no size, the driver checks the
    /// length that the exporter claims.
    pub(crate) fn import(
        gpu: &Arc<Gpu>,
        context: &Arc<DriverContext>,
        import: &Import,
    ) -> Result<Self> {
        ipc_handle::decode(context.driver, Subject::Physical, &import.note)?;
        if import.len == 0 || !import.len.is_multiple_of(gpu.info().granularity) {
            return Err(Error::Protocol("its memory is not of whole pages"));
        }
        check_extent(import)?;
        let kind = gpu.external_memory().ok_or_else(|| unsupported(gpu))?;
        let opened = PhysicalHandles::import(gpu, context, import.len, kind, &import.file)?;
        let file = Some(Arc::clone(&import.file));
        Ok(Self::new(gpu, context, opened, import.len, file))
    }

    /// Creates another handle to the memory, because Intel's drivers map each handle only once at a
    /// time.
    pub(crate) fn alias(&self) -> Result<Self> {
        let kind = self.gpu.external_memory();
        let kind = kind.ok_or_else(|| unsupported(&self.gpu))?;
        let file = self.file()?;
        let handle = self.handles.take(&self.gpu, self.len, kind, &file)?;
        let alias = (Arc::clone(&self.handles), handle);
        let (gpu, context) = (&self.gpu, &self.context);
        Ok(Self::new(gpu, context, alias, self.len, Some(file)))
    }

    fn new(
        gpu: &Arc<Gpu>,
        context: &Arc<DriverContext>,
        (handles, handle): (Arc<PhysicalHandles>, PhysicalHandle),
        len: usize,
        imported: Option<Arc<OwnedFd>>,
    ) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            context: Arc::clone(context),
            handles,
            handle,
            len,
            is_imported: imported.is_some(),
            descriptor: Mutex::new(imported),
            places: Places::default(),
        }
    }

    /// Returns whether the memory belongs to `context`, so that its driver knows the handle.
    pub(crate) fn is_of(&self, context: &Arc<DriverContext>) -> bool {
        self.handles.is_of(context)
    }

    pub(crate) fn handle(&self) -> PhysicalHandle {
        self.handle
    }

    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// Returns a descriptor of the memory, and creates it on the first call.
    fn file(&self) -> Result<Arc<OwnedFd>> {
        let made = &self.descriptor;
        let mut made = made.lock();
        if let Some(file) = &*made {
            return Ok(Arc::clone(file));
        }
        let file = self.export()?;
        self.handles.publish(&self.gpu, &file)?;
        Ok(Arc::clone(made.insert(Arc::new(file))))
    }

    fn export(&self) -> Result<OwnedFd> {
        let kind = self.gpu.external_memory();
        let kind = kind.ok_or_else(|| unsupported(&self.gpu))?;
        if let Some(number) = VirtualMemory(&self.context).descriptor_of(self.handle, kind) {
            return keep(number);
        }
        // Older drivers provide the descriptor only for an address, and some of them map a handle
        // only once.
        let places = self.places.lock();
        match places.first() {
            Some(place) => keep(VirtualMemory(&self.context).descriptor(place.pointer(), kind)?),
            None => self.export_mapped(kind),
        }
    }

    /// Maps the memory briefly, to get the descriptor for its address.
    fn export_mapped(&self, kind: ze_external_memory_type_flags_t) -> Result<OwnedFd> {
        let memory = VirtualMemory(&self.context);
        let start = memory.reserve(0, self.len)?;
        // SAFETY: the addresses have just been reserved.
        let mapped = unsafe { memory.map(start, self.len, self.handle, 0, Access::ReadWrite) };
        let file = mapped.and_then(|()| {
            let file = memory.descriptor(start, kind).and_then(keep);
            // SAFETY: the call above mapped the memory, and no code uses it.
            unsafe { memory.unmap(start, self.len) }.and(file)
        });
        if self.context.knows(start.as_ptr().cast()) {
            // The driver refused to unmap the memory, so the addresses stay reserved.
            return file;
        }
        // SAFETY: the addresses were reserved above, and the driver says that nothing is mapped
        // there.
        unsafe { memory.unreserve(start, self.len)? };
        file
    }
}

/// Duplicates a descriptor of the driver.
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
        // The memory is not mapped anywhere, because each mapping keeps it.
        self.handles.put(self.handle);
    }
}

impl BackendObject for LevelZeroPhysical {
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
        ipc_handle::encode(
            self.context.driver,
            Subject::Physical,
            [0; IPC_HANDLE_BYTES],
        )
    }
}
