//! Keeps pickled objects alive until the receivers of their pickles have opened them.
//!
//! Programs use this module through `python/crosshandle/_pending.py`.
//!
//! Each pickle contains a *ticket*: a handle to an event that the sender created. Each receiver
//! signals this event after it has opened the object. The sender keeps the object until it has
//! counted one signal for each receiver. Any process can signal an event, so a receiver may also
//! get the pickle through other processes.

use crate::array::Array;
use crate::channel::Channel;
use crate::context::{Context, default_context};
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

/// Default maximum number of pickled objects that a process keeps.
const MAX_OBJECTS: usize = 1 << 16;
/// The default limit for the bytes that pickled objects keep allocated is the machine's memory
/// divided by this number.
const PART_OF_MEMORY: usize = 2;
/// Default time that pickling waits if a limit is reached. After this time, it raises
/// `LimitReachedError`.
const ROOM_TIMEOUT: Duration = Duration::from_secs(60);

/// A reference that keeps the memory or the event of a pickled object alive.
enum Kept {
    Memory(Arc<SharedMemory>),
    Channel(crosshandle::channel::Channel),
    Physical(crosshandle::virtual_memory::PhysicalMemory),
    /// A pickled event. If this process created the event, it also opens the event as an importer
    /// does. So the event is treated as shared until the receiver has opened it.
    #[expect(dead_code, reason = "both are kept until their drop")]
    Event(crosshandle::Event, Option<crosshandle::Event>),
}

/// A pickled object that this process keeps.
struct Pickle {
    kept: Vec<Kept>,
    ticket: crosshandle::Event,
    /// The number of receivers, each of which signals the ticket once.
    receivers: u64,
}

impl Pickle {
    fn bytes(&self) -> usize {
        let bytes = self.kept.iter().map(|kept| match kept {
            Kept::Memory(memory) => memory.memory.len(),
            Kept::Physical(memory) => memory.len(),
            Kept::Channel(channel) => channel.contents().len(),
            Kept::Event(..) => 0,
        });
        bytes.fold(0, usize::saturating_add)
    }
}

/// Limits for all pickled objects that this process keeps.
#[derive(Clone, Copy)]
struct Limits {
    objects: usize,
    bytes: usize,
    /// The time that pickling waits if a limit is reached, or `None` to wait without a timeout.
    /// After this time, pickling raises `LimitReachedError`.
    timeout: Option<Duration>,
}

struct Table {
    pickles: BTreeMap<u64, Pickle>,
    next: u64,
    /// The number of pickles that were removed from the table so far.
    ended: u64,
    /// The sum of the sizes of all pickles in bytes. Pickles that share memory keep fewer bytes
    /// allocated than this sum.
    upper_bound: usize,
    limits: Limits,
}

/// The pickled objects that this process keeps. A forked child starts with an empty table, because
/// the parent keeps the objects that were pickled before the fork.
struct Pending {
    table: Mutex<Table>,
    /// Notified when a pickle is removed from the table or the limits change.
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

/// Returns the size of the machine's memory in bytes, or `usize::MAX` if the kernel does not report
/// it.
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
    /// Removes a pickle from the table. The caller must release the table's lock before it drops
    /// the pickle.
    #[must_use]
    fn take(&mut self, number: u64) -> Option<Pickle> {
        let pickle = self.pickles.remove(&number)?;
        self.ended += 1;
        self.upper_bound = self.upper_bound.saturating_sub(pickle.bytes());
        PENDING.changed.notify_all();
        Some(pickle)
    }

    /// Removes and returns the pickles that each of their receivers has opened. Does not depend on
    /// the ticket callbacks, which may run later. The caller must release the table's lock before
    /// it drops the result.
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

    /// Returns the number of bytes that are allocated only because pickles refer to them.
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
                Kept::Channel(channel) => {
                    physical = physical.saturating_add(channel.contents().len());
                }
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

    /// Returns whether the table may take one more pickle without exceeding the limits.
    fn has_room(&self) -> bool {
        let Limits { objects, bytes, .. } = self.limits;
        self.pickles.len() < objects && (self.upper_bound < bytes || self.bytes() < bytes)
    }
}

/// Waits until the table may take one more pickle. Fails with
/// [`LimitReached`](crosshandle::Error::LimitReached) after the timeout in the limits. Ctrl-C
/// interrupts the wait.
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

/// Waits until a pickle is removed from the table, for at most `timeout`.
fn wait_for_change(timeout: Duration) {
    let table = table();
    let ended = table.ended;
    let waited = PENDING
        .changed
        .wait_timeout_while(table, timeout, |table| table.ended == ended);
    drop(waited);
}

/// The callback for a ticket. Removes the pickle from the table if all receivers have opened the
/// object.
fn come(number: u64, result: crosshandle::Result<()>) {
    let mut table = table();
    let Some(pickle) = table.pickles.get(&number) else {
        return;
    };
    // A failed signal means that a receiver died after it had opened the ticket. If it was the only
    // receiver, the object need not be kept.
    let has_died = result.is_err() && pickle.receivers == 1;
    let taken = match has_died || pickle.ticket.submitted() >= pickle.receivers {
        true => table.take(number),
        // This callback runs only once. `take_opened` finds the signals from the remaining
        // receivers later, when a limit is reached or the program queries the table.
        false => None,
    };
    drop(table);
    drop(taken);
}

/// Keeps objects alive until `receivers` processes have opened them. If a limit is reached, waits
/// until other pickles are opened. After the timeout, raises `LimitReachedError`. Returns the
/// ticket that each receiver passes to `opened`.
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

/// Returns the result of `__reduce__` for an object. It contains a function from
/// `crosshandle._pending`, which opens the object in the receiver, and that function's arguments.
pub(crate) fn reduced<'py>(
    object: &Bound<'py, impl PyClass>,
    open: &str,
    bytes: &Bound<'py, PyBytes>,
) -> PyResult<Bound<'py, PyAny>> {
    static REDUCED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let reduced = REDUCED.import(object.py(), "crosshandle._pending", "reduced")?;
    reduced.call1((object, open, bytes))
}

/// Collects the references that keep the memory and events of `objects` alive.
fn kept_of(py: Python<'_>, objects: &Bound<'_, PyList>) -> PyResult<Vec<Kept>> {
    let mut kept = Vec::with_capacity(objects.len());
    for object in objects.iter() {
        if let Ok(array) = object.cast::<Array>() {
            kept.push(Kept::Memory(Arc::clone(&array.get().memory)));
            if let Some(event) = array.get().event() {
                kept.push(kept_event(py, &event)?);
            }
        } else if let Ok(memory) = object.cast::<Memory>() {
            kept.push(Kept::Memory(memory.get().shared()?));
        } else if let Ok(event) = object.cast::<Event>() {
            kept.push(kept_event(py, event.get())?);
        } else if let Ok(memory) = object.cast::<PhysicalMemory>() {
            kept.push(Kept::Physical(memory.get().memory.clone()));
        } else if let Ok(channel) = object.cast::<Channel>() {
            kept.push(Kept::Channel(channel.get().channel()?));
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

/// Returns a reference that keeps an event usable until the receiver has opened it.
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

/// Notifies the sender of a pickle that this process has opened the object. Ignores all errors,
/// because the sender may have ended or may no longer keep the object.
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

/// Returns the number of pickled objects that this process keeps, and the number of bytes that are
/// allocated only for them.
#[pyfunction]
pub(crate) fn kept(py: Python<'_>) -> (usize, usize) {
    let mut table = table();
    let opened = table.take_opened();
    let kept = (table.pickles.len(), table.bytes());
    drop(table);
    py.detach(|| drop(opened));
    kept
}

/// Drops all pickled objects that this process keeps, even if no process has opened them yet.
/// Returns the number of objects that no process had opened.
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

/// Waits until all pickled objects have been opened. Gives up if no object is opened for `patience`
/// seconds. `None` means no timeout. Returns the number of objects that are still kept. Ctrl-C
/// interrupts the wait.
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

/// Returns the limits for pickled objects: the maximum number of objects, the maximum number of
/// bytes, and the timeout in seconds. The timeout applies when a limit is reached. `None` means no
/// timeout.
#[pyfunction]
pub(crate) fn kept_limits() -> (usize, usize, Option<f64>) {
    let Limits {
        objects,
        bytes,
        timeout,
    } = table().limits;
    (objects, bytes, timeout.map(|timeout| timeout.as_secs_f64()))
}

/// Sets the limits for pickled objects. The arguments are in the order of `kept_limits`.
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
