//! Conversion of errors to UR results, and storage for the message of the latest failure.

use super::description;
use crosshandle::Error;
use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use unified_runtime_sys::ur_result_t;

/// The result of a fallible operation in this adapter.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// The reason why an entry point failed.
#[derive(Debug)]
pub(crate) struct Failure {
    result: ur_result_t,
    /// The message for `urAdapterGetLastError` and the log. The message is empty if the result
    /// needs no explanation.
    message: Cow<'static, str>,
    /// The error code from the driver or the operating system, or 0.
    native_code: i32,
}

impl Failure {
    pub(crate) const NULL_POINTER: Self =
        Self::of(ur_result_t::UR_RESULT_ERROR_INVALID_NULL_POINTER);
    pub(crate) const NULL_HANDLE: Self = Self::of(ur_result_t::UR_RESULT_ERROR_INVALID_NULL_HANDLE);
    pub(crate) const SIZE: Self = Self::of(ur_result_t::UR_RESULT_ERROR_INVALID_SIZE);
    pub(crate) const VALUE: Self = Self::of(ur_result_t::UR_RESULT_ERROR_INVALID_VALUE);
    pub(crate) const ENUMERATION: Self = Self::of(ur_result_t::UR_RESULT_ERROR_INVALID_ENUMERATION);

    /// Returns a failure that needs no message.
    pub(crate) const fn of(result: ur_result_t) -> Self {
        Self {
            result,
            message: Cow::Borrowed(""),
            native_code: 0,
        }
    }

    pub(crate) fn new(result: ur_result_t, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            result,
            message: message.into(),
            native_code: 0,
        }
    }

    /// Returns `UNSUPPORTED_FEATURE` with a message.
    pub(crate) fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_FEATURE, message)
    }

    /// Returns `INVALID_ARGUMENT` with a message that says which argument is wrong.
    pub(crate) fn argument(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ur_result_t::UR_RESULT_ERROR_INVALID_ARGUMENT, message)
    }

    /// Replaces the UR result and keeps the message.
    pub(crate) fn with_result(self, result: ur_result_t) -> Self {
        Self { result, ..self }
    }

    /// Returns the failure that reports a panic in this adapter.
    pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Self::new(
            ur_result_t::UR_RESULT_ERROR_UNKNOWN,
            format!("a bug in this adapter: {text}"),
        )
    }

    /// Adds a message to the failure, unless it already has one.
    pub(crate) fn with_text(mut self, text: &'static str) -> Self {
        if self.message.is_empty() {
            self.message = Cow::Borrowed(text);
        }
        self
    }

    #[cfg(test)]
    pub(crate) fn result(&self) -> ur_result_t {
        self.result
    }

    /// Logs the failure, stores it for `urAdapterGetLastError`, and returns its UR result. A
    /// failure without a message is neither logged nor stored.
    #[cold]
    pub(crate) fn report(self) -> ur_result_t {
        if !self.message.is_empty() {
            super::log::failure(self.result, &self.message);
            let text = CString::new(self.message.replace('\0', " ")).unwrap_or_default();
            // The thread-local storage is unavailable only while the thread exits. Such a thread
            // cannot query the message.
            let _ = LAST.try_with(|last| *last.borrow_mut() = (text, self.native_code));
        }
        self.result
    }
}

impl From<ur_result_t> for Failure {
    fn from(result: ur_result_t) -> Self {
        Self::of(result)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let native_code = match &error {
            Error::Driver { code, .. }
            | Error::Program { code, .. }
            | Error::OutOfMemory {
                code: Some(code), ..
            } => i32::try_from(*code).unwrap_or(i32::MAX),
            error => error.raw_os_error().unwrap_or(0),
        };
        Self {
            result: result_of(&error),
            message: error.to_string().into(),
            native_code,
        }
    }
}

/// Converts an error from `crosshandle` to a UR result. Several errors share a result, and differ
/// in their messages.
fn result_of(error: &Error) -> ur_result_t {
    match error {
        Error::Handle(_)
        | Error::WrongHost
        | Error::WrongBackend { .. }
        | Error::Extent { .. }
        | Error::Stale
        | Error::WrongKey
        | Error::ExporterGone { .. }
        | Error::HolderGone
        | Error::Holder { .. }
        | Error::Protocol(_) => ur_result_t::UR_RESULT_ERROR_INVALID_VALUE,
        Error::WrongDevice { .. } | Error::NoDevice { .. } => {
            ur_result_t::UR_RESULT_ERROR_INVALID_DEVICE
        }
        Error::ReadOnly | Error::NotAdmitted { .. } => {
            ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION
        }
        Error::PeerDied(_) | Error::CommandFailed(_) => {
            ur_result_t::UR_RESULT_ERROR_IN_EVENT_LIST_EXEC_STATUS
        }
        Error::InvalidArgument(_) => ur_result_t::UR_RESULT_ERROR_INVALID_ARGUMENT,
        Error::Unsupported(_) => ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
        Error::OutOfMemory {
            code: Some(code @ OUT_OF_HOST_MEMORY),
            ..
        } => of_level_zero(*code),
        Error::OutOfMemory { .. } => ur_result_t::UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY,
        Error::LimitReached { .. } => ur_result_t::UR_RESULT_ERROR_OUT_OF_RESOURCES,
        Error::Driver { code, .. } => match description::get().result_of_code {
            Some(convert) => convert(*code),
            None => ur_result_t::UR_RESULT_ERROR_ADAPTER_SPECIFIC,
        },
        _ => ur_result_t::UR_RESULT_ERROR_ADAPTER_SPECIFIC,
    }
}

/// Level Zero's error code for exhausted host memory. No other driver uses this code.
const OUT_OF_HOST_MEMORY: i64 = 0x7000_0002;

/// Converts a Level Zero result code (`ze_result_t`) to a UR result.
pub(super) fn of_level_zero(code: i64) -> ur_result_t {
    match code {
        0x7000_0001 => ur_result_t::UR_RESULT_ERROR_DEVICE_LOST,
        OUT_OF_HOST_MEMORY => ur_result_t::UR_RESULT_ERROR_OUT_OF_HOST_MEMORY,
        0x7000_0003 => ur_result_t::UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY,
        // Insufficient permissions, an unavailable feature, and overlapping regions.
        0x7001_0000 | 0x7001_0001 | 0x7800_001a => ur_result_t::UR_RESULT_ERROR_INVALID_OPERATION,
        0x7800_0001 => ur_result_t::UR_RESULT_ERROR_UNINITIALIZED,
        0x7800_0003 => ur_result_t::UR_RESULT_ERROR_UNSUPPORTED_FEATURE,
        0x7800_0004 => ur_result_t::UR_RESULT_ERROR_INVALID_ARGUMENT,
        // A null pointer, and an invalid or unsupported size, alignment or enumerator.
        0x7800_0007..=0x7800_000a | 0x7800_000c..=0x7800_000e => {
            ur_result_t::UR_RESULT_ERROR_INVALID_VALUE
        }
        // An invalid synchronization object.
        0x7800_000b => ur_result_t::UR_RESULT_ERROR_INVALID_EVENT,
        _ => ur_result_t::UR_RESULT_ERROR_ADAPTER_SPECIFIC,
    }
}

thread_local! {
    /// The message and the native error code of the latest failure on this thread.
    static LAST: RefCell<(CString, i32)> = RefCell::default();
}

/// Calls `f` with the message and the native error code of the latest failure on this thread. The
/// message stays at the same address until the thread's next failure. On an exiting thread, `f`
/// receives an empty message.
pub(crate) fn with_last<R>(f: impl Fn(&CStr, i32) -> R) -> R {
    let found = LAST.try_with(|last| {
        let last = last.borrow();
        f(&last.0, last.1)
    });
    found.unwrap_or_else(|_| f(c"", 0))
}
