//! The results that the `Get…Info` calls write.

use super::boundary::{Argument2, Argument3, Call};
use super::failure::{Failure, Result};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

/// The arguments by which a query passes memory for its result.
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

/// The arguments of a query whose result has at most one word. The caller does not pass the size of
/// the memory.
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

/// An [`Answer`] that the call checks after its other arguments.
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

/// A [`Query`] whose arguments have not been checked yet.
pub(crate) struct LateQuery<'a>(Query<'a>);

impl<'a> LateQuery<'a> {
    /// Checks the query and returns it.
    ///
    /// # Errors
    /// Returns `no_size` if the memory has size 0. Otherwise returns the same errors as [`Answer`].
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

/// The caller's memory for the result of a query. During `'a`, `value` is null or valid for writes
/// of `size` bytes, and `size_ret` is null or valid for a write.
pub(crate) struct Query<'a> {
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
    _call: PhantomData<&'a mut ()>,
}

impl Query<'_> {
    /// Checks the caller's pointers and size.
    ///
    /// # Errors
    /// Returns `INVALID_NULL_POINTER` if both pointers are null, or if `size` is positive and
    /// `value` is null. Returns `INVALID_SIZE` if `value` is not null and `size` is 0.
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

    /// Writes a Boolean value to the caller's memory, as one byte.
    pub(crate) fn truth(self, value: bool) -> Result<()> {
        self.value(u8::from(value))
    }

    /// Writes adjacent values to the caller's memory. An empty list has the size 0.
    pub(crate) fn list<T: Plain>(self, values: &[T]) -> Result<()> {
        let size = size_of_val(values);
        if !self.value.is_null() {
            if self.size < size {
                return Err(Failure::SIZE);
            }
            let to = self.value.cast::<u8>();
            // SAFETY: all bytes of values of a plain type are initialised. The caller of
            // `Answer::read` guarantees that the destination has room for `self.size` bytes, and
            // `size` is at most that. The values belong to this adapter, so they do not overlap the
            // destination.
            unsafe { ptr::copy_nonoverlapping(values.as_ptr().cast(), to, size) };
        }
        self.size(size)
    }

    /// Reports the size of the result. The result itself was already written, or was not requested.
    pub(crate) fn size(self, size: usize) -> Result<()> {
        if !self.size_ret.is_null() {
            // SAFETY: the caller of `Answer::read` ensured that a non-null `size_ret` is valid for
            // a write.
            unsafe { self.size_ret.write(size) };
        }
        Ok(())
    }

    /// Returns the address and the length in bytes of the caller's memory. Returns `None` if the
    /// caller requested only the size of the result.
    pub(crate) fn place(&self) -> Option<(*mut c_void, usize)> {
        (!self.value.is_null()).then_some((self.value, self.size))
    }

    /// Writes text and a terminating null byte to the caller's memory. Null bytes within the text
    /// are dropped.
    pub(crate) fn text(self, text: &str) -> Result<()> {
        let mut bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
        bytes.push(0);
        self.list(&bytes)
    }
}

/// A type whose values can be copied byte by byte.
///
/// # Safety
/// The type must have no padding.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        // SAFETY: each type is an integer, or a C structure without padding that contains only
        // integers and addresses.
        $(unsafe impl Plain for $type {})*
    };
}

plain!(u8, u16, u32, u64, i8, i16, i32, i64, usize, isize);

// SAFETY: addresses have no padding.
unsafe impl<T> Plain for *mut T {}
// SAFETY: addresses have no padding.
unsafe impl<T> Plain for *const T {}
// SAFETY: an array of values without padding has no padding.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

pub(crate) use plain;
