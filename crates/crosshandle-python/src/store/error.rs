//! Conversion of store errors to Python exceptions. `crosshandle/_store_errors.py` defines the
//! exception classes that only the store uses.

use crate::error::exception;
use crosshandle::holder::HolderFault;
use crosshandle_store::Error;
use pyo3::exceptions::{PyKeyError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The result of a call to a store. Its error type converts to a Python exception.
pub(super) type Result<T> = std::result::Result<T, StoreFailure>;

/// An error from a store, or a Python exception that was raised during a call to the store.
pub(super) enum StoreFailure {
    Store(Error),
    Python(PyErr),
}

impl From<Error> for StoreFailure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<crosshandle::Error> for StoreFailure {
    fn from(error: crosshandle::Error) -> Self {
        Self::Store(error.into())
    }
}

impl From<PyErr> for StoreFailure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<StoreFailure> for PyErr {
    fn from(failure: StoreFailure) -> Self {
        match failure {
            StoreFailure::Python(error) => error,
            StoreFailure::Store(error) => Python::attach(|py| exception_of(py, &error)),
        }
    }
}

fn exception_of(py: Python<'_>, error: &Error) -> PyErr {
    let name = match error {
        Error::Crosshandle(crosshandle::Error::Holder { fault, .. }) => match fault {
            HolderFault::NoHolder => "NoHolderError",
            HolderFault::NoSuchName => "NoSuchNameError",
            HolderFault::NameTaken => "NameTakenError",
            HolderFault::NoRoom => "NoRoomError",
            HolderFault::NotAllowed => "NotAllowedError",
            _ => "StoreError",
        },
        Error::Crosshandle(error) => return exception(py, error),
        Error::Io { source, .. } => {
            return PyOSError::new_err((source.raw_os_error(), error.to_string()));
        }
        Error::NoTensor(name) => return PyKeyError::new_err(name.clone()),
        Error::Format { .. } | Error::Invalid(_) => {
            return PyValueError::new_err(error.to_string());
        }
        Error::OtherModel { .. } | Error::Changed { .. } => "WrongContentsError",
        Error::Torn | Error::Incomplete(_) => "TornUpdateError",
        Error::AddressTaken { .. } => "AddressTakenError",
        _ => "StoreError",
    };
    let text = error.to_string();
    let made = || -> PyResult<PyErr> {
        static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let module = MODULE.get_or_try_init(py, || {
            PyResult::Ok(py.import("crosshandle._store_errors")?.into_any().unbind())
        })?;
        let class = module.bind(py).getattr(name)?;
        Ok(PyErr::from_value(class.call1((&text,))?))
    };
    made().unwrap_or_else(|_| PyRuntimeError::new_err(text.clone()))
}
