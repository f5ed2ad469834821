//! What happens between processes, for those who watch the program: events and spans of `tracing`, and
//! counters and gauges.
//!
//! Every event of sharing is made here, so that names, fields and levels agree: the target is
//! [`TARGET`], the fields are `context`, `record`, `kind`, `bytes`, `owner`, `pid`, `program`, `name`,
//! `side`, `reason` and `suppressed`. No field ever has a key. `docs/observing.md` lists all of it for
//! users.
//!
//! A subscriber and a recorder are the program's code: none of these functions is called under a
//! lock. What runs millions of times a second is counted, and makes no event.

#[cfg(feature = "metrics")]
mod facade;
mod limit;
mod metrics;
mod reason;
mod tuning;

pub(crate) use limit::Limit;
pub(crate) use reason::{Reason, Side};

use crate::error::{Error, Result};
use crate::handle::HandleKind;
use metrics::{Counter, Gauge, change, count};
use reason::Outcome;
use tracing::span::EnteredSpan;
use tracing::{Level, debug, debug_span, info, level_enabled, warn};

/// The target of all events and spans of this module.
const TARGET: &str = "crosshandle";

/// Returns the name of a kind, as fields and labels have it.
fn kind_name(kind: HandleKind) -> &'static str {
    match kind {
        HandleKind::Memory => "memory",
        HandleKind::PhysicalMemory => "physical_memory",
        HandleKind::Event => "event",
    }
}

/// Begins the span in which this process attaches to a context of process `pid`.
pub(crate) fn attaching(context: u32, pid: u32) -> EnteredSpan {
    debug_span!(target: TARGET, "attach", context, pid).entered()
}

/// Begins the span in which an exporter is asked for what a record stands for.
pub(crate) fn fetching(context: u32, record: u32) -> EnteredSpan {
    debug_span!(target: TARGET, "fetch", context, record).entered()
}

/// A peer, as events name it.
pub(crate) struct Peer<'a> {
    /// The number of the context that the two share, in its exporter.
    pub(crate) context: u32,
    /// The importer's number in the context, whichever of the two is the peer.
    pub(crate) owner: u16,
    /// The peer's process id.
    pub(crate) pid: u32,
    /// The name of the peer's program; empty if it is not known.
    pub(crate) program: &'a str,
}

/// Tells that a peer and this process, in the role `side`, are attached from now on.
pub(crate) fn attached(side: Side, peer: &Peer<'_>) {
    let side = side.name();
    let &Peer {
        context,
        owner,
        pid,
        program,
    } = peer;
    debug!(name: "attach", target: TARGET, side, context, owner, pid, program, "attached");
}

/// Tells that a peer and this process, in the role `side`, are no longer attached, and that the one that
/// left has closed all first.
pub(crate) fn detached(side: Side, peer: &Peer<'_>) {
    let side = side.name();
    let &Peer {
        context,
        owner,
        pid,
        program,
    } = peer;
    debug!(name: "detach", target: TARGET, side, context, owner, pid, program, "detached");
}

/// Tells that a peer, of the other role than `side`, has ended without closing anything.
pub(crate) fn died(side: Side, peer: &Peer<'_>) {
    static LIMIT: Limit = Limit::new();
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

/// Tells that this process has refused a request of process `pid`, or its connection.
#[cold]
pub(crate) fn refused(reason: Reason, pid: u32) {
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

/// Tells that a handle could not be opened. The caller of the program gets the error.
#[cold]
pub(crate) fn not_opened(kind: HandleKind, error: &Error) {
    let reason = Reason::of(error);
    count(Counter::Refusals(Side::Importer, reason));
    let (side, kind, reason) = (Side::Importer.name(), kind_name(kind), reason.name());
    debug!(name: "refuse", target: TARGET, side, kind, reason, %error, "cannot open a handle");
}

/// An object of this process that others can open, until this is dropped.
#[must_use = "counts as long as it lives"]
pub(crate) struct ExportedObject {
    #[cfg(feature = "metrics")]
    counted: (HandleKind, i64),
}

impl ExportedObject {
    /// Counts an object, with the bytes that its handles name.
    pub(crate) fn new(kind: HandleKind, bytes: usize) -> Self {
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

/// Tells that others can open an object from now on.
#[inline]
pub(crate) fn exported(context: u32, record: u32, kind: HandleKind, bytes: usize) {
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

/// Tells that a freed object is not open in any process any more, so that its record and memory can be
/// used again.
#[inline]
pub(crate) fn reclaimed(context: u32, record: u32) {
    if level_enabled!(Level::DEBUG) {
        tell_reclaimed(context, record);
    }
}

#[cold]
#[inline(never)]
fn tell_reclaimed(context: u32, record: u32) {
    debug!(name: "reclaim", target: TARGET, context, record, "reclaimed");
}

/// Memory of an exporter that is mapped or open here, until this is dropped.
#[must_use = "counts as long as it lives"]
pub(crate) struct ImportedBytes {
    #[cfg(feature = "metrics")]
    counted: i64,
}

impl ImportedBytes {
    pub(crate) fn new(bytes: usize) -> Self {
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

/// Tells that a handle was opened. `name` is called for the object's name, if that matters.
#[inline]
pub(crate) fn opened(
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

/// Counts that an opened object was closed.
#[inline]
pub(crate) fn closed(kind: HandleKind) {
    change(Gauge::OpenedObjects(kind), -1);
}

/// Counts a signal that this process has submitted.
#[inline]
pub(crate) fn signalled() {
    count(Counter::Signals);
}

/// Counts a wait that has ended, and returns its result.
#[inline]
pub(crate) fn waited<T>(result: Result<T>) -> Result<T> {
    count(Counter::Waits(Outcome::of(&result)));
    result
}
