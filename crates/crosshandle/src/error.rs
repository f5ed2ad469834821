//! The error type of the crate. A new variant gets its line in [`Error::kind`], and a result of
//! Unified Runtime in `crates/ur-adapter/src/abi/failure.rs`.

use crate::handle::{BackendKind, DeviceUuid, HandleError};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// The result of a fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. Its text says what went wrong, and what to do about it.
///
/// Callers that only need to react look at the [`kind`](Self::kind) or ask the predicates
/// ([`is_timeout`](Self::is_timeout), [`is_peer_dead`](Self::is_peer_dead), …).
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

    /// The process that made the handle has ended, or has dropped its context.
    #[error(
        "the exporter (process {pid} in its own namespace) is gone, so its handle cannot be opened any more; if it runs in another container, both need the same socket directory (CROSSHANDLE_SOCKET_DIR)"
    )]
    ExporterGone {
        /// The exporter's process id in its own PID namespace.
        pid: u32,
    },

    /// The exporter has handed the memory over to a holder, which does not answer.
    #[error(
        "the exporter has handed this memory over to a holder, and the holder is gone; look for it with \
         `crosshandle ls`, and load the memory again"
    )]
    HolderGone,

    /// A holder does not do what it was asked for, or there is none.
    #[error("{why}")]
    Holder {
        /// The reason, for programs.
        fault: HolderFault,
        /// The reason and what to do about it, for people.
        why: String,
    },

    /// The exporter has freed the object since it made the handle.
    #[error("the handle is stale: its object was freed by the exporter; ask it for a new handle")]
    Stale,

    /// The handle names bytes beyond the end of what its exporter shares.
    #[error(
        "the handle names bytes up to {end} of its segment, which has {actual}; it does not match its exporter"
    )]
    Extent {
        /// End of the handle's range, in bytes from the segment's start.
        end: u64,
        /// Bytes that the segment has.
        actual: u64,
    },

    /// The handle's key is not the one of its object.
    #[error(
        "the exporter did not make this handle: its key is not the object's; get a new one from the exporter"
    )]
    WrongKey,

    /// Writable access was asked for, but the handle or the memory is read-only.
    #[error("the handle grants reading only; open it read-only")]
    ReadOnly,

    /// One side's [`PeerPolicy`](crate::PeerPolicy) does not admit the other's user.
    #[error("user {uid} is not admitted; {}", how_to_admit(*.uid))]
    NotAdmitted {
        /// The user id at the other end.
        uid: u32,
    },

    /// The deadline passed before the call could finish.
    #[error("timed out while {0}")]
    TimedOut(&'static str),

    /// Another process did not answer in time. It may be stopped, or have too much to do.
    #[error("timed out while {doing} {}; see whether it is stopped", named_process(*.pid, .program))]
    NoAnswer {
        /// What was waited for.
        doing: &'static str,
        /// The process, in this process's PID namespace, or in its own one if it cannot be seen from here.
        pid: u32,
        /// The name of its program; empty if that is not known.
        program: String,
    },

    /// The program has ended the call: see [`interruptible`](crate::interruptible).
    #[error("the call was interrupted")]
    Interrupted,

    /// The process that was to signal has ended without doing so.
    #[error("{0}")]
    PeerDied(Box<PeerDeath>),

    /// The command that was to signal failed, or a command that it waited for.
    #[error("a command failed: {0}")]
    CommandFailed(Arc<str>),

    /// The driver cannot make a program for this device from the images.
    #[error("{backend} {operation} failed: {name} ({code}){}", after_colon(.log))]
    Program {
        /// The backend whose driver failed.
        backend: BackendKind,
        /// The call that failed.
        operation: &'static str,
        /// The driver's own code.
        code: i64,
        /// The driver's name for that code.
        name: String,
        /// The output of the driver's compiler or linker; may be empty.
        log: String,
    },

    /// A program has no kernel or variable of this name.
    #[error("the program has no '{0}'")]
    NoSymbol(String),

    /// An argument is not allowed.
    #[error("{0}")]
    InvalidArgument(String),

    /// This device, object or process does not support the operation.
    #[error("{0}")]
    Unsupported(String),

    /// There is no such device.
    #[error("no device '{name}': {reason}")]
    NoDevice {
        /// The name that was asked for.
        name: String,
        /// The reason: what was looked for, and where.
        reason: String,
    },

    /// There is not enough memory left for the request.
    #[error("out of memory: {bytes} bytes were asked for{}{}", of_driver(*.code), after_semicolon(.limit))]
    OutOfMemory {
        /// Bytes that were asked for.
        bytes: u64,
        /// The driver's own code, if a driver ran out of memory.
        code: Option<i64>,
        /// The limit that is in the way and how to raise it, if it is known.
        limit: Option<Arc<str>>,
    },

    /// A limit of the system or of this crate is reached.
    #[error("{what}; {remedy}")]
    LimitReached {
        /// The limit.
        what: String,
        /// The way to raise the limit.
        remedy: String,
    },

    /// The other process does not speak this protocol.
    #[error(
        "the exporter's answer makes no sense ({0}); both processes need compatible versions of crosshandle"
    )]
    Protocol(&'static str),

    /// The operating system refused a call.
    #[error("{operation}: {}", std::io::Error::from_raw_os_error(*.code))]
    Os {
        /// The operation that was tried.
        operation: &'static str,
        /// The system's own code (`errno`).
        code: i32,
    },

    /// A driver refused a call.
    #[error("{backend} {operation} failed: {name} ({code})")]
    Driver {
        /// The backend whose driver failed.
        backend: BackendKind,
        /// The call that failed.
        operation: &'static str,
        /// The driver's own code.
        code: i64,
        /// The driver's name for that code.
        name: String,
    },
}

/// The reason why a [holder](crate::holder) does not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HolderFault {
    /// No holder answers in the socket directory.
    NoHolder,
    /// Another holder answers there already.
    SecondHolder,
    /// Nothing is held under the name.
    NoSuchName,
    /// The name is in use.
    NameTaken,
    /// The name is protected from being removed or replaced.
    Pinned,
    /// The program has not shown the name's token.
    NotAllowed,
    /// The name's memory has a writer whose work has not provably ended.
    Fenced,
    /// Others ask for so much at the moment that this question was put off. Callers see it only when the
    /// question was asked again, at growing intervals, until its timeout.
    Busy,
    /// The memory cannot be held, or the question makes no sense.
    Refused,
}

impl HolderFault {
    fn kind(self) -> ErrorKind {
        match self {
            Self::NoHolder => ErrorKind::PeerDead,
            Self::NotAllowed => ErrorKind::PermissionDenied,
            Self::Busy => ErrorKind::ResourceExhausted,
            Self::SecondHolder
            | Self::NoSuchName
            | Self::NameTaken
            | Self::Pinned
            | Self::Fenced
            | Self::Refused => ErrorKind::InvalidArgument,
        }
    }
}

/// What is known of a process that ended before it signalled, and of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerDeath {
    /// The process id, in the exporter's PID namespace; `None` if it has none there.
    pub pid: Option<u32>,
    /// The name of the process's program; empty if it is not known.
    pub program: String,
    /// When it was found to have ended; `None` if only its silence tells.
    pub ended: Option<SystemTime>,
    /// The event's name, or its number in its context.
    pub event: String,
    /// The number of the signal that never came.
    pub number: u64,
}

impl fmt::Display for PeerDeath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the process that was to signal has ended: ")?;
        match self.pid {
            Some(pid) => write!(f, "process {pid}")?,
            None => f.write_str("a process of another PID namespace")?,
        }
        if !self.program.is_empty() {
            write!(f, " ({})", self.program)?;
        }
        if let Some(ended) = self.ended {
            let ago = SystemTime::now().duration_since(ended).unwrap_or_default();
            write!(f, " ended {:.1} s ago", ago.as_secs_f64())?;
        }
        write!(f, "; signal {} of event {}", self.number, self.event)
    }
}

/// Formats a text to follow a message, if there is one.
fn after_colon(text: &str) -> String {
    match text.trim() {
        "" => String::new(),
        text => format!(":\n{text}"),
    }
}

/// Formats a text to follow a message, if there is one.
fn after_semicolon(text: &Option<Arc<str>>) -> String {
    text.as_ref()
        .map_or(String::new(), |text| format!("; {text}"))
}

/// The user as whom the kernel shows all users that a user namespace does not map, unless
/// `kernel.overflowuid` was changed.
const USUAL_OVERFLOW_UID: u32 = 65534;

fn how_to_admit(uid: u32) -> &'static str {
    if uid == USUAL_OVERFLOW_UID {
        "it stands for every user that this user namespace does not map, so it is nobody: map the \
         users of both sides into it (/proc/self/uid_map), or admit `PeerPolicy::Anyone`"
    } else {
        "widen `PeerPolicy` in the options of both contexts if this is intended"
    }
}

fn of_driver(code: Option<i64>) -> String {
    code.map_or(String::new(), |code| format!(" (driver's code {code})"))
}

/// The kind of an [`Error`], without its details.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A handle is damaged, or cannot be opened here: [`Error::Handle`], [`Error::WrongHost`],
    /// [`Error::WrongBackend`], [`Error::WrongDevice`], [`Error::Extent`].
    BadHandle,
    /// The exporter has freed the object: [`Error::Stale`].
    Stale,
    /// Another process has ended: [`Error::PeerDied`], [`Error::ExporterGone`],
    /// [`Error::HolderGone`]; no holder answers.
    PeerDead,
    /// Something is not allowed: [`Error::ReadOnly`], [`Error::WrongKey`], [`Error::NotAdmitted`];
    /// a holder was not shown a name's token.
    PermissionDenied,
    /// A deadline passed: [`Error::TimedOut`], [`Error::NoAnswer`].
    TimedOut,
    /// The program has ended the call: [`Error::Interrupted`].
    Interrupted,
    /// A command in a queue failed: [`Error::CommandFailed`].
    CommandFailed,
    /// A program cannot be loaded, or has no such symbol: [`Error::Program`], [`Error::NoSymbol`].
    Program,
    /// An argument is not allowed: [`Error::InvalidArgument`], [`Error::Holder`].
    InvalidArgument,
    /// The device, object or process does not support the operation: [`Error::Unsupported`].
    Unsupported,
    /// There is no such device: [`Error::NoDevice`].
    NoDevice,
    /// Memory or another resource is used up: [`Error::OutOfMemory`], [`Error::LimitReached`]; a holder
    /// is busy.
    ResourceExhausted,
    /// The other process does not speak this protocol: [`Error::Protocol`].
    Protocol,
    /// The operating system refused a call: [`Error::Os`].
    Os,
    /// A driver refused a call: [`Error::Driver`].
    Driver,
}

impl Error {
    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Handle(_)
            | Self::WrongHost
            | Self::WrongBackend { .. }
            | Self::WrongDevice { .. }
            | Self::Extent { .. } => ErrorKind::BadHandle,
            Self::Stale => ErrorKind::Stale,
            Self::PeerDied(_) | Self::ExporterGone { .. } | Self::HolderGone => ErrorKind::PeerDead,
            Self::ReadOnly | Self::WrongKey | Self::NotAdmitted { .. } => {
                ErrorKind::PermissionDenied
            }
            Self::TimedOut(_) | Self::NoAnswer { .. } => ErrorKind::TimedOut,
            Self::Interrupted => ErrorKind::Interrupted,
            Self::CommandFailed(_) => ErrorKind::CommandFailed,
            Self::Program { .. } | Self::NoSymbol(_) => ErrorKind::Program,
            Self::InvalidArgument(_) => ErrorKind::InvalidArgument,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::NoDevice { .. } => ErrorKind::NoDevice,
            Self::Holder { fault, .. } => fault.kind(),
            Self::OutOfMemory { .. } | Self::LimitReached { .. } => ErrorKind::ResourceExhausted,
            Self::Protocol(_) => ErrorKind::Protocol,
            Self::Os { .. } => ErrorKind::Os,
            Self::Driver { .. } => ErrorKind::Driver,
        }
    }

    /// Returns whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::NoAnswer { .. })
    }

    /// Returns whether another process ended before it did what this call needs.
    pub fn is_peer_dead(&self) -> bool {
        matches!(
            self,
            Self::PeerDied(_) | Self::ExporterGone { .. } | Self::HolderGone
        )
    }

    /// Returns whether the handle itself is damaged, of the wrong kind, or not a handle.
    pub fn is_bad_handle(&self) -> bool {
        matches!(self, Self::Handle(_) | Self::Extent { .. })
    }

    /// Returns whether the exporter has freed the object of the handle, and still lives.
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale)
    }

    /// Returns the operating system's code (`errno`), if the system refused a call.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Os { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Makes the error for what a forked child cannot use: it has copies of its parent's objects but not its
    /// threads.
    pub(crate) fn forked() -> Self {
        Self::Unsupported(
            "a child made by fork without exec cannot use this: it can read and write host memory that it \
             has inherited, and make and open objects of its own on the host; for all else start the child \
             with exec (multiprocessing: 'spawn' or 'forkserver')"
                .into(),
        )
    }

    /// Makes the error for memory that no driver was asked for.
    pub(crate) fn out_of_memory(bytes: usize) -> Self {
        Self::OutOfMemory {
            bytes: bytes as u64,
            code: None,
            limit: None,
        }
    }

    /// Makes the error for memory that a limit forbids.
    pub(crate) fn beyond_limit(bytes: usize, limit: String) -> Self {
        Self::OutOfMemory {
            bytes: bytes as u64,
            code: None,
            limit: Some(limit.into()),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidArgument(message.into())
    }

    /// Turns the system's code into an error that names the operation. Limits that a user can change
    /// get their own text.
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
            Errno::FBIG => Self::LimitReached {
                what: format!("{operation}: {}", file_size_limit()),
                remedy: "raise RLIMIT_FSIZE (ulimit -f)".into(),
            },
            Errno::NAMETOOLONG => Self::LimitReached {
                what: format!("{operation}: the socket's path is too long"),
                remedy: "choose a socket directory with a shorter path (CROSSHANDLE_SOCKET_DIR)"
                    .into(),
            },
            // What a wait returns that its caller has ended.
            Errno::CANCELED => Self::Interrupted,
            // Only of a peer: what this process sends has the size that the protocol says.
            Errno::MSGSIZE => Self::Protocol("a message of another size"),
            errno => Self::Os {
                operation,
                code: errno.raw_os_error(),
            },
        }
    }

    /// Turns the system's code into an error of an operation that needs `bytes` bytes of memory.
    pub(crate) fn memory(operation: &'static str, bytes: usize) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            Errno::FBIG => Self::beyond_limit(
                bytes,
                format!("{}: raise RLIMIT_FSIZE (ulimit -f)", file_size_limit()),
            ),
            Errno::NOMEM => match getrlimit(Resource::As).current {
                Some(limit) => Self::beyond_limit(
                    bytes,
                    format!(
                        "this process may have {limit} bytes of addresses: raise RLIMIT_AS \
                         (ulimit -v) if they are used up"
                    ),
                ),
                None => Self::out_of_memory(bytes),
            },
            Errno::NOSPC => Self::out_of_memory(bytes),
            errno => Self::os(operation)(errno),
        }
    }
}

/// Names a process in a sentence.
fn named_process(pid: u32, program: &str) -> String {
    match program {
        "" => format!("process {pid}"),
        program => format!("process {pid} ({program})"),
    }
}

/// Describes the largest file that this process may make. Memory that is shared is a file.
fn file_size_limit() -> String {
    match getrlimit(Resource::Fsize).current {
        Some(limit) => format!(
            "shared memory is a file, and this process may make files of up to {limit} bytes"
        ),
        None => "shared memory is a file, and one of this size is not allowed".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_keep_their_code_and_text() {
        let error = Error::os("trying")(Errno::ACCESS);
        assert_eq!(error.raw_os_error(), Some(Errno::ACCESS.raw_os_error()));
        assert_eq!(error.kind(), ErrorKind::Os);
        assert_eq!(error.to_string(), "trying: Permission denied (os error 13)");
        let limit = Error::os("trying")(Errno::MFILE);
        assert_eq!(limit.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(limit.raw_os_error(), None);
    }
}
