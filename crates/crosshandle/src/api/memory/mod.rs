//! Memory: allocated here, or opened from a handle.

mod adopted;
mod allocation;
mod opened;
mod pool;

pub(crate) use allocation::Allocation;
pub use pool::{MemoryPool, MemoryPoolOptions, MemoryPoolUsage};

use crate::api::context::ContextCore;
use crate::error::{Error, Result};
use crate::hal::common::leak_registry;
use crate::hal::{Operand, Segment};
use crate::handle::MemoryHandle;
use crate::types::Access;
use crate::types::Address;
use crate::types::MemoryKind;
use crate::types::byte_range;
use crate::types::{SharedBytes, TypedSlice};
use adopted::Adopted;
use allocation::Owned;
use opened::Opened;
use std::any::Any;
use std::fmt;
use std::ops::{Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A range of device memory, allocated here or opened from a handle. Dropping it frees or closes
/// it; commands that use it keep it until they are done.
///
/// Freeing exported memory takes nothing away from those who have it open: they keep the bytes,
/// and the exporter uses the memory for nothing else until the last one has closed it.
///
/// Any thread may use it. Accesses are ordered by events alone.
pub struct Memory {
    source: Source,
    // What commands ask for, over and over.
    address: Address,
    len: usize,
    is_on_host: bool,
}

enum Source {
    Owned(Owned),
    Opened(Arc<Opened>),
    Adopted(Arc<Adopted>),
}

impl Source {
    /// The mapping that it is in, and where it starts there.
    fn segment(&self) -> (&dyn Segment, usize) {
        match self {
            Self::Owned(owned) => owned.segment(),
            Self::Opened(opened) => opened.segment(),
            Self::Adopted(adopted) => adopted.segment(),
        }
    }

    #[inline]
    fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        match self {
            Self::Owned(owned) => Arc::clone(owned.allocation()) as _,
            Self::Opened(opened) => Arc::clone(opened) as _,
            Self::Adopted(adopted) => Arc::clone(adopted) as _,
        }
    }
}

impl Memory {
    pub(crate) fn owned(allocation: Arc<Allocation>) -> Self {
        Self::new(Source::Owned(Owned::new(allocation)))
    }

    pub(crate) fn open(
        core: &Arc<ContextCore>,
        handle: &MemoryHandle,
        access: Access,
    ) -> Result<Self> {
        let opened = Opened::open(core, &handle.fields(), access)?;
        Ok(Self::new(Source::Opened(Arc::new(opened))))
    }

    /// Memory that the program allocated elsewhere: `len` bytes that start `offset` bytes into a
    /// segment.
    pub(crate) fn adopted(
        core: &Arc<ContextCore>,
        segment: Arc<dyn Segment>,
        offset: usize,
        len: usize,
    ) -> Self {
        let adopted = Adopted::new(core, segment, offset, len);
        Self::new(Source::Adopted(Arc::new(adopted)))
    }

    fn new(source: Source) -> Self {
        let (address, len) = match &source {
            Source::Owned(owned) => (owned.start(), owned.len()),
            Source::Opened(opened) => (opened.start(), opened.len()),
            Source::Adopted(adopted) => (adopted.start(), adopted.len()),
        };
        let is_on_host = source.segment().0.host_bytes().is_some();
        Self {
            source,
            address,
            len,
            is_on_host,
        }
    }

    /// Where it starts: a device address, and a pointer where the host can access the memory.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.pointer().as_ptr()
    }

    /// Bytes in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty, which memory never is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What may be done with it.
    #[inline]
    pub fn access(&self) -> Access {
        match &self.source {
            Source::Owned(_) | Source::Adopted(_) => Access::ReadWrite,
            Source::Opened(opened) => opened.access(),
        }
    }

    /// Where it lives; `None` for opened memory, which only its exporter knows.
    pub fn kind(&self) -> Option<MemoryKind> {
        match &self.source {
            Source::Owned(owned) => Some(owned.kind()),
            Source::Adopted(_) => Some(MemoryKind::Device),
            Source::Opened(_) => None,
        }
    }

    /// A handle to all of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for memory that was itself opened from a handle (pass that
    /// handle on instead); limits of the system.
    #[inline]
    pub fn handle(&self) -> Result<MemoryHandle> {
        self.handle_to(0, Access::ReadWrite)
    }

    /// A handle to what starts at `offset`, up to the end. Opening it gives that address.
    ///
    /// # Errors
    /// As [`handle`](Self::handle); [`Error::InvalidArgument`] for an offset that is not inside.
    pub fn handle_at(&self, offset: usize) -> Result<MemoryHandle> {
        self.handle_to(offset, Access::ReadWrite)
    }

    /// A handle with which it can be opened for reading only.
    ///
    /// Other allocations in the same segment can be read through what it opens, but not written;
    /// see [`ContextOptions::pooling`](crate::ContextOptions::pooling).
    ///
    /// # Errors
    /// As [`handle`](Self::handle).
    pub fn handle_read_only(&self) -> Result<MemoryHandle> {
        self.handle_to(0, Access::ReadOnly)
    }

    #[inline]
    fn handle_to(&self, offset: usize, access: Access) -> Result<MemoryHandle> {
        match &self.source {
            Source::Owned(owned) => owned.allocation().handle(offset, access),
            Source::Adopted(adopted) => adopted.handle(offset, access),
            Source::Opened(_) => Err(Error::invalid(
                "this memory was opened from a handle; pass that handle on instead of a new one",
            )),
        }
    }

    /// Its bytes, for the host.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for device memory that the host cannot access: copy it with a queue.
    pub fn bytes(&self) -> Result<SharedBytes<'_>> {
        let (segment, offset) = self.source.segment();
        let bytes = segment.host_bytes().ok_or_else(|| {
            Error::Unsupported(
                "the host cannot access this memory directly; copy it with a queue".into(),
            )
        })?;
        bytes.slice(offset..offset + self.len())
    }

    /// Copies bytes out, starting at `offset`, on the calling thread.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if they are not all inside; as [`bytes`](Self::bytes).
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.bytes()?.read(offset, into)
    }

    /// Copies bytes in, starting at `offset`, on the calling thread.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::ReadOnly`] if it was opened read-only.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.bytes()?.write(offset, from)
    }

    /// All of it as elements of a type.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it doesn't divide into elements; as [`bytes`](Self::bytes).
    pub fn typed<T>(&self) -> Result<TypedSlice<'_, T>>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        self.bytes()?.typed()
    }

    /// Whether commands that were submitted use it. They keep it until they are done, so nobody
    /// has to wait for them to drop it.
    pub fn is_in_use(&self) -> bool {
        self.is_kept() && {
            self.source.segment().0.let_go();
            self.is_kept()
        }
    }

    /// Whether anything else than this keeps it, that may end.
    fn is_kept(&self) -> bool {
        fn is_kept<T>(object: &Arc<T>) -> bool {
            let count = Arc::strong_count(object);
            count > 1 && count > 1 + leak_registry::count(object)
        }
        match &self.source {
            Source::Owned(owned) => is_kept(owned.allocation()),
            Source::Opened(opened) => is_kept(opened),
            Source::Adopted(adopted) => is_kept(adopted),
        }
    }

    /// All of it, for a command.
    #[inline(always)] // As `Command::copy`, for which it is made.
    pub fn all(&self) -> MemoryRange {
        MemoryRange {
            address: self.address,
            len: self.len,
            access: self.access(),
            is_on_host: self.is_on_host,
            keep: Some(self.source.keep()),
        }
    }

    /// A part of it, for a command.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside.
    #[inline]
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<MemoryRange> {
        self.all().range(range)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("start", &self.as_ptr())
            .field("len", &self.len())
            .field("access", &self.access())
            .field("opened", &matches!(self.source, Source::Opened(_)))
            .finish()
    }
}

/// A range of memory that a command uses. Keeps its memory until the command is done.
#[derive(Clone)]
pub struct MemoryRange {
    address: Address,
    len: usize,
    access: Access,
    /// Whether the host can access it too.
    is_on_host: bool,
    keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl MemoryRange {
    /// Memory that this crate knows nothing of, or a mapped part of a
    /// [`VirtualRange`](crate::VirtualRange). A copy between a device and host memory that its
    /// driver doesn't know either may hold up whoever submits it until it is the command's turn.
    ///
    /// # Safety
    /// From the submission of any command that uses the range until that command is done, `len`
    /// bytes at `address` must be valid for the device's reads, and for its writes if `access`
    /// allows them.
    #[allow(unsafe_code)] // The promise is the caller's; nothing here relies on it.
    pub unsafe fn from_raw_parts(address: NonNull<u8>, len: usize, access: Access) -> Self {
        Self {
            address: Address::new(address),
            len,
            access,
            is_on_host: true,
            keep: None,
        }
    }

    /// Bytes in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it starts, as for [`Memory::as_ptr`]. The address alone keeps nothing.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.pointer().as_ptr()
    }

    /// What keeps its memory, if anything does.
    pub(crate) fn keep(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.keep.clone()
    }

    /// A part of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside.
    #[inline]
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let Range { start, end } = byte_range::resolve(range, self.len)?;
        Ok(Self {
            address: self.address.offset(start),
            len: end - start,
            ..self.clone()
        })
    }

    /// The same range, which keeps `object` too: it is dropped when no command uses the range any
    /// more, maybe on a thread of a queue. Its drop may use queues, but should not wait there. A
    /// panic of its drop ends there. A command that is done at once is dropped by the call that
    /// submits it, out of which the panic comes then.
    pub fn keeping<T: Any + Send + Sync>(self, object: Arc<T>) -> Self {
        Self {
            keep: Some(match self.keep {
                Some(memory) => Arc::new((memory, object)),
                None => object,
            }),
            ..self
        }
    }

    pub(crate) fn new(address: Address, len: usize, access: Access, is_on_host: bool) -> Self {
        Self {
            address,
            len,
            access,
            is_on_host,
            keep: None,
        }
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly),
        }
    }

    #[inline]
    pub(crate) fn is_on_host(&self) -> bool {
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
