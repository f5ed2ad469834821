//! What a context exports, as the broker sees it.

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

/// A context's exports, as the exchange thread uses them. None of the methods blocks or calls a
/// driver. All but the first check that the credential is that of an object of this context.
pub(crate) trait Exports: Send + Sync {
    /// Returns the number of the context in the process that made it.
    fn number(&self) -> u32;

    /// Returns whether this user's processes may attach.
    fn admits(&self, uid: u32) -> bool;

    /// Returns how many descriptors this process keeps for an importer that is attached, beside that
    /// of its connection.
    fn descriptors_kept(&self) -> usize;

    /// Lets an importer in.
    fn attach(&self, client: &Arc<Client>, newcomer: Newcomer) -> Result<Attached, Refusal>;

    /// Returns the chunks of the catalog and of an importer's ledger that a record lies in.
    fn chunk(&self, owner: u16, credential: &Credential) -> Result<[Arc<OwnedFd>; 2], Refusal>;

    /// Finds memory for an importer; of memory that consists of pieces, some of them.
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

    /// Describes the context for people, and lists at most so many objects of each kind. May take
    /// milliseconds: not for the exchange thread.
    fn describe(&self, most: usize) -> ContextReport;

    /// Takes note that an importer has hung up: fails its unfinished signals and forgets its opens.
    fn detach(&self, owner: u16);

    /// Ends one use of the exports. If it was the last, they are dropped in the background.
    fn release(self: Arc<Self>);

    /// Returns the exports as their own type, for an importer in the same process.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// An importer that wants to attach, and the object whose handle it has.
pub(crate) struct Newcomer {
    pub(crate) credential: Credential,
    /// The process id in this process's PID namespace; 0 if it has none there.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) program: ProgramName,
}

/// An importer's place.
pub(crate) struct Attached {
    pub(crate) owner: u16,
    /// The descriptors of the first chunks of catalog and ledger.
    pub(crate) files: [Arc<OwnedFd>; 2],
    pub(crate) locks_ledger: bool,
}

/// The answer to a request for an object.
pub(crate) enum Fetch {
    /// The object is ready.
    Ready(Supply),
    /// The object takes a call, which may block in a driver.
    CallsDriver {
        /// Whether the object consists of pieces, whose descriptors are many.
        brings_many: bool,
        call: Box<dyn FnOnce() -> Result<Supply, Refusal> + Send>,
    },
}

/// What an importer gets of an object.
pub(crate) enum Supply {
    /// The object's own descriptor.
    Whole(Fetched),
    /// Descriptors of some of its pieces.
    Pieces(FetchedPieces),
    /// The driver's handle to it, which has no descriptor.
    DriverHandle(FetchedHandle),
}

/// A driver's handle to a segment, and what belongs to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FetchedHandle {
    /// The number that handles give the segment.
    pub(crate) segment: u32,
    /// Bytes in the segment.
    pub(crate) len: u64,
    /// The handle, which only the backends of both sides understand.
    pub(crate) handle: BackendBlob,
}

/// Some pieces of a segment that consists of pieces.
pub(crate) struct FetchedPieces {
    /// The number that handles give the segment.
    pub(crate) segment: u32,
    /// Bytes in the segment.
    pub(crate) len: u64,
    pub(crate) batch: PieceBatch,
}

/// Pieces that cross with one message.
pub(crate) struct PieceBatch {
    /// The number of all pieces of the segment.
    pub(crate) total: u32,
    /// The number of the first piece here.
    pub(crate) first: u32,
    pub(crate) files: Vec<PieceFile>,
    /// The blob of each piece that the exporter's backend sends to the importer's.
    pub(crate) note: BackendBlob,
}

/// A piece on its way.
pub(crate) struct PieceFile {
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) part: PiecePart,
    /// What to drop after `file`, of a descriptor that a peer sent.
    pub(crate) disposal: Option<Disposal>,
}

/// An object's descriptor and what belongs to it.
pub(crate) struct Fetched {
    pub(crate) file: Arc<OwnedFd>,
    /// The number that handles to this object give its segment.
    pub(crate) segment: u32,
    /// Bytes in the segment.
    pub(crate) len: u64,
    /// The blob that the exporter's backend sends to the importer's.
    pub(crate) note: BackendBlob,
    /// What to drop after `file`, of a descriptor that a peer sent.
    pub(crate) disposal: Option<Disposal>,
}
