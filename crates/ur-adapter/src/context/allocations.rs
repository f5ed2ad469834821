//! The memory of a context to which users have pointers: allocated, opened and registered memory.

use super::pools::{DevicePools, Pool};
use super::spans::{Span, Spans};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::ShortLock;
use crate::abi::object::{Ref, Shared};
use crate::discovery::Device;
use crosshandle::handle::MEMORY_HANDLE_SIZE;
use crosshandle::{Access, Memory, MemoryRange};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Weak;
use unified_runtime_sys::{ur_device_handle_t, ur_result_t, ur_usm_type_t};

/// The memory of a context to which users have pointers, and the default pools from which the
/// context allocates.
#[derive(Default)]
pub(crate) struct Allocations {
    known: ShortLock<Spans<Allocation>>,
    pub(crate) device_pools: DevicePools,
}

/// Memory to which a user has a pointer.
pub(crate) struct Allocation {
    pub(crate) kind: Kind,
    device: DeviceAddress,
    pool: Option<Weak<Shared<Pool>>>,
    /// The memory in `crosshandle`. `None` if the memory belongs to the user.
    memory: Option<Memory>,
    /// Whether a buffer was created from the memory, or a recorded command uses it. Such a buffer
    /// or recording may keep the memory alive longer than any running command does.
    is_adopted: Cell<bool>,
}

/// An allocation with its address and length.
pub(crate) type Known = Span<Allocation>;

/// The origin of memory, which determines the call that releases it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Device memory that this context allocated. `urUSMFree` frees it.
    Device,
    Host,
    Shared,
    /// Memory that was opened from a handle. `urIPCCloseMemHandleExp` closes it.
    Opened,
    /// The user's memory, with the access that devices have to it. `urUSMHostAllocUnregisterExp`
    /// unregisters it.
    Registered(Access),
    /// The user's memory that `urUSMImportExp` added. `urUSMReleaseExp` removes it.
    Imported,
}

impl Kind {
    /// Returns UR's type for the memory.
    pub(crate) fn usm_type(self) -> ur_usm_type_t {
        match self {
            Self::Device | Self::Opened => ur_usm_type_t::UR_USM_TYPE_DEVICE,
            Self::Host | Self::Registered(_) | Self::Imported => ur_usm_type_t::UR_USM_TYPE_HOST,
            Self::Shared => ur_usm_type_t::UR_USM_TYPE_SHARED,
        }
    }

    fn is_allocated(self) -> bool {
        matches!(self, Self::Device | Self::Host | Self::Shared)
    }
}

/// The handle of one of the context's devices, or null. The context keeps the device alive.
#[derive(Clone, Copy)]
struct DeviceAddress(ur_device_handle_t);

// SAFETY: holding or copying an address accesses no memory, so any thread may do it.
unsafe impl Send for DeviceAddress {}
// SAFETY: holding or copying an address accesses no memory, so any thread may do it.
unsafe impl Sync for DeviceAddress {}

impl Allocation {
    /// Creates an entry for memory that belongs to the user.
    pub(crate) fn of_user(kind: Kind) -> Self {
        Self {
            kind,
            device: DeviceAddress(ptr::null_mut()),
            pool: None,
            memory: None,
            is_adopted: Cell::new(false),
        }
    }

    /// Marks the memory as adopted if the command that uses it is being recorded.
    fn note_recording(&self, is_recording: bool) {
        if is_recording {
            self.is_adopted.set(true);
        }
    }

    /// Returns whether submitted commands use the memory. Returns `false` for adopted memory,
    /// because the context cannot know when buffers and recordings use it.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.is_adopted.get() && self.memory.as_ref().is_some_and(Memory::is_in_use)
    }

    /// Returns the handle of the device to which the memory belongs. Returns null for host memory.
    pub(crate) fn device(&self) -> ur_device_handle_t {
        self.device.0
    }

    /// Returns the pool from which the memory was allocated. Returns `None` if the pool no longer
    /// exists, or if the memory was not allocated from a pool.
    pub(crate) fn pool(&self) -> Option<Ref<Pool>> {
        self.pool.as_ref()?.upgrade()
    }
}

impl Allocations {
    /// Adds memory to the context, and returns the memory's address.
    #[inline]
    pub(crate) fn add(
        &self,
        kind: Kind,
        device: Option<&Shared<Device>>,
        pool: Option<&Shared<Pool>>,
        memory: Memory,
    ) -> *mut c_void {
        let (start, len) = (memory.as_ptr(), memory.len());
        let allocation = Allocation {
            kind,
            device: DeviceAddress(device.map_or(ptr::null_mut(), Shared::handle)),
            pool: pool.map(|pool| Ref::downgrade(&pool.to_ref())),
            memory: Some(memory),
            is_adopted: Cell::new(false),
        };
        self.known.lock().add(start.addr(), len, allocation);
        start.cast()
    }

    /// Adds memory that belongs to the user. If part of the memory is already in the table, does
    /// nothing and returns `false`.
    pub(crate) fn add_of_user(&self, kind: Kind, start: *const c_void, len: usize) -> bool {
        let mut known = self.known.lock();
        let is_new = !known.overlaps(start.addr(), len);
        if is_new {
            known.add(start.addr(), len, Allocation::of_user(kind));
        }
        is_new
    }

    /// Removes the allocation that starts at an address. The caller receives the allocation and
    /// drops it.
    ///
    /// # Errors
    /// Returns `INVALID_MEM_OBJECT` if no allocation starts at `start`.
    pub(crate) fn free(&self, start: *const c_void) -> Result<Allocation> {
        self.remove(start, Kind::is_allocated)
            .ok_or_else(not_allocated)
    }

    /// Checks that an allocation starts at an address.
    ///
    /// # Errors
    /// Returns the same errors as [`free`](Self::free).
    pub(crate) fn check_allocated(&self, start: *const c_void) -> Result<()> {
        let is_start = |offset, found: &Known| offset == 0 && found.thing.kind.is_allocated();
        match self.with(start, is_start) {
            Some(true) => Ok(()),
            _ => Err(not_allocated()),
        }
    }

    /// Removes the memory that starts at an address, if `is_right` accepts the memory's kind.
    #[inline]
    pub(crate) fn remove(
        &self,
        start: *const c_void,
        is_right: impl Fn(Kind) -> bool,
    ) -> Option<Allocation> {
        self.known
            .lock()
            .remove(start.addr(), |found| is_right(found.kind))
    }

    /// Calls `look` with the memory that contains an address, and with the offset of the address in
    /// that memory. `look` runs while the lock is held, so it must not call methods of this object.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        pointer: *const c_void,
        look: impl FnOnce(usize, &Known) -> R,
    ) -> Option<R> {
        let known = self.known.lock();
        let found = known.at(pointer.addr())?;
        Some(look(pointer.addr() - found.start, found))
    }

    /// Calls `give` with a handle for the device memory that contains an address. `give` runs while
    /// the lock is held, so it must not call methods of this object.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if the address is not in device memory that this context
    /// allocated. Returns an error from `crosshandle` if no handle can be created.
    #[inline]
    pub(crate) fn with_handle<R>(
        &self,
        pointer: *const c_void,
        give: impl FnOnce(&[u8; MEMORY_HANDLE_SIZE]) -> R,
    ) -> Result<R> {
        let given = self.with(pointer, |offset, found| {
            let Allocation { memory, kind, .. } = &found.thing;
            match (memory, kind) {
                (Some(memory), Kind::Device) => Ok(give(memory.handle_at(offset)?.as_bytes())),
                (_, Kind::Opened) => Err(Failure::argument(
                    "this memory was opened from a handle; pass that handle on instead of a new \
                     one",
                )),
                _ => Err(Failure::argument(
                    "only memory allocated on a device can be shared, not host or shared USM",
                )),
            }
        });
        given.unwrap_or_else(|| {
            Err(Failure::argument(
                "this pointer is not inside an allocation of this context",
            ))
        })
    }

    /// Adds opened memory to the context, and returns the memory's address.
    #[inline]
    pub(crate) fn add_opened(&self, device: &Shared<Device>, memory: Memory) -> *mut c_void {
        self.add(Kind::Opened, Some(device), None, memory)
    }

    /// Removes the opened memory that starts at an address. The caller receives the memory and
    /// drops it.
    #[inline]
    pub(crate) fn close(&self, start: *const c_void) -> Option<impl Sized + use<>> {
        self.remove(start, |kind| kind == Kind::Opened)
    }

    /// Returns a memory range for a command.
    ///
    /// If this context allocated or opened the memory, the command keeps the memory alive until the
    /// command completes, even if the user frees the memory earlier. A recorded command keeps the
    /// memory alive as long as the recording exists. For all other memory, the caller is
    /// responsible.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_POINTER` if `pointer` is null, and `INVALID_SIZE` if the range exceeds
    /// an allocation.
    ///
    /// # Safety
    /// If this context neither allocated nor opened the memory, the caller must uphold the contract
    /// of [`MemoryRange::from_raw_parts`].
    pub(crate) unsafe fn range(
        &self,
        pointer: *const c_void,
        len: usize,
        access: Access,
        is_recording: bool,
    ) -> Result<MemoryRange> {
        let start = NonNull::new(pointer.cast_mut().cast::<u8>()).ok_or(Failure::NULL_POINTER)?;
        let known = self.with(pointer, |offset, found| {
            if len > found.len - offset {
                return Err(Failure::new(
                    ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
                    format!(
                        "{len} bytes at {offset} are more than the {} bytes of this allocation",
                        found.len
                    ),
                ));
            }
            found.thing.note_recording(is_recording);
            match (&found.thing.memory, found.thing.kind) {
                (Some(memory), _) => Ok(Some(memory.range(offset..offset.saturating_add(len))?)),
                (None, Kind::Registered(Access::ReadOnly)) if access == Access::ReadWrite => {
                    Err(crosshandle::Error::ReadOnly.into())
                }
                (None, _) => Ok(None),
            }
        });
        match known {
            Some(Err(failure)) => Err(failure),
            Some(Ok(Some(range))) => Ok(range),
            // SAFETY: this context neither allocated nor opened the memory, so the caller upholds
            // the contract of `from_raw_parts`.
            Some(Ok(None)) | None => Ok(unsafe { MemoryRange::from_raw_parts(start, len, access) }),
        }
    }

    /// Checks that `len` bytes at an address do not exceed the allocation that contains the
    /// address. Accepts memory that is not in the context's table.
    ///
    /// # Errors
    /// Returns `INVALID_SIZE` if the bytes exceed the allocation.
    pub(crate) fn check(&self, pointer: *const c_void, len: usize) -> Result<()> {
        let fits = self.with(pointer, |offset, found| len <= found.len - offset);
        fits.unwrap_or(true).then_some(()).ok_or(Failure::SIZE)
    }

    /// Checks that a rectangle is not larger than the allocation that contains it. The size of the
    /// rectangle includes the whole pitch of its last row.
    ///
    /// # Errors
    /// Returns `INVALID_SIZE` if the rectangle exceeds the allocation.
    pub(crate) fn check_pitch(
        &self,
        pointer: *const c_void,
        pitch: usize,
        height: usize,
    ) -> Result<()> {
        let size = pitch.checked_mul(height).ok_or(Failure::SIZE)?;
        match self.with(pointer, |_, found| found.len) {
            Some(len) if size > len => Err(Failure::new(
                ur_result_t::UR_RESULT_ERROR_INVALID_SIZE,
                format!(
                    "{height} rows with a pitch of {pitch} bytes are more than the {len} bytes of \
                     this allocation"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the memory from an address to the end of its allocation. Returns `None` if the
    /// address is not in memory that this context allocated or opened.
    pub(crate) fn rest(&self, pointer: *const c_void, is_recording: bool) -> Option<MemoryRange> {
        self.with(pointer, |offset, found| {
            found.thing.note_recording(is_recording);
            rest_of(offset, found)
        })?
    }

    /// Returns the memory from an address to the end of its allocation, for a buffer. Marks the
    /// memory as adopted, because the buffer may keep it alive for any time.
    pub(crate) fn adopt(&self, pointer: *const c_void) -> Option<MemoryRange> {
        self.with(pointer, |offset, found| {
            found.thing.is_adopted.set(true);
            rest_of(offset, found)
        })?
    }
}

fn rest_of(offset: usize, found: &Known) -> Option<MemoryRange> {
    let memory = found.thing.memory.as_ref()?;
    memory.range(offset..).ok()
}

fn not_allocated() -> Failure {
    Failure::new(
        ur_result_t::UR_RESULT_ERROR_INVALID_MEM_OBJECT,
        "no allocation of this context starts at this address",
    )
}
