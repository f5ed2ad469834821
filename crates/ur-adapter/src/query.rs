//! Answers to the `Get…Info` calls.

use crate::failure::{Failure, Result};
use std::ffi::c_void;
use std::ptr;

/// Where the caller wants an answer, and how large it may be.
pub(crate) struct Query {
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
}

impl Query {
    /// # Errors
    /// `INVALID_NULL_POINTER` where no answer could be written, `INVALID_SIZE` for an answer of no
    /// size.
    ///
    /// # Safety
    /// `value` must be null or valid for writes of `size` bytes, and `size_ret` be null or valid
    /// for a write, until the answer is given.
    pub(crate) unsafe fn new(
        size: usize,
        value: *mut c_void,
        size_ret: *mut usize,
    ) -> Result<Self> {
        match (value.is_null(), size) {
            (true, 1..) => Err(Failure::NULL_POINTER),
            (true, 0) if size_ret.is_null() => Err(Failure::NULL_POINTER),
            (false, 0) => Err(Failure::SIZE),
            _ => Ok(Self {
                size,
                value,
                size_ret,
            }),
        }
    }

    /// Answers with one value.
    pub(crate) fn value<T: Plain>(self, value: T) -> Result<()> {
        self.list(&[value])
    }

    /// Answers with a truth value, one byte in UR.
    pub(crate) fn truth(self, value: bool) -> Result<()> {
        self.value(u8::from(value))
    }

    /// Answers with values one after the other; none are an answer of no size.
    pub(crate) fn list<T: Plain>(self, values: &[T]) -> Result<()> {
        // SAFETY: values of a plain type have no padding, so all of their bytes are initialised.
        unsafe { self.bytes(values.as_ptr().cast(), size_of_val(values)) }
    }

    /// Answers with the size alone: the value is there already.
    pub(crate) fn size(self, size: usize) -> Result<()> {
        if !self.size_ret.is_null() {
            // SAFETY: valid for a write by the promise made to `new`.
            unsafe { self.size_ret.write(size) };
        }
        Ok(())
    }

    /// Answers with text and the null byte after it.
    pub(crate) fn text(self, text: &str) -> Result<()> {
        let mut bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
        bytes.push(0);
        self.list(&bytes)
    }

    /// # Safety
    /// `from` must be valid for reads of `len` bytes.
    unsafe fn bytes(self, from: *const u8, len: usize) -> Result<()> {
        if !self.value.is_null() {
            if self.size < len {
                return Err(Failure::SIZE);
            }
            // SAFETY: the source by the caller's promise; the destination has at least that size
            // by the promise made to `new`. The source is ours, so they don't overlap.
            unsafe { ptr::copy_nonoverlapping(from, self.value.cast(), len) };
        }
        if !self.size_ret.is_null() {
            // SAFETY: valid for a write by the promise made to `new`.
            unsafe { self.size_ret.write(len) };
        }
        Ok(())
    }
}

/// Values that are answered byte by byte.
///
/// # Safety
/// The type has no padding.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        // SAFETY: integers, addresses, and newtypes and C structs of them without padding.
        $(unsafe impl Plain for $type {})*
    };
}

plain!(u8, u16, u32, u64, i8, i16, i32, i64, usize, isize);

// SAFETY: addresses have no padding.
unsafe impl<T> Plain for *mut T {}
// SAFETY: as above.
unsafe impl<T> Plain for *const T {}
// SAFETY: arrays of values without padding.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

pub(crate) use plain;
