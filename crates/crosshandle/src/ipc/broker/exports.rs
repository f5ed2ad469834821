//! The broker's interface to a context's exports.

use super::client::Client;
use super::protocol::{BackendBlob, PiecePart, PieceSpan, ProgramName, Refusal};
use crate::error::Result;
use crate::ipc::record::Credential;
use crate::threads::disposer::Disposal;
use crate::types::Access;
use crate::types::report::ContextReport;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A context's exports, as the exchange thread uses them. No method blocks or calls a driver,
/// unless it says so. All methods with a credential check that it belongs to an object of this
/// context.
pub(crate) trait Exports: Send + Sync {
    /// Returns the number of the context in the process that created it.
    fn number(&self) -> u32;

    /// Returns whether this user's processes may attach.
    fn admits(&self, uid: u32) -> bool;

    /// Returns how many descriptors this process keeps for an attached importer, in addition to its
    /// connection's descriptor.
    fn descriptors_kept(&self) -> usize;

    /// Attaches an importer.
    fn attach(&self, client: &Arc<Client>, newcomer: Newcomer) -> Result<Attached, Refusal>;

    /// Returns the chunks of the catalog and of an importer's ledger that contain a record.
    fn chunk(&self, owner: u16, credential: &Credential) -> Result<[Arc<OwnedFd>; 2], Refusal>;

    /// Finds memory for an importer. If the memory consists of pieces, finds the pieces in `span`.
    fn memory(
        &self,
        owner: u16,
        credential: &Credential,
        access: Access,
        span: PieceSpan,
    ) -> Result<Fetch, Refusal>;

    /// Finds the arena of an event for an importer, and the file of locks.
    fn arena(&self, owner: u16, credential: &Credential) -> Result<[Arc<OwnedFd>; 2], Refusal>;

    /// Finds the native mirror of an event.
    fn mirror(&self, credential: &Credential) -> Result<Fetch, Refusal>;

    /// Returns a report of the context, which lists at most `most` objects of each kind. May take
    /// milliseconds, so the exchange thread must not call it.
    fn describe(&self, most: usize) -> ContextReport;

    /// Handles the hang-up of an importer. Fails the importer's unfinished signals, and discards
    /// its opens.
    fn detach(&self, owner: u16);

    /// Ends one use of the exports. After the last use, they are dropped in the background.
    fn release(self: Arc<Self>);

    /// Returns the exports as their concrete type, for an importer in the same process.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// An importer that wants to attach, and the object of its handle.
pub(crate) struct Newcomer {
    pub(crate) credential: Credential,
    /// The process id in this process's PID namespace, or 0 if it has none there.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) program: ProgramName,
}

/// The result of attaching.
pub(crate) struct Attached {
    pub(crate) owner: u16,
    /// Descriptors of the first chunks of catalog and ledger.
    pub(crate) files: [Arc<OwnedFd>; 2],
    pub(crate) locks_ledger: bool,
}

/// The result of finding an object.
pub(crate) enum Fetch {
    /// The object is ready.
    Ready(Supply),
    /// The object needs a call, which may block in a driver.
    CallsDriver {
        /// Whether the object consists of pieces, which have many descriptors.
        brings_many: bool,
        call: Box<dyn FnOnce() -> Result<Supply, Refusal> + Send>,
    },
}

/// The delivery of an object to an importer.
pub(crate) enum Supply {
    /// The object's own descriptor.
    Whole(Fetched),
    /// Descriptors of pieces of the memory.
    Pieces(FetchedPieces),
    /// The driver's handle of an object without a descriptor.
    DriverHandle(FetchedHandle),
}

/// A driver's handle of a segment, with the segment's properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FetchedHandle {
    /// The segment number that handles contain.
    pub(crate) segment: u32,
    /// Size of the segment in bytes.
    pub(crate) len: u64,
    /// The handle, which only the backends of both sides understand.
    pub(crate) handle: BackendBlob,
}

/// Some of the pieces of a segment.
pub(crate) struct FetchedPieces {
    /// The segment number that handles contain.
    pub(crate) segment: u32,
    /// Size of the segment in bytes.
    pub(crate) len: u64,
    pub(crate) batch: PieceBatch,
}

/// Pieces that are sent with one message.
pub(crate) struct PieceBatch {
    /// Number of all pieces of the segment.
    pub(crate) total: u32,
    /// Number of the first piece in this batch.
    pub(crate) first: u32,
    pub(crate) files: Vec<PieceFile>,
    /// The blob for each piece, from the exporter's backend to the importer's.
    pub(crate) note: BackendBlob,
}

/// A piece in a message.
pub(crate) struct PieceFile {
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) part: PiecePart,
    /// The disposal of a peer's descriptor, which is dropped after `file`.
    pub(crate) disposal: Option<Disposal>,
}

/// An object's descriptor, with the object's properties.
pub(crate) struct Fetched {
    pub(crate) file: Arc<OwnedFd>,
    /// The segment number that handles to this object contain.
    pub(crate) segment: u32,
    /// Size of the segment in bytes.
    pub(crate) len: u64,
    /// The blob from the exporter's backend to the importer's.
    pub(crate) note: BackendBlob,
    /// The disposal of a peer's descriptor, which is dropped after `file`.
    pub(crate) disposal: Option<Disposal>,
}
