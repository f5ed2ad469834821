//! Bundles: encoded arrays, and the structure that contains them, for other processes.
//!
//! `crosshandle::handle::bundle` defines the format of a bundle. `crosshandle/_trees.py` defines
//! the grammar of the structure.

use crate::array::{Array, Dtype, Layout, Ready, Signal};
use crate::context::{Context, default_context};
use crate::error::{Failure, Result};
use crate::event::leave_events_open;
use crate::foreign::{Place, adopt, describe};
use crate::handle::EventHandle;
use crate::interrupt::{self, detached_for};
use crate::memory::{Memory, SharedMemory};
use crosshandle::adapter_support::PerProcess;
use crosshandle::device::dlpack::{CPU, CUDA};
use crosshandle::handle::bundle::{
    self, Bundle, BundleError, BundledArray, Dimension, ElementType, ReadyEvent, Unpacked,
};
use crosshandle::handle::{BackendKind, DeviceUuid, PackedBundle};
use crosshandle::{Error, MemoryHandle};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Encodes arrays, and the structure that contains them (such as a dict of lists), as bytes.
///
/// With `read_only`, other processes can only open the arrays read-only. `event` is an event handle
/// and a signal number. All arrays are ready after that signal. Without `event`, each array keeps
/// the signals that it already waits for.
///
/// If the list of arrays is too long to send inline, this function puts it into newly allocated
/// shared memory (the *table*), and returns that memory as the second result. The caller must keep
/// the memory as long as other processes may unpack the bytes.
#[pyfunction]
#[pyo3(signature = (context, structure, arrays, read_only, *, event = None))]
pub(crate) fn pack_shared<'py>(
    py: Python<'py>,
    context: &Context,
    structure: &str,
    arrays: &Bound<'py, PyList>,
    read_only: bool,
    event: Option<(PyRef<'py, EventHandle>, u64)>,
) -> PyResult<(Bound<'py, PyBytes>, Option<Memory>)> {
    let arrays = arrays.iter().map(|array| array.cast_into::<Array>());
    let arrays = arrays.collect::<std::result::Result<Vec<_>, _>>()?;
    let arrays = arrays.iter().map(Bound::get);
    let bundle = gather(structure, arrays, read_only, event.map(ready_after))?;
    encoded(py, context, bundle)
}

/// The bytes of a bundle of foreign arrays, the arrays, and the table if the list is long.
type Packed<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Option<Memory>);

/// Encodes a list of other libraries' arrays that are all on the device of `owner`, without any
/// Python code for each array. `event` has the same meaning as for `pack_shared`.
///
/// Returns `None` if an array is elsewhere, or in memory that cannot be shared without a copy. The
/// caller must keep the arrays and the table as long as other processes may unpack the bytes.
#[pyfunction]
#[pyo3(signature = (context, owner, values, *, event = None))]
pub(crate) fn pack_foreign<'py>(
    py: Python<'py>,
    context: &Context,
    owner: &Context,
    values: Vec<Bound<'py, PyAny>>,
    event: Option<(PyRef<'py, EventHandle>, u64)>,
) -> PyResult<Option<Packed<'py>>> {
    let device = owner.0.device().info();
    let mut described = Vec::with_capacity(values.len());
    for value in &values {
        let found = describe(value)?;
        let is_there = match found.place {
            Place::Host => device.dlpack_type == CPU,
            Place::Cuda(number) => device.dlpack_type == CUDA && device.index == number as usize,
            Place::SomeCuda | Place::SomeSycl => false,
        };
        if !is_there {
            return Ok(None);
        }
        described.push(found);
    }
    let owners = Vec::from_iter(described.iter().map(|found| found.owner.clone_ref(py)));
    let adopted = adopt(py, owner, &Vec::from_iter(&described), &owners)?;
    let Ok(arrays) = adopted.into_iter().collect::<PyResult<Vec<Array>>>() else {
        return Ok(None);
    };
    for array in &arrays {
        if array.layout.elements() > 0 && array.memory.check_openable(py).is_err() {
            return Ok(None);
        }
    }
    let bundle = gather(
        &flat(arrays.len()),
        arrays.iter(),
        false,
        event.map(ready_after),
    )?;
    let (bytes, table) = encoded(py, context, bundle)?;
    let list = PyList::empty(py);
    for array in arrays {
        list.append(array)?;
    }
    Ok(Some((bytes, list, table)))
}

/// Returns the structure of a list of arrays.
fn flat(len: usize) -> String {
    format!("[{}]", vec!["null"; len].join(","))
}

/// Encodes a bundle. Also returns its table, if it has one.
fn encoded<'py>(
    py: Python<'py>,
    context: &Context,
    bundle: Bundle,
) -> PyResult<(Bound<'py, PyBytes>, Option<Memory>)> {
    // If the program shares the same arrays repeatedly, all of these bundles use one table.
    if let Some((bytes, table)) = recent_table(&bundle) {
        return Ok((PyBytes::new(py, &bytes), Some(Memory::of(table))));
    }
    let packed: Result<_> = PackedBundle::pack(&context.0, &bundle).map_err(Into::into);
    let (bytes, table) = packed?.into_parts();
    let sent = PyBytes::new(py, &bytes);
    let Some(table) = table else {
        return Ok((sent, None));
    };
    let table = Memory::allocated(table, context.0.clone());
    let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    recent.truncate(MAX_RECENT - 1);
    recent.push_front(Recent {
        bundle,
        bytes,
        table: Arc::downgrade(&table.shared()?),
        process: std::process::id(),
    });
    drop(recent);
    Ok((sent, Some(table)))
}

/// A bundle that this process has packed, and that has a table in shared memory.
struct Recent {
    bundle: Bundle,
    bytes: Vec<u8>,
    table: Weak<SharedMemory>,
    /// The id of the process that packed the bundle. A forked child cannot share its parent's
    /// table.
    process: u32,
}

/// The latest bundles that have a table in shared memory, newest first. If a program alternates
/// between more than [`MAX_RECENT`] trees, it creates a new table each time.
static RECENT: Mutex<VecDeque<Recent>> = Mutex::new(VecDeque::new());
const MAX_RECENT: usize = 8;

/// Searches [`RECENT`] for a bundle that is equal to `bundle` and was packed by this process.
/// Returns its encoded bytes and its table, if the table still exists.
fn recent_table(bundle: &Bundle) -> Option<(Vec<u8>, Arc<SharedMemory>)> {
    let recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    let mut equal = recent
        .iter()
        .filter(|recent| recent.process == process && recent.bundle == *bundle);
    equal.find_map(|recent| Some((recent.bytes.clone(), recent.table.upgrade()?)))
}

/// Decodes a bundle and opens its arrays' memory. Without `context`, the memory is opened in the
/// default context for each array's device. Returns the structure and the arrays. `timeout` is the
/// maximum number of seconds of each wait for another process.
///
/// With `keep_events`, this process keeps the latest events open that it has opened in this way, so
/// that it need not open them again. Only for events that this process never signals: the events'
/// creators treat the end of this process as the death of a process that uses the event.
#[pyfunction]
#[pyo3(signature = (context, data, *, writable = true, timeout = None, keep_events = false))]
pub(crate) fn unpack<'py>(
    py: Python<'py>,
    context: Option<Bound<'py, Context>>,
    data: &[u8],
    writable: bool,
    timeout: Option<f64>,
    keep_events: bool,
) -> PyResult<(String, Bound<'py, PyList>)> {
    let timeout = interrupt::timeout(timeout)?;
    let bundle = match Bundle::decode(data).map_err(refused)? {
        Unpacked::Whole(bundle) => bundle,
        Unpacked::Head(_) => {
            // The table is in host memory, even if the arrays are on other devices.
            let host = default_context(py, None)?;
            let context = &host.get().0;
            detached_for(py, timeout, || PackedBundle::unpack(context, data))?
        }
    };
    let context_of = |handle: &MemoryHandle| match &context {
        Some(context) => Ok(context.clone()),
        None => context_of(py, handle),
    };
    let signals = open_signals(
        py,
        &bundle,
        timeout,
        keep_events && context.is_none(),
        context_of,
    )?;
    let is_empty = |array: &BundledArray| array.layout.dimensions.iter().any(|own| own.size == 0);
    // Arrays without elements have no bytes, so their memory is not opened.
    let full = bundle.arrays.iter().filter(|array| !is_empty(array));
    let mut opened = open_all(py, full, writable, timeout, context_of)?.into_iter();
    let mut waits = Vec::new();
    let arrays = PyList::empty(py);
    for array in bundle.arrays {
        let mut layout = layout_of(array.layout)?;
        let (memory, read_only) = match layout.elements() {
            0 => {
                layout.offset = 0;
                let context = context_of(&array.handle)?;
                let read_only = array.read_only || array.handle.is_read_only() || !writable;
                (context.get().nothing(py)?, read_only)
            }
            _ => (
                opened
                    .next()
                    .expect("one memory was opened for each array with elements"),
                false,
            ),
        };
        let ready = array
            .ready
            .iter()
            .filter_map(|index| signals[*index as usize].clone());
        let ready = Ready::new(ready.collect());
        if !array.ready.is_empty() && layout.elements() > 0 {
            waits.push((
                Arc::clone(&memory),
                layout.bytes(),
                array.ready,
                ready.clone(),
            ));
        }
        arrays.append(Array::of(memory, layout, read_only)?.after(ready))?;
    }
    note_arrivals(waits);
    Ok((bundle.structure, arrays))
}

/// Decodes a bundle of another host. `fetch` and `wait` reach the other host.
///
/// `fetch(handle, offset, nbytes)` returns memory of this process with a copy of the bytes. It is
/// called for the table of a long bundle, and for each array with elements. Before that, `wait` is
/// called once with the handle of each event and a signal number. Returns the structure and the
/// arrays.
#[pyfunction]
pub(crate) fn unpack_copied<'py>(
    py: Python<'py>,
    data: &[u8],
    fetch: &Bound<'py, PyAny>,
    wait: &Bound<'py, PyAny>,
) -> PyResult<(String, Bound<'py, PyList>)> {
    let fetched = |handle: MemoryHandle, range: Range<usize>| -> PyResult<Arc<SharedMemory>> {
        let arguments = (
            crate::handle::MemoryHandle(handle),
            range.start,
            range.len(),
        );
        fetch.call1(arguments)?.cast::<Memory>()?.get().shared()
    };
    let bundle = match Bundle::decode(data).map_err(refused)? {
        Unpacked::Whole(bundle) => bundle,
        Unpacked::Head(head) => {
            let mut table = vec![0; head.len()];
            let memory = fetched(*head.table(), 0..head.len())?;
            let read: Result<_> = memory.memory.read(0, &mut table).map_err(Into::into);
            read?;
            head.finish(&table).map_err(refused)?
        }
    };
    for signal in &bundle.signals {
        wait.call1((EventHandle(signal.handle), signal.value))?;
    }
    let arrays = PyList::empty(py);
    for array in bundle.arrays {
        let mut layout = layout_of(array.layout)?;
        // The bundle is the other host's word, so the range is checked before it is fetched.
        layout.check(usize::try_from(array.handle.len()).unwrap_or(usize::MAX))?;
        let bytes = layout.bytes();
        layout.offset -= bytes.start;
        let memory = match layout.elements() {
            0 => default_context(py, None)?.get().nothing(py)?,
            _ => fetched(array.handle, bytes)?,
        };
        arrays.append(Array::of(memory, layout, array.read_only)?)?;
    }
    Ok((bundle.structure, arrays))
}

/// Opens each event in a bundle once, in the first array's context. Returns one entry per signal.
/// The entry is `None` if the event no longer exists but the signal had completed before the bundle
/// was packed.
fn open_signals<'py>(
    py: Python<'py>,
    bundle: &Bundle,
    timeout: Option<Duration>,
    keep_events: bool,
    context_of: impl Fn(&MemoryHandle) -> PyResult<Bound<'py, Context>>,
) -> PyResult<Vec<Option<Arc<Signal>>>> {
    let mut opened: HashMap<crosshandle::EventHandle, crosshandle::Result<crosshandle::Event>> =
        HashMap::new();
    let mut signals = Vec::with_capacity(bundle.signals.len());
    for signal in &bundle.signals {
        let event = match opened.entry(signal.handle) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let context = match bundle.arrays.first() {
                    Some(array) => context_of(&array.handle)?,
                    None => default_context(py, None)?,
                };
                let open = || {
                    let context = &context.get().0;
                    interrupt::released(py, timeout, || context.open_event(&signal.handle))
                };
                vacant.insert(match keep_events {
                    true => kept_event(&context, signal.handle, open),
                    false => open(),
                })
            }
        };
        signals.push(match event {
            Ok(event) => {
                let signal = Signal::new(event.clone(), signal.handle, signal.value);
                Some(Arc::new(signal))
            }
            Err(Error::Stale | Error::ExporterGone { .. }) if signal.is_complete => None,
            Err(error) => return Err(Failure::from(error.clone()).into()),
        });
    }
    Ok(signals)
}

/// The latest events that [`unpack`] has opened and keeps open, newest last, with the address of
/// the default context that they are opened in. Default contexts live until the process ends.
type KeptEvents = Vec<(usize, crosshandle::EventHandle, crosshandle::Event)>;
static KEPT_EVENTS: PerProcess<Mutex<KeptEvents>> = PerProcess::new(Mutex::default);
/// Maximum number of events in [`KEPT_EVENTS`]. A sender has one for each of its streams.
const MAX_KEPT_EVENTS: usize = 64;

/// Returns an event from [`KEPT_EVENTS`], or opens and adds it.
fn kept_event(
    context: &Bound<'_, Context>,
    handle: crosshandle::EventHandle,
    open: impl FnOnce() -> crosshandle::Result<crosshandle::Event>,
) -> crosshandle::Result<crosshandle::Event> {
    let key = context.as_ptr().addr();
    {
        let mut kept = KEPT_EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |(own, known, _): &(usize, _, _)| *own == key && *known == handle;
        if let Some(place) = kept.iter().rposition(is_it) {
            let found = kept.remove(place);
            let event = found.2.clone();
            kept.push(found);
            return Ok(event);
        }
    }
    let event = open()?;
    let mut kept = KEPT_EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    let surplus = (kept.len() + 1).saturating_sub(MAX_KEPT_EVENTS);
    let dropped = Vec::from_iter(kept.drain(..surplus));
    kept.push((key, handle, event.clone()));
    drop(kept);
    drop(dropped);
    Ok(event)
}

/// An array's memory, its byte range in that memory, the indexes of its signals in the bundle, and
/// the opened signals.
type Wait = (Arc<SharedMemory>, Range<usize>, Vec<u32>, Ready);

/// Records with each memory the signals after which the arrays' bytes are ready. Each view of these
/// bytes then waits for the signals too.
fn note_arrivals(waits: Vec<Wait>) {
    // Usually, all arrays wait for the same signals. Then one record for each memory is enough.
    let is_one = waits.windows(2).all(|pair| pair[0].2 == pair[1].2);
    let mut noted = HashSet::new();
    for (memory, bytes, _, ready) in waits {
        if !is_one {
            memory.arrivals.add(bytes, ready);
        } else if noted.insert(Arc::as_ptr(&memory).addr()) {
            memory.arrivals.add(0..memory.memory.len(), ready);
        }
    }
}

/// Handles that are opened in one call, because they have the same context and access.
struct Group<'py> {
    context: Bound<'py, Context>,
    writable: bool,
    handles: Vec<MemoryHandle>,
}

/// Opens the memory of a bundle's arrays, with one call for each context and access. Returns the
/// memory of each array, in the order of the arrays.
fn open_all<'a, 'py>(
    py: Python<'py>,
    arrays: impl Iterator<Item = &'a BundledArray>,
    writable: bool,
    timeout: Option<Duration>,
    context_of: impl Fn(&MemoryHandle) -> PyResult<Bound<'py, Context>>,
) -> PyResult<Vec<Arc<SharedMemory>>> {
    let mut groups: Vec<Group<'py>> = Vec::new();
    // Maps a handle and its access to the index of its group, and the handle's index in the group.
    let mut known: HashMap<(MemoryHandle, bool), (usize, usize)> = HashMap::new();
    let mut places = Vec::new();
    let mut before: Option<(&'a BundledArray, (usize, usize))> = None;
    for array in arrays {
        let may_write = writable && !array.read_only;
        let is_same = |(other, _): &(&BundledArray, _)| {
            other.handle == array.handle && other.read_only == array.read_only
        };
        // Tensors in the same allocation are usually neighbours in the list.
        let place = match before.filter(is_same) {
            Some((_, place)) => place,
            None => match known.entry((array.handle, may_write)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(vacant) => {
                    let context = context_of(&array.handle)?;
                    *vacant.insert(add(&mut groups, context, array.handle, may_write))
                }
            },
        };
        before = Some((array, place));
        places.push(place);
    }
    let open = |Group {
                    context,
                    writable,
                    handles,
                }: Group<'py>| {
        Memory::open_all(py, &context.get().0, &handles, writable, timeout)
    };
    let opened = groups.into_iter().map(open).collect::<Result<Vec<_>>>()?;
    let memory = |(group, handle): (usize, usize)| Arc::clone(&opened[group][handle]);
    Ok(places.into_iter().map(memory).collect())
}

/// Adds a handle to the group for its context and access. Returns the index of the group, and the
/// handle's index in the group.
fn add<'py>(
    groups: &mut Vec<Group<'py>>,
    context: Bound<'py, Context>,
    handle: MemoryHandle,
    writable: bool,
) -> (usize, usize) {
    let is_its = |group: &Group<'_>| group.context.is(&context) && group.writable == writable;
    let place = groups.iter().position(is_its).unwrap_or_else(|| {
        groups.push(Group {
            context,
            writable,
            handles: Vec::new(),
        });
        groups.len() - 1
    });
    groups[place].handles.push(handle);
    (place, groups[place].handles.len() - 1)
}

/// A cache of the default contexts that `context_of` has found, in the order of their first use.
type Known = Vec<((BackendKind, DeviceUuid), Py<Context>)>;
static KNOWN: PerProcess<Mutex<Known>> = PerProcess::new(Mutex::default);

/// Drops the cached default contexts, so that they can be destroyed before the interpreter exits.
/// From then on, events that other processes created stay open until this process ends.
#[pyfunction]
pub(crate) fn forget_contexts() {
    leave_events_open();
    let known = std::mem::take(&mut *KNOWN.lock().unwrap_or_else(PoisonError::into_inner));
    drop(known);
    let kept = std::mem::take(&mut *KEPT_EVENTS.lock().unwrap_or_else(PoisonError::into_inner));
    drop(kept);
}

/// Returns this process's default context for a handle's device, from a cache if possible.
fn context_of<'py>(py: Python<'py>, handle: &MemoryHandle) -> PyResult<Bound<'py, Context>> {
    let device = (handle.backend(), handle.device());
    {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, context)) = known.iter().find(|(own, _)| *own == device) {
            return Ok(context.bind(py).clone());
        }
    }
    let named = (device.0.to_string(), device.1.to_string());
    let sharing = py.import("crosshandle._sharing")?;
    let context = sharing.call_method1("_context_of", named)?;
    let context = context.cast_into::<Context>()?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.push((device, context.clone().unbind()));
    Ok(context)
}

fn refused(error: BundleError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn ready_after((handle, value): (PyRef<'_, EventHandle>, u64)) -> ReadyEvent {
    ReadyEvent {
        handle: handle.0,
        value,
        is_complete: false,
    }
}

fn gather<'a>(
    structure: &str,
    arrays: impl ExactSizeIterator<Item = &'a Array>,
    read_only: bool,
    event: Option<ReadyEvent>,
) -> PyResult<Bundle> {
    let mut packed = Vec::with_capacity(arrays.len());
    let mut signals = Signals::default();
    for array in arrays {
        let Array {
            memory,
            layout,
            read_only: own,
            ready,
            ..
        } = array;
        let handle = match read_only {
            true => memory.handle_of(true),
            false => memory.handle(*own),
        };
        let ready = match event {
            Some(event) => vec![event],
            None => ready.passed_on()?,
        };
        packed.push(BundledArray {
            handle: handle?,
            read_only: read_only || *own,
            layout: described(layout),
            ready: signals.indexes(ready),
        });
    }
    Ok(Bundle {
        structure: structure.to_owned(),
        arrays: packed,
        signals: signals.all,
    })
}

/// The signals in a bundle, without duplicates.
#[derive(Default)]
struct Signals {
    all: Vec<ReadyEvent>,
    known: HashMap<ReadyEvent, u32>,
}

impl Signals {
    /// Returns the indexes that signals have in the bundle, in ascending order. Adds signals that
    /// the bundle does not contain yet.
    fn indexes(&mut self, signals: Vec<ReadyEvent>) -> Vec<u32> {
        let index = |signal: ReadyEvent| {
            *self.known.entry(signal).or_insert_with(|| {
                self.all.push(signal);
                (self.all.len() - 1) as u32
            })
        };
        let mut indexes = Vec::from_iter(signals.into_iter().map(index));
        indexes.sort_unstable();
        indexes.dedup();
        indexes
    }
}

fn described(layout: &Layout) -> bundle::Layout {
    let dimensions = layout.shape.iter().zip(&layout.strides);
    bundle::Layout {
        element: match &layout.dtype {
            Dtype::Plain(plain) => ElementType::Numbered {
                code: plain.kind as u8,
                bits: plain.bits,
            },
            Dtype::Described(described) => ElementType::Described {
                bytes: described.bytes,
                text: described.text.clone(),
            },
        },
        offset: layout.offset as u64,
        dimensions: dimensions
            .map(|(size, stride)| Dimension {
                size: *size as u64,
                stride: *stride as i64,
            })
            .collect(),
    }
}

fn layout_of(layout: bundle::Layout) -> PyResult<Layout> {
    let dtype = match layout.element {
        ElementType::Numbered { code, bits } => Dtype::from_code(code, bits).ok_or_else(|| {
            PyValueError::new_err(format!(
                "the bundle has elements of an unknown type ({code}, {bits} bits)"
            ))
        })?,
        // The text is parsed only when the program requests a NumPy array.
        ElementType::Described { bytes, text } => Dtype::described(text, bytes),
    };
    let too_large =
        |_| PyValueError::new_err("the bundle has an array that is too large for this machine");
    let (mut shape, mut strides) = (Vec::new(), Vec::new());
    for Dimension { size, stride } in layout.dimensions {
        shape.push(size.try_into().map_err(too_large)?);
        strides.push(stride.try_into().map_err(too_large)?);
    }
    Ok(Layout {
        dtype,
        shape,
        strides,
        offset: layout.offset.try_into().map_err(too_large)?,
    })
}
