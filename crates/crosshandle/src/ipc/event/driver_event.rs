//! The contract of a backend whose driver has events that work across processes.

use crate::error::Result;
use crate::ipc::broker::protocol::{BackendBlob, PiecePart};
use crate::ipc::broker::{Fetched, PieceBatch};
use crate::ipc::records::Shared;
use crate::threads::disposer::Disposal;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An object that an exporter sent. The backend checks it before the driver gets any of it.
pub(crate) struct Import {
    pub(crate) file: Arc<OwnedFd>,
    /// The size that the exporter claims, in bytes.
    pub(crate) len: usize,
    /// The blob that the exporter's backend sent to the importer's.
    pub(crate) note: BackendBlob,
    /// The disposal of a peer's descriptor, which is dropped after `file`.
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

/// Creates and opens a driver's own events.
///
/// Such an event mirrors one of our events. The mirror starts when a queue of the driver first
/// signals our event after it got a handle. Queues, including those of other processes, then wait
/// for each other without the host. The event's slot remains the record of numbers, failures and
/// deaths.
pub(crate) trait DriverEvents: Send + Sync {
    /// Creates an event that can be shared.
    fn create(&self) -> Result<DriverEvent>;

    /// Opens an event that another process created.
    fn open(&self, import: Import) -> Result<DriverEvent>;
}

/// A native event, which belongs to a driver.
pub(crate) struct DriverEvent {
    /// The object that shares the event, and destroys it on drop.
    pub(crate) object: Arc<dyn Shared>,
    /// The driver's handle.
    pub(crate) handle: usize,
    /// The address of the driver's object that the event belongs to and keeps. Only queues of the
    /// same object can use the event.
    pub(crate) owner: usize,
    /// Whether queues may signal the event, not only wait for it.
    pub(crate) may_signal: bool,
}
