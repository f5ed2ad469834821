//! The error type of this crate.

use crate::Hash;
use std::path::PathBuf;

/// The result of a fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. Its text says what went wrong, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call of the library failed: there is no holder, no such name, no memory left, …
    #[error(transparent)]
    Crosshandle(#[from] crosshandle::Error),

    /// A file cannot be read.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },

    /// A file is not what its name says.
    #[error("{path}: {why}", path = .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// The name stands for memory that no store put there.
    #[error("{name} is no model: {why}")]
    NotAModel {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: String,
    },

    /// The model is another one than the caller wants.
    #[error("{name} has the hash {found}, but {expected} was asked for")]
    OtherModel {
        /// The name.
        name: String,
        /// The hash that was asked for.
        expected: Hash,
        /// The hash that it has.
        found: Hash,
    },

    /// The memory's bytes are not those that were loaded.
    #[error(
        "the contents have the hash {found}, but the manifest says {expected}: somebody has written the \
         memory; load it again"
    )]
    Changed {
        /// The hash in the manifest.
        expected: Hash,
        /// The hash of what is there.
        found: Hash,
    },

    /// There is no hash to compare with.
    #[error(
        "the last update of the model took no hash of the contents; update it with one, or publish its next version"
    )]
    NoHash,

    /// An update of the model was begun and not ended: its writer died or gave up. Its tensors may have old
    /// bytes, new ones, or a mixture.
    #[error(
        "an update of the model was begun and never ended, so its tensors may be mixtures: write all of them in \
         one update, or publish the next version"
    )]
    Torn,

    /// The model was updated while it was read, so what was read may be a mixture.
    #[error("the model was updated meanwhile: read again")]
    Overwritten,

    /// Another process has begun an update, because this one did not seem to live any more.
    #[error("another process has begun to update the model, since this one seemed to be dead")]
    Superseded,

    /// An update that has to write everything does not.
    #[error(
        "the model is torn, and this update does not write its tensor {0}: it has to write all of them"
    )]
    Incomplete(String),

    /// The model sleeps.
    #[error("the model sleeps: wake it first")]
    Asleep,

    /// Something uses the model's memory.
    #[error("tensors of the model, or commands, are in use: drop them first")]
    InUse,

    /// The addresses that were asked for are taken in this process.
    #[error(
        "the addresses {wanted:#x} and following are taken in this process: open the model before other things \
         take them, or elsewhere"
    )]
    AddressTaken {
        /// The first address.
        wanted: usize,
    },

    /// What the name stands for now has other tensors or other places for them.
    #[error("{0} has tensors of other names, shapes or places now: open it anew")]
    OtherLayout(String),

    /// The model has no such tensor.
    #[error("the model has no tensor '{0}'")]
    NoTensor(String),

    /// The tensors cannot be stored.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// Returns whether the time was over.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Crosshandle(error) if error.is_timeout())
    }

    /// Returns whether somebody else may write the memory of a name that was claimed.
    pub fn is_fenced(&self) -> bool {
        let fault = |error: &crosshandle::Error| match error {
            crosshandle::Error::Holder { fault, .. } => Some(*fault),
            _ => None,
        };
        matches!(self, Self::Crosshandle(error) if fault(error) == Some(crosshandle::HolderFault::Fenced))
    }

    /// Returns whether the other process or the holder has ended, or nobody holds the name.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Crosshandle(error) if error.is_peer_dead()
            || matches!(error, crosshandle::Error::Holder { fault, .. }
                if matches!(fault, crosshandle::HolderFault::NoSuchName | crosshandle::HolderFault::NoHolder)))
    }
}
