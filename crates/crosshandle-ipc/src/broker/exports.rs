//! The broker's interface to a context's exports.

use super::client::Client;
use super::protocol::{BackendBlob, PiecePart, PieceSpan, ProgramName, Refusal};
use crate::record::Credential;
use crosshandle_os::threads::disposer::Disposal;
use crosshandle_types::Access;
use crosshandle_types::error::Result;
use crosshandle_types::report::ContextReport;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A context's exports, as the exchange thread uses them. No method blocks or calls a driver,
/// unless it says so. All methods with a credential check that it belongs to an object of this
/// context.
pub trait Exports: Send + Sync {
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
pub struct Newcomer {
    pub credential: Credential,
    /// The process id in this process's PID namespace, or 0 if it has none there.
    pub pid: u32,
    pub uid: u32,
    pub program: ProgramName,
}

/// The result of attaching.
pub struct Attached {
    pub owner: u16,
    /// Descriptors of the first chunks of catalog and ledger.
    pub files: [Arc<OwnedFd>; 2],
    pub locks_ledger: bool,
}

/// The result of finding an object.
pub enum Fetch {
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
pub enum Supply {
    /// The object's own descriptor.
    Whole(Fetched),
    /// Descriptors of pieces of the memory.
    Pieces(FetchedPieces),
    /// The driver's handle of an object without a descriptor.
    DriverHandle(FetchedHandle),
}

/// A driver's handle of a segment, with the segment's properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchedHandle {
    /// The segment number that handles contain.
    pub segment: u32,
    /// Size of the segment in bytes.
    pub len: u64,
    /// The handle, which only the backends of both sides understand.
    pub handle: BackendBlob,
}

/// Some of the pieces of a segment.
pub struct FetchedPieces {
    /// The segment number that handles contain.
    pub segment: u32,
    /// Size of the segment in bytes.
    pub len: u64,
    pub batch: PieceBatch,
}

/// Pieces that are sent with one message.
pub struct PieceBatch {
    /// Number of all pieces of the segment.
    pub total: u32,
    /// Number of the first piece in this batch.
    pub first: u32,
    pub files: Vec<PieceFile>,
    /// The blob for each piece, from the exporter's backend to the importer's.
    pub note: BackendBlob,
}

/// A piece in a message.
pub struct PieceFile {
    pub file: Arc<OwnedFd>,
    pub part: PiecePart,
    /// The disposal of a peer's descriptor, which is dropped after `file`.
    pub disposal: Option<Disposal>,
}

/// An object's descriptor, with the object's properties.
pub struct Fetched {
    pub file: Arc<OwnedFd>,
    /// The segment number that handles to this object contain.
    pub segment: u32,
    /// Size of the segment in bytes.
    pub len: u64,
    /// The blob from the exporter's backend to the importer's.
    pub note: BackendBlob,
    /// The disposal of a peer's descriptor, which is dropped after `file`.
    pub disposal: Option<Disposal>,
}
