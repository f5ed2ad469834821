//! The error type of this crate.

use crate::Hash;
use crosshandle::adapter_support;
use crosshandle::holder::HolderFault;
use std::fmt;
use std::path::PathBuf;

/// The result of a fallible call to this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error from this crate. Its text says what went wrong and what to do about it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call to the library failed, for example because there is no holder, no such name, or no
    /// free memory.
    #[error(transparent)]
    Crosshandle(#[from] crosshandle::Error),

    /// A file cannot be read.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The error from the operating system.
        source: std::io::Error,
    },

    /// The contents of a file are invalid.
    #[error("{path}: {why}", path = .path.display())]
    Format {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the contents are invalid.
        why: String,
    },

    /// The name refers to memory that is not a model of a store.
    #[error("{name} is not a model: {why}")]
    NotAModel {
        /// The name that was opened.
        name: String,
        /// The reason why the memory is not a model.
        why: String,
    },

    /// The model does not have the hash that the caller expects.
    #[error("{name} has the hash {found}, but {expected} was expected")]
    OtherModel {
        /// The name of the model.
        name: String,
        /// The hash that the caller expects.
        expected: Hash,
        /// The hash of the model.
        found: Hash,
    },

    /// The bytes of the memory have changed since they were loaded.
    #[error(
        "the contents have the hash {found}, but the manifest says {expected}: a process has written the \
         memory; load it again"
    )]
    Changed {
        /// The hash in the manifest.
        expected: Hash,
        /// The hash of the current contents.
        found: Hash,
    },

    /// The manifest has no hash with which the contents could be compared.
    #[error(
        "the last update of the model did not compute a hash of the contents: update it with one, or publish its next version"
    )]
    NoHash,

    /// An update of the model was started and not finished, because its writer died or gave up. The
    /// tensors may contain old bytes, new bytes, or a mixture.
    #[error(
        "an update of the model was started and never finished, so its tensors may be mixtures: write all of them in \
         one update, or publish the next version"
    )]
    Torn,

    /// The model was updated while it was being read, so the data read may be a mixture.
    #[error("the model was updated while it was read: read again")]
    Overwritten,

    /// Another process has started an update, because this process appeared to be dead.
    #[error(
        "another process has started to update the model, because this one appeared to be dead"
    )]
    Superseded,

    /// The model is torn, so an update must write all tensors, and this update does not.
    #[error(
        "the model is torn, and this update does not write its tensor {0}: it must write all tensors"
    )]
    Incomplete(String),

    /// The model is asleep, so its memory is not mapped.
    #[error("the model is asleep: wake it first")]
    Asleep,

    /// The model cannot sleep, because its memory is in use.
    #[error("tensors of the model or commands that use it exist: drop them first")]
    InUse,

    /// The requested addresses are already in use in this process.
    #[error(
        "the addresses from {wanted:#x} on are in use in this process: open the model before something else \
         takes them, or elsewhere"
    )]
    AddressTaken {
        /// The first requested address.
        wanted: usize,
    },

    /// The name now refers to a model with other tensors or another layout.
    #[error("{0} now has tensors of other names, shapes or places: open the model again")]
    OtherLayout(String),

    /// The model has no tensor of this name.
    #[error("the model has no tensor '{0}'")]
    NoTensor(String),

    /// The tensors, or other arguments, are invalid.
    #[error("{0}")]
    Invalid(String),
}

/// Formats the same text as `Display`, because Rust prints the `Debug` form of an error that `main`
/// returns.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        adapter_support::write_escaped(f, &self.to_string())
    }
}

impl Error {
    /// Returns `true` if a time limit passed.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Crosshandle(error) if error.is_timeout())
    }

    /// Returns `true` if another process may still write the memory of a claimed name.
    pub fn has_writer(&self) -> bool {
        let fault = |error: &crosshandle::Error| match error {
            crosshandle::Error::Holder { fault, .. } => Some(*fault),
            _ => None,
        };
        matches!(self, Self::Crosshandle(error) if fault(error) == Some(HolderFault::HasWriter))
    }

    /// Returns `true` if the holder or another process has ended, or no holder keeps the name.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Crosshandle(error) if error.is_peer_dead()
            || matches!(error, crosshandle::Error::Holder { fault, .. }
                if matches!(fault, HolderFault::NoSuchName | HolderFault::NoHolder)))
    }
}
