//! Typed memory.

use super::{Memory, MemoryRange};
use crate::api::command::Command;
use crate::api::context::Context;
use crosshandle_handle::MemoryHandle;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::shared_bytes::check_elements;
use crosshandle_types::{Access, AllocationOptions, MemoryKind, Pod, TypedSlice, byte_range};
use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Range, RangeBounds};
use zerocopy::IntoBytes;

/// Memory that contains elements of one type. Lengths, indices and ranges count elements.
///
/// Any thread may use a buffer.
///
/// ```
/// use crosshandle::{Buffer, Context, Device};
///
/// # fn main() -> crosshandle::Result<()> {
/// let context = Context::new(&Device::find("host")?)?;
/// let sums: Buffer<f32> = Buffer::from_slice(&context, &[0.5, 1.5, 2.5])?;
/// let same: Buffer<f32> = Buffer::open(&context, &sums.handle()?)?;
/// same.write(1, &[4.0, 5.0])?;
/// assert_eq!(sums.to_vec()?, [0.5, 4.0, 5.0]);
/// # Ok(())
/// # }
/// ```
pub struct Buffer<T> {
    memory: Memory,
    _type: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Allocates device memory for `len` elements, whose contents are arbitrary.
    ///
    /// # Errors
    /// As [`Context::allocate`]. Also
    /// [`Error::InvalidArgument`] if `T` has size 0.
    pub fn new(context: &Context, len: usize) -> Result<Self> {
        let options = AllocationOptions::new(Self::bytes_of(len)?);
        let align = options.align.max(align_of::<T>());
        Self::from_memory(context.allocate_with(options.align(align))?)
    }

    /// Allocates device memory for the elements of a slice, and copies them into it. If the host
    /// cannot access the device's memory, a temporary queue copies them, and this call blocks until
    /// the copy is complete.
    ///
    /// # Errors
    /// As [`new`](Self::new). Also [`Error::Driver`]
    /// if the driver refuses.
    pub fn from_slice(context: &Context, elements: &[T]) -> Result<Self> {
        let buffer = Self::new(context, elements.len())?;
        match buffer.write(0, elements) {
            Err(Error::Unsupported(_)) => {}
            written => return written.map(|()| buffer),
        }
        let options = AllocationOptions::new(size_of_val(elements)).kind(MemoryKind::Host);
        let staging = context.allocate_with(options)?;
        staging.write(0, elements.as_bytes())?;
        let queue = context.create_queue()?;
        queue.submit(Command::copy(staging.all(), buffer.all())?)?;
        queue.finish()?;
        Ok(buffer)
    }

    /// Opens exported memory as elements of a type. The handle does not contain the exporter's
    /// type.
    ///
    /// # Errors
    /// As [`Context::open_memory`]. Also
    /// [`Error::InvalidArgument`] if the memory is not aligned for
    /// `T`, or its length is not a multiple of the size of `T`.
    pub fn open(context: &Context, handle: &MemoryHandle) -> Result<Self> {
        Self::from_memory(context.open_memory(handle)?)
    }

    /// Opens exported memory as elements of a type, for reading only.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_read_only(context: &Context, handle: &MemoryHandle) -> Result<Self> {
        Self::from_memory(context.open_memory_read_only(handle)?)
    }

    /// Converts all of `memory` to a buffer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the start of the memory is not aligned for `T`, or its length
    /// is not a multiple of the size of `T`. In both cases the memory is dropped.
    pub fn from_memory(memory: Memory) -> Result<Self> {
        check_elements::<T>(memory.as_ptr().addr(), memory.len())?;
        Ok(Self {
            memory,
            _type: PhantomData,
        })
    }

    /// Returns the size of `len` elements in bytes.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the size overflows.
    fn bytes_of(len: usize) -> Result<usize> {
        len.checked_mul(size_of::<T>()).ok_or_else(|| {
            Error::invalid(format!(
                "{len} elements of {} bytes are more than memory can have",
                size_of::<T>()
            ))
        })
    }

    /// Returns the device address of the first element. See [`Memory::as_ptr`].
    pub fn as_ptr(&self) -> *mut T {
        self.memory.as_ptr().cast()
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.memory.len() / size_of::<T>()
    }

    /// Always returns `false`, because a buffer is never empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the access that this process has to the buffer.
    pub fn access(&self) -> Access {
        self.memory.access()
    }

    /// Returns a handle to the whole buffer. The handle does not contain the element type, so open
    /// it with the same type.
    ///
    /// # Errors
    /// As [`Memory::handle`].
    pub fn handle(&self) -> Result<MemoryHandle> {
        self.memory.handle()
    }

    /// Returns a handle that grants reading only.
    ///
    /// # Errors
    /// As [`Memory::handle_read_only`].
    pub fn handle_read_only(&self) -> Result<MemoryHandle> {
        self.memory.handle_read_only()
    }

    /// Returns the elements for access by the host.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for device memory that the host cannot access: copy it with a queue.
    pub fn elements(&self) -> Result<TypedSlice<'_, T>> {
        self.memory.typed()
    }

    /// Copies elements out of the buffer, starting at element `first`, on the calling thread.
    ///
    /// # Errors
    /// As [`elements`](Self::elements). Also [`Error::InvalidArgument`] if the range is not inside
    /// the buffer.
    pub fn read(&self, first: usize, into: &mut [T]) -> Result<()> {
        self.elements()?.read(first, into)
    }

    /// Copies elements into the buffer, starting at element `first`, on the calling thread.
    ///
    /// # Errors
    /// As [`read`](Self::read). Also [`Error::ReadOnly`] for a buffer that was opened read-only.
    pub fn write(&self, first: usize, from: &[T]) -> Result<()> {
        self.elements()?.write(first, from)
    }

    /// Copies all elements into a new vector, on the calling thread.
    ///
    /// # Errors
    /// As [`elements`](Self::elements).
    pub fn to_vec(&self) -> Result<Vec<T>> {
        // This check comes first, so that no memory is allocated for a copy that cannot be made.
        let elements = self.elements()?;
        let mut copies = vec![T::new_zeroed(); elements.len()];
        elements.read(0, &mut copies)?;
        Ok(copies)
    }

    /// Returns the whole buffer as a range for a command.
    #[inline]
    pub fn all(&self) -> MemoryRange {
        self.memory.all()
    }

    /// Returns a range of elements for a command.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range is not inside the buffer.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<MemoryRange> {
        let Range { start, end } = byte_range::resolve(range, self.len())?;
        self.memory
            .range(start * size_of::<T>()..end * size_of::<T>())
    }

    /// Returns the untyped memory of the buffer.
    pub fn as_memory(&self) -> &Memory {
        &self.memory
    }

    /// Converts the buffer to untyped memory.
    pub fn into_memory(self) -> Memory {
        self.memory
    }
}

impl<T: Pod> TryFrom<Memory> for Buffer<T> {
    type Error = Error;

    /// Converts all of `memory` to a buffer, as [`Buffer::from_memory`] does.
    fn try_from(memory: Memory) -> Result<Self> {
        Self::from_memory(memory)
    }
}

impl<T> From<Buffer<T>> for Memory {
    fn from(buffer: Buffer<T>) -> Self {
        buffer.memory
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("type", &type_name::<T>())
            .field("memory", &self.memory)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AllocationOptions, Context, Device};

    fn context() -> Context {
        Context::new(&Device::find("host").unwrap()).unwrap()
    }

    #[test]
    fn lengths_and_ranges_count_elements() {
        let context = context();
        let buffer = Buffer::from_slice(&context, &[1_u32, 2, 3, 4, 5]).unwrap();
        assert_eq!((buffer.len(), buffer.as_memory().len()), (5, 20));
        buffer.write(3, &[40, 50]).unwrap();
        let mut middle = [0; 3];
        buffer.read(1, &mut middle).unwrap();
        assert_eq!(middle, [2, 3, 40]);
        assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3, 40, 50]);
        let part = buffer.range(1..=2).unwrap();
        assert_eq!(part.len(), 8);
        assert_eq!(part.as_ptr().addr(), buffer.as_ptr().addr() + 4);
        assert_eq!(buffer.range(3..).unwrap().len(), 8);
        assert!(buffer.range(..6).is_err());
        assert!(buffer.write(4, &[0, 0]).is_err());
        assert_eq!(buffer.elements().unwrap().get(4), Some(50));
        assert_eq!(buffer.into_memory().len(), 20);
    }

    #[test]
    fn opening_gives_the_same_elements() {
        let context = context();
        let buffer = Buffer::<u64>::new(&context, 3).unwrap();
        let opened = Buffer::<u64>::open(&context, &buffer.handle().unwrap()).unwrap();
        opened.write(0, &[7, 8, 9]).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [7, 8, 9]);
        let handle = buffer.handle_read_only().unwrap();
        let reader = Buffer::<u64>::open_read_only(&context, &handle).unwrap();
        assert_eq!(reader.to_vec().unwrap(), [7, 8, 9]);
        assert!(matches!(reader.write(0, &[1]), Err(Error::ReadOnly)));
    }

    #[test]
    fn memory_that_holds_no_such_elements_is_refused() {
        let context = context();
        let memory = context.allocate(20).unwrap();
        let handle = memory.handle().unwrap();
        let refused = Buffer::<u64>::open(&context, &handle);
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
        let handle = memory.handle_at(2).unwrap();
        let refused = Buffer::<u16>::open(&context, &handle).map(|buffer| buffer.len());
        assert_eq!(refused.unwrap(), 9);
        let handle = memory.handle_at(1).unwrap();
        assert!(Buffer::<[u8; 19]>::open(&context, &handle).is_ok());
        let handle = memory.handle_at(4).unwrap();
        let aligned = Buffer::<[u64; 2]>::open(&context, &handle);
        assert!(matches!(aligned, Err(Error::InvalidArgument(_))));
        assert!(Buffer::<()>::from_memory(memory).is_err());
        assert!(Buffer::<u32>::new(&context, 0).is_err());
        assert!(Buffer::<u32>::new(&context, usize::MAX / 2).is_err());
        let aligned = AllocationOptions::new(1 << 12).align(1 << 12);
        let memory = context.allocate_with(aligned).unwrap();
        assert_eq!(Buffer::<u128>::from_memory(memory).unwrap().len(), 256);
    }
}
