//! Allocators that other libraries call to get memory which can be shared without a copy.
//!
//! torch calls [`crosshandle_allocate`] and [`crosshandle_free`] from any thread, with or without
//! the interpreter's lock, and also during a stream capture. Neither function uses Python.

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

/// The context and the allocations for each CUDA device, by the device's number.
static DEVICES: Mutex<BTreeMap<c_int, PerDevice>> = Mutex::new(BTreeMap::new());

struct PerDevice {
    context: crosshandle::Context,
    /// Allocations that are not parts of an arena, by address.
    single: HashMap<usize, Arc<SharedMemory>>,
    arenas: Vec<Arena>,
    next_arena: u64,
}

/// Memory that a library has freed, but that the device's pending work may still use. It is freed
/// after that work is done.
enum Late {
    /// A part of an arena: the CUDA device's number, and the part's address.
    Part(c_int, usize),
    /// An allocation that is not part of an arena.
    Whole { _memory: Arc<SharedMemory> },
}

/// Memory that waits to be freed, together with the context whose pending work may still use it.
static LATE: Mutex<Vec<(crosshandle::Context, Late)>> = Mutex::new(Vec::new());

/// Whether the interpreter is exiting. The driver may shut down before the libraries that allocate
/// memory, so no memory is freed after this flag is set. The operating system frees the memory when
/// the process ends.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Stops freeing memory in this process. Call it when the interpreter is about to exit.
#[pyfunction]
pub(crate) fn stop_freeing() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Keeps an object alive until the process ends. torch may call an allocator even after the Python
/// object for the allocator has been destroyed.
#[pyfunction]
pub(crate) fn keep_for_ever(object: Py<PyAny>) {
    std::mem::forget(object);
}

/// The alignment in bytes of addresses and lengths in an arena. It equals the alignment of driver
/// allocations.
const ALIGN: usize = 512;

/// A block of memory that is divided into allocations. An importer of any of these allocations maps
/// the whole block once.
struct Arena {
    number: u64,
    /// Whether `abandon_arena` was called for the arena. If so, it makes no more allocations, and
    /// is freed together with its last allocation.
    is_abandoned: bool,
    memory: Arc<SharedMemory>,
    /// The lengths of the free parts, by offset.
    free: BTreeMap<usize, usize>,
    /// The lengths of the parts in use, by offset.
    used: HashMap<usize, usize>,
}

impl Arena {
    fn new(number: u64, memory: Arc<SharedMemory>) -> Self {
        let len = memory.memory.len();
        Self {
            number,
            is_abandoned: false,
            memory,
            free: BTreeMap::from([(0, len)]),
            used: HashMap::new(),
        }
    }

    /// Allocates `len` bytes from the first free part that is long enough. Returns the address of
    /// the allocation, or `None` if no part is long enough.
    fn take(&mut self, len: usize) -> Option<usize> {
        if self.is_abandoned {
            return None;
        }
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

    /// Frees the allocation at `address`. Returns `false` if this arena has no allocation there.
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

/// Makes `context` allocate the memory that libraries request on CUDA device `number`. If a context
/// was set before, that context is kept.
///
/// If `reserve` is not 0, also allocates an arena of `reserve` bytes. Later allocations are taken
/// from the arena if they fit. Returns the arena's number, for `abandon_arena`.
#[pyfunction]
pub(crate) fn serve_allocations(
    py: Python<'_>,
    context: &Context,
    number: c_int,
    reserve: usize,
) -> PyResult<Option<u64>> {
    let context = &context.0;
    let memory = match reserve {
        0 => None,
        bytes => {
            let memory = py.detach(|| context.allocate(bytes));
            let memory = memory.map_err(Failure::from)?;
            Some(SharedMemory::for_allocator(memory, context.clone()))
        }
    };
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let device = devices.entry(number).or_insert_with(|| PerDevice {
        context: context.clone(),
        single: HashMap::new(),
        arenas: Vec::new(),
        next_arena: 0,
    });
    Ok(memory.map(|memory| {
        let number = device.next_arena;
        device.next_arena += 1;
        device.arenas.push(Arena::new(number, memory));
        number
    }))
}

/// Stops allocations from an arena on CUDA device `number`. The arena is freed when none of its
/// parts is in use.
#[pyfunction]
pub(crate) fn abandon_arena(py: Python<'_>, number: c_int, arena: u64) {
    let unused = {
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(device) = devices.get_mut(&number) else {
            return;
        };
        let of_pool = device.arenas.iter_mut().find(|one| one.number == arena);
        if let Some(abandoned) = of_pool {
            abandoned.is_abandoned = true;
        }
        device.take_unused()
    };
    if ENDS.load(Ordering::Relaxed) {
        std::mem::forget(unused);
        return;
    }
    // Drop the arenas after releasing the lock, because the driver may need some time to free their
    // memory.
    py.detach(|| drop(unused));
}

impl PerDevice {
    /// Removes and returns the abandoned arenas that have no part in use. The caller must release
    /// the lock on [`DEVICES`] before it drops them.
    fn take_unused(&mut self) -> Vec<Arena> {
        let is_unused = |arena: &mut Arena| arena.is_abandoned && arena.used.is_empty();
        self.arenas.extract_if(.., is_unused).collect()
    }

    /// Frees the part of an arena at `address`. Returns the arenas that are now unused, which the
    /// caller must drop. Returns `None` if no arena has a part at `address`.
    fn give(&mut self, address: usize) -> Option<Vec<Arena>> {
        let mut arenas = self.arenas.iter_mut();
        let is_given = arenas.any(|arena| arena.give(address));
        is_given.then(|| self.take_unused())
    }
}

/// Allocates `len` bytes on CUDA device `device`. Returns null if there is too little memory or if
/// [`serve_allocations`] was not called for that device.
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
    // C code calls this function, so no panic may leave it.
    let address = catch_unwind(AssertUnwindSafe(allocate)).ok().flatten();
    address.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
}

/// Frees memory that [`crosshandle_allocate`] returned. Ignores any other address. Processes that
/// have opened the memory keep it open.
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
        let (context, late) = {
            let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
            let per_device = devices.get_mut(&device)?;
            let late = match per_device.single.remove(&address) {
                Some(memory) => Late::Whole { _memory: memory },
                None => Late::Part(device, address),
            };
            (per_device.context.clone(), late)
        };
        finish_uses(&context, late);
        Some(())
    };
    // C code calls this function, so no panic may leave it. The C code cannot handle a driver error
    // either, so ignore errors.
    let _ = catch_unwind(AssertUnwindSafe(free));
}

/// Waits for the context's pending work, and then frees the memory `late` and all memory that
/// earlier calls could not free.
///
/// The driver's own functions that free memory wait in the same way. The wait does not invalidate
/// stream captures. If the driver refuses to wait, the memory stays in [`LATE`] until the next
/// call.
fn finish_uses(context: &crosshandle::Context, late: Late) {
    let late_of = |all: &mut Vec<(crosshandle::Context, Late)>| {
        let is_of_it = |(of, _): &mut (crosshandle::Context, Late)| of.is_same(context);
        Vec::from_iter(all.extract_if(.., is_of_it).map(|(_, late)| late))
    };
    {
        // Each entry that is taken below was added before the wait, so the wait covers all work
        // that may use its memory.
        let mut all = LATE.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((context.clone(), late));
    }
    let mut ready = {
        let mut all = LATE.lock().unwrap_or_else(PoisonError::into_inner);
        late_of(&mut all)
    };
    match context.synchronize() {
        // Without a driver, no device has pending work that uses the memory.
        Ok(()) | Err(crosshandle::Error::Unsupported(_)) => {}
        Err(_) => {
            let mut all = LATE.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(ready.drain(..).map(|late| (context.clone(), late)));
        }
    }
    for late in ready {
        let Late::Part(device, address) = late else {
            continue;
        };
        let unused = {
            let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
            devices.get_mut(&device).and_then(|of| of.give(address))
        };
        // Drop the arenas after releasing the lock.
        drop(unused);
    }
}

/// One allocation for an allocator that is written in Python. Dropping this object frees the memory
/// after the device's pending work is done.
#[pyclass(frozen, module = "crosshandle._crosshandle")]
pub(crate) struct Block(Arc<SharedMemory>);

impl Drop for Block {
    fn drop(&mut self) {
        if ENDS.load(Ordering::Relaxed) {
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        let late = Late::Whole {
            _memory: Arc::clone(&self.0),
        };
        let context = &self.0.context;
        // The pending work may need another Python thread, so release the interpreter's lock while
        // waiting.
        Python::try_attach(|py| py.detach(|| finish_uses(context, late)));
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

    /// The address of the block's first byte.
    #[getter]
    fn address(&self) -> usize {
        self.0.address()
    }
}
