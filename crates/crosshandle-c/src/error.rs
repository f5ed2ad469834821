//! Result codes, and the latest error of each thread.

use crosshandle::handle::HandleError;
use crosshandle::holder::HolderFault;
use crosshandle::{Error, ErrorKind};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt;

/// The result of a call. `crosshandle_error_message` has the details of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum crosshandle_result {
    /// The call succeeded.
    CROSSHANDLE_OK = 0,
    /// The timeout passed.
    CROSSHANDLE_TIMED_OUT = 1,
    /// Another process has ended before it did its part, or no holder runs.
    CROSSHANDLE_PEER_DIED = 2,
    /// The command that should have signalled has failed, or a signal was submitted as failed.
    CROSSHANDLE_COMMAND_FAILED = 3,
    /// The exporter has freed the object of the handle.
    CROSSHANDLE_STALE = 4,
    /// A handle is damaged, of another kind, or belongs to another host, backend or device.
    CROSSHANDLE_BAD_HANDLE = 5,
    /// The access is not permitted, or a name's token is missing.
    CROSSHANDLE_PERMISSION_DENIED = 6,
    /// A required pointer is null.
    CROSSHANDLE_NULL = 7,
    /// The object is closed already.
    CROSSHANDLE_CLOSED = 8,
    /// The pointer is that of an object of another kind.
    CROSSHANDLE_WRONG_OBJECT = 9,
    /// An argument is not allowed.
    CROSSHANDLE_INVALID_ARGUMENT = 10,
    /// The device, object or process does not support the operation.
    CROSSHANDLE_UNSUPPORTED = 11,
    /// No such device exists.
    CROSSHANDLE_NO_DEVICE = 12,
    /// The holder keeps nothing under this name.
    CROSSHANDLE_NO_SUCH_NAME = 13,
    /// The name is in use, and the call does not replace it.
    CROSSHANDLE_NAME_TAKEN = 14,
    /// Memory or another resource is used up.
    CROSSHANDLE_EXHAUSTED = 15,
    /// The other process does not follow the protocol, or has another version of this library.
    CROSSHANDLE_PROTOCOL = 16,
    /// The operating system refused a call. `crosshandle_error_os_code` returns its code.
    CROSSHANDLE_OS = 17,
    /// A driver refused a call.
    CROSSHANDLE_DRIVER = 18,
    /// Reserved: C programs cannot interrupt a call yet.
    CROSSHANDLE_INTERRUPTED = 19,
    /// Reserved: the linker and the loader refuse a library with another ABI version.
    CROSSHANDLE_WRONG_VERSION = 20,
    /// This library has a bug, whose description is on the standard error.
    CROSSHANDLE_PANIC = 21,
    /// All producers have left the channel, and all items were received.
    CROSSHANDLE_CHANNEL_CLOSED = 22,
    /// Another thread is using the object, which only one thread at a time may use.
    CROSSHANDLE_IN_USE = 23,
    /// Another error.
    CROSSHANDLE_OTHER = 24,
}

use crosshandle_result::*;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// The reason why a call failed.
pub(crate) enum Failure {
    /// An error of the library.
    Library(Error),
    /// A misuse of the C interface.
    Misuse(crosshandle_result, &'static str),
    /// A misuse of an object of this kind.
    Object(crosshandle_result, &'static str),
}

impl Failure {
    pub(crate) const NULL: Self = Self::Misuse(CROSSHANDLE_NULL, "an argument is null");
    pub(crate) const IN_USE: Self = Self::Misuse(
        CROSSHANDLE_IN_USE,
        "another thread is using this object, which only one thread at a time may use",
    );
    pub(crate) const PANIC: Self = Self::Misuse(
        CROSSHANDLE_PANIC,
        "crosshandle has a bug: the standard error has its description",
    );

    pub(crate) const fn invalid(message: &'static str) -> Self {
        Self::Misuse(CROSSHANDLE_INVALID_ARGUMENT, message)
    }

    pub(crate) const fn closed(name: &'static str) -> Self {
        Self::Object(CROSSHANDLE_CLOSED, name)
    }

    pub(crate) const fn wrong_object(name: &'static str) -> Self {
        Self::Object(CROSSHANDLE_WRONG_OBJECT, name)
    }

    fn code(&self) -> crosshandle_result {
        match self {
            Self::Library(error) => code_of(error),
            Self::Misuse(code, _) | Self::Object(code, _) => *code,
        }
    }

    /// Makes this the thread's latest error, and returns its code.
    #[cold]
    pub(crate) fn store(self) -> crosshandle_result {
        let code = self.code();
        // A thread that is ending has no latest error any more.
        let _ = LATEST.try_with(|latest| latest.borrow_mut().failure = Some(self));
        code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library(error) => error.fmt(f),
            Self::Misuse(_, message) => f.write_str(message),
            Self::Object(CROSSHANDLE_CLOSED, name) => write!(f, "this {name} is closed already"),
            Self::Object(_, name) => write!(f, "the argument is no {name}, but another object"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<HandleError> for Failure {
    fn from(error: HandleError) -> Self {
        Self::Library(error.into())
    }
}

/// Returns the result code of an error.
pub(crate) fn code_of(error: &Error) -> crosshandle_result {
    match error {
        Error::Holder {
            fault: HolderFault::NoSuchName,
            ..
        } => return CROSSHANDLE_NO_SUCH_NAME,
        Error::Holder {
            fault: HolderFault::NameTaken,
            ..
        } => return CROSSHANDLE_NAME_TAKEN,
        _ => {}
    }
    match error.kind() {
        ErrorKind::BadHandle => CROSSHANDLE_BAD_HANDLE,
        ErrorKind::Closed => CROSSHANDLE_CHANNEL_CLOSED,
        ErrorKind::Stale => CROSSHANDLE_STALE,
        ErrorKind::PeerDead => CROSSHANDLE_PEER_DIED,
        ErrorKind::PermissionDenied => CROSSHANDLE_PERMISSION_DENIED,
        ErrorKind::TimedOut => CROSSHANDLE_TIMED_OUT,
        ErrorKind::Interrupted => CROSSHANDLE_INTERRUPTED,
        ErrorKind::CommandFailed => CROSSHANDLE_COMMAND_FAILED,
        ErrorKind::InvalidArgument => CROSSHANDLE_INVALID_ARGUMENT,
        ErrorKind::Unsupported => CROSSHANDLE_UNSUPPORTED,
        ErrorKind::NoDevice => CROSSHANDLE_NO_DEVICE,
        ErrorKind::ResourceExhausted => CROSSHANDLE_EXHAUSTED,
        ErrorKind::Protocol => CROSSHANDLE_PROTOCOL,
        ErrorKind::Os => CROSSHANDLE_OS,
        ErrorKind::Driver => CROSSHANDLE_DRIVER,
        _ => CROSSHANDLE_OTHER,
    }
}

/// The latest error of a thread. Its text is made when the program asks for it.
#[derive(Default)]
struct Latest {
    failure: Option<Failure>,
    text: CString,
}

thread_local! {
    static LATEST: RefCell<Latest> = RefCell::default();
}

/// Returns the text of this thread's latest error.
///
/// The text says what went wrong and what to do about it. It is empty if no call of this thread has
/// failed. It stays valid until the next call of this function in the same thread. Calls that
/// succeed do not change it. Returns null only in a thread that is ending.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_error_message() -> *const c_char {
    let message = LATEST.try_with(|latest| {
        let mut latest = latest.borrow_mut();
        let text = latest.failure.as_ref().map(ToString::to_string);
        // Texts of this library contain no zero, but the names of a peer might.
        let text = text.unwrap_or_default().replace('\0', " ");
        latest.text = CString::new(text).unwrap_or_default();
        latest.text.as_ptr()
    });
    message.unwrap_or(std::ptr::null())
}

/// Returns the code of the operating system (`errno`) of this thread's latest error. Returns 0 if
/// that error did not come from the operating system.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn crosshandle_error_os_code() -> i32 {
    let code = LATEST.try_with(|latest| match &latest.borrow().failure {
        Some(Failure::Library(error)) => error.raw_os_error(),
        _ => None,
    });
    code.ok().flatten().unwrap_or(0)
}
