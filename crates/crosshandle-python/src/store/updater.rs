//! Updates in place.

use super::error::Result;
use super::{Tensor, load_options, not_plain};
use crate::foreign::Bytes;
use crate::interrupt;
use crosshandle_store::{Error, NamedBytes, Updater};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A model that this process can write.
#[pyclass(frozen, module = "crosshandle._crosshandle")]
pub(crate) struct StoreUpdater(Mutex<Updater>);

impl StoreUpdater {
    pub(super) fn new(updater: Updater) -> Self {
        Self(Mutex::new(updater))
    }

    fn lock(&self) -> MutexGuard<'_, Updater> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl StoreUpdater {
    /// The version that it writes.
    #[getter]
    fn version(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.lock().version())
    }

    /// Does one update: writes what `pieces` yields, lists of tensors, and the tensors of `files`. Returns the model's
    /// new hash.
    #[pyo3(signature = (pieces, files, *, hashed, timeout, options))]
    fn update(
        &self,
        py: Python<'_>,
        pieces: &Bound<'_, PyAny>,
        files: Vec<PathBuf>,
        hashed: bool,
        timeout: f64,
        options: &Bound<'_, PyDict>,
    ) -> Result<String> {
        let options = load_options(options)?;
        let mut pieces = pieces.try_iter()?;
        let Ok(mut updater) = self.0.try_lock() else {
            return Err(PyValueError::new_err(
                "another thread is updating by this object: make one for each",
            )
            .into());
        };
        let timeout = interrupt::timeout(Some(timeout))?.unwrap_or(Duration::MAX);
        let updater: &mut Updater = &mut updater;
        let mut update = py.detach(|| updater.begin(timeout))?;
        update = update.options(options);
        for piece in pieces.by_ref() {
            let tensors: Vec<Tensor<'_>> = piece?.extract()?;
            for (name, dtype, shape, array) in &tensors {
                // SAFETY: the array lives as long as `tensors`, and whoever gives it away for an update leaves
                // it alone meanwhile.
                let bytes = unsafe { array.get().bytes() };
                py.detach(|| match bytes {
                    Some(Bytes::Host(bytes)) => update.write([NamedBytes {
                        name: name.clone(),
                        dtype: dtype.clone(),
                        shape: shape.clone(),
                        bytes,
                    }]),
                    Some(Bytes::Device(range)) => match range {
                        Some(range) => update.copy_tensor(name, dtype, shape, range),
                        None => Ok(()),
                    },
                    None => Err(Error::Invalid(not_plain(name).to_string())),
                })?;
            }
        }
        let hash = py.detach(|| {
            if !files.is_empty() {
                update.load(&files)?;
            }
            match hashed {
                true => update.finish(),
                false => update.finish_unhashed(),
            }
        })?;
        Ok(hash.to_string())
    }
}
