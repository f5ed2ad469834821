//! Events of a driver's own that cross processes: the contract that a backend with such events meets.

use super::broker::Fetched;
use super::broker::protocol::BackendBlob;
use super::record::Shared;
use crate::error::Result;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What an exporter sent: to be checked by the backend before its driver sees any of it.
pub(crate) struct Import {
    pub(crate) file: Arc<OwnedFd>,
    /// The size that the exporter named, in bytes.
    pub(crate) len: usize,
    /// What its backend says.
    pub(crate) note: BackendBlob,
}

impl From<Fetched> for Import {
    fn from(fetched: Fetched) -> Self {
        Self {
            file: fetched.file,
            len: fetched.len as usize,
            note: fetched.note,
        }
    }
}

/// Events of a driver's own. One rides along with an event of ours from when a queue of that driver
/// first signals it once it has a handle, so that queues wait for each other without the host, also across processes.
/// The words of `counter` stay the account: of numbers, failures and deaths.
pub(crate) trait DriverEvents: Send + Sync {
    /// A new one, to be shared.
    fn create(&self) -> Result<DriverEvent>;

    /// One that another process created.
    fn open(&self, import: Import) -> Result<DriverEvent>;
}

/// One of them.
pub(crate) struct DriverEvent {
    /// Ends it when dropped, and shares it.
    pub(crate) object: Arc<dyn Shared>,
    /// The driver's handle.
    pub(crate) handle: usize,
    /// The address of what it belongs to, and keeps: only queues of the same know it.
    pub(crate) owner: usize,
    /// Whether queues may signal it, beside waiting for it.
    pub(crate) may_signal: bool,
}
