//! The contract of a backend whose driver has events that work across processes.

use crate::broker::protocol::{BackendBlob, PiecePart};
use crate::broker::{Fetched, PieceBatch};
use crate::records::BackendObject;
use crosshandle_os::threads::disposer::Disposal;
use crosshandle_types::error::Result;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// An object that an exporter sent. The backend checks it before the driver gets any of it.
pub struct Import {
    pub file: Arc<OwnedFd>,
    /// The size that the exporter claims, in bytes.
    pub len: usize,
    /// The blob that the exporter's backend sent to the importer's.
    pub note: BackendBlob,
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
    pub fn imports(self) -> impl Iterator<Item = (Import, PiecePart)> {
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
pub trait BackendEvents: Send + Sync {
    /// Creates an event that can be shared.
    fn create(&self) -> Result<BackendEvent>;

    /// Opens an event that another process created.
    fn open(&self, import: Import) -> Result<BackendEvent>;
}

/// A native event, which belongs to a driver.
pub struct BackendEvent {
    /// The object that shares the event, and destroys it on drop.
    pub object: Arc<dyn BackendObject>,
    /// The driver's handle.
    pub handle: usize,
    /// The address of the driver's object that the event belongs to and keeps. Only queues of the
    /// same object can use the event.
    pub owner: usize,
    /// Whether queues may signal the event, not only wait for it.
    pub may_signal: bool,
}
