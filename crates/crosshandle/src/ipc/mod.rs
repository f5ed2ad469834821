//! Sharing between processes: what a context exports, which processes have it open, and when it may
//! be used again.
//!
//! An exporting context numbers what it shares; a number is a *record*. Its **catalog** tells the
//! generation and name of each record, and only the exporter can write it. Its **event arenas** hold
//! the counters of its events, and only processes that were given an event get the arena of it.
//! Both are memfds that an importing process maps once, so that opening the thousandth object costs
//! no system call.
//!
//! Every importing process is given a **ledger**: a memfd in which it counts its opens of each
//! record. The exporter reads the ledgers before it reuses what it freed; when an importer dies,
//! its ledger goes with it, and nothing has to be repaired.
//!
//! Every process holds **liveness locks**, record locks that the kernel drops at its death.
//!
//! [`Exporter`] is the exporting context's half, [`Attachment`] the importing process's, and
//! [`EventCore`] an event that either has. [`broker`] carries descriptors between processes.

mod attachment;
pub(crate) mod broker;
mod chunks;
mod deferred_reclaim;
mod describe;
mod event;
mod event_arena;
mod exporter;
mod liveness;
mod open_count;
mod record;
mod records;
mod tuning;

pub(crate) use attachment::{Attachment, ContextId, Delivery, First, HandleAhead, Origin};
pub(crate) use broker::protocol::BackendBlob;
pub(crate) use broker::protocol::PiecePart;
pub(crate) use broker::{FetchedHandle, FetchedPieces, OpenDeadline};
pub(crate) use chunks::MAX_NAME_BYTES;
pub(crate) use describe::Label;
pub(crate) use event::{
    DriverEvent, DriverEvents, EventCore, Import, MirrorHold, Profile, Timestamps, awaiting,
    late_completion,
};
pub(crate) use event_arena::{Pin, Pinner};
pub(crate) use exporter::{Exporter, HeldMemory};
pub(crate) use record::{Credential, Record};
pub(crate) use records::{
    ExportCells, KeepAlive, Particulars, Piece, PieceSet, PiecedMemory, Shared,
};

#[cfg(test)]
pub(crate) use attachment::testing;

/// What fuzz targets need of this folder.
#[cfg(fuzzing)]
pub(crate) mod fuzzing {
    pub(crate) use super::chunks::{
        Catalog, CatalogChunk, Ledger, LedgerChunk, Sleeper, catalog_len, ledger_len, open_sealed,
    };
    pub(crate) use super::open_count::{close, try_open};

    use super::event_arena::EventArena;
    pub(crate) use super::event_arena::arena_len;
    use crate::error::Result;
    use std::os::fd::OwnedFd;

    /// Opens an event arena, as an importer does.
    pub(crate) fn open_arena(file: &OwnedFd, slots: usize) -> Result<()> {
        EventArena::open(file, slots).map(drop)
    }
}
