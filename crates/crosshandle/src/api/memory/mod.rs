//! Memory that was allocated here, adopted from the program, or opened from a handle.

mod adopted;
mod buffer;
mod fabric;
mod file;
mod opened;
mod pool;
mod range;

pub use buffer::Buffer;
pub use pool::{MemoryPool, MemoryPoolOptions, MemoryPoolUsage};
pub use range::MemoryRange;

use crate::api::core::{Allocation, ContextCore, Imported};
use adopted::Adopted;
use crosshandle_hal::BackendSegment;
use crosshandle_hal::common::leak_registry;
use crosshandle_handle::{Fields, MemoryHandle};
use crosshandle_ipc::{KeepAlive, OpenDeadline};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::trace::{self, Step};
use crosshandle_types::report::ObjectKind;
use crosshandle_types::{Access, Address, MemoryKind, Pod, SharedBytes, TypedSlice, byte_range};
pub(crate) use opened::Opened;
use std::any::Any;
use std::fmt;
use std::mem;
use std::ops::RangeBounds;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A range of device memory that was allocated here or opened from a handle. Dropping a `Memory`
/// frees or closes the range. Commands that use it keep it until they are complete.
///
/// Processes that have exported memory open keep its bytes when it is freed. The exporter reuses
/// the memory only after the last of them has closed it.
///
/// Any thread may use a `Memory`. Only events order the accesses to it. [`SharedBytes`] describes
/// what an access sees if it races with another.
///
/// In this example, the importer reads the memory after its exporter has freed it:
///
/// ```standalone_crate
/// use crosshandle::{Context, Device};
/// use std::env;
/// use std::io::{BufRead, BufReader, Write, stdin};
/// use std::process::{Command, Stdio};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let context = Context::new(&Device::find("host")?)?;
///     if let Some(handle) = env::args().nth(1) {
///         let memory = context.open_memory_read_only(&handle.parse()?)?;
///         println!("opened");
///         // Waits until the exporter has freed the memory.
///         stdin().read_line(&mut String::new())?;
///         let mut bytes = [0; 4];
///         memory.read(0, &mut bytes)?;
///         assert_eq!(&bytes, b"kept");
///         return Ok(());
///     }
///     let memory = context.allocate(4096)?;
///     memory.write(0, b"kept")?;
///     let mut importer = Command::new(env::current_exe()?)
///         .arg(memory.handle_read_only()?.to_string())
///         .stdin(Stdio::piped())
///         .stdout(Stdio::piped())
///         .spawn()?;
///     let mut line = String::new();
///     BufReader::new(importer.stdout.take().expect("piped")).read_line(&mut line)?;
///     assert_eq!(line, "opened\n");
///     drop(memory);
///     importer.stdin.take().expect("piped").write_all(b"freed\n")?;
///     assert!(importer.wait()?.success());
///     Ok(())
/// }
/// ```
pub struct Memory {
    source: Source,
    // Cached, because commands read these values very often.
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
    /// Returns the mapping that contains the memory, and the offset of the memory in that mapping.
    fn segment(&self) -> (&dyn BackendSegment, usize) {
        match self {
            Self::Owned(owned) => owned.allocation().segment(),
            Self::Opened(opened) => opened.segment(),
            Self::Adopted(adopted) => adopted.segment(),
        }
    }

    /// Returns the object that keeps the memory alive while a command uses it.
    #[inline]
    fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        match self {
            Self::Owned(owned) => Arc::clone(owned.allocation()) as _,
            Self::Opened(opened) => Arc::clone(opened) as _,
            Self::Adopted(adopted) => Arc::clone(adopted) as _,
        }
    }
}

/// The description and the handles of memory that can be handed over.
pub(crate) struct WholeMemory {
    pub(crate) device: String,
    pub(crate) kind: ObjectKind,
    pub(crate) handle: MemoryHandle,
    pub(crate) read_only: MemoryHandle,
}

impl Drop for Source {
    fn drop(&mut self) {
        // Another process may wait for this memory to be closed, so the backend must not delay the
        // release.
        if let Self::Opened(opened) = self
            && Arc::strong_count(opened) > 1
        {
            opened.segment().0.release_soon();
        }
    }
}

/// An allocation that a `Memory` owns and frees on drop.
struct Owned(Option<Arc<Allocation>>);

impl Owned {
    #[inline]
    fn allocation(&self) -> &Arc<Allocation> {
        self.0.as_ref().expect("present until drop")
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(allocation) = mem::take(&mut self.0) {
            allocation.free();
        }
    }
}

impl Memory {
    #[inline]
    pub(crate) fn owned(allocation: Arc<Allocation>) -> Self {
        Self::new(Source::Owned(Owned(Some(allocation))))
    }

    pub(crate) fn open(
        core: &Arc<ContextCore>,
        handle: &MemoryHandle,
        access: Access,
        deadline: &OpenDeadline,
    ) -> Result<Self> {
        let opened = Opened::open(core, &handle.fields(), access, deadline)?;
        Ok(Self::new(Source::Opened(Arc::new(opened))))
    }

    /// Wraps memory of another process whose segment is already mapped.
    pub(crate) fn placed(
        imported: Imported,
        fields: &Fields,
        access: Access,
        deadline: &OpenDeadline,
    ) -> Result<Self> {
        let opened = Opened::of(Arc::new(imported), fields, access, deadline)?;
        Ok(Self::new(Source::Opened(Arc::new(opened))))
    }

    /// Wraps `len` bytes of memory that the program allocated elsewhere, starting `offset` bytes
    /// into a segment.
    pub(crate) fn adopted(
        core: &Arc<ContextCore>,
        segment: Arc<dyn BackendSegment>,
        offset: usize,
        len: usize,
    ) -> Self {
        let adopted = Adopted::new(core, segment, offset, len);
        Self::new(Source::Adopted(Arc::new(adopted)))
    }

    #[inline]
    fn new(source: Source) -> Self {
        let (address, len, is_on_host) = match &source {
            Source::Owned(owned) => {
                let allocation = owned.allocation();
                (
                    allocation.start(),
                    allocation.len(),
                    allocation.is_on_host(),
                )
            }
            Source::Opened(opened) => {
                let is_on_host = opened.segment().0.host_bytes().is_some();
                (opened.start(), opened.len(), is_on_host)
            }
            Source::Adopted(adopted) => {
                let is_on_host = adopted.segment().0.host_bytes().is_some();
                (adopted.start(), adopted.len(), is_on_host)
            }
        };
        Self {
            source,
            address,
            len,
            is_on_host,
        }
    }

    /// Returns the start address. It is a device address, and a valid pointer if the host can
    /// access the memory.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.pointer().as_ptr()
    }

    /// Gives the memory a name, which tools and errors of all processes that share the memory show.
    /// Names are cut to 32 bytes of UTF-8. Only the process that allocated or adopted the memory
    /// can name it. In other processes this call does nothing.
    pub fn set_name(&self, name: &str) {
        match &self.source {
            Source::Owned(owned) => owned.allocation().set_name(name),
            Source::Adopted(adopted) => adopted.set_name(name),
            Source::Opened(_) => {}
        }
    }

    /// Returns the name of the memory, if it has one.
    pub fn name(&self) -> Option<String> {
        match &self.source {
            Source::Owned(owned) => owned.allocation().name(),
            Source::Adopted(adopted) => adopted.name(),
            Source::Opened(opened) => opened.name(),
        }
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always returns `false`, because memory is never empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the access that this process has to the memory. It is [`Access::ReadWrite`], except
    /// for memory that was opened read-only.
    #[inline]
    pub fn access(&self) -> Access {
        match &self.source {
            Source::Owned(_) | Source::Adopted(_) => Access::ReadWrite,
            Source::Opened(opened) => opened.access(),
        }
    }

    /// Returns the kind of memory, or `None` for opened memory, whose kind only the exporter knows.
    pub fn kind(&self) -> Option<MemoryKind> {
        match &self.source {
            Source::Owned(owned) => Some(owned.allocation().kind()),
            Source::Adopted(adopted) => Some(adopted.kind()),
            Source::Opened(_) => None,
        }
    }

    /// Returns a handle to the whole memory.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for memory that was itself opened from a handle. Pass that
    ///   handle on instead.
    /// - [`Error::LimitReached`] if a limit of the system or of this crate is reached.
    #[inline]
    pub fn handle(&self) -> Result<MemoryHandle> {
        self.handle_to(0, Access::ReadWrite)
    }

    /// Returns a handle to the bytes from `offset` to the end. When another process opens it, its
    /// memory starts at byte `offset`.
    ///
    /// # Errors
    /// As [`handle`](Self::handle). Also [`Error::InvalidArgument`] for an offset that is not
    /// inside the memory.
    pub fn handle_at(&self, offset: usize) -> Result<MemoryHandle> {
        self.handle_to(offset, Access::ReadWrite)
    }

    /// Returns a handle that grants reading only.
    ///
    /// A process that opens it can also read other allocations in the same segment, but cannot
    /// write to them. See [`ContextOptions::pooling`](crate::ContextOptions::pooling).
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

    /// Returns the descriptor of the segment that contains the memory. Only for memory that this
    /// process has allocated or adopted.
    pub(crate) fn descriptor(&self) -> Result<Arc<OwnedFd>> {
        self.source.segment().0.descriptor(Access::ReadWrite)
    }

    /// Describes the memory for a hand-over, and makes handles to it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for memory that cannot be handed over.
    pub(crate) fn describe_whole(&self) -> Result<WholeMemory> {
        let (core, kind) = match &self.source {
            Source::Owned(owned) => {
                let allocation = owned.allocation();
                if !allocation.is_alone() {
                    return Err(Error::Unsupported(
                        "this memory shares its segment with other allocations, and a holder would hold \
                         them all: allocate it in a context without pooling \
                         (`ContextOptions::pooling(false)`)"
                            .into(),
                    ));
                }
                (allocation.core(), allocation.kind().into())
            }
            Source::Adopted(adopted) => {
                if !adopted.is_whole() {
                    return Err(Error::Unsupported(
                        "only the whole of one allocation can be handed over, and this is a part of one \
                         that the program made with the driver, consists of several, or is only lent"
                            .into(),
                    ));
                }
                (adopted.core(), ObjectKind::Device)
            }
            Source::Opened(_) => {
                return Err(Error::Unsupported(
                    "this memory was opened from a handle: the process that allocated it can hand it over"
                        .into(),
                ));
            }
        };
        Ok(WholeMemory {
            device: core.device().to_string(),
            kind,
            handle: self.handle()?,
            read_only: self.handle_read_only()?,
        })
    }

    /// Notes that a holder has taken the memory over.
    pub(crate) fn note_handed_over(&self) {
        match &self.source {
            Source::Owned(owned) => owned.allocation().hand_over(),
            Source::Adopted(adopted) => adopted.hand_over(),
            Source::Opened(_) => {}
        }
    }

    /// Lends a part of the memory, as a `Memory` with its own handles. Importers of several parts
    /// map their common segment only once.
    ///
    /// `owner` is an object that must not be dropped or reused while the part is in use, such as an
    /// array of another library. It is dropped once the result is dropped, its commands are
    /// complete, and no process has the part open. The library checks for this whenever it
    /// allocates, frees or shares an object, and whenever an importer ends. The drop may happen on
    /// a background thread. The owner is kept even if the last clone of the context is dropped
    /// earlier.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a part that is empty or not inside the memory, and for memory
    /// that was itself opened from a handle.
    pub fn lend(
        self: &Arc<Self>,
        part: impl RangeBounds<usize>,
        owner: impl Any + Send + Sync,
    ) -> Result<Self> {
        let part = byte_range::resolve(part, self.len())?;
        if part.is_empty() {
            return Err(Error::invalid("no bytes are no memory"));
        }
        // The owner is dropped last, because the memory may have been adopted from it.
        let keep: KeepAlive = Some(Box::new((Arc::clone(self), owner)));
        let loaned = match &self.source {
            Source::Owned(owned) => Adopted::part_of_allocation(owned.allocation(), part, keep),
            Source::Adopted(adopted) => adopted.part(part, keep),
            Source::Opened(_) => {
                return Err(Error::invalid(
                    "this memory was opened from a handle; pass that handle on instead of a new one",
                ));
            }
        };
        Ok(Self::new(Source::Adopted(Arc::new(loaned))))
    }

    /// Returns the memory's bytes for access by the host.
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

    /// Copies bytes out of the memory, starting at byte `offset`, on the calling thread.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes). Also [`Error::InvalidArgument`] if the range is not inside the
    /// memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let begun = trace::begin();
        self.bytes()?.read(offset, into)?;
        begun.end(|| Step::Copy(into.len()));
        Ok(())
    }

    /// Copies bytes into the memory, starting at byte `offset`, on the calling thread.
    ///
    /// # Errors
    /// As [`read`](Self::read). Also [`Error::ReadOnly`] for memory that was opened read-only.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let begun = trace::begin();
        self.bytes()?.write(offset, from)?;
        begun.end(|| Step::Copy(from.len()));
        Ok(())
    }

    /// Returns the memory's bytes as elements of a type, for access by the host. A [`Buffer`] is
    /// memory with a fixed element type.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes). Also [`Error::InvalidArgument`] if the memory is not aligned for
    /// `T`, or its length is not a multiple of the size of `T`.
    pub fn typed<T: Pod>(&self) -> Result<TypedSlice<'_, T>> {
        self.bytes()?.typed()
    }

    /// Returns whether submitted commands still use the memory. Commands keep the memory until they
    /// are complete, so a program may drop it earlier.
    pub fn is_in_use(&self) -> bool {
        self.is_kept() && {
            self.source.segment().0.release_finished();
            self.is_kept()
        }
    }

    /// Returns whether another object that can still be dropped also keeps the memory.
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

    /// Returns the whole memory as a range for a command.
    #[inline(always)] // As `Command::copy`, for which it is made.
    pub fn all(&self) -> MemoryRange {
        MemoryRange::of_memory(
            self.address,
            self.len,
            self.access(),
            self.is_on_host,
            self.source.keep(),
        )
    }

    /// Returns a range of bytes for a command.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the range is not inside the memory.
    #[inline]
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<MemoryRange> {
        self.all().into_part(range)
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
