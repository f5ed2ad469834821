//! Updates of models in place.

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
    /// The version is outside the lock, because an update calls code of the program while it holds
    /// the lock.
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
    /// The version that this updater writes.
    #[getter]
    fn version(&self) -> u64 {
        self.version
    }

    /// The number of this process as the only writer of the name, or `None` if the name was not
    /// claimed.
    #[getter]
    fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Makes one update. Writes the lists of tensors that `pieces` yields, and the tensors of
    /// `files`. Returns the model's new hash.
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
                    "an update by this object is under way: make one object for each thread",
                )
                .into());
            }
        };
        let updater: &mut Updater = &mut updater;
        let slices = Slices::new(interrupt::timeout(Some(timeout))?);
        // This loop does the work of `wait`, which cannot be used because the result borrows from
        // the updater.
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
                // SAFETY: the array lives as long as `tensors`. The documentation of
                // `Updater.update` forbids programs to write to the array during this time.
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
