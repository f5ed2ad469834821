//! Memory of the driver's, allocated here or opened from another process.

use super::device::Gpu;
use super::driver::{Core, INTEL_26_18, IPC_HANDLE};
use super::lent::Lent;
use super::note::{self, Subject};
use crate::error::{Error, Result};
use crate::hal::Segment;
use crate::ipc::Import;
use crate::ipc::Shared;
use crate::ipc::broker::protocol::BackendBlob;
use crate::os::descriptor;
use crate::os::descriptor::FileKind;
use crate::os::mapping::{HUGE_PAGE, page_size};
use crate::types::MemoryKind;
use crate::types::SharedBytes;
use crate::types::{Access, Address};
use level_zero_sys::ze_external_memory_type_flags_t;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

/// Memory at an address.
pub(super) struct LevelZeroSegment {
    core: Arc<Core>,
    start: NonNull<u8>,
    len: usize,
    source: Source,
    /// The host may access it.
    is_host_memory: bool,
    /// What this process lets itself do; the driver opens memory for everything.
    access: Access,
}

// SAFETY: only an address; whoever accesses memory there answers for that.
unsafe impl Send for LevelZeroSegment {}
// SAFETY: as above.
unsafe impl Sync for LevelZeroSegment {}

/// Where memory comes from, and so how it ends.
enum Source {
    /// Allocated here: ends by being freed.
    Allocated {
        /// Made with the first handle and kept as long as the memory: the driver has one descriptor
        /// for each allocation.
        exported: OnceLock<Exported>,
    },
    /// The program's, who ends it.
    Adopted {
        /// As above.
        exported: OnceLock<Exported>,
    },
    /// Opened from a driver's handle: ends by being closed.
    Opened {
        /// Where all that was opened starts: memory of one of the driver's pools is inside.
        base: usize,
    },
}

/// What importers get.
pub(super) struct Exported {
    /// The driver's handle.
    pub(super) handle: [u8; IPC_HANDLE],
    /// Our own descriptor of what the driver's in the handle leads to: the driver ends its own as
    /// it likes, and a handle that was given away must not fail for want of a descriptor.
    pub(super) file: Arc<OwnedFd>,
}

impl Exported {
    pub(super) fn new(subject: Subject, handle: [u8; IPC_HANDLE]) -> Result<Self> {
        let file = descriptor::duplicate(note::number_in(subject, &handle));
        let file = file.map_err(Error::os("keeping a descriptor of the driver"))?;
        // A driver that has made none leaves a zero there, which is this process's input.
        let kind = descriptor::kind(&file);
        if matches!(
            kind,
            Ok(FileKind::CharacterDevice { .. } | FileKind::Stream)
        ) {
            return Err(Error::Unsupported(
                "the Level Zero driver's handle has no descriptor of memory in it".into(),
            ));
        }
        Ok(Self {
            handle,
            file: Arc::new(file),
        })
    }
}

impl LevelZeroSegment {
    /// New memory, to be shared.
    pub(super) fn create(
        gpu: &Gpu,
        core: &Arc<Core>,
        kind: MemoryKind,
        len: usize,
    ) -> Result<Self> {
        Self::allocate(gpu, core, kind, len, gpu.exportable_memory())
    }

    /// New memory that stays in this process.
    pub(super) fn create_private(
        gpu: &Gpu,
        core: &Arc<Core>,
        kind: MemoryKind,
        len: usize,
    ) -> Result<Self> {
        Self::allocate(gpu, core, kind, len, None)
    }

    fn allocate(
        gpu: &Gpu,
        core: &Arc<Core>,
        kind: MemoryKind,
        len: usize,
        export: Option<ze_external_memory_type_flags_t>,
    ) -> Result<Self> {
        // What is a multiple of a power of two may be wanted at such an address.
        let align = (1 << len.trailing_zeros()).clamp(page_size(), HUGE_PAGE);
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { align };
        Ok(Self {
            start: core.allocate(gpu.handle(), kind, len, align, export)?,
            core: Arc::clone(core),
            len,
            source: Source::Allocated {
                exported: OnceLock::new(),
            },
            is_host_memory: kind != MemoryKind::Device,
            access: Access::ReadWrite,
        })
    }

    /// Memory of another process.
    pub(super) fn import(
        gpu: &Gpu,
        core: &Arc<Core>,
        import: &Import,
        access: Access,
    ) -> Result<Self> {
        let handle = note::decode(core.driver, Subject::Memory, &import.note)?;
        let start = with_own_number(Subject::Memory, &import.file, handle.bytes, |mut bytes| {
            if let Some(pid) = handle.fetched_from
                && core.driver.version < INTEL_26_18
            {
                // It would fetch that number from there, without a look whether it was put in place.
                note::forget_process(&mut bytes, pid);
            }
            core.open(gpu.handle(), bytes)
        })?;
        let (base, whole) = core.range_of(start)?;
        if !core.driver.starts.add(base) {
            // Nor is it closed, which would end that.
            return Err(Error::Protocol(
                "its memory is other memory of this process",
            ));
        }
        let opened = Self {
            is_host_memory: core.is_host_memory(start),
            core: Arc::clone(core),
            start,
            len: import.len,
            source: Source::Opened { base },
            access,
        };
        let before = start.addr().get().saturating_sub(base);
        let actual = whole.saturating_sub(before);
        if actual < import.len {
            return Err(Error::Extent {
                claimed: import.len as u64,
                actual: actual as u64,
            });
        }
        Ok(opened)
    }

    /// The allocation of the program's that an address lies in, and how far inside. It stays the
    /// program's, unless `is_given` says so; then it is the start.
    pub(super) fn adopt(
        gpu: &Gpu,
        core: &Arc<Core>,
        address: usize,
        is_given: bool,
    ) -> Result<(Self, usize)> {
        let pointer = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address));
        let found = pointer.and_then(|pointer| core.device_memory(pointer));
        let missing =
            || Error::invalid(format!("{address:#x} is no device memory of the driver's"));
        let (start, whole, device) = found.ok_or_else(missing)?;
        if device != gpu.handle() {
            return Err(Error::invalid(format!(
                "the memory at {address:#x} is another device's than {}",
                gpu.info().name
            )));
        }
        let offset = address - start.addr().get();
        if is_given && offset != 0 {
            return Err(Error::invalid(
                "only a whole allocation can be given away, by its start",
            ));
        }
        let exported = OnceLock::new();
        let adopted = Self {
            core: Arc::clone(core),
            start,
            len: whole,
            source: match is_given {
                true => Source::Allocated { exported },
                false => Source::Adopted { exported },
            },
            is_host_memory: false,
            access: Access::ReadWrite,
        };
        Ok((adopted, offset))
    }

    /// Of memory that is this process's own.
    fn export(&self) -> Result<&Exported> {
        let (Source::Allocated { exported } | Source::Adopted { exported }) = &self.source else {
            return Err(Error::invalid("only the exporter of memory can share it"));
        };
        if let Some(exported) = exported.get() {
            return Ok(exported);
        }
        if !self.core.driver.shares_memory {
            return Err(Error::Unsupported(
                "this Level Zero driver shares no memory between processes".into(),
            ));
        }
        // Two threads may do it at once: both get the same descriptor.
        let made = Exported::new(Subject::Memory, self.core.export(self.start)?)?;
        Ok(exported.get_or_init(|| made))
    }
}

/// Opens a driver's handle with the number of a descriptor of ours in it. It is another one than the
/// exporter's, since the driver takes it for put in place only then.
pub(super) fn with_own_number<T>(
    subject: Subject,
    file: &OwnedFd,
    mut handle: [u8; IPC_HANDLE],
    open: impl FnOnce([u8; IPC_HANDLE]) -> Result<T>,
) -> Result<T> {
    let theirs = note::number_in(subject, &handle);
    let place = note::place_of_number(subject, &handle);
    Lent::for_a_call(file, Some(theirs), |number| {
        handle[place].copy_from_slice(&number.to_ne_bytes());
        open(handle)
    })
}

impl Drop for LevelZeroSegment {
    fn drop(&mut self) {
        self.core.release("memory", |core| match self.source {
            // SAFETY: allocated here, once. Commands keep the segments that they use.
            Source::Allocated { .. } => unsafe { core.free(self.start) },
            Source::Adopted { .. } => Ok(()),
            Source::Opened { base } => {
                core.driver.starts.remove(base);
                // SAFETY: opened here, once; as above.
                unsafe { core.close(self.start) }
            }
        });
    }
}

impl Shared for LevelZeroSegment {
    fn len(&self) -> usize {
        self.len
    }

    fn prepare(&self) -> Result<()> {
        self.export().map(drop)
    }

    fn descriptor(&self, _access: Access) -> Result<Arc<OwnedFd>> {
        Ok(Arc::clone(&self.export()?.file))
    }

    fn note(&self) -> BackendBlob {
        match self.export() {
            Ok(exported) => note::encode(self.core.driver, Subject::Memory, exported.handle),
            Err(_) => BackendBlob::NONE,
        }
    }
}

impl Segment for LevelZeroSegment {
    fn start(&self) -> Address {
        Address::new(self.start)
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        let writable = self.access == Access::ReadWrite;
        // SAFETY: memory of the host's, as the driver says, which lives as long as `self`, and is
        // shared memory for everybody.
        self.is_host_memory
            .then(|| unsafe { SharedBytes::new(self.start, self.len, writable) })
    }

    fn populate(&self, _offset: usize, _len: usize) {
        // All of it is there, in the pages that the device likes best.
    }
}
