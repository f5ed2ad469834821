//! Bytes that other processes, devices and threads may read and write at the same time.
//!
//! This module never creates a reference to these bytes, and only copies them by value. If a peer
//! writes during a copy, the copy contains arbitrary bytes. So element types are limited to types
//! for which all bytes are valid.
//!
//! # Why racing copies are sound
//! Two threads of one process may copy to and from the same bytes at the same time, from safe code.
//! With plain copies that would be a data race, which is undefined behavior. So machine
//! instructions in `asm!` access the shared side of every copy. The compiler only knows that they
//! change memory, as another process or a device may do at any time anyway. On architectures other
//! than x86-64, relaxed atomic operations on whole aligned 64-bit words access the shared side.

mod file;
pub mod shared_copy;

use super::byte_range;
use super::pod::Pod;
use crate::error::{Error, Result};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use zerocopy::IntoBytes;

/// A range of shared memory that the host can access.
///
/// # Races
/// Any thread of any process may read and write the same bytes at the same time. The behavior is
/// always defined, but a copy is not atomic. Each byte that a racing write changes is read as
/// either its old or its new value, in any mixture. A copy does not order other accesses. For that,
/// use events or [`atomics`](Self::atomics). [`TypedSlice`] tells for which elements an access is
/// atomic.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    _memory: PhantomData<&'a ()>,
}

// SAFETY: all access is by copies of plain bytes, which any thread may make (see the top of this
// module).
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// Creates a range of shared bytes from its address and length.
    ///
    /// # Safety
    /// For `'a`, the whole pages that contain the range must stay mapped, and stay writable if
    /// `writable` is `true`. Parts of these pages may lie outside the range. All other accesses to
    /// the range must treat it as shared memory. In particular, no Rust reference may exclude these
    /// accesses.
    pub unsafe fn new(start: NonNull<u8>, len: usize, writable: bool) -> Self {
        Self {
            start,
            len,
            writable,
            _memory: PhantomData,
        }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the host may write to the range.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns a part of this range. The offsets in `range` count from the start of this range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside this range.
    #[inline]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let Range { start, end } = byte_range::resolve(range, self.len)?;
        Ok(Self {
            // SAFETY: `start` ≤ `self.len`.
            start: unsafe { self.start.add(start) },
            len: end - start,
            ..*self
        })
    }

    /// Copies bytes from the range into `into`, starting at byte `offset` of the range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are not all inside the range.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        byte_range::check(offset, into.len(), self.len)?;
        // SAFETY: the source is mapped and long enough. The caller has exclusive access to `into`,
        // so the two don't overlap.
        unsafe { shared_copy::read(self.as_ptr().add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes from `from` into the range, starting at byte `offset` of the range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they don't all fit, [`Error::ReadOnly`] if the memory was
    /// opened read-only.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        byte_range::check(offset, from.len(), self.len)?;
        self.check_writable()?;
        // SAFETY: the destination is mapped, writable and long enough; no Rust reference to it
        // exists, so the two don't overlap.
        unsafe { shared_copy::write(from.as_ptr(), self.as_ptr().add(offset), from.len()) };
        Ok(())
    }

    /// Returns the range as a slice of elements of type `T`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the start is not aligned for `T` or the length is not a
    /// multiple of its size.
    pub fn typed<T: Pod>(&self) -> Result<TypedSlice<'a, T>> {
        check_elements::<T>(self.start.addr().get(), self.len)?;
        Ok(TypedSlice {
            bytes: *self,
            _type: PhantomData,
        })
    }

    /// Returns the range as 64-bit words for atomic access by several processes. A [copy](Self)
    /// that races with atomic accesses may still see a part of a word.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range is not aligned for 64-bit words or is not a whole
    /// number of words; [`Error::ReadOnly`] if the memory was opened read-only.
    pub fn atomics(&self) -> Result<&'a [AtomicU64]> {
        self.check_writable()?;
        let words = self.typed::<u64>()?;
        // SAFETY: aligned, mapped and writable for 'a; atomics may be shared with any thread.
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

/// Checks that bytes can be a slice of `T`.
///
/// # Errors
/// [`Error::InvalidArgument`] if the start is not aligned for `T`, if the length is not a multiple
/// of its size, or if `T` has no bytes.
pub fn check_elements<T>(start: usize, len: usize) -> Result<()> {
    let fits = size_of::<T>() != 0
        && len.is_multiple_of(size_of::<T>())
        && start.is_multiple_of(align_of::<T>());
    if fits {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{len} bytes at {start:#x} are no slice of a type of {} bytes with alignment {}",
        size_of::<T>(),
        align_of::<T>()
    )))
}

/// Elements in shared memory, accessed by value.
///
/// [`get`](Self::get) and [`set`](Self::set) access an element atomically if it has 1, 2, 4 or 8
/// bytes and is aligned to its size. A racing access then sees the old or the new element, never a
/// mixture. Larger elements and copies of several elements behave as described at [`SharedBytes`].
/// No access orders other accesses.
#[derive(Clone, Copy)]
pub struct TypedSlice<'a, T> {
    bytes: SharedBytes<'a>,
    _type: PhantomData<T>,
}

impl<'a, T: Pod> TypedSlice<'a, T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len / size_of::<T>()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the first element.
    pub fn as_ptr(&self) -> *mut T {
        self.bytes.as_ptr().cast()
    }

    /// Returns a copy of an element, or `None` if the index is out of bounds.
    #[inline]
    pub fn get(&self, index: usize) -> Option<T> {
        if index >= self.len() {
            return None;
        }
        let mut element = MaybeUninit::<T>::uninit();
        // SAFETY: the element is in bounds. Every byte of `element` is written, and any bytes are a
        // T.
        unsafe {
            let place = self.as_ptr().add(index).cast();
            shared_copy::read(place, element.as_mut_ptr().cast(), size_of::<T>());
            Some(element.assume_init())
        }
    }

    /// Replaces an element.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the index is out of bounds, [`Error::ReadOnly`] if the memory
    /// was opened read-only.
    #[inline]
    pub fn set(&self, index: usize, value: T) -> Result<()> {
        self.bytes
            .write(index.saturating_mul(size_of::<T>()), value.as_bytes())
    }

    /// Copies elements into `into`, starting at element `first` of this slice.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the elements are not all inside this slice.
    pub fn read(&self, first: usize, into: &mut [T]) -> Result<()> {
        let offset = first.saturating_mul(size_of::<T>());
        self.bytes.read(offset, into.as_mut_bytes())
    }

    /// Copies elements from `from` into this slice, starting at element `first`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they don't all fit, [`Error::ReadOnly`] if the memory was
    /// opened read-only.
    pub fn write(&self, first: usize, from: &[T]) -> Result<()> {
        let offset = first.saturating_mul(size_of::<T>());
        self.bytes.write(offset, from.as_bytes())
    }

    /// Returns the elements as a slice, without copying them.
    ///
    /// # Safety
    /// Until the last use of the slice, no process, queue or thread may write to the memory.
    pub unsafe fn as_slice(&self) -> &'a [T] {
        // SAFETY: mapped and aligned for 'a. Any bytes are a T. The caller prevents writes.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Returns the elements as a mutable slice, without copying them.
    ///
    /// # Safety
    /// Until the last use of the slice, no other process, queue or thread may read or write the
    /// memory.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the memory was opened read-only.
    pub unsafe fn as_mut_slice(&self) -> Result<&'a mut [T]> {
        self.bytes.check_writable()?;
        // SAFETY: mapped, writable and aligned for 'a. Any bytes are a T. The caller prevents all
        // other accesses.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) })
    }
}
