//! Memory of the driver, allocated by this process or opened from another one.

use super::check_extent;
use crate::device::Gpu;
use crate::driver::DriverContext;
use crate::ipc_handle::{self, Exported, Subject};
use crosshandle_hal::{BackendBlob, BackendObject, BackendSegment, Import};
use crosshandle_os::mapping::{HUGE_PAGE, page_size};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, Address, DriverAllocation, MemoryKind, SharedBytes};
use level_zero_sys::ze_external_memory_type_flags_t;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

/// Memory of the driver at an address.
pub(crate) struct LevelZeroSegment {
    context: Arc<DriverContext>,
    start: NonNull<u8>,
    len: usize,
    source: Source,
    /// Whether the host may access the memory.
    is_host_memory: bool,
    /// The access of this process. The driver always opens memory for reading and writing.
    access: Access,
}

// SAFETY: the value only holds an address. The code that accesses memory there ensures that it may.
unsafe impl Send for LevelZeroSegment {}
// SAFETY: as above.
unsafe impl Sync for LevelZeroSegment {}

/// The origin of memory, which decides how it is released.
enum Source {
    /// This process allocated the memory and frees it.
    Allocated {
        /// Created with the first handle and kept as long as the memory, because the driver has
        /// only one descriptor for each allocation.
        exported: OnceLock<Exported>,
    },
    /// The memory belongs to the program, which frees it.
    Adopted {
        /// Created with the first handle, as for allocated memory.
        exported: OnceLock<Exported>,
    },
    /// The memory was opened by a driver's handle and is closed.
    Opened {
        /// The start of the whole allocation that was opened. Memory from a pool of the driver may
        /// start later.
        base: usize,
    },
}

impl LevelZeroSegment {
    /// Allocates memory that can be shared.
    pub(crate) fn create(
        gpu: &Gpu,
        context: &Arc<DriverContext>,
        kind: MemoryKind,
        len: usize,
    ) -> Result<Self> {
        Self::allocate(gpu, context, kind, len, gpu.exportable_memory())
    }

    /// Allocates memory that stays in this process.
    pub(crate) fn create_private(
        gpu: &Gpu,
        context: &Arc<DriverContext>,
        kind: MemoryKind,
        len: usize,
    ) -> Result<Self> {
        Self::allocate(gpu, context, kind, len, None)
    }

    fn allocate(
        gpu: &Gpu,
        context: &Arc<DriverContext>,
        kind: MemoryKind,
        len: usize,
        export: Option<ze_external_memory_type_flags_t>,
    ) -> Result<Self> {
        // A program may expect that the address is a multiple of the largest power of two that
        // divides the length.
        let align = (1 << len.trailing_zeros()).clamp(page_size(), HUGE_PAGE);
        let align = if len >= HUGE_PAGE { HUGE_PAGE } else { align };
        Ok(Self {
            start: context.allocate(gpu.handle(), kind, len, align, export)?,
            context: Arc::clone(context),
            len,
            source: Source::Allocated {
                exported: OnceLock::new(),
            },
            is_host_memory: kind != MemoryKind::Device,
            access: Access::ReadWrite,
        })
    }

    /// Opens memory of another process.
    pub(crate) fn import(
        gpu: &Gpu,
        context: &Arc<DriverContext>,
        import: &Import,
        access: Access,
    ) -> Result<Self> {
        let handle = ipc_handle::decode(context.driver, Subject::Memory, &import.note)?;
        check_extent(import)?;
        let open = |bytes| context.open(gpu.handle(), bytes);
        let start = handle.open_with(&import.file, context.driver, open)?;
        let (base, whole) = context.range_of(start)?;
        if !context.driver.known_memory.add(base) {
            // The memory is not closed, because that would free the other memory.
            return Err(Error::Protocol(
                "its memory is other memory of this process",
            ));
        }
        let opened = Self {
            is_host_memory: context.is_host_memory(start),
            context: Arc::clone(context),
            start,
            len: import.len,
            source: Source::Opened { base },
            access,
        };
        let before = start.addr().get().saturating_sub(base);
        let actual = whole.saturating_sub(before);
        if actual < import.len {
            return Err(Error::Extent {
                end: import.len as u64,
                actual: actual as u64,
            });
        }
        Ok(opened)
    }

    /// Returns the program's allocation that contains an address, if it belongs to this device.
    pub(crate) fn find(
        gpu: &Gpu,
        context: &Arc<DriverContext>,
        address: usize,
    ) -> Option<DriverAllocation> {
        let pointer = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address))?;
        let (start, len, device) = context.device_memory(pointer)?;
        (device == gpu.handle()).then(|| DriverAllocation {
            address: start.addr().get(),
            len,
            number: 0,
        })
    }

    /// Adopts the program's allocation that contains an address, and also returns the offset of the
    /// address. If `is_given` is set, this value takes ownership of the allocation, and the address
    /// must be its start. Otherwise the allocation remains the program's.
    pub(crate) fn adopt(
        gpu: &Gpu,
        context: &Arc<DriverContext>,
        address: usize,
        is_given: bool,
    ) -> Result<(Self, usize)> {
        let pointer = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(address));
        let found = pointer.and_then(|pointer| context.device_memory(pointer));
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
            context: Arc::clone(context),
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

    /// Exports memory of this process. No lock is needed, because two threads that export at the
    /// same time get the same descriptor.
    fn export(&self) -> Result<&Exported> {
        let (Source::Allocated { exported } | Source::Adopted { exported }) = &self.source else {
            return Err(Error::invalid("only the exporter of memory can share it"));
        };
        if let Some(exported) = exported.get() {
            return Ok(exported);
        }
        if !self.context.driver.shares_memory {
            return Err(Error::Unsupported(
                "this Level Zero driver shares no memory between processes".into(),
            ));
        }
        let made = Exported::new(Subject::Memory, self.context.export(self.start)?)?;
        Ok(exported.get_or_init(|| made))
    }
}

impl Drop for LevelZeroSegment {
    fn drop(&mut self) {
        self.context.release("memory", |context| match self.source {
            // SAFETY: the memory was allocated by the driver, belongs to this value, and is freed
            // once. Commands keep the segments that they use.
            Source::Allocated { .. } => unsafe { context.free(self.start) },
            Source::Adopted { .. } => Ok(()),
            Source::Opened { base } => {
                context.driver.known_memory.remove(base);
                // SAFETY: the memory was opened by this value and is closed once. Commands keep the
                // segments that they use.
                unsafe { context.close(self.start) }
            }
        });
    }
}

impl BackendObject for LevelZeroSegment {
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
            Ok(exported) => {
                ipc_handle::encode(self.context.driver, Subject::Memory, exported.handle)
            }
            Err(_) => BackendBlob::NONE,
        }
    }
}

impl BackendSegment for LevelZeroSegment {
    fn start(&self) -> Address {
        Address::new(self.start)
    }

    fn host_bytes(&self) -> Option<SharedBytes<'_>> {
        let writable = self.access == Access::ReadWrite;
        // SAFETY: the driver says that this is host memory, and it lives as long as `self`. All
        // code treats it as memory that other processes may change.
        self.is_host_memory
            .then(|| unsafe { SharedBytes::new(self.start, self.len, writable) })
    }

    fn populate(&self, _offset: usize, _len: usize) {
        // The driver has already allocated all of it, in pages that it chose.
    }
}
