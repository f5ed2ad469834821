//! Counters and gauges for the `metrics` facade.
//!
//! This module asks the program's recorder for its handles once, at the first change after the
//! recorder was installed. From then on each change goes directly to a handle of the recorder,
//! which usually means one atomic addition. Before that this module adds up the changes, so nothing
//! is lost if the recorder is installed late.

use super::metrics::{Counter, Gauge};
use super::reason::{Outcome, Reason, Side};
use crosshandle_handle::HandleKind;
use metrics::{Key, KeyName, Label, Level, Metadata, Recorder, Unit, with_recorder};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

const KINDS: [HandleKind; 3] = [
    HandleKind::Memory,
    HandleKind::PhysicalMemory,
    HandleKind::Event,
];
const COUNTERS: usize =
    KINDS.len() + 1 + Outcome::ALL.len() + Side::ALL.len() * (1 + Reason::ALL.len());
const GAUGES: usize = 2 + 2 * KINDS.len();

const OPENS: &str = "crosshandle_opens_total";
const SIGNALS: &str = "crosshandle_signals_total";
const WAITS: &str = "crosshandle_waits_total";
const DEATHS: &str = "crosshandle_deaths_total";
const REFUSALS: &str = "crosshandle_refusals_total";
const EXPORTED_BYTES: &str = "crosshandle_exported_bytes";
const IMPORTED_BYTES: &str = "crosshandle_imported_bytes";
const EXPORTED_OBJECTS: &str = "crosshandle_exported_objects";
const OPENED_OBJECTS: &str = "crosshandle_opened_objects";

static METADATA: Metadata<'_> = Metadata::new("crosshandle", Level::INFO, Some("crosshandle"));

/// The handles of the recorder, by index.
struct Bound {
    counters: Vec<metrics::Counter>,
    gauges: Vec<metrics::Gauge>,
}

static BOUND: OnceLock<Bound> = OnceLock::new();

/// Changes from before a recorder was installed, by index.
static EARLY_COUNTS: [AtomicU64; COUNTERS] = [const { AtomicU64::new(0) }; COUNTERS];
static EARLY_CHANGES: [AtomicI64; GAUGES] = [const { AtomicI64::new(0) }; GAUGES];

#[inline]
pub(super) fn count(counter: Counter) {
    match BOUND.get() {
        Some(bound) => bound.counters[counter.index()].increment(1),
        None => count_early(counter),
    }
}

#[inline]
pub(super) fn change(gauge: Gauge, by: i64) {
    match BOUND.get() {
        // `f64` is exact up to 2^53.
        Some(bound) => bound.gauges[gauge.index()].increment(by as f64),
        None => change_early(gauge, by),
    }
}

#[cold]
fn count_early(counter: Counter) {
    EARLY_COUNTS[counter.index()].fetch_add(1, Ordering::AcqRel);
    bind();
}

#[cold]
fn change_early(gauge: Gauge, by: i64) {
    EARLY_CHANGES[gauge.index()].fetch_add(by, Ordering::AcqRel);
    bind();
}

/// Passes the early changes on to the recorder, if one is installed.
///
/// A thread that adds to an early value after this function has emptied it also sees the handles,
/// because both are read-modify-write operations on the same value. That thread then passes its
/// change on itself.
fn bind() {
    if BOUND.get().is_none() {
        // No lock is held, because a recorder may run any code. If two threads ask the recorder,
        // both get the same handles.
        let Some(bound) = with_recorder(Bound::of) else {
            return;
        };
        let _ = BOUND.set(bound);
    }
    let Some(bound) = BOUND.get() else {
        return;
    };
    for (early, counter) in EARLY_COUNTS.iter().zip(&bound.counters) {
        match early.swap(0, Ordering::AcqRel) {
            0 => {}
            counted => counter.increment(counted),
        }
    }
    for (early, gauge) in EARLY_CHANGES.iter().zip(&bound.gauges) {
        match early.swap(0, Ordering::AcqRel) {
            0 => {}
            change => gauge.increment(change as f64),
        }
    }
}

impl Bound {
    /// Gets handles from a recorder. Returns `None` if it is the facade's own recorder, which does
    /// nothing.
    fn of(recorder: &dyn Recorder) -> Option<Self> {
        // The facade does not report whether a recorder is installed. Its own recorder has no
        // fields. A program's recorder without fields would lose the counts, so the documentation
        // excludes it.
        if size_of_val(recorder) == 0 {
            return None;
        }
        describe(recorder);
        let counters = Counter::all();
        let counters = counters
            .map(|counter| recorder.register_counter(&counter.key(), &METADATA))
            .collect();
        let gauges = Gauge::all();
        let gauges = gauges
            .map(|gauge| recorder.register_gauge(&gauge.key(), &METADATA))
            .collect();
        Some(Self { counters, gauges })
    }
}

fn describe(recorder: &dyn Recorder) {
    let counters = [
        (OPENS, "Handles opened"),
        (SIGNALS, "Signals submitted by this process"),
        (WAITS, "Waits for events that have ended, by outcome"),
        (
            DEATHS,
            "Peers that ended without closing what they had open, by their role",
        ),
        (
            REFUSALS,
            "Requests refused as exporter, and opens that failed as importer, by reason",
        ),
    ];
    for (name, text) in counters {
        recorder.describe_counter(KeyName::from(name), Some(Unit::Count), text.into());
    }
    let gauges = [
        (
            EXPORTED_BYTES,
            Unit::Bytes,
            "Memory that handles were made to",
        ),
        (
            IMPORTED_BYTES,
            Unit::Bytes,
            "Memory of exporters that is mapped or open here",
        ),
        (
            EXPORTED_OBJECTS,
            Unit::Count,
            "Objects that handles were made to, one for each access",
        ),
        (OPENED_OBJECTS, Unit::Count, "Objects opened from handles"),
    ];
    for (name, unit, text) in gauges {
        recorder.describe_gauge(KeyName::from(name), Some(unit), text.into());
    }
}

fn key<const LABELS: usize>(
    name: &'static str,
    labels: [(&'static str, &'static str); LABELS],
) -> Key {
    let label = |(name, value)| Label::from_static_parts(name, value);
    Key::from_parts(name, labels.map(label).to_vec())
}

fn index_of(kind: HandleKind) -> usize {
    match kind {
        HandleKind::Memory | HandleKind::Channel => 0,
        HandleKind::PhysicalMemory => 1,
        HandleKind::Event => 2,
    }
}

impl Counter {
    /// Returns all counters in the order of their indices.
    fn all() -> impl Iterator<Item = Self> {
        let refusals =
            |side| (Reason::ALL.into_iter()).map(move |reason| Self::Refusals(side, reason));
        (KINDS.into_iter().map(Self::Opens))
            .chain([Self::Signals])
            .chain(Outcome::ALL.into_iter().map(Self::Waits))
            .chain(Side::ALL.into_iter().map(Self::Deaths))
            .chain(Side::ALL.into_iter().flat_map(refusals))
    }

    #[inline]
    fn index(self) -> usize {
        const AT_SIGNALS: usize = KINDS.len();
        const AT_WAITS: usize = AT_SIGNALS + 1;
        const AT_DEATHS: usize = AT_WAITS + Outcome::ALL.len();
        const AT_REFUSALS: usize = AT_DEATHS + Side::ALL.len();
        match self {
            Self::Opens(kind) => index_of(kind),
            Self::Signals => AT_SIGNALS,
            Self::Waits(outcome) => AT_WAITS + outcome as usize,
            Self::Deaths(side) => AT_DEATHS + side as usize,
            Self::Refusals(side, reason) => {
                AT_REFUSALS + side as usize * Reason::ALL.len() + reason as usize
            }
        }
    }

    fn key(self) -> Key {
        match self {
            Self::Opens(kind) => key(OPENS, [("kind", super::kind_name(kind))]),
            Self::Signals => key(SIGNALS, []),
            Self::Waits(outcome) => key(WAITS, [("outcome", outcome.name())]),
            Self::Deaths(side) => key(DEATHS, [("peer", side.name())]),
            Self::Refusals(side, reason) => {
                key(REFUSALS, [("side", side.name()), ("reason", reason.name())])
            }
        }
    }
}

impl Gauge {
    /// Returns all gauges in the order of their indices.
    fn all() -> impl Iterator<Item = Self> {
        [Self::ExportedBytes, Self::ImportedBytes]
            .into_iter()
            .chain(KINDS.into_iter().map(Self::ExportedObjects))
            .chain(KINDS.into_iter().map(Self::OpenedObjects))
    }

    #[inline]
    fn index(self) -> usize {
        match self {
            Self::ExportedBytes => 0,
            Self::ImportedBytes => 1,
            Self::ExportedObjects(kind) => 2 + index_of(kind),
            Self::OpenedObjects(kind) => 2 + KINDS.len() + index_of(kind),
        }
    }

    fn key(self) -> Key {
        let kind = |name, kind| key(name, [("kind", super::kind_name(kind))]);
        match self {
            Self::ExportedBytes => key(EXPORTED_BYTES, []),
            Self::ImportedBytes => key(IMPORTED_BYTES, []),
            Self::ExportedObjects(of) => kind(EXPORTED_OBJECTS, of),
            Self::OpenedObjects(of) => kind(OPENED_OBJECTS, of),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_and_gauge_has_its_own_index() {
        let counters: Vec<_> = Counter::all().map(Counter::index).collect();
        assert_eq!(counters, (0..COUNTERS).collect::<Vec<_>>());
        let gauges: Vec<_> = Gauge::all().map(Gauge::index).collect();
        assert_eq!(gauges, (0..GAUGES).collect::<Vec<_>>());
    }

    #[test]
    fn the_recorder_that_stands_for_none_is_known() {
        assert!(with_recorder(Bound::of).is_none());
    }
}
