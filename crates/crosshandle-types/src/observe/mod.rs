//! Observation of sharing between processes, by events and spans of `tracing` and by counters and
//! gauges.
//!
//! All events about sharing are emitted here, so that names, fields and levels are consistent. The
//! target is [`TARGET`]. The fields are `context`, `record`, `kind`, `bytes`, `owner`, `pid`,
//! `program`, `name`, `side`, `reason` and `suppressed`. No field ever contains a key.
//! `docs/observing.md` lists everything for users.
//!
//! A subscriber and a recorder are the program's code, so none of these functions is called while a
//! lock is held. Operations that run millions of times a second are counted and emit no event.

#[cfg(feature = "metrics")]
mod facade;
mod limit;
mod metrics;
mod reason;
pub mod trace;

pub use limit::Limit;
pub use reason::{Reason, Side};

use crate::error::{Error, Result};
use crosshandle_handle::HandleKind;
use metrics::{Counter, Gauge, change, count};
use reason::Outcome;
use tracing::span::EnteredSpan;
use tracing::{Level, debug, debug_span, info, level_enabled, warn};

/// The target of all events and spans of this module.
const TARGET: &str = "crosshandle";

/// Returns the name of a kind in fields and labels.
fn kind_name(kind: HandleKind) -> &'static str {
    match kind {
        // A channel is opened as the memory that contains it.
        HandleKind::Memory | HandleKind::Channel => "memory",
        HandleKind::PhysicalMemory => "physical_memory",
        HandleKind::Event => "event",
    }
}

/// Enters the span in which this process attaches to a context of process `pid`.
pub fn attaching(context: u32, pid: u32) -> EnteredSpan {
    debug_span!(target: TARGET, "attach", context, pid).entered()
}

/// Enters the span in which this process asks an exporter for the object of a record.
pub fn fetching(context: u32, record: u32) -> EnteredSpan {
    debug_span!(target: TARGET, "fetch", context, record).entered()
}

/// A peer, with the fields that events report.
pub struct Peer<'a> {
    /// The number that the exporter uses for the shared context.
    pub context: u32,
    /// The importer's number in the context, even if the peer is the exporter.
    pub owner: u16,
    /// The peer's process id.
    pub pid: u32,
    /// The name of the peer's program, or empty if it is unknown.
    pub program: &'a str,
}

/// Reports that a peer and this process are now attached. `side` is the role of this process.
pub fn attached(side: Side, peer: &Peer<'_>) {
    let side = side.name();
    let &Peer {
        context,
        owner,
        pid,
        program,
    } = peer;
    debug!(name: "attach", target: TARGET, side, context, owner, pid, program, "attached");
}

/// Reports that a peer has left after closing all its objects. `side` is the role of this process.
pub fn detached(side: Side, peer: &Peer<'_>) {
    let side = side.name();
    let &Peer {
        context,
        owner,
        pid,
        program,
    } = peer;
    debug!(name: "detach", target: TARGET, side, context, owner, pid, program, "detached");
}

/// Reports that a peer has ended without closing its objects. `side` is the role of this process.
pub fn died(side: Side, peer: &Peer<'_>) {
    static LIMIT: Limit = Limit::new();
    let &Peer { pid, program, .. } = peer;
    trace::begin().end(|| trace::Step::Death { pid, program });
    count(Counter::Deaths(match side {
        Side::Exporter => Side::Importer,
        Side::Importer => Side::Exporter,
    }));
    if level_enabled!(Level::INFO)
        && let Some(suppressed) = LIMIT.admit()
    {
        let side = side.name();
        let &Peer {
            context,
            owner,
            pid,
            program,
        } = peer;
        info!(
            name: "death", target: TARGET, side, context, owner, pid, program, suppressed,
            "a peer has died"
        );
    }
}

/// Reports that this process has refused a request or a connection of process `pid`.
#[cold]
pub fn refused(reason: Reason, pid: u32) {
    static LIMITS: [Limit; Reason::ALL.len()] = [const { Limit::new() }; Reason::ALL.len()];
    count(Counter::Refusals(Side::Exporter, reason));
    if level_enabled!(Level::INFO)
        && let Some(suppressed) = LIMITS[reason as usize].admit()
    {
        let (side, is_suspicious) = (Side::Exporter.name(), reason.is_suspicious());
        let reason = reason.name();
        if is_suspicious {
            warn!(name: "refuse", target: TARGET, side, pid, reason, suppressed, "refused a peer");
        } else {
            info!(name: "refuse", target: TARGET, side, pid, reason, suppressed, "refused a peer");
        }
    }
}

/// Reports that a handle could not be opened. The program gets the error from its own call.
#[cold]
pub fn not_opened(kind: HandleKind, error: &Error) {
    let reason = Reason::of(error);
    count(Counter::Refusals(Side::Importer, reason));
    let (side, kind, reason) = (Side::Importer.name(), kind_name(kind), reason.name());
    debug!(name: "refuse", target: TARGET, side, kind, reason, %error, "cannot open a handle");
}

/// Counts an object of this process that other processes can open, until this is dropped.
#[must_use = "counts as long as it lives"]
pub struct ExportedObject {
    #[cfg(feature = "metrics")]
    counted: (HandleKind, i64),
}

impl ExportedObject {
    /// Counts an object and the bytes that its handles refer to.
    pub fn new(kind: HandleKind, bytes: usize) -> Self {
        let bytes = bytes as i64;
        change(Gauge::ExportedObjects(kind), 1);
        change(Gauge::ExportedBytes, bytes);
        Self {
            #[cfg(feature = "metrics")]
            counted: (kind, bytes),
        }
    }
}

#[cfg(feature = "metrics")]
impl Drop for ExportedObject {
    fn drop(&mut self) {
        let (kind, bytes) = self.counted;
        change(Gauge::ExportedObjects(kind), -1);
        change(Gauge::ExportedBytes, -bytes);
    }
}

/// Reports that other processes can open an object from now on.
#[inline]
pub fn exported(context: u32, record: u32, kind: HandleKind, bytes: usize) {
    if level_enabled!(Level::DEBUG) {
        tell_exported(context, record, kind, bytes);
    }
}

#[cold]
#[inline(never)]
fn tell_exported(context: u32, record: u32, kind: HandleKind, bytes: usize) {
    let kind = kind_name(kind);
    debug!(name: "export", target: TARGET, context, record, kind, bytes, "exported");
}

/// Reports that a freed object is no longer open in any process. Its record and memory can be
/// reused.
#[inline]
pub fn reclaimed(context: u32, record: u32) {
    if level_enabled!(Level::DEBUG) {
        tell_reclaimed(context, record);
    }
}

#[cold]
#[inline(never)]
fn tell_reclaimed(context: u32, record: u32) {
    debug!(name: "reclaim", target: TARGET, context, record, "reclaimed");
}

/// Counts memory of an exporter that is mapped or open in this process, until this is dropped.
#[must_use = "counts as long as it lives"]
pub struct ImportedBytes {
    #[cfg(feature = "metrics")]
    counted: i64,
}

impl ImportedBytes {
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes as i64;
        change(Gauge::ImportedBytes, bytes);
        Self {
            #[cfg(feature = "metrics")]
            counted: bytes,
        }
    }
}

#[cfg(feature = "metrics")]
impl Drop for ImportedBytes {
    fn drop(&mut self) {
        change(Gauge::ImportedBytes, -self.counted);
    }
}

/// Reports that a handle was opened. `name` returns the name of the object, and is only called if
/// the event is enabled.
#[inline]
pub fn opened(
    kind: HandleKind,
    context: u32,
    record: u32,
    bytes: usize,
    name: impl FnOnce() -> Option<String>,
) {
    count(Counter::Opens(kind));
    change(Gauge::OpenedObjects(kind), 1);
    if level_enabled!(Level::DEBUG) {
        tell_opened(kind, context, record, bytes, name);
    }
}

#[cold]
#[inline(never)]
fn tell_opened(
    kind: HandleKind,
    context: u32,
    record: u32,
    bytes: usize,
    name: impl FnOnce() -> Option<String>,
) {
    let name = name();
    let (kind, name) = (kind_name(kind), name.as_deref());
    debug!(name: "open", target: TARGET, context, record, kind, bytes, name, "opened");
}

/// Counts an opened object as closed.
#[inline]
pub fn closed(kind: HandleKind) {
    change(Gauge::OpenedObjects(kind), -1);
}

/// Counts a signal that this process has submitted.
#[inline]
pub fn signalled() {
    count(Counter::Signals);
}

/// Counts a wait that has ended by its result, and returns the result.
#[inline]
pub fn waited<T>(result: Result<T>) -> Result<T> {
    count(Counter::Waits(Outcome::of(&result)));
    result
}
