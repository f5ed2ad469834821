//! The Python class `Memory`.

pub(crate) mod pending;
pub(crate) mod physical;

use crate::array::arguments::{self, Data};
use crate::array::{Array, Arrivals, Layout};
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

/// Memory that processes share. A context allocates it, or opens it from a handle.
///
/// A `with` statement closes the memory at its end. Arrays that were made from it keep it open as
/// long as they live. After the last importer and the exporter have closed the memory, its bytes
/// may be reused.
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

/// The part of a memory object that its arrays share and keep alive.
pub(crate) struct SharedMemory {
    pub(crate) memory: Arc<crosshandle::Memory>,
    /// The handle by which this process opened the memory, or `None` if this process allocated it.
    handle: Option<crosshandle::MemoryHandle>,
    pub(crate) context: crosshandle::Context,
    /// The memory's number in the table of memory by address. It is `None` for lent memory, which
    /// is not in the table.
    live: Option<u64>,
    /// Whether an allocator reuses parts of the memory.
    is_recycled: bool,
    /// The signals after which the bytes are ready.
    pub(crate) arrivals: Arrivals,
    /// The tables of dropped bundles that contain this memory. They live as long as it does.
    kept: Mutex<Vec<Arc<Self>>>,
}

/// Memory that is found by its address.
struct Live {
    len: usize,
    is_opened_here: bool,
    memory: Weak<SharedMemory>,
}

/// The open memory of this process, by address and number. A forked child finds only memory that it
/// allocated or opened itself, because it cannot share the rest.
static LIVE: PerProcess<Mutex<BTreeMap<(usize, u64), Live>>> = PerProcess::new(Mutex::default);
/// The length of the longest memory that was ever open, in bytes.
static LONGEST: AtomicUsize = AtomicUsize::new(0);

/// Finds open memory of this process that contains `len` bytes at an address.
///
/// With `is_opened_here`, finds memory that this process opened by a handle that the process itself
/// had exported. A driver may map such memory at the address of the exported allocation, and an
/// allocation at that address may end although the memory is open.
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
    // The result is dropped after the lock is released.
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
    /// Creates the object, and adds it to the table of memory by address.
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

    /// Creates objects for several opened memories, and adds them to the table of memory by
    /// address.
    fn all_known(
        memories: Vec<crosshandle::Memory>,
        handles: &[crosshandle::MemoryHandle],
        context: &crosshandle::Context,
    ) -> Vec<Arc<Self>> {
        // The id is read only once, because reading it is a system call.
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

    /// Creates the object with a number for the table of memory by address.
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
        }
    }

    /// Adds this memory to the table of memory by address.
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

    /// Wraps memory whose parts an allocator hands out and reuses.
    pub(crate) fn for_allocator(
        memory: crosshandle::Memory,
        context: crosshandle::Context,
    ) -> Arc<Self> {
        Self::known(Arc::new(memory), None, context, true)
    }

    /// Wraps memory that a store has opened.
    pub(crate) fn of_store(
        memory: Arc<crosshandle::Memory>,
        handle: crosshandle::MemoryHandle,
        context: crosshandle::Context,
    ) -> Arc<Self> {
        Self::known(memory, Some(handle), context, false)
    }

    /// Wraps a part of other memory, which has its own handles.
    pub(crate) fn lent(memory: crosshandle::Memory, context: crosshandle::Context) -> Self {
        Self {
            memory: Arc::new(memory),
            handle: None,
            context,
            live: None,
            is_recycled: false,
            arrivals: Arrivals::default(),
            kept: Mutex::default(),
        }
    }

    /// Keeps other memory alive as long as this memory lives.
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
    /// used. Fails with the error that they would get.
    pub(crate) fn check_openable(&self, py: Python<'_>) -> Result<()> {
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

    pub(crate) fn is_lent(&self) -> bool {
        self.live.is_none()
    }

    /// Returns the memory if an allocator reuses its parts, otherwise `None`. A part of such memory
    /// is shared by lending it together with an owner, which prevents the part's reuse.
    pub(crate) fn recycled(&self) -> Option<Arc<crosshandle::Memory>> {
        self.is_recycled.then(|| Arc::clone(&self.memory))
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.memory.access() == crosshandle::Access::ReadOnly
    }

    pub(crate) fn address(&self) -> usize {
        self.memory.as_ptr().addr()
    }

    /// Returns a handle to the memory. The process that allocated the memory makes a new handle.
    /// Any other process returns the handle by which it opened the memory.
    pub(crate) fn handle(&self, read_only: bool) -> Result<crosshandle::MemoryHandle> {
        // A forked child cannot export inherited memory, because only the parent keeps it.
        check_birth(&self.context)?;
        Ok(match self.handle {
            Some(handle) => handle,
            None if read_only => self.memory.handle_read_only()?,
            None => self.memory.handle()?,
        })
    }

    /// Returns a handle as [`handle`](Self::handle) does. Fails if `read_only` is true and only a
    /// writable handle is available.
    pub(crate) fn handle_of(&self, read_only: bool) -> Result<crosshandle::MemoryHandle> {
        let handle = self.handle(read_only)?;
        match read_only && !handle.is_read_only() {
            true => Err(no_read_only().into()),
            false => Ok(handle),
        }
    }
}

/// Returns the error for a read-only handle that only the exporter of the memory can make.
pub(crate) fn no_read_only() -> crosshandle::Error {
    crosshandle::Error::Unsupported(
        "this memory was opened by a handle that lets its holder write, and only the process that made that can \
         make one for reading only: ask it for one"
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

    /// Opens several memories. The results are in the order of the handles.
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
    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> PyResult<usize> {
        Ok(self.shared()?.memory.len())
    }

    /// The address of the memory in this process.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.shared()?.address())
    }

    /// Whether the memory is read-only.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.shared()?.is_read_only())
    }

    /// The name that `crosshandle ps` and error messages show, or `None`. Only the process that
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

    /// Whether a submitted command uses the memory.
    #[getter]
    fn in_use(&self) -> PyResult<bool> {
        Ok(self.shared()?.memory.is_in_use())
    }

    /// Lends a part of the memory (default: all of it), as memory that has its own handles.
    ///
    /// `owner` is any object whose end allows the program to reuse this part. It is dropped when
    /// the result and its arrays are closed and no process has the part open.
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

    /// Returns the handle to send to other processes.
    #[pyo3(signature = (*, read_only = false))]
    fn handle(&self, read_only: bool) -> PyResult<MemoryHandle> {
        Ok(MemoryHandle(self.shared()?.handle_of(read_only)?))
    }

    /// Returns a view of the memory as an array, without a copy.
    ///
    /// `shape` is a number or a tuple (default: all elements in one dimension). `dtype` is a NumPy
    /// dtype or a name such as `"float32"`. `offset` is in bytes. The array keeps the memory open.
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

    /// Returns a copy of bytes of the memory, which must be in host memory.
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

    /// Copies bytes, an array or another contiguous buffer into the memory, which must be in host
    /// memory.
    #[pyo3(signature = (data, *, offset = 0))]
    fn write(&self, py: Python<'_>, data: Data, offset: usize) -> PyResult<()> {
        let shared = self.shared()?;
        Ok(detached(py, || shared.memory.write(offset, &data))?)
    }

    /// Closes the memory for this process. Arrays that were made from it keep it open.
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

    /// Returns a copy in new memory of the same device.
    fn __copy__(&self, py: Python<'_>) -> PyResult<Self> {
        let all = Array::new(self.shared()?, Layout::of(None, None, self.nbytes()?, 0)?)?;
        let copied = Bound::new(py, all)?.call_method0("__copy__")?;
        let copied = copied.cast_into::<Array>()?;
        Ok(Self::of(Arc::clone(&copied.get().memory)))
    }

    /// Returns a copy, as `copy.copy` does.
    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Self> {
        self.__copy__(py)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let shared = slf.get().shared()?;
        shared.check_openable(slf.py())?;
        let handle = shared.handle(shared.is_read_only())?;
        let bytes = PyBytes::new(slf.py(), handle.as_bytes());
        // The receiver gets the access that this process has, even if the handle allows more.
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
