//! Ranges of memory, for commands.

use crate::error::{Error, Result};
use crate::hal::Operand;
use crate::types::{Access, Address, byte_range};
use std::any::Any;
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

/// A range of memory that a command uses. It keeps its memory until the command is done.
#[derive(Clone)]
pub struct MemoryRange {
    address: Address,
    len: usize,
    access: Access,
    /// The host can access the memory too.
    is_on_host: bool,
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl MemoryRange {
    /// Makes a range from memory that this crate does not know, or from a mapped part of a
    /// [`VirtualRange`](crate::VirtualRange).
    ///
    /// A copy between a device and host memory that its driver does not know either may block the
    /// thread that submits it until the copy's turn has come.
    ///
    /// # Safety
    /// From the submission of any command that uses the range until that command is done, `len`
    /// bytes at `address` must be valid for the device's reads, and for its writes if `access`
    /// allows them.
    #[allow(unsafe_code)] // The promise is the caller's; nothing here relies on it.
    pub unsafe fn from_raw_parts(address: NonNull<u8>, len: usize, access: Access) -> Self {
        Self::new(Address::new(address), len, access, true)
    }

    /// Makes a range that keeps no object alive.
    pub(crate) fn new(address: Address, len: usize, access: Access, is_on_host: bool) -> Self {
        Self {
            address,
            len,
            access,
            is_on_host,
            keep: None,
        }
    }

    /// Makes a range that keeps its memory alive.
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

    /// Returns the start, as [`Memory::as_ptr`](crate::Memory::as_ptr). The address alone keeps no
    /// memory alive.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.pointer().as_ptr()
    }

    /// Returns the part in a range of bytes, counted from the start of this range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside.
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

    /// Returns the range with another object that it keeps alive.
    ///
    /// The object is dropped when no command uses the range any more, before the memory is let go, maybe
    /// on a thread of this library; its drop may use queues, but should not wait there, and a panic of
    /// its drop ends there. A command that is done at once is dropped by the call that submits it, and a
    /// panic of the drop then comes out of that call.
    pub fn keeping<T: Any + Send + Sync>(self, object: Arc<T>) -> Self {
        Self {
            keep: Some(match self.keep {
                // Dropped in this order: who finds the memory out of use shall find the object let go.
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

    /// Returns the access that this process has.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns whether the host can access the memory too, at [`as_ptr`](Self::as_ptr).
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
