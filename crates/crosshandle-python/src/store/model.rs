//! Models that this process has opened from a store.

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

/// Interval at which a wait checks for operating system signals such as Ctrl-C.
///
/// `sleep`, `wake` and `refresh` on other threads cannot start before the interval ends. If the
/// interval is too short, a wait on a busy machine may never get a reply from a new writer.
const SLICE: Duration = Duration::from_millis(200);

/// Interval at which a wake checks for operating system signals. Each interval makes a new request
/// to the holder. If the interval is too short, a wake may not notice that a claim was abandoned.
const WAKE_SLICE: Duration = Duration::from_millis(500);

/// Time that `wake` and `verify` wait for an update to end. The store crate uses the same timeout.
const UPDATE_PATIENCE: Duration = Duration::from_secs(30);

/// An open model: one mapping that contains all its tensors.
#[pyclass(frozen, module = "crosshandle._crosshandle")]
pub(crate) struct StoreModel(RwLock<Model>);

impl StoreModel {
    pub(super) fn new(model: Model) -> Self {
        Self(RwLock::new(model))
    }

    /// Calls `f` with the model, without the interpreter's lock, because another thread may be
    /// changing the model.
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
    /// Returns the name, the version, the hash, the device, the size in bytes, and the number of
    /// the last update.
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

    /// Returns the safetensors type, the shape, the offset and the length in bytes of each tensor.
    fn tensors<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let tensors = self.with(py, |model| Ok(model.manifest().tensors.clone()))?;
        let all = PyDict::new(py);
        for (name, info) in tensors {
            all.set_item(name, (info.dtype, info.shape, info.offset, info.bytes))?;
        }
        Ok(all)
    }

    /// Returns the metadata of the model's files.
    fn metadata<'py>(&self, py: Python<'py>) -> Result<Bound<'py, PyDict>> {
        let metadata = self.with(py, |model| Ok(model.manifest().metadata.clone()))?;
        let all = PyDict::new(py);
        for (key, value) in metadata {
            all.set_item(key, value)?;
        }
        Ok(all)
    }

    /// Returns a tensor as an array of a type that this package supports. The array keeps the
    /// memory open.
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

    /// The address of the model's memory, which does not change while the model sleeps.
    #[getter]
    fn address(&self, py: Python<'_>) -> Result<Option<usize>> {
        self.with(py, |model| Ok(model.address()))
    }

    /// Whether the model sleeps.
    #[getter]
    fn asleep(&self, py: Python<'_>) -> Result<bool> {
        self.with(py, |model| Ok(model.is_asleep()))
    }

    /// Hashes the contents again, and compares the hash.
    #[pyo3(signature = (threads = None))]
    fn verify(&self, py: Python<'_>, threads: Option<usize>) -> Result<()> {
        let options = LoadOptions::new();
        let options = match threads {
            Some(threads) => options.threads(threads),
            None => options,
        };
        // A long wait for an update can be interrupted, but hashing cannot.
        let patience = Some(UPDATE_PATIENCE.as_secs_f64());
        self.stable(py, patience)?;
        self.with(py, |model| model.verify(&options))
    }

    /// Waits until no update is in progress. Returns a number that changes with each update.
    fn stable(&self, py: Python<'_>, timeout: Option<f64>) -> Result<u64> {
        wait(py, timeout, SLICE, |slice| self.read().stable(slice))
    }

    /// Returns whether no update has started since `stable` returned `number`.
    fn is_still(&self, py: Python<'_>, number: u64) -> Result<bool> {
        self.with(py, |model| model.is_still(number))
    }

    /// Waits until an update later than update `number` has finished. Returns the later update's
    /// number.
    fn next_update(&self, py: Python<'_>, number: u64, timeout: Option<f64>) -> Result<u64> {
        wait(py, timeout, SLICE, |slice| {
            self.read().next_update(number, slice)
        })
    }

    /// Reads the tensor names and the hash again. Returns the number of the last update.
    fn refresh(&self, py: Python<'_>, timeout: Option<f64>) -> Result<u64> {
        wait(py, timeout, SLICE, |slice| self.write().refresh(slice))
    }

    /// Unmaps the memory, and keeps its addresses reserved. With `to`, the model first moves to
    /// that device.
    #[pyo3(signature = (to = None))]
    fn sleep(&self, py: Python<'_>, to: Option<&str>) -> Result<()> {
        Ok(released(py, None, || match to {
            Some(device) => self.write().sleep_to(device, &LoadOptions::new()),
            None => self.write().sleep(),
        })?)
    }

    /// Maps the current version of the name at the same addresses. Returns whether the version has
    /// changed.
    fn wake(&self, py: Python<'_>) -> Result<bool> {
        let patience = Some(UPDATE_PATIENCE.as_secs_f64());
        wait(py, patience, WAKE_SLICE, |slice| {
            self.write().wake_within(slice)
        })
    }
}
