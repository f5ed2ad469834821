//! Bundles: the bytes that carry arrays to other processes.
//!
//! A bundle is plain data: a stranger's bytes are checked, and nothing in them is run. All numbers
//! are little-endian.
//!
//! | bytes | hold |
//! |---|---|
//! | 4 | `xhb1` |
//! | 4 | the number of entries |
//! | 4 | the length of the structure, in bytes |
//! | … | the structure: text that says how the entries are arranged, `crosshandle/_sharing.py` has its grammar |
//! | each entry | |
//! | 104 | the handle of the memory |
//! | 2 | the elements' type: DLPack's code, and its bits |
//! | 1 | 1: to be opened read-only |
//! | 1 | the number of dimensions, at most 32 |
//! | 8 | bytes from the start of the handle's memory to the first element |
//! | 16 each dimension | its size in elements, its stride in bytes |
//! | 4 | CRC-32C of all before |

use crate::array::{Array, Dtype, Layout, MAX_DIMENSIONS};
use crate::memory::Memory;
use crosshandle::MemoryHandle;
use crosshandle::handle::HANDLE_SIZE;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;

const MAGIC: &[u8; 4] = b"xhb1";
/// The most entries: far more than the tensors of any model.
const MAX_ENTRIES: usize = 1 << 20;
/// The longest structure, in bytes: a hundred for each entry.
const MAX_STRUCTURE: usize = 100 << 20;

/// One array of a bundle.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    handle: MemoryHandle,
    read_only: bool,
    layout: Layout,
}

/// Packs arrays and the structure that they are arranged in. `read_only`: they can be opened read-only alone.
#[pyfunction]
pub(crate) fn pack<'py>(
    py: Python<'py>,
    structure: &str,
    arrays: &Bound<'py, PyList>,
    read_only: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut entries = Vec::with_capacity(arrays.len());
    for array in arrays.iter() {
        let array = array.cast_into::<Array>()?;
        let Array { memory, layout, .. } = array.get();
        let read_only = read_only || memory.is_read_only();
        entries.push(Entry {
            handle: memory.handle(read_only)?,
            read_only,
            layout: layout.clone(),
        });
    }
    Ok(PyBytes::new(py, &encode(structure, &entries)))
}

/// Unpacks a bundle, and opens its memory in a context. Returns the structure and the arrays.
#[pyfunction]
#[pyo3(signature = (context, data, *, writable = true))]
pub(crate) fn unpack<'py>(
    py: Python<'py>,
    context: &crate::context::Context,
    data: &[u8],
    writable: bool,
) -> PyResult<(String, Bound<'py, PyList>)> {
    let (structure, entries) = decode(data).map_err(PyValueError::new_err)?;
    let arrays = PyList::empty(py);
    let mut opened = HashMap::new();
    for entry in entries {
        let writable = writable && !entry.read_only;
        let key = (*entry.handle.as_bytes(), writable);
        let memory = match opened.get(&key) {
            Some(memory) => std::sync::Arc::clone(memory),
            None => {
                let memory = Memory::open(py, &context.0, entry.handle, writable)?.shared()?;
                opened.entry(key).or_insert(memory).clone()
            }
        };
        arrays.append(Array::new(memory, entry.layout)?)?;
    }
    Ok((structure, arrays))
}

fn encode(structure: &str, entries: &[Entry]) -> Vec<u8> {
    let mut bytes = Vec::from(MAGIC);
    bytes.extend((entries.len() as u32).to_le_bytes());
    bytes.extend((structure.len() as u32).to_le_bytes());
    bytes.extend(structure.as_bytes());
    for Entry {
        handle,
        read_only,
        layout,
    } in entries
    {
        bytes.extend(handle.as_bytes());
        let dtype = layout.dtype;
        bytes.extend([dtype.kind as u8, dtype.bits, u8::from(*read_only)]);
        bytes.push(layout.shape.len() as u8);
        bytes.extend((layout.offset as u64).to_le_bytes());
        for (size, stride) in layout.shape.iter().zip(&layout.strides) {
            bytes.extend((*size as u64).to_le_bytes());
            bytes.extend((*stride as i64).to_le_bytes());
        }
    }
    let sum = crc32c::crc32c(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Reads parts of a bundle.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let taken = self.0.split_at_checked(len);
        let (taken, rest) = taken.ok_or("the bundle ends too early: send all of its bytes")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N)?.try_into().expect("the length asked for"))
    }
}

fn decode(data: &[u8]) -> Result<(String, Vec<Entry>), String> {
    let no_bundle = "these bytes are no bundle: `crosshandle.share` makes those";
    let (body, sum) = data.split_last_chunk::<4>().ok_or(no_bundle)?;
    let mut reader = Reader(body);
    if reader.take(4)? != MAGIC {
        return Err(no_bundle.into());
    }
    if crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err("the bundle is damaged: its sum does not match".into());
    }
    let count = u32::from_le_bytes(reader.array()?) as usize;
    let structure = u32::from_le_bytes(reader.array()?) as usize;
    if count > MAX_ENTRIES || structure > MAX_STRUCTURE {
        return Err(format!("a bundle has at most {MAX_ENTRIES} arrays"));
    }
    let structure = reader.take(structure)?;
    let structure = str::from_utf8(structure).map_err(|_| "the bundle's structure is no text")?;
    // No more room than the bytes that are there can fill.
    let mut entries = Vec::with_capacity(count.min(reader.0.len() / HANDLE_SIZE));
    for _ in 0..count {
        entries.push(entry(&mut reader)?);
    }
    if !reader.0.is_empty() {
        return Err("the bundle has bytes after its last array".into());
    }
    Ok((structure.to_owned(), entries))
}

fn entry(reader: &mut Reader<'_>) -> Result<Entry, String> {
    let handle = MemoryHandle::from_bytes(reader.take(HANDLE_SIZE)?);
    let handle = handle.map_err(|error| format!("a handle of the bundle is none: {error}"))?;
    let [code, bits, read_only, dimensions] = reader.array()?;
    let dtype = Dtype::from_code(code, bits).ok_or_else(|| {
        format!("the bundle has elements of an unknown type ({code}, {bits} bits)")
    })?;
    if usize::from(dimensions) > MAX_DIMENSIONS || read_only > 1 {
        return Err("the bundle has an array that cannot be".into());
    }
    let too_large = |_| "the bundle has an array that is too large for this machine".to_owned();
    let offset = u64::from_le_bytes(reader.array()?)
        .try_into()
        .map_err(too_large)?;
    let (mut shape, mut strides) = (Vec::new(), Vec::new());
    for _ in 0..dimensions {
        shape.push(
            u64::from_le_bytes(reader.array()?)
                .try_into()
                .map_err(too_large)?,
        );
        strides.push(
            i64::from_le_bytes(reader.array()?)
                .try_into()
                .map_err(too_large)?,
        );
    }
    let layout = Layout {
        dtype,
        shape,
        strides,
        offset,
    };
    Ok(Entry {
        handle,
        read_only: read_only == 1,
        layout,
    })
}
