//! Conversion of library errors to Python exceptions. `crosshandle/_errors.py` defines the
//! exception classes. The Rust library defines the messages.

use crate::interrupt;
use crosshandle::Error;
use crosshandle::channel::ChannelFault;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// The result of a library call. Its error type converts to a Python exception.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// A library error that converts to a Python exception.
pub(crate) struct Failure(Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<Failure> for PyErr {
    fn from(Failure(error): Failure) -> Self {
        Python::attach(|py| exception(py, &error))
    }
}

/// Returns the Python exception that corresponds to a library error.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    if matches!(error, Error::Interrupted) {
        return interrupt::raised();
    }
    build(py, error).unwrap_or_else(|failed| {
        // The import fails if the Python package is incomplete. The error text still describes the
        // problem.
        drop(failed);
        PyRuntimeError::new_err(error.to_string())
    })
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = class_of(py, error)?;
    let exception = class.call1((error.to_string(),))?;
    match error {
        Error::PeerDied(death) => {
            exception.setattr("pid", death.pid)?;
            exception.setattr("program", &death.program)?;
            exception.setattr("event", &death.event)?;
            exception.setattr("number", death.number)?;
        }
        Error::NoAnswer { pid, program, .. } => {
            exception.setattr("pid", pid)?;
            exception.setattr("program", program)?;
        }
        Error::Os { code, .. } => exception.setattr("errno", code)?,
        Error::Driver { code, name, .. } | Error::Program { code, name, .. } => {
            exception.setattr("code", code)?;
            exception.setattr("code_name", name)?;
        }
        _ => {}
    }
    Ok(PyErr::from_value(exception))
}

fn class_of<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyType>> {
    static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        PyResult::Ok(py.import("crosshandle._errors")?.into_any().unbind())
    })?;
    let name = match error {
        Error::Handle(_) | Error::Extent { .. } => "InvalidHandleError",
        Error::WrongHost => "WrongHostError",
        Error::WrongBackend { .. } | Error::WrongDevice { .. } => "WrongDeviceError",
        Error::ExporterGone { .. } | Error::HolderGone => "ExporterGoneError",
        Error::Stale => "StaleHandleError",
        Error::WrongKey => "WrongKeyError",
        Error::ReadOnly => "ReadOnlyError",
        Error::NotAdmitted { .. } => "NotAdmittedError",
        Error::TimedOut(_) | Error::NoAnswer { .. } => "TimedOutError",
        Error::PeerDied(_) | Error::Channel(ChannelFault::ProducerDied) => "PeerDiedError",
        Error::Channel(ChannelFault::Closed) => "ChannelClosedError",
        Error::Channel(ChannelFault::NoPlace | ChannelFault::TooManyHeld) => "LimitReachedError",
        Error::Channel(ChannelFault::Corrupt) => "ProtocolError",
        Error::CommandFailed(_) => "CommandFailedError",
        Error::NoSymbol(_) => "NoSymbolError",
        Error::InvalidArgument(_) => "InvalidArgumentError",
        Error::Unsupported(_) => "UnsupportedError",
        Error::NoDevice { .. } => "NoDeviceError",
        Error::OutOfMemory { .. } => "OutOfMemoryError",
        Error::LimitReached { .. } => "LimitReachedError",
        Error::Protocol(_) => "ProtocolError",
        Error::Os { .. } => "SystemCallError",
        Error::Driver { .. } | Error::Program { .. } => "DriverError",
        _ => "Error",
    };
    Ok(module.bind(py).getattr(name)?.cast_into()?)
}
