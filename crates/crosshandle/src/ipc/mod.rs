//! What a context shares: who exports it, who has it open, and when it may be reused.
//!
//! An exporting context has an **arena**: one memfd with a generation for each shared object (its
//! *record*) and the counters of its events. Every importing process maps it once, so that opening
//! the thousandth object costs no system call.
//!
//! Every importing process brings a **ledger**: one memfd in which it counts its opens of each
//! record. The exporter reads the ledgers before it reuses what it freed; when an importer dies,
//! its ledger goes with it, and nothing has to be repaired.
//!
//! [`Exporter`] is the exporting context's half, [`Attachment`] the importing process's.

mod arena;
mod attachment;
pub(crate) mod broker;
pub(crate) mod deferred;
mod device;
mod event;
mod exporter;
mod holding;
mod ledger;
mod lingering;
mod native_event;
mod native_mirror;
mod pins;
mod profile;
mod record;
pub(crate) mod waits;

pub(crate) use attachment::{Attachment, Origin};
pub(crate) use event::EventCore;
pub(crate) use exporter::Exporter;
pub(crate) use native_event::{DriverEvent, DriverEvents, Import};
pub(crate) use native_mirror::MirrorHold;
pub(crate) use pins::{Pin, Pinner};
pub(crate) use profile::{Profile, Timestamps};
pub(crate) use record::{KeepAlive, Record, RecordCell, Shared};
