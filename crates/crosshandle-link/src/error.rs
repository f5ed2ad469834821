//! The error type of links.

use crosshandle::adapter_support;
use std::fmt;
use std::sync::Arc;

/// The result of a fallible call to this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error from a link. Its text says what went wrong and what to do about it.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error that concerns local memory, local events or local arguments.
    #[error(transparent)]
    Local(#[from] crosshandle::Error),

    /// The remote host rejected a request, because it could not open the handle or does not permit
    /// the access.
    #[error("the remote host rejected the request: {0}")]
    Refused(Arc<str>),

    /// The link has ended, because one side closed it or the remote host sent nothing during the
    /// keep-alive time. Objects that were opened over the link can no longer be used. Create a new
    /// link, and open the objects again.
    #[error("the link to {peer} has ended: {why}; link again and reopen its objects")]
    Ended {
        /// The address of the remote host: the dialled address, or the address from which the host
        /// connected.
        peer: Arc<str>,
        /// The reason.
        why: Arc<str>,
    },

    /// No link was created, because the peer cannot prove that it may link or uses another
    /// protocol.
    #[error("no link to {peer}: {why}")]
    NotAdmitted {
        /// The address of the remote host: the dialled address, or the address from which the host
        /// connected.
        peer: Arc<str>,
        /// The reason.
        why: Arc<str>,
    },

    /// The remote host sent data that violates the protocol.
    #[error("the remote host violates the protocol: {0}")]
    Protocol(&'static str),

    /// The program tried to write to memory that was opened read-only.
    #[error("this memory was opened read-only")]
    ReadOnly,

    /// An argument has a value that is not allowed.
    #[error("{0}")]
    InvalidArgument(Arc<str>),

    /// A time limit passed. The text says what the call waited for.
    #[error("timed out {0}")]
    TimedOut(&'static str),

    /// The token, key or certificates cannot be used.
    #[error("{0}")]
    Identity(Arc<str>),

    /// No usable UCX was found. Links that send data over TLS do not need UCX.
    #[error("{0}")]
    NoUcx(Arc<str>),

    /// A call to UCX failed.
    #[error("{call}: {text} (UCX's code {code})")]
    Ucx {
        /// The UCX function that failed.
        call: &'static str,
        /// UCX's error code.
        code: i32,
        /// UCX's description of the error.
        text: Arc<str>,
    },

    /// A system call failed.
    #[error("{operation}: {source}")]
    Os {
        /// A description of the operation that failed.
        operation: &'static str,
        /// The error from the operating system.
        source: Arc<std::io::Error>,
    },
}

/// Formats the same text as `Display`, because Rust prints the `Debug` form of an error that `main`
/// returns.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        adapter_support::write_escaped(f, &self.to_string())
    }
}

impl Error {
    /// Returns `true` if the remote process has ended, has closed the link, or sent nothing for too
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

    /// Returns `true` if UCX rejects the request itself, so that a retry over a new endpoint would
    /// fail too.
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
