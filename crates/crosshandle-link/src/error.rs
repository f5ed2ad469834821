//! The error type of links.

use std::sync::Arc;

/// The result of a fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a link. Its text says what went wrong, and what to do about it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of this host's own memory, events or arguments.
    #[error(transparent)]
    Local(#[from] crosshandle::Error),

    /// The other host refused a request: it could not open the handle there, or does not allow the
    /// access.
    #[error("the other host refuses: {0}")]
    Refused(Arc<str>),

    /// The link has ended: nothing was heard from the other host for the keep-alive, or one of the two
    /// closed it. What was opened over it is gone; link again and open it anew.
    #[error("the link to {peer} has ended: {why}; link again, and open what was open anew")]
    Ended {
        /// The other host, as it was dialled or as it connected.
        peer: Arc<str>,
        /// The reason.
        why: Arc<str>,
    },

    /// The other side cannot prove that it may be linked with, or speaks another protocol.
    #[error("no link to {peer}: {why}")]
    NotAdmitted {
        /// The other host, as it was dialled or as it connected.
        peer: Arc<str>,
        /// The reason.
        why: Arc<str>,
    },

    /// What the other host sent is not of this protocol.
    #[error("the other host breaks the protocol: {0}")]
    Protocol(&'static str),

    /// Memory that was opened for reading only cannot be written.
    #[error("this memory was opened for reading only")]
    ReadOnly,

    /// An argument is not allowed.
    #[error("{0}")]
    InvalidArgument(Arc<str>),

    /// A time limit passed.
    #[error("timed out {0}")]
    TimedOut(&'static str),

    /// The token, key or certificates cannot be used.
    #[error("{0}")]
    Identity(Arc<str>),

    /// There is no UCX that serves. Links that send data over TLS need none.
    #[error("{0}")]
    NoUcx(Arc<str>),

    /// UCX refused a call.
    #[error("{call}: {text} (UCX's code {code})")]
    Ucx {
        /// The function.
        call: &'static str,
        /// UCX's own code.
        code: i32,
        /// UCX's own text.
        text: Arc<str>,
    },

    /// The operating system refused a call.
    #[error("{operation}: {source}")]
    Os {
        /// What was tried.
        operation: &'static str,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
}

impl Error {
    /// Returns whether the other host is gone: it ended, closed the link, or was silent for too long.
    pub fn is_peer_dead(&self) -> bool {
        match self {
            Self::Ended { .. } => true,
            Self::Local(error) => error.is_peer_dead(),
            _ => false,
        }
    }

    /// Returns whether a time limit passed.
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::TimedOut(_) => true,
            Self::Local(error) => error.is_timeout(),
            _ => false,
        }
    }

    /// Returns whether UCX refuses a call for what it asks for, so that another endpoint refuses it as well.
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
