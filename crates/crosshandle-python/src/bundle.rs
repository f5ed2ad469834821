//! Bundles: the bytes that carry arrays to other processes. The library has their format
//! (`crosshandle::handle::bundle`); `crosshandle/_sharing.py` has the grammar of their structure.

use crate::array::{Array, Dtype, Layout};
use crate::context::{Context, default_context};
use crate::error::Result;
use crate::event::{Event, leave_events_open};
use crate::handle::EventHandle;
use crate::interrupt::{self, detached_for};
use crate::memory::{Memory, SharedMemory};
use crosshandle::MemoryHandle;
use crosshandle::adapter_support::PerProcess;
use crosshandle::handle::bundle::{
    self, Bundle, BundleError, BundledArray, Dimension, ElementType, ReadyEvent, Unpacked,
};
use crosshandle::handle::{BackendKind, DeviceUuid, HANDLE_SIZE};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Packs arrays and the structure that they are arranged in. `read_only`: they can be opened read-only alone.
/// `event`: the handle of an event and the number of the signal after which they are ready.
#[pyfunction]
#[pyo3(signature = (structure, arrays, read_only, *, event = None))]
pub(crate) fn pack<'py>(
    py: Python<'py>,
    structure: &str,
    arrays: &Bound<'py, PyList>,
    read_only: bool,
    event: Option<(PyRef<'py, EventHandle>, u64)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let bundle = gather(structure, arrays, read_only, event)?;
    Ok(PyBytes::new(py, &bundle.encode().map_err(refused)?))
}

/// Packs as `pack` does. A long table goes into memory of the context, which is the second result: keep it
/// for as long as somebody may unpack the bytes. Otherwise the second result is None.
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
    let bundle = gather(structure, arrays, read_only, event)?;
    let packed: Result<_> = context.0.pack_bundle(&bundle).map_err(Into::into);
    let (bytes, table) = packed?.into_parts();
    let table = table.map(|memory| Memory::allocated(memory, context.0.clone()));
    Ok((PyBytes::new(py, &bytes), table))
}

/// Unpacks a bundle, and opens its memory: in `context`, or each array in the default context of its device. Returns
/// the structure and the arrays.
#[pyfunction]
#[pyo3(signature = (context, data, *, writable = true, timeout = None))]
pub(crate) fn unpack<'py>(
    py: Python<'py>,
    context: Option<Bound<'py, Context>>,
    data: &[u8],
    writable: bool,
    timeout: Option<f64>,
) -> PyResult<(String, Bound<'py, PyList>)> {
    let timeout = interrupt::timeout(timeout)?;
    let bundle = match Bundle::decode(data).map_err(refused)? {
        Unpacked::Whole(bundle) => bundle,
        Unpacked::Head(_) => {
            // The table is memory of the host, wherever the arrays are.
            let host = default_context(py, None)?;
            let context = &host.get().0;
            detached_for(py, timeout, || context.unpack_bundle(data))?
        }
    };
    let context_of = |handle: &MemoryHandle| match &context {
        Some(context) => Ok(context.clone()),
        None => context_of(py, handle),
    };
    let ready = match bundle.event {
        None => None,
        Some(ReadyEvent { handle, value }) => {
            let context = match bundle.arrays.first() {
                Some(array) => context_of(&array.handle)?,
                None => default_context(py, None)?,
            };
            let context = &context.get().0;
            let event = detached_for(py, timeout, || context.open_event(&handle))?;
            Some((Py::new(py, Event::new(event, Some(handle)))?, value))
        }
    };
    let opened = open_all(py, &bundle.arrays, writable, timeout, context_of)?;
    let arrays = PyList::empty(py);
    for (array, memory) in bundle.arrays.into_iter().zip(opened) {
        let array = Array::new(memory, layout_of(array.layout)?)?;
        arrays.append(match &ready {
            Some((event, value)) => array.after(event.clone_ref(py), *value),
            None => array,
        })?;
    }
    Ok((bundle.structure, arrays))
}

/// Handles that are opened at once.
struct Group<'py> {
    context: Bound<'py, Context>,
    writable: bool,
    handles: Vec<MemoryHandle>,
}

/// Opens the memory of a bundle's arrays, that of each context at once. Returns that of each array.
fn open_all<'py>(
    py: Python<'py>,
    arrays: &[BundledArray],
    writable: bool,
    timeout: Option<Duration>,
    context_of: impl Fn(&MemoryHandle) -> PyResult<Bound<'py, Context>>,
) -> PyResult<Vec<Arc<SharedMemory>>> {
    let mut groups: Vec<Group<'py>> = Vec::new();
    // By handle and access: the numbers of the group and of the handle in it.
    let mut known: HashMap<([u8; HANDLE_SIZE], bool), (usize, usize)> = HashMap::new();
    let mut places = Vec::with_capacity(arrays.len());
    let mut before: Option<(&BundledArray, (usize, usize))> = None;
    for array in arrays {
        let may_write = writable && !array.read_only;
        let is_same = |(other, _): &(&BundledArray, _)| {
            other.handle == array.handle && other.read_only == array.read_only
        };
        // Tensors of one allocation follow one another.
        let place = match before.filter(is_same) {
            Some((_, place)) => place,
            None => match known.entry((*array.handle.as_bytes(), may_write)) {
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

/// Adds a handle to the group of its context and access, and returns the places of both.
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

/// The default contexts of devices, as they were asked for.
type Known = Vec<((BackendKind, DeviceUuid), Py<Context>)>;
static KNOWN: PerProcess<Mutex<Known>> = PerProcess::new(Mutex::default);

/// Forgets which contexts are the default ones, so that they can end: the interpreter is about to.
#[pyfunction]
pub(crate) fn forget_contexts() {
    leave_events_open();
    let known = std::mem::take(&mut *KNOWN.lock().unwrap_or_else(PoisonError::into_inner));
    drop(known);
}

/// Returns this process's default context for a handle's device. It is asked for over and over.
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

/// Returns the handle of the event in a bundle's bytes and the number of its signal, or None. Opens nothing.
#[pyfunction]
pub(crate) fn event_of(data: &[u8]) -> PyResult<Option<(EventHandle, u64)>> {
    let event = match Bundle::decode(data).map_err(refused)? {
        Unpacked::Whole(bundle) => bundle.event,
        Unpacked::Head(head) => head.event(),
    };
    Ok(event.map(|event| (EventHandle(event.handle), event.value)))
}

fn refused(error: BundleError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn gather(
    structure: &str,
    arrays: &Bound<'_, PyList>,
    read_only: bool,
    event: Option<(PyRef<'_, EventHandle>, u64)>,
) -> PyResult<Bundle> {
    let mut packed = Vec::with_capacity(arrays.len());
    for array in arrays.iter() {
        let array = array.cast_into::<Array>()?;
        let Array {
            memory,
            layout,
            read_only: own,
            ..
        } = array.get();
        let handle = match read_only {
            true => memory.handle_of(true),
            false => memory.handle(*own),
        };
        packed.push(BundledArray {
            handle: handle?,
            read_only: read_only || *own,
            layout: described(layout),
        });
    }
    Ok(Bundle {
        structure: structure.to_owned(),
        arrays: packed,
        event: event.map(|(handle, value)| ReadyEvent {
            handle: handle.0,
            value,
        }),
    })
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
        // The text is read when an array of NumPy is asked for.
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
