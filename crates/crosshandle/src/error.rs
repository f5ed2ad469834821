//! The one error type of the crate.

use crate::handle::{BackendKind, DeviceUuid, HandleError};
use rustix::io::Errno;
use std::sync::Arc;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, and what to do about it.
///
/// Callers that only need to react ask the predicates ([`is_timeout`](Self::is_timeout),
/// [`is_peer_dead`](Self::is_peer_dead), …).
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes or text are not a handle of the wanted kind.
    #[error(transparent)]
    Handle(#[from] HandleError),

    /// The handle was made on another machine, or before this one was started again.
    #[error(
        "the handle belongs to another host (or to an earlier boot of this one); \
         handles are good on the machine that made them until it restarts"
    )]
    WrongHost,

    /// The handle's memory belongs to another driver than the context's.
    #[error(
        "the handle is for backend {handle}, but this context uses {context}; open it in a context of a {handle} device"
    )]
    WrongBackend {
        /// The handle's backend.
        handle: BackendKind,
        /// The backend of the context.
        context: BackendKind,
    },

    /// The handle's memory lives on another device than the context's, which cannot reach it.
    #[error(
        "the handle is for device {handle}, which this context's device {context} cannot reach; open it in a context of that device"
    )]
    WrongDevice {
        /// The handle's device.
        handle: DeviceUuid,
        /// The device of the context.
        context: DeviceUuid,
    },

    /// The process that made the handle is not there any more, or its context is gone.
    #[error(
        "the exporter (process {pid} in its own namespace) is gone, so its handle cannot be opened any more; if it runs in another container, both need the same socket directory (CROSSHANDLE_SOCKET_DIR)"
    )]
    ExporterGone {
        /// The exporter's process id in its own PID namespace.
        pid: u32,
    },

    /// The exporter has freed the object since it made the handle.
    #[error("the handle is stale: its object was freed by the exporter; ask it for a new handle")]
    Stale,

    /// The handle names bytes beyond the end of what the exporter really shares.
    #[error(
        "the handle claims {claimed} bytes, but the exporter's segment has {actual}; it does not match its exporter"
    )]
    Extent {
        /// Bytes that the handle claims for the segment.
        claimed: u64,
        /// Bytes that the segment has.
        actual: u64,
    },

    /// Writable access was asked for with a read-only handle.
    #[error("the handle grants reading only; open it read-only")]
    ReadOnly,

    /// One side does not admit the other's user.
    #[error(
        "user {uid} is not admitted; widen `PeerPolicy` in the options of both contexts if this is intended"
    )]
    NotAdmitted {
        /// The user id at the other end.
        uid: u32,
    },

    /// The deadline passed first.
    #[error("timed out while {0}")]
    TimedOut(&'static str),

    /// The process that was to signal has ended without doing so.
    #[error("the process that was to signal has ended")]
    PeerDied,

    /// The command that was to signal failed, or one that it waited for did.
    #[error("a command failed: {0}")]
    CommandFailed(Arc<str>),

    /// The driver cannot make a program of an image, for this device.
    #[error("{backend} {operation} failed: {name} ({code}){}", after_colon(.log))]
    Program {
        /// Whose driver.
        backend: BackendKind,
        /// The call that failed.
        operation: &'static str,
        /// The driver's own code.
        code: i64,
        /// The driver's name for that code.
        name: String,
        /// What its compiler or linker said, if it did.
        log: String,
    },

    /// A program has no kernel or variable of this name.
    #[error("the program has no '{0}'")]
    NoSymbol(String),

    /// An argument is wrong.
    #[error("{0}")]
    InvalidArgument(String),

    /// This device or object cannot do it.
    #[error("{0}")]
    Unsupported(String),

    /// There is no such device.
    #[error("no device '{name}': {reason}")]
    NoDevice {
        /// The name that was asked for.
        name: String,
        /// What was looked for, and where.
        reason: String,
    },

    /// There is no memory left for this.
    #[error("out of memory: {bytes} bytes were asked for{}", of_driver(*.code))]
    OutOfMemory {
        /// Bytes that were asked for.
        bytes: u64,
        /// The driver's own code, if it was a driver that had none left.
        code: Option<i64>,
    },

    /// A limit of the system or of this crate is reached.
    #[error("{what}; {remedy}")]
    LimitReached {
        /// Which limit.
        what: String,
        /// What to do.
        remedy: String,
    },

    /// The other process does not speak our protocol.
    #[error(
        "the exporter's answer makes no sense ({0}); both processes need compatible versions of crosshandle"
    )]
    Protocol(&'static str),

    /// The operating system refused.
    #[error("{operation}: {}", std::io::Error::from_raw_os_error(*.code))]
    Os {
        /// What was tried.
        operation: &'static str,
        /// The system's own code (`errno`).
        code: i32,
    },

    /// A driver refused.
    #[error("{backend} {operation} failed: {name} ({code})")]
    Driver {
        /// Whose driver.
        backend: BackendKind,
        /// The call that failed.
        operation: &'static str,
        /// The driver's own code.
        code: i64,
        /// The driver's name for that code.
        name: String,
    },
}

/// What follows a message, if there is anything.
fn after_colon(text: &str) -> String {
    match text.trim() {
        "" => String::new(),
        text => format!(":\n{text}"),
    }
}

fn of_driver(code: Option<i64>) -> String {
    code.map_or(String::new(), |code| format!(" (driver's code {code})"))
}

impl Error {
    /// Whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut(_))
    }

    /// Whether another process ended before it did what this call needs.
    pub fn is_peer_dead(&self) -> bool {
        matches!(self, Self::PeerDied | Self::ExporterGone { .. })
    }

    /// Whether the handle itself is damaged, of the wrong kind, or not a handle.
    pub fn is_bad_handle(&self) -> bool {
        matches!(self, Self::Handle(_) | Self::Extent { .. })
    }

    /// Whether the object behind the handle is gone although its exporter lives.
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale)
    }

    /// The operating system's code, if it was the one to refuse.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Os { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// What is wanted in a child that has copies of its parent's objects, but not its threads.
    pub(crate) fn forked() -> Self {
        Self::Unsupported(
            "crosshandle cannot be used in a child made by fork without exec; start the child \
             with exec (multiprocessing: 'spawn')"
                .into(),
        )
    }

    /// What no driver was asked for.
    pub(crate) fn out_of_memory(bytes: usize) -> Self {
        Self::OutOfMemory {
            bytes: bytes as u64,
            code: None,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidArgument(message.into())
    }

    /// Turns the system's code into an error that says what was being done. Limits that a user
    /// can change get their own text.
    pub(crate) fn os(operation: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            Errno::MFILE => Self::LimitReached {
                what: format!("{operation}: this process has no file descriptor left"),
                remedy: "raise RLIMIT_NOFILE (ulimit -n)".into(),
            },
            Errno::NFILE => Self::LimitReached {
                what: format!("{operation}: the system has no file descriptor left"),
                remedy: "raise fs.file-max".into(),
            },
            errno => Self::Os {
                operation,
                code: errno.raw_os_error(),
            },
        }
    }

    /// The same for mapping `bytes` bytes.
    pub(crate) fn memory(operation: &'static str, bytes: usize) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            Errno::NOMEM | Errno::NOSPC => Self::out_of_memory(bytes),
            errno => Self::os(operation)(errno),
        }
    }
}
