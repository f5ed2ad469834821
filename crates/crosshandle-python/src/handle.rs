//! Python classes for handles, which a program sends to other processes.

use crate::array::arguments::Data;
use crate::error::{Failure, Result};
use crosshandle::Error;
use crosshandle::handle::{AnyHandle, HandleError, HandleKind};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// Defines the Python class for one kind of handle.
macro_rules! handle_class {
    ($(#[$doc:meta])* $Class:ident, $Kind:ident { $($method:item)* }) => {
        $(#[$doc])*
        ///
        /// `bytes(handle)` encodes the handle as 104 bytes, or 64 bytes if it is an event's, and
        /// `str(handle)` encodes it as text. A program can send either form over any channel. The
        /// class's constructor accepts both forms. Two handles are equal if their bytes are equal.
        #[pyclass(frozen, eq, hash, module = "crosshandle")]
        #[derive(PartialEq, Eq, Hash)]
        pub(crate) struct $Class(pub(crate) crosshandle::handle::$Class);

        #[pymethods]
        impl $Class {
            #[new]
            pub(crate) fn new(value: &Bound<'_, PyAny>) -> PyResult<Self> {
                if let Ok(own) = value.cast::<Self>() {
                    return Ok(Self(own.get().0));
                }
                match any(value)? {
                    AnyHandle::$Kind(handle) => Ok(Self(handle)),
                    other => {
                        let error = HandleError::WrongKind {
                            expected: HandleKind::$Kind,
                            found: other.kind(),
                        };
                        Err(Failure::from(Error::from(error)).into())
                    }
                }
            }

            /// The backend of the object's device: `host`, `cuda` or `level_zero`.
            #[getter]
            fn backend(&self) -> String {
                self.0.backend().to_string()
            }

            /// The process id of the exporter, in the exporter's own PID namespace. Use the id only
            /// in messages.
            #[getter]
            fn exporter_pid(&self) -> u32 {
                self.0.exporter_pid()
            }

            pub(crate) fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
                PyBytes::new(py, self.0.as_bytes())
            }

            fn __str__(&self) -> String {
                self.0.to_string()
            }

            fn __repr__(&self) -> String {
                format!(
                    concat!("<crosshandle.", stringify!($Class), " of process {}>"),
                    self.0.exporter_pid()
                )
            }

            fn __reduce__<'py>(
                slf: &Bound<'py, Self>,
                py: Python<'py>,
            ) -> (Bound<'py, PyAny>, (Bound<'py, PyBytes>,)) {
                (slf.get_type().into_any(), (slf.get().__bytes__(py),))
            }

            $($method)*
        }
    };
}

handle_class! {
    /// A handle to shared memory. Another process opens the memory with it.
    ///
    /// >>> memory = crosshandle.default_context().allocate(64)
    /// >>> handle = memory.handle(read_only=True)
    /// >>> crosshandle.MemoryHandle(str(handle)) == handle
    /// True
    /// >>> handle.nbytes, handle.read_only
    /// (64, True)
    MemoryHandle, Memory {
        /// The UUID of the device, as in `Device.uuid`.
        #[getter]
        fn device_uuid(&self) -> String {
            self.0.device().to_string()
        }

        /// The size of the memory in bytes.
        #[getter]
        fn nbytes(&self) -> u64 {
            self.0.len()
        }

        /// Whether the handle permits only read access.
        #[getter]
        fn read_only(&self) -> bool {
            self.0.is_read_only()
        }
    }
}
handle_class! {
    /// A handle to an event. Another process opens the event with it.
    ///
    /// >>> event = crosshandle.event()
    /// >>> handle = event.handle()
    /// >>> crosshandle.EventHandle(bytes(handle)) == handle
    /// True
    EventHandle, Event {}
}

handle_class! {
    /// A handle to a channel. Another process opens the channel with it.
    ///
    /// >>> channel = crosshandle.Channel(slot_size=64)
    /// >>> handle = channel.handle(read_only=True)
    /// >>> crosshandle.ChannelHandle(str(handle)) == handle
    /// True
    /// >>> handle.read_only
    /// True
    ChannelHandle, Channel {
        /// Whether the handle grants only the role of consumers.
        #[getter]
        fn read_only(&self) -> bool {
            self.0.is_consumers()
        }
    }
}

handle_class! {
    /// A handle to physical memory. Another process opens the physical memory with it.
    ///
    /// >>> context = crosshandle.default_context()
    /// >>> physical = context.physical_memory(context.device.granularity)
    /// >>> handle = physical.handle()
    /// >>> crosshandle.PhysicalMemoryHandle(bytes(handle)) == handle
    /// True
    PhysicalMemoryHandle, PhysicalMemory {
        /// The UUID of the device, as in `Device.uuid`.
        #[getter]
        fn device_uuid(&self) -> String {
            self.0.device().to_string()
        }

        /// The size of the memory in bytes.
        #[getter]
        fn nbytes(&self) -> u64 {
            self.0.len()
        }

        /// Whether the handle permits only read access.
        #[getter]
        fn read_only(&self) -> bool {
            self.0.is_read_only()
        }
    }
}

/// An encoded handle from the program, before it is parsed.
pub(crate) enum Form {
    Text(String),
    Bytes(Data),
}

pub(crate) fn text_or_bytes(value: &Bound<'_, PyAny>) -> PyResult<Form> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Form::Text(text.to_str()?.to_owned()));
    }
    if let Ok(bytes) = value.extract::<Data>() {
        return Ok(Form::Bytes(bytes));
    }
    let class = value.get_type();
    Err(PyTypeError::new_err(format!(
        "a handle is given as itself, as bytes or as text, not as {}",
        class.name()?
    )))
}

/// Converts a handle object, or an encoded handle of any kind.
pub(crate) fn any(value: &Bound<'_, PyAny>) -> PyResult<AnyHandle> {
    if let Ok(handle) = value.cast::<MemoryHandle>() {
        return Ok(AnyHandle::Memory(handle.get().0));
    }
    if let Ok(handle) = value.cast::<EventHandle>() {
        return Ok(AnyHandle::Event(handle.get().0));
    }
    if let Ok(handle) = value.cast::<PhysicalMemoryHandle>() {
        return Ok(AnyHandle::PhysicalMemory(handle.get().0));
    }
    if let Ok(handle) = value.cast::<ChannelHandle>() {
        return Ok(AnyHandle::Channel(handle.get().0));
    }
    let parsed: std::result::Result<AnyHandle, _> = match text_or_bytes(value)? {
        Form::Text(text) => text.parse(),
        Form::Bytes(bytes) => AnyHandle::from_bytes(&bytes),
    };
    let handle: Result<_> = parsed.map_err(|error| Failure::from(Error::from(error)));
    Ok(handle?)
}

/// Converts an encoded handle, bytes or text, to an object of the matching handle class.
#[pyfunction]
pub(crate) fn parse_handle(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    Ok(match any(value)? {
        AnyHandle::Memory(handle) => Py::new(py, MemoryHandle(handle))?.into_any(),
        AnyHandle::Event(handle) => Py::new(py, EventHandle(handle))?.into_any(),
        AnyHandle::PhysicalMemory(handle) => Py::new(py, PhysicalMemoryHandle(handle))?.into_any(),
        AnyHandle::Channel(handle) => Py::new(py, ChannelHandle(handle))?.into_any(),
    })
}
