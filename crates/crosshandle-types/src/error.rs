//! The error type of the crate. A new variant needs a line in [`Error::kind`] and a Unified Runtime
//! result in `crates/ur-adapter/src/abi/failure.rs`.

use crosshandle_handle::bundle::BundleError;
use crosshandle_handle::{BackendKind, DeviceUuid, HandleError};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::SystemTime;

/// The result of a fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. Its text says what went wrong, and what to do about it.
///
/// Programs that react to errors use the [`kind`](Self::kind) or the predicates
/// ([`is_timeout`](Self::is_timeout), [`is_peer_dead`](Self::is_peer_dead), …).
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes or text are not a handle of the expected kind.
    #[error(transparent)]
    Handle(#[from] HandleError),

    /// The handle was made on another machine, or before this machine's last restart.
    #[error(
        "the handle belongs to another host (or to an earlier boot of this one); \
         handles are good on the machine that made them until it restarts"
    )]
    WrongHost,

    /// The handle's memory belongs to a different backend than the context.
    #[error(
        "the handle is for backend {handle}, but this context uses {context}; open it in a context of a {handle} device"
    )]
    WrongBackend {
        /// The handle's backend.
        handle: BackendKind,
        /// The backend of the context.
        context: BackendKind,
    },

    /// The handle's memory is on a device that the context's device cannot reach.
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

    /// The exporter has handed the memory over to a holder, and that holder does not reply.
    #[error(
        "the exporter has handed this memory over to a holder, and the holder is gone; look for it with \
         `crosshandle ls`, and load the memory again"
    )]
    HolderGone,

    /// A holder refused a request, or no holder is running.
    #[error("{why}")]
    Holder {
        /// The reason, for the program.
        fault: HolderFault,
        /// The reason and what to do about it, for the user.
        why: String,
    },

    /// The exporter has freed the object since it made the handle.
    #[error("the handle is stale: its object was freed by the exporter; ask it for a new handle")]
    Stale,

    /// The handle's range ends beyond the segment that its exporter shares.
    #[error(
        "the handle names bytes up to {end} of its segment, which has {actual}; it does not match its exporter"
    )]
    Extent {
        /// End of the handle's range, in bytes from the segment's start.
        end: u64,
        /// Length of the segment, in bytes.
        actual: u64,
    },

    /// The handle's key does not match its object.
    #[error(
        "the exporter did not make this handle: its key is not the object's; get a new one from the exporter"
    )]
    WrongKey,

    /// Writable access was asked for, but the handle or the memory is read-only.
    #[error("the handle grants reading only; open it read-only")]
    ReadOnly,

    /// One side's `PeerPolicy` does not admit the other's user.
    #[error("user {uid} is not admitted; {}", how_to_admit(*.uid))]
    NotAdmitted {
        /// The user id of the other process.
        uid: u32,
    },

    /// The deadline passed before the call could finish.
    #[error("timed out while {0}")]
    TimedOut(&'static str),

    /// Another process did not reply in time. It may be stopped or overloaded.
    #[error("timed out while {doing} {}; see whether it is stopped", named_process(*.pid, .program))]
    NoAnswer {
        /// The operation that this process waited for.
        doing: &'static str,
        /// The process id in this process's PID namespace. If the process is not visible there, the
        /// id in its own namespace.
        pid: u32,
        /// The name of its program, or an empty string if it is not known.
        program: String,
    },

    /// The program interrupted the call: see `interruptible`.
    #[error("the call was interrupted")]
    Interrupted,

    /// The process that should have signalled has ended without signalling.
    #[error("{0}")]
    PeerDied(Box<PeerDeath>),

    /// A channel has no more items, or refused an operation.
    #[error("{0}")]
    Channel(ChannelFault),

    /// The command that should have signalled failed, or a command that it waited for failed.
    #[error("a command failed: {0}")]
    CommandFailed(Arc<str>),

    /// The driver cannot load the images as a program for this device.
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
        /// The output of the driver's compiler or linker, which may be empty.
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

    /// No such device exists.
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
        /// Bytes that were requested.
        bytes: u64,
        /// The driver's own code, if a driver ran out of memory.
        code: Option<i64>,
        /// The limit that was reached and how to raise it, if known.
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

    /// The other process does not follow the protocol of this crate.
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

/// Prints the text, because Rust prints this form of an error that `main` returns. `{:#?}` prints
/// the name of the variant in front of the text.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            write!(f, "{}: ", self.variant())?;
        }
        write_escaped(f, &self.to_string())
    }
}

/// Writes a text with its control characters escaped, except line ends. Parts of it may come from a
/// peer, and `Debug` output reaches terminals and logs.
pub fn write_escaped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for character in text.chars() {
        match character.is_control() && character != '\n' {
            true => write!(f, "{}", character.escape_default())?,
            false => f.write_char(character)?,
        }
    }
    Ok(())
}

/// The reason why a holder refused a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HolderFault {
    /// No holder is running in the socket directory.
    NoHolder,
    /// Another holder already runs in the socket directory.
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
    HasWriter,
    /// The holder put the request off because other processes send it too many. Callers see this
    /// error only after the request was repeated, at growing intervals, until its timeout.
    Busy,
    /// The holder has no room for more. It is out of names, open files or memory of its own, or
    /// this user or process has used its share of them.
    NoRoom,
    /// The memory cannot be held, or the request is not valid.
    Refused,
}

impl HolderFault {
    fn kind(self) -> ErrorKind {
        match self {
            Self::NoHolder => ErrorKind::PeerDead,
            Self::NotAllowed => ErrorKind::PermissionDenied,
            Self::Busy | Self::NoRoom => ErrorKind::ResourceExhausted,
            Self::SecondHolder
            | Self::NoSuchName
            | Self::NameTaken
            | Self::Pinned
            | Self::HasWriter
            | Self::Refused => ErrorKind::InvalidArgument,
        }
    }
}

/// The reason why an operation on a channel failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelFault {
    /// All producers have left, and no item is left.
    #[error("all producers have left the channel, and all items were received")]
    Closed,
    /// No producer is alive, at least one of them died, and no item is left.
    #[error("the channel's last producer is gone and at least one died; all items were received")]
    ProducerDied,
    /// The role already has its maximum number of members.
    #[error(
        "the channel has all the members that it was made for in this role; create it for more"
    )]
    NoPlace,
    /// The member holds as many slots as the channel allows.
    #[error("this member holds all the slots that the channel allows it; release or publish one")]
    TooManyHeld,
    /// A member wrote values that the channel never writes.
    #[error("a member of the channel has written invalid values into it")]
    Corrupt,
}

impl ChannelFault {
    fn kind(self) -> ErrorKind {
        match self {
            Self::Closed => ErrorKind::Closed,
            Self::ProducerDied => ErrorKind::PeerDead,
            Self::NoPlace | Self::TooManyHeld => ErrorKind::ResourceExhausted,
            Self::Corrupt => ErrorKind::Protocol,
        }
    }
}

/// Details of a process that ended before it signalled, and of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerDeath {
    /// The process id in the exporter's PID namespace, or `None` if it has none there.
    pub pid: Option<u32>,
    /// The name of the process's program, or an empty string if it is not known.
    pub program: String,
    /// The time at which the end of the process was noticed, or `None` if that is not known.
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

/// Puts a colon and a line break in front of a text, unless the text is empty.
fn after_colon(text: &str) -> String {
    match text.trim() {
        "" => String::new(),
        text => format!(":\n{text}"),
    }
}

/// Puts a semicolon in front of a text, if there is one.
fn after_semicolon(text: &Option<Arc<str>>) -> String {
    text.as_ref()
        .map_or(String::new(), |text| format!("; {text}"))
}

/// The user id that the kernel shows for every user that a user namespace does not map. It is the
/// default of `kernel.overflowuid`.
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
    /// Another process has ended, or no holder is running: [`Error::PeerDied`],
    /// [`Error::ExporterGone`], [`Error::HolderGone`], [`HolderFault::NoHolder`],
    /// [`ChannelFault::ProducerDied`].
    PeerDead,
    /// All producers have left a channel: [`ChannelFault::Closed`].
    Closed,
    /// An access is not permitted, or a name's token was missing: [`Error::ReadOnly`],
    /// [`Error::WrongKey`], [`Error::NotAdmitted`], [`HolderFault::NotAllowed`].
    PermissionDenied,
    /// A deadline passed: [`Error::TimedOut`], [`Error::NoAnswer`].
    TimedOut,
    /// The program interrupted the call: [`Error::Interrupted`].
    Interrupted,
    /// A command in a queue failed: [`Error::CommandFailed`].
    CommandFailed,
    /// A program cannot be loaded, or has no such symbol: [`Error::Program`], [`Error::NoSymbol`].
    Program,
    /// An argument is not allowed: [`Error::InvalidArgument`], [`Error::Holder`].
    InvalidArgument,
    /// The device, object or process does not support the operation: [`Error::Unsupported`].
    Unsupported,
    /// No such device exists: [`Error::NoDevice`].
    NoDevice,
    /// Memory or another resource is used up, or a holder is busy: [`Error::OutOfMemory`],
    /// [`Error::LimitReached`], [`HolderFault::Busy`], [`HolderFault::NoRoom`],
    /// [`ChannelFault::NoPlace`], [`ChannelFault::TooManyHeld`].
    ResourceExhausted,
    /// The other process does not follow the protocol: [`Error::Protocol`],
    /// [`ChannelFault::Corrupt`].
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
            Self::Channel(fault) => fault.kind(),
            Self::OutOfMemory { .. } | Self::LimitReached { .. } => ErrorKind::ResourceExhausted,
            Self::Protocol(_) => ErrorKind::Protocol,
            Self::Os { .. } => ErrorKind::Os,
            Self::Driver { .. } => ErrorKind::Driver,
        }
    }

    /// Returns the name of the variant.
    fn variant(&self) -> &'static str {
        match self {
            Self::Handle(_) => "Handle",
            Self::WrongHost => "WrongHost",
            Self::WrongBackend { .. } => "WrongBackend",
            Self::WrongDevice { .. } => "WrongDevice",
            Self::ExporterGone { .. } => "ExporterGone",
            Self::HolderGone => "HolderGone",
            Self::Holder { .. } => "Holder",
            Self::Stale => "Stale",
            Self::Extent { .. } => "Extent",
            Self::WrongKey => "WrongKey",
            Self::ReadOnly => "ReadOnly",
            Self::NotAdmitted { .. } => "NotAdmitted",
            Self::TimedOut(_) => "TimedOut",
            Self::NoAnswer { .. } => "NoAnswer",
            Self::Interrupted => "Interrupted",
            Self::PeerDied(_) => "PeerDied",
            Self::Channel(_) => "Channel",
            Self::CommandFailed(_) => "CommandFailed",
            Self::Program { .. } => "Program",
            Self::NoSymbol(_) => "NoSymbol",
            Self::InvalidArgument(_) => "InvalidArgument",
            Self::Unsupported(_) => "Unsupported",
            Self::NoDevice { .. } => "NoDevice",
            Self::OutOfMemory { .. } => "OutOfMemory",
            Self::LimitReached { .. } => "LimitReached",
            Self::Protocol(_) => "Protocol",
            Self::Os { .. } => "Os",
            Self::Driver { .. } => "Driver",
        }
    }

    /// Returns whether a deadline passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::NoAnswer { .. })
    }

    /// Returns whether the call failed because another process ended.
    pub fn is_peer_dead(&self) -> bool {
        matches!(
            self,
            Self::PeerDied(_)
                | Self::ExporterGone { .. }
                | Self::HolderGone
                | Self::Channel(ChannelFault::ProducerDied)
        )
    }

    /// Returns whether the handle itself is damaged, of the wrong kind, or not a handle at all.
    pub fn is_bad_handle(&self) -> bool {
        matches!(self, Self::Handle(_) | Self::Extent { .. })
    }

    /// Returns whether the exporter is still running but has freed the object of the handle.
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

    /// Returns the error for objects that a forked child cannot use. The child has copies of its
    /// parent's objects, but not its threads.
    pub fn forked() -> Self {
        Self::Unsupported(
            "a child made by fork without exec cannot use this: it can read and write host memory that it \
             has inherited, and make and open objects of its own on the host; for all else start the child \
             with exec (multiprocessing: 'spawn' or 'forkserver')"
                .into(),
        )
    }

    /// Returns the error for memory that did not come from a driver.
    pub fn out_of_memory(bytes: usize) -> Self {
        Self::OutOfMemory {
            bytes: bytes as u64,
            code: None,
            limit: None,
        }
    }

    /// Returns the error for memory that would exceed a limit.
    pub fn beyond_limit(bytes: usize, limit: String) -> Self {
        Self::OutOfMemory {
            bytes: bytes as u64,
            code: None,
            limit: Some(limit.into()),
        }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidArgument(message.into())
    }

    /// Converts the system's code to an error that names the operation. Limits that a user can
    /// change get their own text.
    pub fn os(operation: &'static str) -> impl Fn(Errno) -> Self {
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
            // A wait returns this code when the program has interrupted it.
            Errno::CANCELED => Self::Interrupted,
            // Only a peer's message can cause this: this process sends only messages of the size
            // that the protocol prescribes.
            Errno::MSGSIZE => Self::Protocol("a message of another size"),
            errno => Self::Os {
                operation,
                code: errno.raw_os_error(),
            },
        }
    }

    /// Converts the system's code to an error of an operation that needs `bytes` bytes of memory.
    pub fn memory(operation: &'static str, bytes: usize) -> impl Fn(Errno) -> Self {
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

/// Returns the text that names a process in a message.
fn named_process(pid: u32, program: &str) -> String {
    match program {
        "" => format!("process {pid}"),
        program => format!("process {pid} ({program})"),
    }
}

/// Describes the limit on the size of files, which also applies to shared memory.
fn file_size_limit() -> String {
    match getrlimit(Resource::Fsize).current {
        Some(limit) => format!(
            "shared memory is a file, and this process may make files of up to {limit} bytes"
        ),
        None => "shared memory is a file, and one of this size is not allowed".into(),
    }
}

impl From<BundleError> for Error {
    fn from(error: BundleError) -> Self {
        match error {
            BundleError::Handle(error) => Self::Handle(error),
            error => Self::invalid(error.to_string()),
        }
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

    #[test]
    fn debug_output_has_no_control_characters_of_peers() {
        let error = Error::invalid("a\u{1b}[31m b");
        assert_eq!(
            format!("{error:?}"),
            error.to_string().replace('\u{1b}', "\\u{1b}")
        );
    }

    #[test]
    fn debug_output_is_the_text_and_the_long_form_starts_with_the_variant() {
        for (error, variant) in [
            (Error::Handle(HandleError::Corrupt), "Handle"),
            (Error::Stale, "Stale"),
            (Error::invalid("\"x\" is no name"), "InvalidArgument"),
            (Error::os("trying")(Errno::ACCESS), "Os"),
        ] {
            assert_eq!(format!("{error:?}"), error.to_string());
            assert_eq!(format!("{error:#?}"), format!("{variant}: {error}"));
        }
    }
}
