//! Allocators that other libraries call through C: what they allocate is shared by a handle at once.
//!
//! torch calls the two functions below from any thread, with or without the interpreter's lock, also while a stream
//! is captured. They use no Python.

use crate::context::Context;
use crate::error::Failure;
use crate::memory::SharedMemory;
use pyo3::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The context that allocates for each of CUDA's devices, and what it has allocated.
static DEVICES: Mutex<BTreeMap<c_int, PerDevice>> = Mutex::new(BTreeMap::new());

struct PerDevice {
    context: crosshandle::Context,
    /// Allocations with memory of their own, by address.
    single: HashMap<usize, Arc<SharedMemory>>,
    arenas: Vec<Arena>,
}

/// Set when the interpreter ends: the driver and the libraries above it end in whatever order, so nothing is
/// freed any more. The process's memory goes with it.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Frees nothing from now on, since the process ends.
#[pyfunction]
pub(crate) fn stop_freeing() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Keeps an object as long as the process: torch goes on calling an allocator whose object has ended.
#[pyfunction]
pub(crate) fn keep_for_ever(object: Py<PyAny>) {
    std::mem::forget(object);
}

/// What addresses and lengths in an arena are multiples of, as drivers align allocations.
const ALIGN: usize = 512;

/// One block of memory that allocations are cut from: importers map all of it once.
struct Arena {
    memory: Arc<SharedMemory>,
    /// The free parts, by offset.
    free: BTreeMap<usize, usize>,
    /// The parts in use, by offset.
    used: HashMap<usize, usize>,
}

impl Arena {
    fn new(memory: Arc<SharedMemory>) -> Self {
        let len = memory.memory.len();
        Self {
            memory,
            free: BTreeMap::from([(0, len)]),
            used: HashMap::new(),
        }
    }

    /// Takes the first part that is long enough. Returns its address.
    fn take(&mut self, len: usize) -> Option<usize> {
        let len = len.max(1).checked_next_multiple_of(ALIGN)?;
        let (offset, has) = self.free.iter().find(|(_, has)| **has >= len)?;
        let (offset, has) = (*offset, *has);
        self.free.remove(&offset);
        if has > len {
            self.free.insert(offset + len, has - len);
        }
        self.used.insert(offset, len);
        Some(self.memory.address() + offset)
    }

    /// Gives a part back. Returns whether it is this arena's.
    fn give(&mut self, address: usize) -> bool {
        let Some(offset) = address.checked_sub(self.memory.address()) else {
            return false;
        };
        let Some(mut len) = self.used.remove(&offset) else {
            return false;
        };
        let mut start = offset;
        if let Some((before, has)) = self.free.range(..offset).next_back().map(copied)
            && before + has == offset
        {
            self.free.remove(&before);
            (start, len) = (before, len + has);
        }
        if let Some(has) = self.free.remove(&(start + len)) {
            len += has;
        }
        self.free.insert(start, len);
        true
    }
}

fn copied((offset, len): (&usize, &usize)) -> (usize, usize) {
    (*offset, *len)
}

/// Lets a context allocate for libraries on CUDA's device `number`. `reserve`, in bytes, is taken now, and
/// allocations are cut from it as long as there is room; 0 takes none.
#[pyfunction]
pub(crate) fn serve_allocations(
    py: Python<'_>,
    context: &Context,
    number: c_int,
    reserve: usize,
) -> PyResult<()> {
    let context = &context.0;
    let arena = match reserve {
        0 => None,
        bytes => {
            let memory = py.detach(|| context.allocate(bytes));
            let memory = memory.map_err(Failure::from)?;
            Some(Arena::new(SharedMemory::for_allocator(
                memory,
                context.clone(),
            )))
        }
    };
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let device = devices.entry(number).or_insert_with(|| PerDevice {
        context: context.clone(),
        single: HashMap::new(),
        arenas: Vec::new(),
    });
    device.arenas.extend(arena);
    Ok(())
}

/// Gives the arenas of a device back that nothing is allocated in. Returns how many are left.
#[pyfunction]
pub(crate) fn drop_unused_arenas(number: c_int) -> usize {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(device) = devices.get_mut(&number) else {
        return 0;
    };
    let all = std::mem::take(&mut device.arenas);
    let (used, unused) = all.into_iter().partition(|arena| !arena.used.is_empty());
    device.arenas = used;
    let left = device.arenas.len();
    drop(devices);
    // Without the lock: freeing may take the driver a while.
    let unused: Vec<Arena> = unused;
    drop(unused);
    left
}

/// Allocates memory of CUDA's device `device`; null if there is too little, or nobody serves that device.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn crosshandle_allocate(
    len: isize,
    device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    let allocate = || {
        let len = usize::try_from(len).ok()?;
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let per_device = devices.get_mut(&device)?;
        let mut arenas = per_device.arenas.iter_mut();
        if let Some(address) = arenas.find_map(|arena| arena.take(len)) {
            return Some(address);
        }
        let context = per_device.context.clone();
        drop(devices);
        let memory = context.allocate(len.max(1)).ok()?;
        let shared = SharedMemory::for_allocator(memory, context);
        let address = shared.address();
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        devices.get_mut(&device)?.single.insert(address, shared);
        Some(address)
    };
    // No panic may reach the caller, who is no Rust.
    let address = catch_unwind(AssertUnwindSafe(allocate)).ok().flatten();
    address.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
}

/// Frees what [`crosshandle_allocate`] returned; anything else is left alone. Processes that have opened the
/// memory keep it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn crosshandle_free(
    memory: *mut c_void,
    _len: isize,
    device: c_int,
    _stream: *mut c_void,
) {
    if ENDS.load(Ordering::Relaxed) {
        return;
    }
    let free = || {
        let address = memory.addr();
        let context = {
            let devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
            devices.get(&device)?.context.clone()
        };
        finish_uses(&context);
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let per_device = devices.get_mut(&device)?;
        if per_device
            .arenas
            .iter_mut()
            .any(|arena| arena.give(address))
        {
            return None;
        }
        // Dropped without the lock.
        per_device.single.remove(&address)
    };
    let freed = catch_unwind(AssertUnwindSafe(free)).ok().flatten();
    // A panic of the driver's backend is of no interest to who frees.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(freed)));
}

/// Waits for work that may still use memory that is freed, as the driver's own functions do. The driver
/// refuses while a stream is captured, when nothing can be freed anyway.
fn finish_uses(context: &crosshandle::Context) {
    let _ = context.synchronize();
}

/// Memory for an allocator that is written in Python, freed on drop.
#[pyclass(frozen, module = "crosshandle._crosshandle")]
pub(crate) struct Block(Arc<SharedMemory>);

impl Drop for Block {
    fn drop(&mut self) {
        if ENDS.load(Ordering::Relaxed) {
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        // Another thread of the program may have to run for the work to end.
        Python::try_attach(|py| py.detach(|| finish_uses(&self.0.context)));
    }
}

#[pymethods]
impl Block {
    #[new]
    fn new(py: Python<'_>, context: &Context, nbytes: usize) -> PyResult<Self> {
        let context = &context.0;
        let memory = py.detach(|| context.allocate(nbytes));
        let memory = memory.map_err(Failure::from)?;
        Ok(Self(SharedMemory::for_allocator(memory, context.clone())))
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.0.address()
    }
}
