//! Results of the `Get…Info` calls.

use super::boundary::{Argument2, Argument3, Call};
use super::failure::{Failure, Result};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

/// An argument of an entry point: memory for the result of a query.
pub(crate) struct Answer;

impl Argument3 for Answer {
    type A = usize;
    type B = *mut c_void;
    type C = *mut usize;
    type Value<'a> = Query<'a>;

    #[inline]
    unsafe fn read<'a>(
        size: usize,
        value: *mut c_void,
        size_ret: *mut usize,
        _call: &'a Call,
    ) -> Result<Query<'a>> {
        Query::new(size, value, size_ret)
    }
}

/// An argument of an entry point: memory for a result of at most one word, whose size is not
/// passed.
pub(crate) struct NumberAnswer;

impl Argument2 for NumberAnswer {
    type A = *mut c_void;
    type B = *mut usize;
    type Value<'a> = Query<'a>;

    unsafe fn read<'a>(
        value: *mut c_void,
        size_ret: *mut usize,
        _call: &'a Call,
    ) -> Result<Query<'a>> {
        let size = if value.is_null() {
            0
        } else {
            size_of::<usize>()
        };
        Query::new(size, value, size_ret)
    }
}

/// An [`Answer`] for a call that checks this argument last.
pub(crate) struct LateAnswer;

impl Argument3 for LateAnswer {
    type A = usize;
    type B = *mut c_void;
    type C = *mut usize;
    type Value<'a> = LateQuery<'a>;

    unsafe fn read<'a>(
        size: usize,
        value: *mut c_void,
        size_ret: *mut usize,
        _call: &'a Call,
    ) -> Result<LateQuery<'a>> {
        let _call = PhantomData;
        Ok(LateQuery(Query {
            size,
            value,
            size_ret,
            _call,
        }))
    }
}

/// A [`Query`] that has not been checked yet.
pub(crate) struct LateQuery<'a>(Query<'a>);

impl<'a> LateQuery<'a> {
    /// Checks the query and returns it.
    ///
    /// # Errors
    /// Returns the errors of [`Answer`], except that it returns `no_size` for a size of 0.
    pub(crate) fn query(self, no_size: Failure) -> Result<Query<'a>> {
        let Query {
            size,
            value,
            size_ret,
            ..
        } = self.0;
        if !value.is_null() && size == 0 {
            return Err(no_size);
        }
        Query::new(size, value, size_ret)
    }
}

/// Memory of the caller for the result of a query. During `'a`, `value` is null or valid for writes
/// of `size` bytes, and `size_ret` is null or valid for a write.
pub(crate) struct Query<'a> {
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
    _call: PhantomData<&'a mut ()>,
}

impl Query<'_> {
    /// Checks the caller's memory.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_POINTER` if no result could be written, or `INVALID_SIZE` for a size
    /// of 0.
    fn new(size: usize, value: *mut c_void, size_ret: *mut usize) -> Result<Self> {
        match (value.is_null(), size) {
            (true, 1..) => Err(Failure::NULL_POINTER),
            (true, 0) if size_ret.is_null() => Err(Failure::NULL_POINTER),
            (false, 0) => Err(Failure::SIZE),
            _ => Ok(Self {
                size,
                value,
                size_ret,
                _call: PhantomData,
            }),
        }
    }

    /// Writes one value to the caller's memory.
    pub(crate) fn value<T: Plain>(self, value: T) -> Result<()> {
        self.list(&[value])
    }

    /// Writes a truth value to the caller's memory, as one byte.
    pub(crate) fn truth(self, value: bool) -> Result<()> {
        self.value(u8::from(value))
    }

    /// Writes adjacent values to the caller's memory. An empty list has size 0.
    pub(crate) fn list<T: Plain>(self, values: &[T]) -> Result<()> {
        let size = size_of_val(values);
        if !self.value.is_null() {
            if self.size < size {
                return Err(Failure::SIZE);
            }
            let to = self.value.cast::<u8>();
            // SAFETY: all bytes of values of a plain type are initialised. The caller of
            // `Answer::read` promises that the destination has room for `self.size` bytes, which
            // are enough. The values belong to this adapter, so they do not overlap the
            // destination.
            unsafe { ptr::copy_nonoverlapping(values.as_ptr().cast(), to, size) };
        }
        self.size(size)
    }

    /// Reports the size of a result that has already been written.
    pub(crate) fn size(self, size: usize) -> Result<()> {
        if !self.size_ret.is_null() {
            // SAFETY: the pointer is valid for a write, which the caller of `Answer::read` ensured.
            unsafe { self.size_ret.write(size) };
        }
        Ok(())
    }

    /// Returns the address and the length in bytes of the caller's memory, or `None` if the caller
    /// only wants the size of the result.
    pub(crate) fn place(&self) -> Option<(*mut c_void, usize)> {
        (!self.value.is_null()).then_some((self.value, self.size))
    }

    /// Writes text with a terminating null byte to the caller's memory.
    pub(crate) fn text(self, text: &str) -> Result<()> {
        let mut bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
        bytes.push(0);
        self.list(&bytes)
    }
}

/// Values that are copied byte by byte.
///
/// # Safety
/// The type must have no padding.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        // SAFETY: the types are integers, and C structs without padding that consist of integers
        // and addresses.
        $(unsafe impl Plain for $type {})*
    };
}

plain!(u8, u16, u32, u64, i8, i16, i32, i64, usize, isize);

// SAFETY: addresses have no padding.
unsafe impl<T> Plain for *mut T {}
// SAFETY: addresses have no padding.
unsafe impl<T> Plain for *const T {}
// SAFETY: arrays of values without padding have none either.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

pub(crate) use plain;
