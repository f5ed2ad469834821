//! The class `StoreUpdater`, which updates a model in place.

use super::error::Result;
use super::{Tensor, load_options, not_plain};
use crate::array::arguments::Items;
use crate::foreign::Bytes;
use crate::interrupt::{self, SLICE, Slices, released};
use crosshandle_store::{Error, NamedBytes, Updater};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Mutex, TryLockError};

/// A model that this process can update in place.
#[pyclass(frozen, module = "crosshandle._crosshandle")]
pub(crate) struct StoreUpdater {
    /// The version is outside the lock, so that it can be read during an update, which runs the
    /// program's code while it holds the lock.
    version: u64,
    epoch: Option<u64>,
    updater: Mutex<Updater>,
}

impl StoreUpdater {
    pub(super) fn new(updater: Updater) -> Self {
        Self {
            version: updater.version(),
            epoch: updater.epoch(),
            updater: Mutex::new(updater),
        }
    }
}

#[pymethods]
impl StoreUpdater {
    /// The model version that this updater writes to.
    #[getter]
    fn version(&self) -> u64 {
        self.version
    }

    /// The number of the claim by which this process is the only writer, or `None` if this process
    /// has not claimed the name.
    #[getter]
    fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Makes one update. Writes the tensors that `pieces` yields (each item is a list of tensors),
    /// and then the tensors from `files`. First waits at most `timeout` seconds for the end of
    /// another process's update. Returns the model's new hash.
    #[pyo3(signature = (pieces, files, *, hashed, timeout, options))]
    fn update(
        &self,
        py: Python<'_>,
        pieces: &Bound<'_, PyAny>,
        files: Items<PathBuf>,
        hashed: bool,
        timeout: f64,
        options: &Bound<'_, PyDict>,
    ) -> Result<String> {
        let options = load_options(options)?;
        let mut pieces = pieces.try_iter()?;
        let mut updater = match self.updater.try_lock() {
            Ok(updater) => updater,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(PyValueError::new_err(
                    "an update by this object is in progress: create one updater for each thread",
                )
                .into());
            }
        };
        let updater: &mut Updater = &mut updater;
        let slices = Slices::new(interrupt::timeout(Some(timeout))?);
        // This loop replaces `wait`, which cannot be used because the result borrows from the
        // updater.
        let update = loop {
            let (next, is_last) = slices.next(SLICE);
            let free = &mut *updater;
            match released(py, None, move || free.begin(next)) {
                Err(error) if error.is_timeout() && !is_last => py.check_signals()?,
                result => break result?,
            }
        };
        let mut update = update.options(options);
        for piece in pieces.by_ref() {
            let Items::<Tensor<'_>>(tensors) = piece?.extract()?;
            for (name, dtype, shape, array) in &tensors {
                // SAFETY: `tensors` keeps the array alive. The documentation of `Updater.update`
                // tells the program not to write to it during the update.
                let bytes = unsafe { array.get().bytes() };
                released(py, None, || match bytes {
                    Some(Bytes::Host(bytes)) => update.write([NamedBytes {
                        name: name.clone(),
                        dtype: dtype.clone(),
                        shape: shape.0.clone(),
                        bytes,
                    }]),
                    Some(Bytes::Device(range)) => match range {
                        Some(range) => update.copy_tensor(name, dtype, &shape.0, range),
                        None => Ok(()),
                    },
                    None => Err(Error::Invalid(not_plain(name).to_string())),
                })?;
            }
        }
        let hash = released(py, None, || {
            if !files.0.is_empty() {
                update.load(&files.0)?;
            }
            match hashed {
                true => update.finish(),
                false => update.finish_unhashed(),
            }
        })?;
        Ok(hash.to_string())
    }
}
