//! Ranges of memory that commands use.

use crosshandle_hal::Operand;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, Address, byte_range};
use std::any::Any;
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

/// A range of memory that a command uses. It keeps its memory alive until the command is complete.
#[derive(Clone)]
pub struct MemoryRange {
    address: Address,
    len: usize,
    access: Access,
    /// Whether the host can access the memory too.
    is_on_host: bool,
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl MemoryRange {
    /// Creates a range of memory that this crate does not know, or of a mapped part of a
    /// [`VirtualRange`](crate::virtual_memory::VirtualRange).
    ///
    /// A copy between a device and host memory that the device's driver does not know either may
    /// block the submitting thread until the copy's turn has come.
    ///
    /// # Safety
    /// From the submission of any command that uses the range until that command is complete, `len`
    /// bytes at `address` must be valid for the device's reads. If `access` allows writes, they
    /// must be valid for its writes too.
    #[allow(unsafe_code)] // The promise is the caller's; nothing here relies on it.
    pub unsafe fn from_raw_parts(address: NonNull<u8>, len: usize, access: Access) -> Self {
        Self::new(Address::new(address), len, access, true)
    }

    /// Creates a range that keeps no object alive.
    pub(crate) fn new(address: Address, len: usize, access: Access, is_on_host: bool) -> Self {
        Self {
            address,
            len,
            access,
            is_on_host,
            keep: None,
        }
    }

    /// Creates a range that keeps its memory alive.
    #[inline(always)] // As `Memory::all`.
    pub(crate) fn of_memory(
        address: Address,
        len: usize,
        access: Access,
        is_on_host: bool,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            address,
            len,
            access,
            is_on_host,
            keep: Some(keep),
        }
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the start address, as in [`Memory::as_ptr`](crate::Memory::as_ptr). The address does
    /// not keep the memory alive.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.pointer().as_ptr()
    }

    /// Returns a part of this range. `range` counts bytes from the start of this range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside this range.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        self.clone().into_part(range)
    }

    #[inline]
    pub(super) fn into_part(self, range: impl RangeBounds<usize>) -> Result<Self> {
        let Range { start, end } = byte_range::resolve(range, self.len)?;
        Ok(Self {
            address: self.address.offset(start),
            len: end - start,
            ..self
        })
    }

    /// Adds an object that the range keeps alive.
    ///
    /// The object is dropped before the memory is released, when no command uses the range any
    /// more. The drop may run on a thread of this library, which catches a panic. It may use
    /// queues, but should not wait for them there. If a command is already complete when it is
    /// submitted, the submitting call drops the object and passes a panic on.
    pub fn keeping<T: Any + Send + Sync>(self, object: Arc<T>) -> Self {
        Self {
            keep: Some(match self.keep {
                // The object is dropped first, so it no longer exists once the memory is out of
                // use.
                Some(memory) => Arc::new((object, memory)),
                None => object,
            }),
            ..self
        }
    }

    /// Returns the object that keeps the range's memory alive, if there is one.
    pub(crate) fn keep(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.keep.clone()
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly),
        }
    }

    /// Returns the access that this process has to the memory.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns whether the host can also access the memory, at [`as_ptr`](Self::as_ptr).
    #[inline]
    pub fn is_on_host(&self) -> bool {
        self.is_on_host
    }

    #[inline]
    pub(crate) fn into_operand(self) -> Operand {
        Operand {
            address: self.address,
            keep: self.keep,
        }
    }
}

impl fmt::Debug for MemoryRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRange")
            .field("address", &self.address)
            .field("len", &self.len)
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}
