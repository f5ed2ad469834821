//! The memory of a context to which users have pointers: allocated memory, opened memory, and
//! registered memory.

use super::pools::{DevicePools, Pool};
use super::spans::{Span, Spans};
use crate::abi::failure::{Failure, Result};
use crate::abi::lock::ShortLock;
use crate::abi::object::{Ref, Shared};
use crate::discovery::Device;
use crosshandle::handle::HANDLE_SIZE;
use crosshandle::{Access, Memory, MemoryRange};
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::{OnceLock, Weak};
use unified_runtime_sys::{ur_device_handle_t, ur_result_t, ur_usm_type_t};

/// The memory of a context to which users have pointers.
#[derive(Default)]
pub(crate) struct Allocations {
    known: ShortLock<Spans<Allocation>>,
    pub(crate) device_pools: DevicePools,
    /// The queue for copies that do not name a queue.
    pub(crate) copies: OnceLock<crosshandle::Queue>,
}

/// Memory to which a user has a pointer.
pub(crate) struct Allocation {
    pub(crate) kind: Kind,
    device: DeviceAddress,
    pool: Option<Weak<Shared<Pool>>>,
    /// The library's memory, or `None` for memory that belongs to the user.
    memory: Option<Memory>,
    /// Whether a buffer was made from the memory or a recorded command uses it. Buffers and
    /// recordings may keep the memory longer than any running command.
    is_adopted: Cell<bool>,
}

/// An allocation with its address and length.
pub(crate) type Known = Span<Allocation>;

/// The origin of memory, and the call that releases it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Device memory that this context allocated. `urUSMFree` frees it.
    Device,
    Host,
    Shared,
    /// Memory that was opened from a handle. `urIPCCloseMemHandleExp` closes it.
    Opened,
    /// Memory of the user with the access that devices have. `urUSMHostAllocUnregisterExp` removes
    /// it.
    Registered(Access),
    /// Memory of the user, which `urUSMReleaseExp` removes.
    Imported,
}

impl Kind {
    /// Returns UR's type of the memory.
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

/// The handle of a device of the context, or null. The context keeps the device alive.
#[derive(Clone, Copy)]
struct DeviceAddress(ur_device_handle_t);

// SAFETY: an address can be held and copied on any thread, because that accesses no memory.
unsafe impl Send for DeviceAddress {}
// SAFETY: an address can be held and copied on any thread, because that accesses no memory.
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

    /// Marks the memory as adopted if a command that uses it is being recorded.
    fn note_recording(&self, is_recording: bool) {
        if is_recording {
            self.is_adopted.set(true);
        }
    }

    /// Returns whether submitted commands use the memory. Returns `false` for memory in a buffer or
    /// a recording, because its use is unknown.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.is_adopted.get() && self.memory.as_ref().is_some_and(Memory::is_in_use)
    }

    /// Returns the handle of the device, or null for host memory.
    pub(crate) fn device(&self) -> ur_device_handle_t {
        self.device.0
    }

    /// Returns the pool that the memory was allocated from, if it still exists.
    pub(crate) fn pool(&self) -> Option<Ref<Pool>> {
        self.pool.as_ref()?.upgrade()
    }
}

impl Allocations {
    /// Adds memory, and returns its address.
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

    /// Adds memory that belongs to the user. Returns `false` if part of the memory is already
    /// known.
    pub(crate) fn add_of_user(&self, kind: Kind, start: *const c_void, len: usize) -> bool {
        let mut known = self.known.lock();
        let is_new = !known.overlaps(start.addr(), len);
        if is_new {
            known.add(start.addr(), len, Allocation::of_user(kind));
        }
        is_new
    }

    /// Removes the allocation that starts at an address, and returns it so that the caller can drop
    /// it.
    ///
    /// # Errors
    /// Returns `INVALID_MEM_OBJECT` if no allocation starts there.
    pub(crate) fn free(&self, start: *const c_void) -> Result<Allocation> {
        self.remove(start, Kind::is_allocated)
            .ok_or_else(not_allocated)
    }

    /// Checks that an address is the start of an allocation.
    ///
    /// # Errors
    /// Returns the errors of [`free`](Self::free).
    pub(crate) fn check_allocated(&self, start: *const c_void) -> Result<()> {
        let is_start = |offset, found: &Known| offset == 0 && found.thing.kind.is_allocated();
        match self.with(start, is_start) {
            Some(true) => Ok(()),
            _ => Err(not_allocated()),
        }
    }

    /// Removes the memory that starts at an address, if the filter accepts its kind.
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

    /// Calls `look` with the memory that contains an address, and the offset of the address in it.
    /// `look` must not call methods of this object, because the lock is held.
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

    /// Calls `give` with the handle of the device memory that starts at an address. `give` must not
    /// call methods of this object, because the lock is held.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` if no device memory starts there.
    #[inline]
    pub(crate) fn with_handle<R>(
        &self,
        pointer: *const c_void,
        give: impl FnOnce(&[u8; HANDLE_SIZE]) -> R,
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

    /// Adds opened memory, and returns its address.
    #[inline]
    pub(crate) fn add_opened(&self, device: &Shared<Device>, memory: Memory) -> *mut c_void {
        self.add(Kind::Opened, Some(device), None, memory)
    }

    /// Removes the opened memory that starts at an address, and returns it so that the caller can
    /// drop it.
    #[inline]
    pub(crate) fn close(&self, start: *const c_void) -> Option<impl Sized + use<>> {
        self.remove(start, |kind| kind == Kind::Opened)
    }

    /// Returns memory for a command.
    ///
    /// The command keeps known memory alive until it is done, even if the memory is freed earlier.
    /// A recording may keep memory alive for any time. For other memory, the caller is responsible.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_POINTER`, and `INVALID_SIZE` if the range exceeds an allocation.
    ///
    /// # Safety
    /// The caller must uphold the contract of [`MemoryRange::from_raw_parts`], if the memory was
    /// neither allocated nor opened in this context.
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
            // SAFETY: this context neither allocated nor opened the memory, so the caller is
            // responsible for it.
            Some(Ok(None)) | None => Ok(unsafe { MemoryRange::from_raw_parts(start, len, access) }),
        }
    }

    /// Checks that memory does not exceed an allocation, as [`range`](Self::range) does.
    ///
    /// # Errors
    /// Returns `INVALID_SIZE` if the memory exceeds the allocation.
    pub(crate) fn check(&self, pointer: *const c_void, len: usize) -> Result<()> {
        let fits = self.with(pointer, |offset, found| len <= found.len - offset);
        fits.unwrap_or(true).then_some(()).ok_or(Failure::SIZE)
    }

    /// Checks that a rectangle fits into an allocation. Its size includes the whole pitch of the
    /// last row.
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

    /// Returns the memory from an address to the end of its allocation, or `None` if the address is
    /// not in memory of this context.
    pub(crate) fn rest(&self, pointer: *const c_void, is_recording: bool) -> Option<MemoryRange> {
        self.with(pointer, |offset, found| {
            found.thing.note_recording(is_recording);
            rest_of(offset, found)
        })?
    }

    /// Returns the same memory as [`rest`](Self::rest), for a buffer. The buffer may keep the
    /// memory for any time.
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
        "this is not the start of an allocation of this context",
    )
}
