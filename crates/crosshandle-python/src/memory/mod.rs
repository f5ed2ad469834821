//! Memory.

pub(crate) mod pending;
pub(crate) mod physical;

use crate::array::arguments::{self, Data};
use crate::array::{Array, Layout};
use crate::error::{Failure, Result};
use crate::foreign::owners::Owners;
use crate::handle::MemoryHandle;
use crate::interrupt::{detached, detached_for};
use crosshandle::adapter_support::{PerProcess, check_birth};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Memory that processes share: allocated by a context, or opened from a handle.
///
/// `with` closes it at the end; arrays made from it keep it open as long as they live. After the last
/// importer and the exporter have closed it, its bytes may be used again.
#[pyclass(frozen, module = "crosshandle")]
pub(crate) struct Memory {
    shared: Mutex<Option<Arc<SharedMemory>>>,
}

/// What arrays keep of memory.
pub(crate) struct SharedMemory {
    pub(crate) memory: Arc<crosshandle::Memory>,
    /// The handle by which it was opened, if it was.
    handle: Option<crosshandle::MemoryHandle>,
    pub(crate) context: crosshandle::Context,
    /// The number by which it is found by address; `None` for what is lent of other memory.
    live: Option<u64>,
    /// Whether an allocator uses parts of it again and again.
    is_recycled: bool,
}

/// Memory that is found by its address.
struct Live {
    len: usize,
    is_opened_here: bool,
    memory: Weak<SharedMemory>,
}

/// The memory of this process that is open, by address and a number.
/// A forked child finds only what it has made or opened itself: it cannot share the rest.
static LIVE: PerProcess<Mutex<BTreeMap<(usize, u64), Live>>> = PerProcess::new(Mutex::default);
/// The length of the longest memory there ever was.
static LONGEST: AtomicUsize = AtomicUsize::new(0);

/// Returns the memory that `len` bytes at an address lie in, if it was allocated or opened here and is open.
///
/// `is_opened_here` asks for memory that this process has opened by a handle of its own: a driver may map that where the
/// exported allocation is, whose bytes the handle keeps no longer than it was meant to.
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
    // Whoever drops the result does so without the lock.
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
    /// Makes it known by its address.
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

    /// Does so for many that were opened.
    fn all_known(
        memories: Vec<crosshandle::Memory>,
        handles: &[crosshandle::MemoryHandle],
        context: &crosshandle::Context,
    ) -> Vec<Arc<Self>> {
        // A system call.
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

    /// Gives it a number.
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
        }
    }

    /// Enters it where memory is found by its address.
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

    /// Wraps memory that an allocator uses again and again.
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

    /// Wraps a part of other memory, which has handles of its own.
    pub(crate) fn lent(memory: crosshandle::Memory, context: crosshandle::Context) -> Self {
        Self {
            memory: Arc::new(memory),
            handle: None,
            context,
            live: None,
            is_recycled: false,
        }
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.live.is_none()
    }

    /// Returns the memory if an allocator uses it again and again: it is lent, with what keeps it from that.
    pub(crate) fn recycled(&self) -> Option<Arc<crosshandle::Memory>> {
        self.is_recycled.then(|| Arc::clone(&self.memory))
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.memory.access() == crosshandle::Access::ReadOnly
    }

    pub(crate) fn address(&self) -> usize {
        self.memory.as_ptr().addr()
    }

    /// Returns a handle: a new one in the process that allocated it, else the one that it was opened by.
    pub(crate) fn handle(&self, read_only: bool) -> Result<crosshandle::MemoryHandle> {
        // Memory that a forked child has inherited is kept by its parent alone.
        check_birth(&self.context)?;
        Ok(match self.handle {
            Some(handle) => handle,
            None if read_only => self.memory.handle_read_only()?,
            None => self.memory.handle()?,
        })
    }

    /// Returns a handle as [`handle`](Self::handle) does. If one for reading only is asked for, it is one.
    pub(crate) fn handle_of(&self, read_only: bool) -> Result<crosshandle::MemoryHandle> {
        let handle = self.handle(read_only)?;
        match read_only && !handle.is_read_only() {
            true => Err(no_read_only().into()),
            false => Ok(handle),
        }
    }
}

/// Returns why no handle for reading only can be had.
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

    /// Opens several, in their order.
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

    fn of(shared: Arc<SharedMemory>) -> Self {
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

    /// The address in this process.
    #[getter]
    fn address(&self) -> PyResult<usize> {
        Ok(self.shared()?.address())
    }

    /// Whether it can be read only.
    #[getter]
    fn read_only(&self) -> PyResult<bool> {
        Ok(self.shared()?.is_read_only())
    }

    /// The name that `crosshandle ps` and errors show; `None` if it has none. The process that allocated
    /// it can set it.
    #[getter]
    fn get_name(&self) -> PyResult<Option<String>> {
        Ok(self.shared()?.memory.name())
    }

    #[setter]
    fn set_name(&self, name: &str) -> PyResult<()> {
        self.shared()?.memory.set_name(name);
        Ok(())
    }

    /// Whether commands that were submitted use it.
    #[getter]
    fn in_use(&self) -> PyResult<bool> {
        Ok(self.shared()?.memory.is_in_use())
    }

    /// Lends a part (default: all) with handles of its own. `owner`, any object, stands for what must not be used
    /// again meanwhile: it is dropped when the result and its arrays are closed and no process has the part
    /// open.
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

    /// Returns a view of it as an array, without a copy. `shape` is a number or a tuple (default: all
    /// elements in one dimension); `dtype` is a NumPy dtype or a name such as `"float32"`, `offset` is in
    /// bytes. The array keeps the memory open.
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

    /// Copies bytes out of host memory.
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

    /// Copies bytes into host memory.
    #[pyo3(signature = (data, *, offset = 0))]
    fn write(&self, py: Python<'_>, data: Data, offset: usize) -> PyResult<()> {
        let shared = self.shared()?;
        Ok(detached(py, || shared.memory.write(offset, &data))?)
    }

    /// Closes it for this process, as far as no array keeps it open.
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

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let shared = slf.get().shared()?;
        let handle = shared.handle(shared.is_read_only())?;
        let bytes = PyBytes::new(slf.py(), handle.as_bytes());
        // It arrives as it is here, whatever the handle grants.
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
