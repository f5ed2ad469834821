//! Sharing between processes: which objects a context exports, which processes have them open, and
//! when their memory may be reused. [`broker`] passes descriptors between processes.
//!
//! An exporting context numbers its shared objects; such a number is a *record*. The context's
//! **catalog** contains the generation and name of each record. Only the exporter can write the
//! catalog. The **event arenas** hold the counters of the context's events. A process gets an arena
//! only with a handle of an event in it. Both are memfds that an importing process maps once, so
//! opening the thousandth object costs no system call.
//!
//! Every importing process gets a **ledger**, which is a memfd in which it counts how often it has
//! each record open. The exporter reads the ledgers before it reuses freed memory. When an importer
//! dies, its ledger is discarded, and nothing has to be repaired.
//!
//! Every process holds **liveness locks**, which are record locks that the kernel drops when the
//! process ends.
//!
//! [`Exporter`] is the exporting context's half, and [`Attachment`] the importing process's half.
//! [`EventCore`] is an event of either.
//!
//! Internal to `crosshandle`: this crate promises no stable interface.

#![allow(missing_docs, rustdoc::private_intra_doc_links)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod attachment;
pub mod broker;
pub mod channel;
mod chunks;
mod deferred_reclaim;
mod describe;
mod event;
mod event_arena;
mod exporter;
mod liveness;
pub mod platform;
mod record;
mod records;
mod tuning;

pub use attachment::{Attachment, ContextId, Delivery, First, HandleAhead, Origin};
pub use broker::protocol::BackendBlob;
pub use broker::protocol::PiecePart;
pub use broker::{FetchedHandle, FetchedPieces, OpenDeadline};
pub use chunks::MAX_NAME_BYTES;
pub use describe::Label;
pub use event::{
    BackendEvent, BackendEvents, BackendTimestamps, EventCore, Import, MirrorHold, Profile,
    awaiting, late_completion, wait_any,
};
pub use event_arena::{BackendPinner, Pin};
pub use exporter::{Exporter, HeldMemory};
pub use record::{Credential, Record};
pub use records::{
    BackendObject, ExportCells, KeepAlive, Particulars, Piece, PieceSet, PiecedMemory,
};

#[cfg(any(test, feature = "testing"))]
pub use attachment::testing;

/// Items that the fuzz targets use.
#[doc(hidden)]
pub mod fuzzing {
    pub use super::chunks::{
        Catalog, CatalogChunk, Ledger, LedgerChunk, Sleeper, catalog_len, ledger_len, open_sealed,
    };

    use super::event_arena::EventArena;
    pub use super::event_arena::arena_len;
    use crosshandle_types::error::Result;
    use std::os::fd::OwnedFd;

    /// Opens an event arena, as an importer does.
    pub fn open_arena(file: &OwnedFd, slots: usize) -> Result<()> {
        EventArena::open(file, slots).map(drop)
    }
}
