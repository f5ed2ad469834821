//! The error type of links.

use crosshandle::adapter_support;
use std::fmt;
use std::sync::Arc;

/// The result of a fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a link. The text says what went wrong and what to do about it.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of this host's own memory, events or arguments.
    #[error(transparent)]
    Local(#[from] crosshandle::Error),

    /// The remote host refused a request. It could not open the handle, or does not allow the
    /// access.
    #[error("the remote host refuses: {0}")]
    Refused(Arc<str>),

    /// The link has ended: the remote host was silent for the keep-alive time, or one side closed
    /// the link. Objects that were opened over the link can no longer be used. Make a new link, and
    /// open the objects again.
    #[error("the link to {peer} has ended: {why}; link again and reopen its objects")]
    Ended {
        /// The address of the remote host, as it was dialled or as the host connected.
        peer: Arc<str>,
        /// The reason.
        why: Arc<str>,
    },

    /// The peer cannot prove that it may link, or uses another protocol.
    #[error("no link to {peer}: {why}")]
    NotAdmitted {
        /// The address of the remote host, as it was dialled or as the host connected.
        peer: Arc<str>,
        /// The reason.
        why: Arc<str>,
    },

    /// The remote host sent data that breaks the protocol.
    #[error("the remote host breaks the protocol: {0}")]
    Protocol(&'static str),

    /// Memory that was opened for reading only cannot be written.
    #[error("this memory was opened for reading only")]
    ReadOnly,

    /// An argument is not allowed.
    #[error("{0}")]
    InvalidArgument(Arc<str>),

    /// The time limit passed.
    #[error("timed out {0}")]
    TimedOut(&'static str),

    /// The token, key or certificates cannot be used.
    #[error("{0}")]
    Identity(Arc<str>),

    /// No usable UCX was found. Links that send data over TLS do not need UCX.
    #[error("{0}")]
    NoUcx(Arc<str>),

    /// UCX refused a call.
    #[error("{call}: {text} (UCX's code {code})")]
    Ucx {
        /// The UCX function that failed.
        call: &'static str,
        /// UCX's error code.
        code: i32,
        /// UCX's text for the error.
        text: Arc<str>,
    },

    /// The operating system refused a call.
    #[error("{operation}: {source}")]
    Os {
        /// The operation that failed.
        operation: &'static str,
        /// The operating system's error.
        source: Arc<std::io::Error>,
    },
}

/// Prints the text, because Rust prints this form of an error that `main` returns.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        adapter_support::write_escaped(f, &self.to_string())
    }
}

impl Error {
    /// Returns `true` if the remote host is gone: it ended, closed the link, or was silent for too
    /// long.
    pub fn is_peer_dead(&self) -> bool {
        match self {
            Self::Ended { .. } => true,
            Self::Local(error) => error.is_peer_dead(),
            _ => false,
        }
    }

    /// Returns `true` if a time limit passed.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::TimedOut(_) => true,
            Self::Local(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Returns `true` if UCX refuses the request itself, so that a new endpoint would not help.
    pub(crate) fn is_definitive(&self) -> bool {
        let Self::Ucx { code, .. } = self else {
            return false;
        };
        crate::ucx::REFUSALS.contains(code)
    }

    pub(crate) fn os<E: Into<std::io::Error>>(operation: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Os {
            operation,
            source: Arc::new(source.into()),
        }
    }

    pub(crate) fn invalid(message: impl Into<Arc<str>>) -> Self {
        Self::InvalidArgument(message.into())
    }
}
