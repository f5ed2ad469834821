//! Bytes that other processes, devices and threads may read and write at the same time.
//!
//! No reference to them is ever made, only copies by value: whatever a peer writes meanwhile, every
//! copy is some bytes, and types are limited to those for which any bytes are valid.
//!
//! # Why racing copies are sound
//! Two threads of one process may copy to and from the same bytes at once, from safe code. Plain
//! copies would be a data race, which the language does not define. So the shared side of every copy
//! is accessed by machine instructions in `asm!`, of which the compiler knows only that memory changes:
//! for it they are what another process or a device does, which this memory is open to anyway. On
//! other architectures than x86-64 the shared side is accessed by relaxed atomic operations on whole
//! aligned words of 64 bits, all of one size.

mod file;
pub(crate) mod shared_copy;

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
/// Any thread of any process may read and write the same bytes at the same time. That is never
/// undefined, but a copy is not atomic: each byte that it gets from a racing write is the old or the
/// new one, in any mixture. A copy orders nothing: use events, or [`atomics`](Self::atomics).
/// [`TypedSlice`] says for which elements an access is whole.
#[derive(Clone, Copy)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    _memory: PhantomData<&'a ()>,
}

// SAFETY: all access is by copies of plain bytes, which any thread may make: see above.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// # Safety
    /// The range must stay mapped for `'a`, writable if `writable`, in whole pages (parts of which
    /// may lie outside the range), and be accessed by others only as shared memory, never through
    /// Rust references that exclude that.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize, writable: bool) -> Self {
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

    /// Returns the start.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the part in a range of bytes, counted from the start of this range.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let Range { start, end } = byte_range::resolve(range, self.len)?;
        Ok(Self {
            // SAFETY: `start` ≤ `self.len`.
            start: unsafe { self.start.add(start) },
            len: end - start,
            ..*self
        })
    }

    /// Copies bytes out, starting at byte `offset`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are not all inside.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        byte_range::check(offset, into.len(), self.len)?;
        // SAFETY: the source is mapped and long enough; `into` is the caller's alone, so the two
        // don't overlap.
        unsafe { shared_copy::read(self.as_ptr().add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in, starting at byte `offset`.
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

    /// Returns the range as elements of a type.
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

    /// Returns the range as 64-bit words for atomic access, by several processes at once. A copy that
    /// races with them is as [above](Self): it may see a part of a word.
    ///
    /// # Errors
    /// As [`typed`](Self::typed); [`Error::ReadOnly`] if the memory was opened read-only.
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

/// Refuses bytes that are no slice of `T`.
///
/// # Errors
/// [`Error::InvalidArgument`] for a start that is not aligned for `T`, a length that is not a multiple
/// of its size, and a type without bytes.
pub(crate) fn check_elements<T>(start: usize, len: usize) -> Result<()> {
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
/// [`get`](Self::get) and [`set`](Self::set) access an element of 1, 2, 4 or 8 bytes that is aligned
/// to its size as a whole: a racing access sees the old or the new element, not a mixture. Larger
/// elements and copies of several are as [`SharedBytes`] says. No access orders others.
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

    /// Returns a copy of an element; `None` behind the end.
    #[inline]
    pub fn get(&self, index: usize) -> Option<T> {
        if index >= self.len() {
            return None;
        }
        let mut element = MaybeUninit::<T>::uninit();
        // SAFETY: the element is in bounds; every byte of `element` is written, and any bytes are a
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
    /// [`Error::InvalidArgument`] behind the end, [`Error::ReadOnly`] if the memory was opened
    /// read-only.
    #[inline]
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

    /// Returns the elements in place.
    ///
    /// # Safety
    /// Until the slice is last used, no process, queue or thread may write to the memory.
    pub unsafe fn as_slice(&self) -> &'a [T] {
        // SAFETY: mapped and aligned for 'a; any bytes are a T; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Returns the elements in place, to be changed.
    ///
    /// # Safety
    /// Until the slice is last used, no other process, queue or thread may read or write the memory.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the memory was opened read-only.
    pub unsafe fn as_mut_slice(&self) -> Result<&'a mut [T]> {
        self.bytes.check_writable()?;
        // SAFETY: mapped, writable and aligned for 'a; any bytes are a T; the caller keeps
        // all others away.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) })
    }
}
