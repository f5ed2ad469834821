//! Physical memory: memory without an address.

use crate::api::context::Context;
use crate::api::core::{ContextCore, ObjectName};
use crate::pool;
use crosshandle_hal::BackendContext;
use crosshandle_handle::{Fields, HandleKind, PhysicalMemoryHandle};
use crosshandle_ipc::{
    Attachment, BackendObject, Credential, ExportCells, First, OpenDeadline, Particulars, Record,
};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::{self, ImportedBytes};
use crosshandle_types::report::ObjectKind;
use std::fmt;
use std::ptr;
use std::sync::Arc;

/// Memory without an address. It is accessed by mapping it into a
/// [`VirtualRange`](crate::virtual_memory::VirtualRange), any number of times.
///
/// The memory lives as long as any process has it open or mapped. Cloning is cheap, and any thread
/// may use it.
#[derive(Clone)]
pub struct PhysicalMemory {
    inner: Arc<Physical>,
}

struct Physical {
    core: Arc<ContextCore>,
    memory: Arc<dyn BackendObject>,
    access: Access,
    number: u32,
    exports: ExportCells,
    name: ObjectName,
    opened: Option<Source>,
}

/// The origin of memory that was opened from a handle.
struct Source {
    attachment: Arc<Attachment>,
    record: Record,
    /// The kind of the handle.
    kind: HandleKind,
    _counted: ImportedBytes,
}

impl PhysicalMemory {
    /// Creates `len` bytes of physical memory, which is not mapped anywhere yet. It is zeroed on
    /// the host. On other devices its contents are arbitrary.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] unless `len` is a positive
    ///   multiple of the device's granularity.
    /// - [`Error::OutOfMemory`] or
    ///   [`Error::LimitReached`] if memory or a limit of the system is
    ///   used up.
    pub fn new(context: &Context, len: usize) -> Result<Self> {
        let core = context.core();
        check_granularity(core, "physical memory", len)?;
        if !core.pool_options().overcommit {
            pool::check_room(&**core.backend(), len)?;
        }
        let memory = core.backend().create_physical(len)?;
        Ok(Self::of(core, memory, Access::ReadWrite, None))
    }

    /// Opens physical memory that another process has exported.
    ///
    /// # Errors
    /// As [`Context::open_memory`].
    pub fn open(context: &Context, handle: &PhysicalMemoryHandle) -> Result<Self> {
        Self::open_by(context.core(), handle, Access::ReadWrite)
    }

    /// Opens physical memory for reading only.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_read_only(context: &Context, handle: &PhysicalMemoryHandle) -> Result<Self> {
        Self::open_by(context.core(), handle, Access::ReadOnly)
    }

    fn open_by(
        core: &Arc<ContextCore>,
        handle: &PhysicalMemoryHandle,
        access: Access,
    ) -> Result<Self> {
        Self::open_whole(core, handle, access)
            .inspect_err(|error| observe::not_opened(HandleKind::PhysicalMemory, error))
    }

    fn open_whole(
        core: &Arc<ContextCore>,
        handle: &PhysicalMemoryHandle,
        access: Access,
    ) -> Result<Self> {
        let fields = handle.fields();
        let (kind, deadline) = (HandleKind::PhysicalMemory, core.deadline());
        let (memory, len) = Self::open_segment(core, kind, &fields, access, &deadline)?;
        if len != fields.length || fields.offset != 0 {
            return Err(Error::Extent {
                end: fields.offset + fields.length,
                actual: len,
            });
        }
        Ok(memory)
    }

    /// Opens the whole segment that contains a handle's memory, without an address. Also returns
    /// the length of the segment.
    pub(crate) fn open_segment(
        core: &Arc<ContextCore>,
        kind: HandleKind,
        fields: &Fields,
        access: Access,
        deadline: &OpenDeadline,
    ) -> Result<(Self, u64)> {
        core.check_memory(fields, access)?;
        let credential = Credential::of(fields);
        let next = First::Memory(access);
        let (attachment, fetched) = core.ask_either(fields, next, deadline, |attachment| {
            attachment.fetch(fields, access, deadline)
        })?;
        let len = fetched.len;
        // The end is checked before the driver sees the memory.
        let end = fields.offset + fields.length;
        if end > len {
            return Err(Error::Extent { end, actual: len });
        }
        let memory = core.backend().import_physical(fetched.into())?;
        attachment.hold(&credential, deadline)?;
        let (context, index) = (attachment.context(), credential.record.index);
        let name = || attachment.name_of(index);
        observe::opened(kind, context, index, len as usize, name);
        let counted = ImportedBytes::new(len as usize);
        let opened = Some(Source {
            attachment,
            record: credential.record,
            kind,
            _counted: counted,
        });
        Ok((Self::of(core, memory, access, opened), len))
    }

    fn of(
        core: &Arc<ContextCore>,
        memory: Arc<dyn BackendObject>,
        access: Access,
        opened: Option<Source>,
    ) -> Self {
        Self {
            inner: Arc::new(Physical {
                core: Arc::clone(core),
                memory,
                access,
                number: core.next_segment_number(),
                exports: ExportCells::default(),
                name: ObjectName::default(),
                opened,
            }),
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.inner.memory.len()
    }

    /// Sets the name of the memory, as [`Memory::set_name`](crate::Memory::set_name) does.
    pub fn set_name(&self, name: &str) {
        let Physical {
            name: own,
            exports,
            opened: None,
            core,
            ..
        } = &*self.inner
        else {
            return;
        };
        own.set(name);
        for export in exports.all() {
            core.exporter().set_name(export.record, name);
        }
    }

    /// Returns the name of the memory, if it has one.
    pub fn name(&self) -> Option<String> {
        match &self.inner.opened {
            Some(source) => source.attachment.name_of(source.record.index),
            None => self.inner.name.get(),
        }
    }

    /// Always returns `false`, because physical memory is never empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn access(&self) -> Access {
        self.inner.access
    }

    /// Returns the attachment through which the memory was opened; `None` if this context created
    /// it.
    pub(crate) fn attachment(&self) -> Option<&Arc<Attachment>> {
        self.inner.opened.as_ref().map(|source| &source.attachment)
    }

    /// Returns whether the memory belongs to the same backend as a context.
    pub(crate) fn is_of(&self, core: &ContextCore) -> bool {
        self.inner.core.device().info().backend == core.device().info().backend
    }

    pub(crate) fn memory(&self) -> &dyn BackendObject {
        &*self.inner.memory
    }

    /// Returns the memory for an export.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for memory that was opened from a handle.
    pub(crate) fn shared(&self) -> Result<Arc<dyn BackendObject>> {
        self.inner.check_exportable()?;
        Ok(Arc::clone(&self.inner.memory))
    }

    /// Returns a handle to the memory.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for memory that was itself opened from a handle.
    /// - Errors of the operating system, if one of its limits is reached.
    pub fn handle(&self) -> Result<PhysicalMemoryHandle> {
        self.inner.handle(Access::ReadWrite)
    }

    /// Returns a handle that opens the memory for reading only.
    ///
    /// # Errors
    /// The errors of [`handle`](Self::handle).
    pub fn handle_read_only(&self) -> Result<PhysicalMemoryHandle> {
        self.inner.handle(Access::ReadOnly)
    }

    /// Exports the memory under a new handle. Dropping the result makes the handle stale.
    ///
    /// # Errors
    /// The errors of [`handle`](Self::handle).
    pub fn export(&self) -> Result<PhysicalMemoryExport> {
        self.inner.check_exportable()?;
        // If the driver refuses, this caller gets the error, and not a later importer.
        self.inner.memory.prepare()?;
        let cells = ExportCells::default();
        let exporter = self.inner.core.exporter();
        let Physical { memory, number, .. } = &*self.inner;
        let particulars = self.inner.particulars();
        let access = Access::ReadWrite;
        let credential =
            exporter.export_at(&cells, particulars, Arc::clone(memory), *number, access)?;
        if let Some(name) = self.inner.name.get() {
            exporter.set_name(credential.record, &name);
        }
        Ok(PhysicalMemoryExport {
            memory: self.clone(),
            credential,
        })
    }
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhysicalMemory")
            .field("len", &self.len())
            .field("access", &self.inner.access)
            .finish_non_exhaustive()
    }
}

/// An export of physical memory under one handle. Dropping it makes the handle stale. Processes
/// that have opened the memory keep it.
pub struct PhysicalMemoryExport {
    memory: PhysicalMemory,
    credential: Credential,
}

impl PhysicalMemoryExport {
    /// Returns the handle.
    pub fn handle(&self) -> PhysicalMemoryHandle {
        self.memory
            .inner
            .handle_with(self.credential, Access::ReadWrite)
    }
}

impl Drop for PhysicalMemoryExport {
    fn drop(&mut self) {
        let exporter = self.memory.inner.core.exporter();
        // Importers that have opened the memory keep it themselves.
        exporter.retire(self.credential.record, true, None);
        exporter.reclaim();
    }
}

impl fmt::Debug for PhysicalMemoryExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhysicalMemoryExport")
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl Physical {
    fn check_exportable(&self) -> Result<()> {
        if self.opened.is_some() {
            return Err(Error::invalid(
                "this physical memory was opened from a handle; pass that handle on instead",
            ));
        }
        Ok(())
    }

    fn handle(&self, access: Access) -> Result<PhysicalMemoryHandle> {
        self.check_exportable()?;
        self.core.check_birth()?;
        let credential = match self.exports.get(access) {
            Some(credential) => credential,
            None => {
                self.memory.prepare()?;
                let exporter = self.core.exporter();
                let particulars = self.particulars();
                let exported = exporter.export_at(
                    &self.exports,
                    particulars,
                    Arc::clone(&self.memory),
                    self.number,
                    access,
                )?;
                if let Some(name) = self.name.get() {
                    exporter.set_name(exported.record, &name);
                }
                exported
            }
        };
        Ok(self.handle_with(credential, access))
    }

    /// Returns the properties of the memory that reports show.
    fn particulars(&self) -> Particulars {
        Particulars {
            kind: ObjectKind::Physical,
            len: self.memory.len() as u64,
            allocation: ptr::from_ref(self).addr(),
        }
    }

    fn handle_with(&self, credential: Credential, access: Access) -> PhysicalMemoryHandle {
        let len = self.memory.len() as u64;
        PhysicalMemoryHandle::new(&Fields {
            read_only: access == Access::ReadOnly,
            segment: self.number,
            length: len,
            ..self.core.handle_fields(credential)
        })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(source) = &self.opened {
            source.attachment.release(source.record.index);
            observe::closed(source.kind);
        }
        let exporter = self.core.exporter();
        for export in self.exports.all() {
            // The memory is never reused, so nothing is kept for importers.
            exporter.retire(export.record, true, None);
        }
        exporter.reclaim();
    }
}

/// Checks that a length is a positive multiple of the smallest piece that the device maps.
pub(crate) fn check_granularity(core: &ContextCore, what: &str, len: usize) -> Result<()> {
    let backend: &dyn BackendContext = &**core.backend();
    let granularity = backend.granularity();
    if len == 0 || !len.is_multiple_of(granularity) {
        return Err(Error::invalid(format!(
            "the length of {what} must be a positive multiple of {granularity} bytes, not {len}"
        )));
    }
    Ok(())
}
