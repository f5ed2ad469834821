//! A cache of the queues that submit their commands to other libraries' streams.
//!
//! `crosshandle/_libraries/streams.py` finds out which device a stream belongs to, and fills the
//! cache. A queue keeps the stream object alive. This module finds the queue of a torch stream
//! without any Python code, because a signal or a wait then takes no longer than the driver's call.

use crate::context::streams;
use crate::error::Result;
use crate::event::Event;
use crate::queue::Queue;
use crosshandle::adapter_support::PerProcess;
use pyo3::intern;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of queues in the cache. If a program alternates between more streams, their
/// queues are created again each time, which takes a few microseconds.
const MOST: usize = 64;

#[derive(Default)]
struct Adopted {
    /// The queues, by the number of the CUDA device and the driver's handle of the stream.
    queues: HashMap<(u32, usize), (Py<Queue>, u64)>,
    /// The number of lookups. Each queue is stored with the number of its latest lookup.
    lookups: u64,
}

/// The cache. A forked child starts with an empty one.
static ADOPTED: PerProcess<Mutex<Adopted>> = PerProcess::new(Mutex::default);

fn adopted() -> MutexGuard<'static, Adopted> {
    ADOPTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the cached queue for a stream of a CUDA device, or `None`.
#[pyfunction]
pub(crate) fn adopted_queue(py: Python<'_>, device: u32, stream: usize) -> Option<Py<Queue>> {
    let mut adopted = adopted();
    adopted.lookups += 1;
    let now = adopted.lookups;
    let (queue, used) = adopted.queues.get_mut(&(device, stream))?;
    *used = now;
    Some(queue.clone_ref(py))
}

/// Adds a queue to the cache. If the cache is full, removes the idle queues that were not used for
/// the longest time.
#[pyfunction]
pub(crate) fn keep_adopted(device: u32, stream: usize, queue: Py<Queue>) {
    let mut adopted = adopted();
    adopted.lookups += 1;
    let now = adopted.lookups;
    let replaced = adopted.queues.insert((device, stream), (queue, now));
    let mut surplus = adopted.queues.len().saturating_sub(MOST);
    let mut removed = Vec::new();
    if surplus > 0 {
        let uses = adopted.queues.iter().map(|(key, (_, used))| (*used, *key));
        let mut uses = Vec::from_iter(uses);
        uses.sort_unstable();
        for (_, key) in uses {
            let is_idle = adopted.queues[&key].0.get().queue.is_idle();
            if surplus > 0 && is_idle {
                removed.extend(adopted.queues.remove(&key));
                surplus -= 1;
            }
        }
    }
    drop(adopted);
    // The destructors of queues and streams run after the lock is released.
    drop((replaced, removed));
}

/// Drops all queues in the cache. The interpreter calls this at its exit, before the libraries
/// destroy their streams.
#[pyfunction]
pub(crate) fn forget_adopted() {
    let queues = std::mem::take(&mut adopted().queues);
    drop(queues);
}

/// Returns the cached queue of a stream that has torch's attributes.
pub(crate) fn known(stream: &Bound<'_, PyAny>) -> PyResult<Option<Py<Queue>>> {
    let py = stream.py();
    let Some(number) = stream.getattr_opt(intern!(py, "cuda_stream"))? else {
        return Ok(None);
    };
    let Some(device) = stream.getattr_opt(intern!(py, "device_index"))? else {
        return Ok(None);
    };
    let (Ok(number), Ok(device)) = (number.extract(), device.extract()) else {
        return Ok(None);
    };
    Ok(adopted_queue(py, device, number))
}

/// Makes a stream signal an event after its submitted work. Returns the signal's number.
pub(crate) fn signal(event: &Bound<'_, Event>, stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Some(queue) = known(stream)? {
        return Ok(queue.get().signal(event.get())?);
    }
    let number = streams(event.py())?.call_method1("signal", (event, stream))?;
    number.extract()
}

/// Makes a stream wait for signal `value` of an event (default: the latest signal).
pub(crate) fn wait(
    event: &Bound<'_, Event>,
    stream: &Bound<'_, PyAny>,
    value: Option<u64>,
) -> PyResult<()> {
    if let Some(queue) = known(stream)? {
        let waited: Result<()> = queue.get().wait(event.get(), value);
        return Ok(waited?);
    }
    streams(event.py())?.call_method1("wait", (event, stream, value))?;
    Ok(())
}
