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
    next_arena: u64,
}

/// Memory whose freeing waits for the device's work, of which nobody could say when it was freed whether it is
/// done, if the driver has refused to wait.
enum Late {
    /// A part of an arena: the device's number, and the address.
    Part(c_int, usize),
    /// Memory of its own.
    Whole { _memory: Arc<SharedMemory> },
}

/// What is freed once work of its context was waited for.
static LATE: Mutex<Vec<(crosshandle::Context, Late)>> = Mutex::new(Vec::new());

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
    number: u64,
    /// Whether its pool has ended: nothing more is cut from it, and it is given back with its last part.
    is_abandoned: bool,
    memory: Arc<SharedMemory>,
    /// The free parts, by offset.
    free: BTreeMap<usize, usize>,
    /// The parts in use, by offset.
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

    /// Takes the first part that is long enough. Returns its address.
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
/// allocations are cut from it as long as there is room; 0 takes none. Returns the number of what was taken, for
/// `abandon_arena`.
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

/// Cuts nothing more from an arena, and gives it back once nothing in it is in use.
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
    // Without the lock: freeing may take the driver a while.
    py.detach(|| drop(unused));
}

impl PerDevice {
    /// Takes out the arenas whose pools have ended, and that nothing is in. The caller drops them without the
    /// lock.
    fn take_unused(&mut self) -> Vec<Arena> {
        let is_unused = |arena: &mut Arena| arena.is_abandoned && arena.used.is_empty();
        self.arenas.extract_if(.., is_unused).collect()
    }

    /// Gives a part of an arena back; `None` if no arena has it.
    fn give(&mut self, address: usize) -> Option<Vec<Arena>> {
        let mut arenas = self.arenas.iter_mut();
        let is_given = arenas.any(|arena| arena.give(address));
        is_given.then(|| self.take_unused())
    }
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
    // No panic may reach the caller, and one of the driver's backend is of no interest to who frees.
    let _ = catch_unwind(AssertUnwindSafe(free));
}

/// Frees memory once work that may still use it is done, for which this waits, as the driver's own functions do.
/// Captures of streams go on undisturbed. If the driver refuses to wait, the memory stays until this is called again.
fn finish_uses(context: &crosshandle::Context, late: Late) {
    let late_of = |all: &mut Vec<(crosshandle::Context, Late)>| {
        let is_of_it = |(of, _): &mut (crosshandle::Context, Late)| of.is_same(context);
        Vec::from_iter(all.extract_if(.., is_of_it).map(|(_, late)| late))
    };
    {
        // Before the wait, so that it is for all work that may use what is taken out after it.
        let mut all = LATE.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((context.clone(), late));
    }
    let mut ready = {
        let mut all = LATE.lock().unwrap_or_else(PoisonError::into_inner);
        late_of(&mut all)
    };
    match context.synchronize() {
        // Where there is no driver, nothing works beside the program's threads.
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
        // Dropped without the lock.
        drop(unused);
    }
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
        let late = Late::Whole {
            _memory: Arc::clone(&self.0),
        };
        let context = &self.0.context;
        // Another thread of the program may have to run for the work to end.
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

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.0.address()
    }
}
