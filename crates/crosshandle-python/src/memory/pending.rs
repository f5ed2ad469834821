//! Pickled objects that no process has opened yet. `python/crosshandle/_pending.py` is what programs use.
//!
//! Each pickle has a *ticket*: an event of the sender's, which a receiver signals once it has opened the
//! object. The sender keeps the object until as many signals have come as there are receivers. So any number
//! of processes can receive, and a relay costs nothing more.

use crate::array::Array;
use crate::context::Context;
use crate::context::default_context;
use crate::error::{Failure, Result};
use crate::event::Event;
use crate::interrupt::{SLICE, detached, timeout};
use crate::memory::physical::PhysicalMemory;
use crate::memory::{Memory, SharedMemory};
use crosshandle::adapter_support::PerProcess;
use pyo3::PyClass;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The default of the number of pickled objects that a process keeps.
const MAX_OBJECTS: usize = 1 << 16;
/// The part of the machine's memory that pickled objects may keep by default.
const PART_OF_MEMORY: usize = 2;
/// The default of the time that pickling waits for room.
const ROOM_TIMEOUT: Duration = Duration::from_secs(60);

/// What keeps an object, or a part of it, from reuse.
enum Kept {
    Memory(Arc<SharedMemory>),
    Physical(crosshandle::PhysicalMemory),
    /// An event, and an open of it by this process: the receiver counts as a process that has it open.
    #[expect(dead_code, reason = "both are kept until their drop")]
    Event(crosshandle::Event, Option<crosshandle::Event>),
}

/// A pickled object.
struct Pickle {
    kept: Vec<Kept>,
    ticket: crosshandle::Event,
    /// The number of signals of the ticket after which the object is no longer kept.
    receivers: u64,
}

impl Pickle {
    fn bytes(&self) -> usize {
        let bytes = self.kept.iter().map(|kept| match kept {
            Kept::Memory(memory) => memory.memory.len(),
            Kept::Physical(memory) => memory.len(),
            Kept::Event(..) => 0,
        });
        bytes.fold(0, usize::saturating_add)
    }
}

/// The limits of what a process keeps.
#[derive(Clone, Copy)]
struct Limits {
    objects: usize,
    bytes: usize,
    /// The time that pickling waits for room; `None` is for ever.
    timeout: Option<Duration>,
}

struct Table {
    pickles: BTreeMap<u64, Pickle>,
    next: u64,
    /// The number of pickles that are kept no longer.
    ended: u64,
    /// The bytes of all pickles, each counted by itself: more than what they keep, if some share memory.
    upper_bound: usize,
    limits: Limits,
}

/// What this process has pickled. A forked child has pickled nothing: what its parent keeps is the parent's.
struct Pending {
    table: Mutex<Table>,
    /// Notified when a pickle is kept no longer.
    changed: Condvar,
}

static PENDING: PerProcess<Pending> = PerProcess::new(|| Pending {
    table: Mutex::new(Table {
        pickles: BTreeMap::new(),
        next: 0,
        ended: 0,
        upper_bound: 0,
        limits: Limits {
            objects: MAX_OBJECTS,
            bytes: memory_of_machine() / PART_OF_MEMORY,
            timeout: Some(ROOM_TIMEOUT),
        },
    }),
    changed: Condvar::new(),
});

/// Returns the bytes of memory that this machine has, or as many as there are addresses if it does not say.
fn memory_of_machine() -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = total.and_then(|total| total.trim().strip_suffix("kB")?.trim().parse().ok());
    kibibytes.map_or(usize::MAX, |kibibytes: usize| kibibytes << 10)
}

fn table() -> MutexGuard<'static, Table> {
    PENDING.table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// Takes a pickle out. The caller drops it without the lock.
    #[must_use]
    fn take(&mut self, number: u64) -> Option<Pickle> {
        let pickle = self.pickles.remove(&number)?;
        self.ended += 1;
        self.upper_bound = self.upper_bound.saturating_sub(pickle.bytes());
        PENDING.changed.notify_all();
        Some(pickle)
    }

    /// Takes out all that were opened. Their callbacks may not have run yet.
    #[must_use]
    fn take_opened(&mut self) -> Vec<Pickle> {
        let is_opened = |pickle: &Pickle| pickle.ticket.submitted() >= pickle.receivers;
        let opened = self.pickles.iter().filter(|(_, pickle)| is_opened(pickle));
        let opened: Vec<u64> = opened.map(|(number, _)| *number).collect();
        opened
            .into_iter()
            .filter_map(|number| self.take(number))
            .collect()
    }

    /// Returns how many bytes are kept by pickles alone: by nothing else in this process.
    fn bytes(&self) -> usize {
        let mut memories: HashMap<*const SharedMemory, (usize, &Arc<SharedMemory>)> =
            HashMap::new();
        let mut physical = 0_usize;
        for kept in self.pickles.values().flat_map(|pickle| &pickle.kept) {
            match kept {
                Kept::Memory(memory) => {
                    memories.entry(Arc::as_ptr(memory)).or_insert((0, memory)).0 += 1;
                }
                Kept::Physical(memory) => physical = physical.saturating_add(memory.len()),
                Kept::Event(..) => {}
            }
        }
        let own = memories
            .values()
            .filter(|(count, memory)| Arc::strong_count(memory) <= *count);
        own.fold(physical, |sum, (_, memory)| {
            sum.saturating_add(memory.memory.len())
        })
    }

    /// Returns whether the limits allow one more pickle.
    fn has_room(&self) -> bool {
        let Limits { objects, bytes, .. } = self.limits;
        self.pickles.len() < objects && (self.upper_bound < bytes || self.bytes() < bytes)
    }
}

/// Waits until the limits allow one more pickle.
fn make_room(py: Python<'_>) -> PyResult<()> {
    let mut deadline = None;
    loop {
        let (mut table, mut opened) = (table(), Vec::new());
        if !table.has_room() {
            opened = table.take_opened();
        }
        let limits = table.limits;
        let (has_room, objects) = (table.has_room(), table.pickles.len());
        drop(table);
        py.detach(|| drop(opened));
        if has_room {
            return Ok(());
        }
        let start = Instant::now();
        let end = *deadline.get_or_insert_with(|| start.checked_add(limits.timeout?));
        if end.is_some_and(|end| start >= end) {
            let error = crosshandle::Error::LimitReached {
                what: format!(
                    "{objects} pickled objects wait to be opened, and {:?} passed without room for another",
                    limits.timeout.unwrap_or_default(),
                ),
                remedy: "let the receivers open them, call crosshandle.release_pending() for pickles that \
                         no process will open, or raise crosshandle.pending_limits()"
                    .into(),
            };
            return Err(Failure::from(error).into());
        }
        py.detach(|| wait_for_change(SLICE));
        py.check_signals()?;
    }
}

/// Waits until a pickle is kept no longer, at most `timeout`.
fn wait_for_change(timeout: Duration) {
    let table = table();
    let ended = table.ended;
    let waited = PENDING
        .changed
        .wait_timeout_while(table, timeout, |table| table.ended == ended);
    drop(waited);
}

/// Handles what a ticket's callback says.
fn come(number: u64, result: crosshandle::Result<()>) {
    let mut table = table();
    let Some(pickle) = table.pickles.get(&number) else {
        return;
    };
    // The only receiver has opened the object, and died before it could signal.
    let has_died = result.is_err() && pickle.receivers == 1;
    let taken = match has_died || pickle.ticket.submitted() >= pickle.receivers {
        true => table.take(number),
        // What later receivers signal is seen when something else is pickled, or looks.
        false => None,
    };
    drop(table);
    drop(taken);
}

/// Keeps objects until `receivers` processes have opened them. Returns the ticket that each receiver gives to
/// `opened`. Waits for room if too much is kept.
#[pyfunction]
pub(crate) fn keep<'py>(
    py: Python<'py>,
    objects: &Bound<'py, PyList>,
    receivers: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let kept = kept_of(py, objects)?;
    make_room(py)?;
    let context = default_context(py, None)?;
    let ticket = context.get().0.create_event().map_err(Failure::from)?;
    let handle = ticket.handle().map_err(Failure::from)?;
    let pickle = Pickle {
        kept,
        ticket: ticket.clone(),
        receivers,
    };
    let mut table = table();
    let number = table.next;
    table.next += 1;
    table.upper_bound = table.upper_bound.saturating_add(pickle.bytes());
    table.pickles.insert(number, pickle);
    drop(table);
    match ticket.on_signal(receivers, move |result| come(number, result)) {
        Ok(subscription) => subscription.detach(),
        Err(error) => {
            let taken = self::table().take(number);
            drop(taken);
            return Err(Failure::from(error).into());
        }
    }
    Ok(PyBytes::new(py, handle.as_bytes()))
}

/// Returns what an object is pickled as: the function of `crosshandle._sharing` that opens it, and the bytes for that.
pub(crate) fn reduced<'py>(
    object: &Bound<'py, impl PyClass>,
    open: &str,
    bytes: &Bound<'py, PyBytes>,
) -> PyResult<Bound<'py, PyAny>> {
    static REDUCED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let reduced = REDUCED.import(object.py(), "crosshandle._pending", "reduced")?;
    reduced.call1((object, open, bytes))
}

/// Returns what keeps objects.
fn kept_of(py: Python<'_>, objects: &Bound<'_, PyList>) -> PyResult<Vec<Kept>> {
    let mut kept = Vec::with_capacity(objects.len());
    for object in objects.iter() {
        if let Ok(array) = object.cast::<Array>() {
            kept.push(Kept::Memory(Arc::clone(&array.get().memory)));
            if let Some(event) = array.get().event(py) {
                kept.push(kept_event(py, event.get())?);
            }
        } else if let Ok(memory) = object.cast::<Memory>() {
            kept.push(Kept::Memory(memory.get().shared()?));
        } else if let Ok(event) = object.cast::<Event>() {
            kept.push(kept_event(py, event.get())?);
        } else if let Ok(memory) = object.cast::<PhysicalMemory>() {
            kept.push(Kept::Physical(memory.get().memory.clone()));
        } else {
            let class = object.get_type();
            return Err(PyTypeError::new_err(format!(
                "a {} cannot be kept",
                class.name()?
            )));
        }
    }
    Ok(kept)
}

/// Returns what keeps an event until its receiver has opened it.
fn kept_event(py: Python<'_>, event: &Event) -> PyResult<Kept> {
    let opened = match event.is_own() {
        true => {
            let context = default_context(py, None)?;
            let handle = event.event.handle().map_err(Failure::from)?;
            let opened = context.get().0.open_event(&handle);
            Some(opened.map_err(Failure::from)?)
        }
        false => None,
    };
    Ok(Kept::Event(event.event.clone(), opened))
}

/// Tells the sender of a pickle that this process has opened the object. A sender that has ended, or keeps it no
/// longer, needs no word.
#[pyfunction]
pub(crate) fn opened(py: Python<'_>, context: &Context, ticket: &[u8]) -> PyResult<()> {
    let ticket = crosshandle::EventHandle::from_bytes(ticket);
    let ticket = ticket.map_err(|error| Failure::from(crosshandle::Error::from(error)))?;
    let tell = || {
        context
            .0
            .open_event(&ticket)
            .and_then(|event| event.signal())
    };
    let _: Result<u64> = detached(py, tell);
    Ok(())
}

/// Returns how many pickled objects are kept, and how many bytes they alone keep.
#[pyfunction]
pub(crate) fn kept(py: Python<'_>) -> (usize, usize) {
    let mut table = table();
    let opened = table.take_opened();
    let kept = (table.pickles.len(), table.bytes());
    drop(table);
    py.detach(|| drop(opened));
    kept
}

/// Keeps none of the pickled objects any longer. Returns how many were kept.
#[pyfunction]
pub(crate) fn release_kept(py: Python<'_>) -> usize {
    let mut table = table();
    let opened = table.take_opened();
    let numbers: Vec<u64> = table.pickles.keys().copied().collect();
    let taken: Vec<Pickle> = numbers
        .into_iter()
        .filter_map(|number| table.take(number))
        .collect();
    drop(table);
    let count = taken.len();
    py.detach(|| drop((opened, taken)));
    count
}

/// Waits until all pickled objects have been opened. Returns once `patience` seconds pass in which none was, with the
/// number of those that are left.
#[pyfunction]
pub(crate) fn wait_for_receivers(py: Python<'_>, patience: Option<f64>) -> PyResult<usize> {
    let patience = timeout(patience)?;
    let (mut last, mut since) = (None, Instant::now());
    loop {
        let (left, _) = kept(py);
        if left == 0 || patience.is_some_and(|patience| since.elapsed() >= patience) {
            return Ok(left);
        }
        if last.replace(left) != Some(left) {
            since = Instant::now();
        }
        py.detach(|| wait_for_change(SLICE));
        py.check_signals()?;
    }
}

/// Returns the limits: objects, bytes, and the seconds that pickling waits for room, where `None` is for ever.
#[pyfunction]
pub(crate) fn kept_limits() -> (usize, usize, Option<f64>) {
    let Limits {
        objects,
        bytes,
        timeout,
    } = table().limits;
    (objects, bytes, timeout.map(|timeout| timeout.as_secs_f64()))
}

/// Sets the limits.
#[pyfunction]
pub(crate) fn set_kept_limits(objects: usize, bytes: usize, timeout: Option<f64>) -> PyResult<()> {
    let timeout = self::timeout(timeout)?;
    table().limits = Limits {
        objects,
        bytes,
        timeout,
    };
    PENDING.changed.notify_all();
    Ok(())
}
