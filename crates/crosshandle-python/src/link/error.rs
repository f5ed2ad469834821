//! Conversion of link errors to Python exceptions.

use crate::error::exception;
use crosshandle_link::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The result of a call to a link. Its error type converts to a Python exception.
pub(super) type Result<T> = std::result::Result<T, Failure>;

/// An error from a link that converts to a Python exception.
pub(crate) struct Failure(Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<Failure> for PyErr {
    fn from(Failure(error): Failure) -> Self {
        Python::attach(|py| match &error {
            Error::Local(local) => exception(py, local),
            error => build(py, error).unwrap_or_else(|failed| {
                // The import fails if the Python package is incomplete. The error text still
                // describes the problem.
                drop(failed);
                PyRuntimeError::new_err(error.to_string())
            }),
        })
    }
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let name = match error {
        Error::Ended { .. } => "PeerDiedError",
        Error::NotAdmitted { .. } => "NotAdmittedError",
        Error::Protocol(_) => "ProtocolError",
        Error::ReadOnly => "ReadOnlyError",
        Error::InvalidArgument(_) | Error::Identity(_) => "InvalidArgumentError",
        Error::TimedOut(_) => "TimedOutError",
        Error::NoUcx(_) => "UnsupportedError",
        Error::Ucx { .. } => "DriverError",
        Error::Os { .. } => "SystemCallError",
        _ => "Error",
    };
    let class = py.import("crosshandle._errors")?.getattr(name)?;
    let exception = class.call1((error.to_string(),))?;
    match error {
        Error::Ucx { code, text, .. } => {
            exception.setattr("code", code)?;
            exception.setattr("code_name", &**text)?;
        }
        Error::Os { source, .. } => exception.setattr("errno", source.raw_os_error())?,
        _ => {}
    }
    Ok(PyErr::from_value(exception))
}
