//! Sharing between processes: what a context exports, which processes have it open, and when it may
//! be used again.
//!
//! An exporting context has an **arena**: one memfd with a generation for each shared object (its
//! *record*) and the counters of its events. Every importing process maps it once, so that opening
//! the thousandth object costs no system call.
//!
//! Every importing process brings a **ledger**: one memfd in which it counts its opens of each
//! record. The exporter reads the ledgers before it reuses what it freed; when an importer dies,
//! its ledger goes with it, and nothing has to be repaired.
//!
//! Every process holds **liveness locks**, record locks that the kernel drops at its death.
//!
//! [`Exporter`] is the exporting context's half, [`Attachment`] the importing process's, and
//! [`EventCore`] an event that either has. [`broker`] carries descriptors between processes.

mod arena;
mod attachment;
pub(crate) mod broker;
mod deferred_reclaim;
mod event;
mod exporter;
mod ledger;
mod liveness;
mod open_count;
mod records;
mod tuning;

pub(crate) use arena::{Pin, Pinner};
pub(crate) use attachment::{Attachment, Origin};
pub(crate) use event::{
    DriverEvent, DriverEvents, EventCore, Import, MirrorHold, Profile, Timestamps, late_completion,
};
pub(crate) use exporter::Exporter;
pub(crate) use records::{KeepAlive, Record, RecordCell, Shared};
