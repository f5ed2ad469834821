//! Reasons, outcomes and roles that distinguish refusals, waits and deaths.

use crate::error::Error;

/// A role in sharing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Exporter,
    Importer,
}

impl Side {
    #[cfg(feature = "metrics")]
    pub(super) const ALL: [Self; 2] = [Self::Exporter, Self::Importer];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Exporter => "exporter",
            Self::Importer => "importer",
        }
    }
}

/// The outcome of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Complete,
    TimedOut,
    PeerDied,
    Failed,
}

impl Outcome {
    #[cfg(feature = "metrics")]
    pub(super) const ALL: [Self; 4] =
        [Self::Complete, Self::TimedOut, Self::PeerDied, Self::Failed];

    pub(super) fn of<T>(result: &Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Complete,
            Err(error) if error.is_timeout() => Self::TimedOut,
            Err(error) if error.is_peer_dead() => Self::PeerDied,
            Err(_) => Self::Failed,
        }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::TimedOut => "timed_out",
            Self::PeerDied => "peer_died",
            Self::Failed => "failed",
        }
    }
}

/// The reason why an importer was refused or a handle could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    BadHandle,
    BadRequest,
    Busy,
    Gone,
    Moved,
    NoReadOnly,
    NoRoom,
    NotAdmitted,
    Other,
    ReadOnly,
    Stale,
    TimedOut,
    Version,
    WrongKey,
}

impl Reason {
    pub(super) const ALL: [Self; 14] = [
        Self::BadHandle,
        Self::BadRequest,
        Self::Busy,
        Self::Gone,
        Self::Moved,
        Self::NoReadOnly,
        Self::NoRoom,
        Self::NotAdmitted,
        Self::Other,
        Self::ReadOnly,
        Self::Stale,
        Self::TimedOut,
        Self::Version,
        Self::WrongKey,
    ];

    /// Returns the reason that corresponds to an error in opening a handle.
    pub(super) fn of(error: &Error) -> Self {
        match error {
            error if error.is_bad_handle() => Self::BadHandle,
            Error::WrongHost | Error::WrongBackend { .. } | Error::WrongDevice { .. } => {
                Self::BadHandle
            }
            Error::Protocol(_) => Self::BadRequest,
            Error::ExporterGone { .. } => Self::Gone,
            Error::HolderGone => Self::Moved,
            Error::LimitReached { .. } | Error::OutOfMemory { .. } => Self::NoRoom,
            Error::NotAdmitted { .. } => Self::NotAdmitted,
            Error::ReadOnly => Self::ReadOnly,
            Error::Stale => Self::Stale,
            error if error.is_timeout() => Self::TimedOut,
            Error::WrongKey => Self::WrongKey,
            _ => Self::Other,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BadHandle => "bad_handle",
            Self::BadRequest => "bad_request",
            Self::Busy => "busy",
            Self::Gone => "gone",
            Self::Moved => "moved",
            Self::NoReadOnly => "no_read_only",
            Self::NoRoom => "no_room",
            Self::NotAdmitted => "not_admitted",
            Self::Other => "other",
            Self::ReadOnly => "read_only",
            Self::Stale => "stale",
            Self::TimedOut => "timed_out",
            Self::Version => "version",
            Self::WrongKey => "wrong_key",
        }
    }

    /// Returns whether this reason suggests a fault or an attack, and not only bad timing.
    pub(super) fn is_suspicious(self) -> bool {
        !matches!(
            self,
            Self::Gone | Self::Moved | Self::Stale | Self::TimedOut
        )
    }
}
