//! The class `StoreModel`, a model that this process has opened.

use super::error::Result;
use super::wait;
use crate::array::{Array, Dtype, Layout};
use crate::interrupt::released;
use crate::memory::SharedMemory;
use crosshandle_store::{LoadOptions, Model};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Interval at which a wait on a model checks for operating system signals such as Ctrl-C. During
/// an interval, the wait holds the model's lock.
///
/// `sleep`, `wake` and `refresh` on other threads need that lock, so a long interval delays them.
/// If the interval is too short, a wait on a busy machine may end before a new writer replies,
/// every time.
const SLICE: Duration = Duration::from_millis(200);

/// Interval at which `wake` checks for operating system signals such as Ctrl-C. After each
/// interval, `wake` sends a new request to the holder. If the interval is too short, `wake` may not
/// notice that a writer has abandoned its claim.
const WAKE_SLICE: Duration = Duration::from_millis(500);

/// Time that `wake` and `verify` wait for an update in progress to end. After this time, they fail
/// with a timeout error. The crate `crosshandle-store` uses the same default.
const UPDATE_PATIENCE: Duration = Duration::from_secs(30);

/// A model that this process has opened. One mapping contains all of its tensors.
#[pyclass(frozen, module = "crosshandle._crosshandle")]
pub(crate) struct StoreModel(RwLock<Model>);

impl StoreModel {
    pub(super) fn new(model: Model) -> Self {
        Self(RwLock::new(model))
    }

    /// Calls `f` with the model. Releases the interpreter's lock first, because `f` waits if
    /// another thread is changing the model.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&Model) -> crosshandle_store::Result<T> + Send,
    ) -> Result<T> {
        Ok(released(py, None, || f(&self.read()))?)
    }

    fn read(&self) -> RwLockReadGuard<'_, Model> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Model> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl StoreModel {
    /// Returns the model's name, version, hash, device and size in bytes, and the number of the
    /// latest update that this process has seen.
    fn describe(&self, py: Python<'_>) -> Result<(String, u64, String, String, u64, u64)> {
        self.with(py, |model| {
            Ok((
                model.name().to_owned(),
                model.version(),
                model.hash().to_string(),
                model.context().device().to_string(),
                model.manifest().bytes,
                model.seen(),
            ))
        })
    }

    /// Returns a dict from tensor names to tuples: the safetensors type, the shape, the offset in
    /// bytes, and the size in bytes.
    fn tensors<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let tensors = self.with(py, |model| Ok(model.manifest().tensors.clone()))?;
        let all = PyDict::new(py);
        for (name, info) in tensors {
            all.set_item(name, (info.dtype, info.shape, info.offset, info.bytes))?;
        }
        Ok(all)
    }

    /// Returns the metadata (a dict of strings) that the model's safetensors files contained.
    fn metadata<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let metadata = self.with(py, |model| Ok(model.manifest().metadata.clone()))?;
        let all = PyDict::new(py);
        for (key, value) in metadata {
            all.set_item(key, value)?;
        }
        Ok(all)
    }

    /// Returns a tensor as a read-only array with element type `dtype`, without a copy. The array
    /// keeps the model's memory open.
    fn array(&self, py: Python<'_>, name: &str, dtype: &Bound<'_, PyAny>) -> Result<Array> {
        let dtype = Dtype::of(dtype)?;
        let (memory, info) = self.with(py, |model| {
            let info = model.tensor(name)?.info.clone();
            let memory = Arc::clone(model.memory()?);
            let context = model.context().clone();
            Ok((
                SharedMemory::of_store(memory, *model.handle(), context),
                info,
            ))
        })?;
        let shape: Vec<usize> = info.shape.iter().map(|size| *size as usize).collect();
        // A tensor without elements may be at the end of the memory.
        let offset = (info.offset as usize).min(memory.memory.len());
        let layout = Layout::contiguous(dtype, shape, offset);
        let layout = layout.filter(|layout| {
            layout.elements().checked_mul(layout.dtype.bytes()) == Some(info.bytes as usize)
        });
        let layout = layout.ok_or_else(|| {
            PyValueError::new_err(format!(
                "the length of {name} does not match its shape and type"
            ))
        })?;
        Ok(Array::of(memory, layout, true)?)
    }

    /// The address of the model's memory. It stays the same while the model sleeps and after it
    /// wakes.
    #[getter]
    fn address(&self, py: Python<'_>) -> Result<Option<usize>> {
        self.with(py, |model| Ok(model.address()))
    }

    /// Whether the model sleeps, which means that its memory is not mapped.
    #[getter]
    fn asleep(&self, py: Python<'_>) -> Result<bool> {
        self.with(py, |model| Ok(model.is_asleep()))
    }

    /// Hashes the model's contents again, and compares the result with the recorded hash. Raises
    /// `WrongContentsError` if they differ.
    #[pyo3(signature = (threads = None))]
    fn verify(&self, py: Python<'_>, threads: Option<usize>) -> Result<()> {
        let options = LoadOptions::new();
        let options = match threads {
            Some(threads) => options.threads(threads),
            None => options,
        };
        // Ctrl-C interrupts this wait, but not the hashing after it.
        let patience = Some(UPDATE_PATIENCE.as_secs_f64());
        self.stable(py, patience)?;
        self.with(py, |model| model.verify(&options))
    }

    /// Waits until no update is in progress. Returns a number that changes with each update. Raises
    /// an exception after `timeout` seconds. Ctrl-C interrupts the wait.
    fn stable(&self, py: Python<'_>, timeout: Option<f64>) -> Result<u64> {
        wait(py, timeout, SLICE, |slice| self.read().stable(slice))
    }

    /// Returns whether no update has started since `stable` returned `number`.
    fn is_still(&self, py: Python<'_>, number: u64) -> Result<bool> {
        self.with(py, |model| model.is_still(number))
    }

    /// Waits until an update later than update `number` has finished, and returns the later
    /// update's number. Raises an exception after `timeout` seconds. Ctrl-C interrupts the wait.
    fn next_update(&self, py: Python<'_>, number: u64, timeout: Option<f64>) -> Result<u64> {
        wait(py, timeout, SLICE, |slice| {
            self.read().next_update(number, slice)
        })
    }

    /// Reads the tensor names and the hash again, because an update may have changed them. Returns
    /// the number of the latest update. Raises an exception after `timeout` seconds.
    fn refresh(&self, py: Python<'_>, timeout: Option<f64>) -> Result<u64> {
        wait(py, timeout, SLICE, |slice| self.write().refresh(slice))
    }

    /// Unmaps the model's memory, but keeps its addresses reserved. With `to`, first copies the
    /// model to that device, and publishes the copy as the next version of the name.
    #[pyo3(signature = (to = None))]
    fn sleep(&self, py: Python<'_>, to: Option<&str>) -> Result<()> {
        Ok(released(py, None, || match to {
            Some(device) => self.write().sleep_to(device, &LoadOptions::new()),
            None => self.write().sleep(),
        })?)
    }

    /// Maps the latest version of the model at the same addresses as before. Returns whether the
    /// version has changed since the model was last mapped.
    fn wake(&self, py: Python<'_>) -> Result<bool> {
        let patience = Some(UPDATE_PATIENCE.as_secs_f64());
        wait(py, patience, WAKE_SLICE, |slice| {
            self.write().wake_within(slice)
        })
    }
}
