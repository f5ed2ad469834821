//! The contract of a backend whose driver has events that cross processes.

use crate::error::Result;
use crate::ipc::broker::protocol::{BackendBlob, PiecePart};
use crate::ipc::broker::{Fetched, PieceBatch};
use crate::ipc::records::Shared;
use crate::threads::disposer::Disposal;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An object that an exporter sent. The backend checks it before its driver sees any of it.
pub(crate) struct Import {
    pub(crate) file: Arc<OwnedFd>,
    /// The size that the exporter named, in bytes.
    pub(crate) len: usize,
    /// The blob that the exporter's backend sent to the importer's.
    pub(crate) note: BackendBlob,
    /// What to drop after `file`, of a descriptor that a peer sent.
    _disposal: Option<Disposal>,
}

impl From<Fetched> for Import {
    fn from(fetched: Fetched) -> Self {
        Self {
            file: fetched.file,
            len: fetched.len as usize,
            note: fetched.note,
            _disposal: fetched.disposal,
        }
    }
}

impl PieceBatch {
    /// Returns the pieces for a backend, each with its part.
    pub(crate) fn imports(self) -> impl Iterator<Item = (Import, PiecePart)> {
        let note = self.note;
        self.files.into_iter().map(move |piece| {
            let import = Import {
                file: piece.file,
                len: usize::try_from(piece.part.whole).unwrap_or(usize::MAX),
                note,
                _disposal: piece.disposal,
            };
            (import, piece.part)
        })
    }
}

/// Makes and opens events of a driver's own. Such an event mirrors an event of ours from when a
/// queue of that driver first signals it after it got a handle, so that queues, also those of other
/// processes, wait for each other without the host. The event's slot stays the account of numbers,
/// failures and deaths.
pub(crate) trait DriverEvents: Send + Sync {
    /// Creates an event to be shared.
    fn create(&self) -> Result<DriverEvent>;

    /// Opens an event that another process created.
    fn open(&self, import: Import) -> Result<DriverEvent>;
}

/// A native event: one of a driver's own.
pub(crate) struct DriverEvent {
    /// The object that ends the event when dropped, and shares it.
    pub(crate) object: Arc<dyn Shared>,
    /// The driver's handle.
    pub(crate) handle: usize,
    /// The address of the driver's object that the event belongs to, and keeps. Only queues that
    /// belong to the same object know it.
    pub(crate) owner: usize,
    /// Whether queues may signal the event, not only wait for it.
    pub(crate) may_signal: bool,
}
