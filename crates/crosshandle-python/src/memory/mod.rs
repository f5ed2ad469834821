//! The Python class `Memory`.

pub(crate) mod pending;
pub(crate) mod physical;

use crate::array::arguments::{self, Data};
use crate::array::{Array, Arrivals, Layout};
use crate::channel::InSlot;
use crate::error::{Failure, Result};
use crate::foreign::owners::Owners;
use crate::handle::MemoryHandle;
use crate::interrupt::{detached, detached_for};
use crosshandle::adapter_support::{PerProcess, check_birth};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Memory that several processes can use. `Context.allocate` creates it, and `crosshandle.open`
/// opens another process's memory from a handle.
///
/// A `with` statement closes the memory at its end. An array created from the memory keeps it open
/// as long as the array lives. The bytes may be reused after the exporter and all importers have
/// closed the memory.
///
/// >>> memory = crosshandle.Context("host").allocate(4096)
/// >>> memory.write(b"hello", offset=16)
/// >>> memory.read(5, offset=16)
/// b'hello'
/// >>> numbers = memory.array((16, 16), "float32")
/// >>> part = memory.lend(owner=numbers, nbytes=1024)
/// >>> with crosshandle.open(bytes(memory.handle(read_only=True))) as opened:
/// ...     opened.read(5, offset=16)
/// b'hello'
/// >>> memory.close()
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Memory {
    shared: Mutex<Option<Arc<SharedMemory>>>,
}

/// The state that a `Memory` object and its arrays share. It lives as long as any of them.
pub(crate) struct SharedMemory {
    pub(crate) memory: Arc<crosshandle::Memory>,
    /// The handle with which this process opened the memory, or `None` if this process allocated
    /// it.
    handle: Option<crosshandle::MemoryHandle>,
    pub(crate) context: crosshandle::Context,
    /// The memory's number in [`LIVE`], or `None` for lent memory, which is not in that table.
    live: Option<u64>,
    /// Whether the memory belongs to an allocator that divides it and reuses the parts.
    is_recycled: bool,
    /// For each range of bytes that came with signals: the signals after which it is ready.
    pub(crate) arrivals: Arrivals,
    /// Other memory that must live as long as this memory, such as the tables of bundles that refer
    /// to it.
    kept: Mutex<Vec<Arc<Self>>>,
    /// The item or the slot of a channel that the memory contains.
    in_slot: Option<InSlot>,
}

/// An entry of [`LIVE`].
struct Live {
    len: usize,
    is_opened_here: bool,
    memory: Weak<SharedMemory>,
}

/// The memory that this process has open, by address and number. A forked child starts with an
/// empty table, because it cannot share memory that it inherited.
static LIVE: PerProcess<Mutex<BTreeMap<(usize, u64), Live>>> = PerProcess::new(Mutex::default);
/// The size in bytes of the largest memory that this process has ever had open.
static LONGEST: AtomicUsize = AtomicUsize::new(0);

/// Finds memory that this process has open and that contains the `len` bytes at address `first`.
///
/// With `is_opened_here`, finds memory that this process both exported and opened. A driver may map
/// such memory at the address of the original allocation. The original allocation may then be freed
/// while the opened memory is still mapped.
pub(crate) fn find_live(
    first: usize,
    len: usize,
    is_opened_here: bool,
) -> Option<Arc<SharedMemory>> {
    let live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let lowest = first.saturating_sub(LONGEST.load(Ordering::Relaxed));
    let before = live.range((lowest, 0)..=(first, u64::MAX)).rev();
    let is_around = |start: usize, has: usize| first - start < has && len <= has - (first - start);
    let mut around = before.filter(|((start, _), live)| {
        live.is_opened_here == is_opened_here && is_around(*start, live.len)
    });
    // The caller drops the result after the lock is released.
    around.find_map(|(_, live)| live.memory.upgrade())
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if let Some(number) = self.live {
            let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
            live.remove(&(self.address(), number));
        }
    }
}

impl SharedMemory {
    /// Wraps memory, and adds it to [`LIVE`].
    fn known(
        memory: Arc<crosshandle::Memory>,
        handle: Option<crosshandle::MemoryHandle>,
        context: crosshandle::Context,
        is_recycled: bool,
    ) -> Arc<Self> {
        let own = std::process::id();
        let is_opened_here = handle.is_some_and(|handle| handle.exporter_pid() == own);
        let shared = Arc::new(Self::numbered(memory, handle, context, is_recycled));
        let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        shared.enter(&mut live, is_opened_here);
        drop(live);
        shared
    }

    /// Wraps several opened memories, and adds them to [`LIVE`].
    fn all_known(
        memories: Vec<crosshandle::Memory>,
        handles: &[crosshandle::MemoryHandle],
        context: &crosshandle::Context,
    ) -> Vec<Arc<Self>> {
        // Read the process id only once, because reading it is a system call.
        let own = std::process::id();
        let opened = |(memory, handle): (_, &crosshandle::MemoryHandle)| {
            let memory = Arc::new(memory);
            Arc::new(Self::numbered(
                memory,
                Some(*handle),
                context.clone(),
                false,
            ))
        };
        let all: Vec<_> = memories.into_iter().zip(handles).map(opened).collect();
        let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
        for (shared, handle) in all.iter().zip(handles) {
            shared.enter(&mut live, handle.exporter_pid() == own);
        }
        drop(live);
        all
    }

    /// Wraps memory, and assigns the next number for [`LIVE`].
    fn numbered(
        memory: Arc<crosshandle::Memory>,
        handle: Option<crosshandle::MemoryHandle>,
        context: crosshandle::Context,
        is_recycled: bool,
    ) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Self {
            memory,
            handle,
            context,
            live: Some(NUMBERS.fetch_add(1, Ordering::Relaxed)),
            is_recycled,
            arrivals: Arrivals::default(),
            kept: Mutex::default(),
            in_slot: None,
        }
    }

    /// Adds this memory to [`LIVE`], unless it is lent.
    fn enter(self: &Arc<Self>, live: &mut BTreeMap<(usize, u64), Live>, is_opened_here: bool) {
        let Some(number) = self.live else {
            return;
        };
        let len = self.memory.len();
        LONGEST.fetch_max(len, Ordering::Relaxed);
        let memory = Arc::downgrade(self);
        live.insert(
            (self.address(), number),
            Live {
                len,
                is_opened_here,
                memory,
            },
        );
    }

    /// Wraps memory for an allocator, which divides it and reuses the parts.
    pub(crate) fn for_allocator(
        memory: crosshandle::Memory,
        context: crosshandle::Context,
    ) -> Arc<Self> {
        Self::known(Arc::new(memory), None, context, true)
    }

    /// Wraps the memory of a model that a store has opened.
    pub(crate) fn of_store(
        memory: Arc<crosshandle::Memory>,
        handle: crosshandle::MemoryHandle,
        context: crosshandle::Context,
    ) -> Arc<Self> {
        Self::known(memory, Some(handle), context, false)
    }

    /// Wraps a lent part of other memory. Such a part has handles of its own.
    pub(crate) fn lent(memory: crosshandle::Memory, context: crosshandle::Context) -> Self {
        Self {
            memory: Arc::new(memory),
            handle: None,
            context,
            live: None,
            is_recycled: false,
            arrivals: Arrivals::default(),
            kept: Mutex::default(),
            in_slot: None,
        }
    }

    /// Wraps the memory of a channel for the array of one item or slot.
    pub(crate) fn of_channel(
        memory: Arc<crosshandle::Memory>,
        context: crosshandle::Context,
        in_slot: InSlot,
    ) -> Self {
        Self {
            memory,
            handle: None,
            context,
            live: None,
            is_recycled: false,
            arrivals: Arrivals::default(),
            kept: Mutex::default(),
            in_slot: Some(in_slot),
        }
    }

    /// Keeps `other` alive as long as this memory.
    pub(crate) fn keep(&self, other: Arc<Self>) {
        if ptr::eq(self, &raw const *other) {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.iter().any(|known| Arc::ptr_eq(known, &other)) {
            kept.push(other);
        }
    }

    /// Checks that other processes can still open this memory with the handle that this process
    /// used. To check, opens the memory once more, and returns the error of a failed attempt.
    /// Memory that this process allocated always passes.
    pub(crate) fn check_openable(&self, py: Python<'_>) -> Result<()> {
        self.check_no_slot()?;
        let Some(handle) = self.handle else {
            return Ok(());
        };
        let access = self.memory.access();
        detached(py, || match access {
            crosshandle::Access::ReadWrite => self.context.open_memory(&handle),
            crosshandle::Access::ReadOnly => self.context.open_memory_read_only(&handle),
        })?;
        Ok(())
    }

    /// Fails for memory of a channel, because another process could not keep the item's slot.
    fn check_no_slot(&self) -> Result<()> {
        match self.in_slot {
            None => Ok(()),
            Some(_) => Err(crosshandle::Error::Unsupported(
                "an item of a channel is only for the process that received it".into(),
            )
            .into()),
        }
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.live.is_none() && self.in_slot.is_none()
    }

    /// Returns the memory if it belongs to an allocator that reuses its parts, otherwise `None`. To
    /// share a part of such memory, lend the part together with an owner object. The allocator does
    /// not reuse the part while the owner lives.
    pub(crate) fn recycled(&self) -> Option<Arc<crosshandle::Memory>> {
        self.is_recycled.then(|| Arc::clone(&self.memory))
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.memory.access() == crosshandle::Access::ReadOnly
    }

    pub(crate) fn address(&self) -> usize {
        self.memory.as_ptr().addr()
    }

    /// Returns a handle to the memory. In the process that allocated the memory, creates a new
    /// handle. In any other process, returns the handle with which the memory was opened.
    pub(crate) fn handle(&self, read_only: bool) -> Result<crosshandle::MemoryHandle> {
        // A forked child cannot export inherited memory, because only the parent keeps the
        // allocation alive.
        check_birth(&self.context)?;
        self.check_no_slot()?;
        Ok(match self.handle {
            Some(handle) => handle,
            None if read_only => self.memory.handle_read_only()?,
            None => self.memory.handle()?,
        })
    }

    /// Returns a handle to the memory, like [`handle`](Self::handle). Fails if `read_only` is true
    /// but only a writable handle is available.
    pub(crate) fn handle_of(&self, read_only: bool) -> Result<crosshandle::MemoryHandle> {
        let handle = self.handle(read_only)?;
        match read_only && !handle.is_read_only() {
            true => Err(no_read_only().into()),
            false => Ok(handle),
        }
    }
}

/// Returns the error for an importer that needs a read-only handle but has only a writable one.
/// Only the exporter can create a read-only handle.
pub(crate) fn no_read_only() -> crosshandle::Error {
    crosshandle::Error::Unsupported(
        "this memory was opened with a writable handle, and only the exporting process can create a read-only one: \
         ask that process for a read-only handle"
            .into(),
    )
}

impl Memory {
    pub(crate) fn allocated(memory: crosshandle::Memory, context: crosshandle::Context) -> Self {
        Self::new(memory, None, context)
    }

    pub(crate) fn open(
        py: Python<'_>,
        context: &crosshandle::Context,
        handle: crosshandle::MemoryHandle,
        writable: bool,
        timeout: Option<Duration>,
    ) -> Result<Self> {
        let memory = detached_for(py, timeout, || match writable {
            true => context.open_memory(&handle),
            false => context.open_memory_read_only(&handle),
        })?;
        Ok(Self::new(memory, Some(handle), context.clone()))
    }

    /// Opens the memory of each handle. Returns the results in the order of the handles.
    pub(crate) fn open_all(
        py: Python<'_>,
        context: &crosshandle::Context,
        handles: &[crosshandle::MemoryHandle],
        writable: bool,
        timeout: Option<Duration>,
    ) -> Result<Vec<Arc<SharedMemory>>> {
        let access = match writable {
            true => crosshandle::Access::ReadWrite,
            false => crosshandle::Access::ReadOnly,
        };
        let memories = detached_for(py, timeout, || context.open_memories(handles, access))?;
        Ok(SharedMemory::all_known(memories, handles, context))
    }

    fn new(
        memory: crosshandle::Memory,
        handle: Option<crosshandle::MemoryHandle>,
        context: crosshandle::Context,
    ) -> Self {
        Self::of(SharedMemory::known(
            Arc::new(memory),
            handle,
            context,
            false,
        ))
    }

    pub(crate) fn of(shared: Arc<SharedMemory>) -> Self {
        Self {
            shared: Mutex::new(Some(shared)),
        }
    }

    pub(crate) fn shared(&self) -> PyResult<Arc<SharedMemory>> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = shared.as_ref().map(Arc::clone);
        shared.ok_or_else(|| PyValueError::new_err("this memory was closed"))
    }
}

#[pymethods]
impl Memory {
    /// The size of the memory in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        Ok(self.shared()?.memory.len())
    }

    /// The address of the memory's first byte in this process.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.shared()?.address())
    }

    /// Whether this process can only read the memory.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.shared()?.is_read_only())
    }

    /// The memory's name for `crosshandle ps` and error messages, or `None`. Only the process that
    /// allocated the memory can set the name.
    #[getter]
    fn get_name(&self) -> PyResult<Option<String>> {
        Ok(self.shared()?.memory.name())
    }

    #[setter]
    fn set_name(&self, name: &str) -> PyResult<()> {
        self.shared()?.memory.set_name(name);
        Ok(())
    }

    /// Whether a submitted command that has not finished uses the memory.
    #[getter]
    fn in_use(&self) -> PyResult<bool> {
        Ok(self.shared()?.memory.is_in_use())
    }

    /// Returns a part of the memory (default: all of it) as a new `Memory` object with its own
    /// handles.
    ///
    /// `owner` is any object that marks the part as in use. The library drops its reference to
    /// `owner` after the result and its arrays are closed and no process has the part open. The
    /// program may then reuse the part.
    #[pyo3(signature = (owner, *, nbytes = None, offset = 0))]
    fn lend(&self, owner: Py<PyAny>, nbytes: Option<usize>, offset: usize) -> PyResult<Self> {
        let shared = self.shared()?;
        let all = shared.memory.len().saturating_sub(offset);
        let end = offset.saturating_add(nbytes.unwrap_or(all));
        let lent = shared
            .memory
            .lend(offset..end, Owners(vec![owner]))
            .map_err(Failure::from)?;
        let lent = SharedMemory::lent(lent, shared.context.clone());
        Ok(Self::of(Arc::new(lent)))
    }

    /// Returns a handle, with which another process can open the memory.
    #[pyo3(signature = (*, read_only = false))]
    fn handle(&self, read_only: bool) -> PyResult<MemoryHandle> {
        Ok(MemoryHandle(self.shared()?.handle_of(read_only)?))
    }

    /// Returns a view of the memory as an array, without a copy.
    ///
    /// `shape` is a number or a tuple (default: one dimension up to the end of the memory). `dtype`
    /// is a NumPy dtype or a name such as `"float32"` (default: bytes). `offset` is the position of
    /// the first element in bytes. The array keeps the memory open.
    #[pyo3(signature = (shape = None, dtype = None, *, offset = 0))]
    fn array(
        &self,
        shape: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        offset: usize,
    ) -> PyResult<Array> {
        let shared = self.shared()?;
        let layout = Layout::of(shape, dtype, shared.memory.len(), offset)?;
        Array::new(shared, layout)
    }

    /// Returns a copy of `nbytes` bytes from byte `offset` (default: up to the end). The host must
    /// be able to access the memory.
    #[pyo3(signature = (nbytes = None, *, offset = 0))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        nbytes: Option<usize>,
        offset: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let shared = self.shared()?;
        let all = shared.memory.len().saturating_sub(offset);
        let nbytes = nbytes.unwrap_or(all);
        let part = offset..offset.saturating_add(nbytes);
        let bytes = shared.memory.bytes().and_then(|bytes| bytes.slice(part));
        let bytes = bytes.map_err(Failure::from)?;
        arguments::filled(py, nbytes, |into| {
            bytes.read(0, into).map_err(Failure::from)
        })
    }

    /// Copies `data` into the memory at byte `offset`. `data` is a bytes object, an array or
    /// another contiguous buffer. The host must be able to access the memory.
    #[pyo3(signature = (data, *, offset = 0))]
    fn write(&self, py: Python<'_>, data: Data, offset: usize) -> PyResult<()> {
        let shared = self.shared()?;
        Ok(detached(py, || shared.memory.write(offset, &data))?)
    }

    /// Closes this object. The memory itself stays open while arrays that were created from it
    /// live.
    fn close(&self, py: Python<'_>) {
        let shared = self
            .shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        py.detach(|| drop(shared));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __len__(&self) -> PyResult<usize> {
        self.nbytes()
    }

    /// Returns a copy in new memory on the same device.
    fn __copy__(&self, py: Python<'_>) -> PyResult<Self> {
        let all = Array::new(self.shared()?, Layout::of(None, None, self.nbytes()?, 0)?)?;
        let copied = Bound::new(py, all)?.call_method0("__copy__")?;
        let copied = copied.cast_into::<Array>()?;
        Ok(Self::of(Arc::clone(&copied.get().memory)))
    }

    /// Returns the same copy as `copy.copy`.
    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.__copy__(py)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let shared = slf.get().shared()?;
        shared.check_openable(slf.py())?;
        let handle = shared.handle(shared.is_read_only())?;
        let bytes = PyBytes::new(slf.py(), handle.as_bytes());
        // The receiver gets the same access as this process, even if the handle permits more.
        let open = match shared.is_read_only() {
            true => "open_read_only",
            false => "open",
        };
        pending::reduced(slf, open, &bytes)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Ok(shared) = self.shared() else {
            return "<crosshandle.Memory, closed>".into();
        };
        let name = shared.memory.name().map_or(String::new(), |name| {
            format!(
                " {}",
                PyString::new(py, &name)
                    .repr()
                    .map_or(name, |quoted| quoted.to_string())
            )
        });
        let access = if shared.is_read_only() {
            ", read-only"
        } else {
            ""
        };
        let (len, device) = (shared.memory.len(), shared.context.device());
        format!("<crosshandle.Memory{name} of {len} bytes on {device}{access}>")
    }
}
