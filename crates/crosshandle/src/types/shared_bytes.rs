//! Bytes that other processes may read and write at the same time.
//!
//! No reference to them is ever made, only copies by value: whatever a peer writes meanwhile,
//! every copy is some bytes, and types are limited to those for which any bytes are valid. The
//! memory lies outside of what the compiler knows of, so a copy that races with another process
//! (or, through a second mapping, with another thread) is unordered, not undefined.

use super::byte_range;
use crate::error::{Error, Result};
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A range of shared memory that the host can access.
///
/// Copies are not atomic: bytes that another process writes during a copy may be old, new or
/// mixed. Use events to order accesses, or [`atomics`](Self::atomics).
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    _memory: PhantomData<&'a ()>,
}

// SAFETY: all access is by copies of plain bytes, which any thread may make.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// The range must stay mapped for `'a`, writable if `writable`, and be accessed by others
    /// only as shared memory, never through Rust references that exclude that.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize, writable: bool) -> Self {
        Self {
            start,
            len,
            writable,
            _memory: PhantomData,
        }
    }

    /// Bytes in the range.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it starts.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let Range { start, end } = byte_range::resolve(range, self.len)?;
        Ok(self.part(start, end - start))
    }

    /// Returns a part that is inside.
    fn part(&self, offset: usize, len: usize) -> Self {
        debug_assert!(offset + len <= self.len);
        Self {
            // SAFETY: the caller has checked that `offset` ≤ `self.len`.
            start: unsafe { self.start.add(offset) },
            len,
            ..*self
        }
    }

    /// Copies bytes out, starting at `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are not all inside.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        byte_range::check(offset, into.len(), self.len)?;
        let from = self.part(offset, into.len());
        // SAFETY: the source is mapped and long enough; `into` is ours alone, so they don't
        // overlap.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in, starting at `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they don't all fit, [`Error::ReadOnly`] if the memory was
    /// opened read-only.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        byte_range::check(offset, from.len(), self.len)?;
        let into = self.part(offset, from.len());
        self.check_writable()?;
        // SAFETY: the destination is mapped, writable and long enough; no Rust reference to it
        // exists, so they don't overlap.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into.as_ptr(), from.len()) };
        Ok(())
    }

    /// The range as elements of a type.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the start is not aligned for `T` or the length is not a
    /// multiple of its size.
    pub fn typed<T>(&self) -> Result<TypedSlice<'a, T>>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        let fits = size_of::<T>() != 0
            && self.len.is_multiple_of(size_of::<T>())
            && self.start.addr().get().is_multiple_of(align_of::<T>());
        if !fits {
            return Err(Error::invalid(format!(
                "{} bytes at {:p} are no slice of a type of {} bytes with alignment {}",
                self.len,
                self.start,
                size_of::<T>(),
                align_of::<T>()
            )));
        }
        Ok(TypedSlice {
            bytes: *self,
            _type: PhantomData,
        })
    }

    /// The range as 64-bit words for atomic access, which several processes may do at once.
    ///
    /// # Errors
    /// As [`typed`](Self::typed); [`Error::ReadOnly`] if the memory was opened read-only.
    pub fn atomics(&self) -> Result<&'a [AtomicU64]> {
        self.check_writable()?;
        let words = self.typed::<u64>()?;
        // SAFETY: aligned, mapped and writable for 'a; atomics may be shared with anybody.
        Ok(unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), words.len()) })
    }

    fn check_writable(&self) -> Result<()> {
        if self.writable {
            Ok(())
        } else {
            Err(Error::ReadOnly)
        }
    }
}

/// Elements in shared memory, accessed by value.
#[derive(Clone, Copy)]
pub struct TypedSlice<'a, T> {
    bytes: SharedBytes<'a>,
    _type: PhantomData<T>,
}

impl<'a, T> TypedSlice<'a, T>
where
    T: FromBytes + IntoBytes + Immutable,
{
    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.bytes.len / size_of::<T>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the first one is.
    pub fn as_ptr(&self) -> *mut T {
        self.bytes.as_ptr().cast()
    }

    /// A copy of an element; `None` behind the end.
    pub fn get(&self, index: usize) -> Option<T> {
        if index >= self.len() {
            return None;
        }
        // SAFETY: in bounds and aligned; any bytes are a T.
        Some(unsafe { ptr::read_volatile(self.as_ptr().add(index)) })
    }

    /// Replaces an element.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] behind the end, [`Error::ReadOnly`] if the memory was opened
    /// read-only.
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        self.bytes
            .write(index.saturating_mul(size_of::<T>()), value.as_bytes())
    }

    /// Copies elements out, starting at element `first`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are not all inside.
    pub fn read(&self, first: usize, into: &mut [T]) -> Result<()> {
        let offset = first.saturating_mul(size_of::<T>());
        self.bytes.read(offset, into.as_mut_bytes())
    }

    /// Copies elements in, starting at element `first`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they don't all fit, [`Error::ReadOnly`] if the memory was
    /// opened read-only.
    pub fn write(&self, first: usize, from: &[T]) -> Result<()> {
        let offset = first.saturating_mul(size_of::<T>());
        self.bytes.write(offset, from.as_bytes())
    }

    /// The elements in place.
    ///
    /// # Safety
    /// Until the slice is last used, nobody may write to the memory: no process, queue or thread.
    pub unsafe fn as_slice(&self) -> &'a [T] {
        // SAFETY: mapped and aligned for 'a; any bytes are a T; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The elements in place, to be changed.
    ///
    /// # Safety
    /// Until the slice is last used, nobody else may read or write the memory: no process, queue
    /// or thread.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the memory was opened read-only.
    pub unsafe fn as_mut_slice(&self) -> Result<&'a mut [T]> {
        self.bytes.check_writable()?;
        // SAFETY: mapped, writable and aligned for 'a; any bytes are a T; the caller keeps
        // everybody else away.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) })
    }
}
