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
mod deadline;
mod deferred_reclaim;
mod describe;
mod event;
mod event_arena;
mod exporter;
mod liveness;
mod open_count;
mod peer_watch;
mod record;
mod records;
mod tuning;

pub(crate) use attachment::{Attachment, ContextId, Origin};
pub(crate) use chunks::MAX_NAME_BYTES;
pub(crate) use deadline::Deadline;
pub(crate) use describe::Label;
pub(crate) use event::{
    DriverEvent, DriverEvents, EventCore, Import, MirrorHold, Profile, Timestamps, late_completion,
};
pub(crate) use event_arena::{COMMON_ARENA, ISOLATED_ARENA, Pin, Pinner};
pub(crate) use exporter::Exporter;
pub(crate) use record::{Credential, Record};
pub(crate) use records::{ExportCell, KeepAlive, Particulars, Shared};
