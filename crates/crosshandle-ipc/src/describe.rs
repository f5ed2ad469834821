//! A context's report about itself, for people. The numbers are read one after another while the
//! process runs.
//!
//! Peers write ledgers and the words of events. The report shows these values unchanged, but they
//! decide nothing. It only walks the exporter's own lists, and the number of listed items is
//! limited.

use super::broker::protocol::Refusal;
use super::chunks::{Catalog, Ledger, Sleeper};
use super::event_arena::{EventArena, EventArenas};
use super::records::{Exported, Particulars, Records};
use crate::platform::Slot;
use crosshandle_events::{Owner, Unfinished};
use crosshandle_os::process;
use crosshandle_types::Access;
use crosshandle_types::report::{
    ContextReport, Counters, EventReport, ImporterReport, MemoryReport, OpenedBy, UnfinishedSignal,
    Waiter,
};
use crosshandle_types::sync::{HashMap, Mutex};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of records that a report reads under the lock on the records, which takes some
/// microseconds.
const DESCRIBED_AT_ONCE: u32 = 1024;

/// Maximum number of objects of a kind, of importers, and of waiters of one context that a report
/// lists. Totals cover the rest.
const MAX_LISTED: usize = 1000;

/// Maximum number of unfinished signals of one event that a report lists.
const MAX_LISTED_SIGNALS: usize = 8;

/// Maximum number of importers of one object that a report lists.
const MAX_LISTED_OPENERS: usize = 16;

/// Maximum number of open counts that are read for a report, which takes 20 ms. Beyond it, the
/// totals of importers are too low.
const MAX_COUNT_LOOKS: usize = 1 << 22;

/// The texts by which people identify a context.
#[derive(Clone, Default, Debug)]
pub struct Label {
    pub name: Option<String>,
    /// The device, such as `cuda:1`.
    pub device: String,
    pub backend: String,
}

/// Counters of what has happened in a context.
#[derive(Default)]
pub(super) struct Counts {
    /// Shared with the context's queues.
    pub(super) copied: Arc<AtomicU64>,
    /// Bytes that importers copied before they ended.
    copied_by_ended: AtomicU64,
    /// Signals of events that were freed.
    signals_of_freed: AtomicU64,
    opens: AtomicU64,
    attaches: AtomicU64,
    refusals: AtomicU64,
    deaths: AtomicU64,
}

impl Counts {
    pub(super) fn count_attach<T>(&self, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        self.count(&self.attaches, answer)
    }

    pub(super) fn count_open<T>(&self, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        self.count(&self.opens, answer)
    }

    pub(super) fn count_refusal<T>(&self, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        if answer.is_err() {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    fn count<T>(&self, good: &AtomicU64, answer: Result<T, Refusal>) -> Result<T, Refusal> {
        if answer.is_ok() {
            good.fetch_add(1, Ordering::Relaxed);
        }
        self.count_refusal(answer)
    }

    /// Counts the work of an importer that has hung up.
    pub(super) fn count_end_of(&self, ledger: &Ledger) {
        let copied = ledger.copied();
        self.copied_by_ended.fetch_add(copied, Ordering::Relaxed);
        if !ledger.has_left() {
            self.deaths.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn add_signals_of_freed(&self, signals: u64) {
        self.signals_of_freed.fetch_add(signals, Ordering::Relaxed);
    }
}

/// An importer, as reports describe it.
pub(super) struct ImporterView {
    pub(super) owner: u16,
    pub(super) ledger: Arc<Ledger>,
    pub(super) uid: u32,
    /// Time at which the importer attached, in nanoseconds since 1970.
    pub(super) attached: u64,
}

/// The sources of a context's report.
pub(super) struct Sources<'a> {
    pub(super) number: u32,
    pub(super) label: &'a Label,
    pub(super) counts: &'a Counts,
    pub(super) catalog: &'a Catalog,
    pub(super) arenas: &'a EventArenas,
    pub(super) records: &'a Mutex<Records>,
    /// The exporter's own ledger.
    pub(super) own: Option<&'a Ledger>,
    pub(super) importers: Vec<ImporterView>,
}

/// An exported object, as found under the lock on the records.
enum Found {
    Memory(Particulars, Access),
    /// An event, with its own arena if it has one.
    Event(Option<Arc<EventArena>>),
}

/// Describes a context, and lists at most `most` objects of each kind. Takes milliseconds if there
/// are very many.
pub(super) fn describe(sources: &Sources<'_>, most: usize) -> ContextReport {
    let most = most.min(MAX_LISTED);
    let mut description = Description {
        sources,
        most,
        waiters: waiters(sources, most),
        looks: MAX_COUNT_LOOKS,
        opened: vec![(0, 0); sources.importers.len()],
        allocations: HashSet::new(),
        signals: 0,
        awaited: Vec::new(),
        report: ContextReport {
            number: sources.number,
            name: sources.label.name.clone(),
            device: sources.label.device.clone(),
            backend: sources.label.backend.clone(),
            ..ContextReport::default()
        },
    };
    description.add_exports();
    description.add_retired();
    description.finish()
}

/// Returns the sleeping threads of all processes, by the records of the events that they wait for.
fn waiters(sources: &Sources<'_>, most: usize) -> HashMap<u32, Vec<(u16, Sleeper)>> {
    let own = sources.own.map(|own| (Owner::EXPORTER.get(), own));
    let others = sources.importers.iter();
    let ledgers = own
        .into_iter()
        .chain(others.map(|of| (of.owner, &*of.ledger)));
    let mut waiters: HashMap<u32, Vec<_>> = HashMap::default();
    let sleepers = ledgers.flat_map(|(owner, ledger)| {
        let sleepers = ledger.sleepers().into_iter();
        sleepers.map(move |sleeper| (owner, sleeper))
    });
    for (owner, sleeper) in sleepers.take(most) {
        let of_event = waiters.entry(sleeper.record).or_default();
        of_event.push((owner, sleeper));
    }
    waiters
}

/// A report in progress.
struct Description<'a> {
    sources: &'a Sources<'a>,
    most: usize,
    waiters: HashMap<u32, Vec<(u16, Sleeper)>>,
    /// Number of open counts that may still be read.
    looks: usize,
    /// Number of objects that each importer has open, and their bytes.
    opened: Vec<(u64, u64)>,
    /// The allocations that the totals already include.
    allocations: HashSet<(usize, bool)>,
    signals: u64,
    /// Events with waiters.
    awaited: Vec<EventReport>,
    report: ContextReport,
}

impl Description<'_> {
    fn add_exports(&mut self) {
        let mut first = 0;
        loop {
            let found: Vec<_> = {
                let records = self.sources.records.lock();
                let Some(exports) = records.exports_from(first, DESCRIBED_AT_ONCE) else {
                    return;
                };
                exports
                    .map(|(record, export)| (record, found(&export.object)))
                    .collect()
            };
            // The lock is released first, so that other threads can take it.
            for (record, found) in found {
                match found {
                    Found::Memory(particulars, access) => {
                        self.add_memory(record, particulars, access, false);
                    }
                    Found::Event(isolated) => self.add_event(record, isolated.as_deref()),
                }
            }
            first += DESCRIBED_AT_ONCE;
        }
    }

    fn add_retired(&mut self) {
        let mut first = 0;
        loop {
            let retired: Vec<_> = {
                let records = self.sources.records.lock();
                let rest = records.retired.iter().skip(first);
                let some = rest.take(DESCRIBED_AT_ONCE as usize);
                some.map(|retired| (retired.index, retired.memory))
                    .collect()
            };
            if retired.is_empty() {
                return;
            }
            first += retired.len();
            for (record, memory) in retired {
                match memory {
                    Some((particulars, access)) => {
                        self.add_memory(record, particulars, access, true);
                    }
                    None => drop(self.openers(record, 0)),
                }
            }
        }
    }

    fn add_memory(&mut self, record: u32, of: Particulars, access: Access, freed: bool) {
        if self.allocations.insert((of.allocation, freed)) {
            self.report.totals.memory += 1;
            self.report.totals.memory_bytes += of.len;
        }
        let opened_by = self.openers(record, of.len);
        if self.report.memory.len() < self.most {
            self.report.memory.push(MemoryReport {
                record,
                name: self.name(record),
                kind: of.kind,
                bytes: of.len,
                access: access.into(),
                freed,
                opened_by,
            });
        }
    }

    fn add_event(&mut self, record: u32, isolated: Option<&EventArena>) {
        let (arena, index) = match isolated {
            Some(arena) => (arena, 0),
            None => match self.sources.arenas.common(record) {
                Some(place) => place,
                None => return,
            },
        };
        let slot = arena.slot(index);
        self.report.totals.events += 1;
        let submitted = slot.submitted();
        // A peer may have written any value.
        self.signals = self.signals.wrapping_add(submitted);
        let opened_by = self.openers(record, 0);
        let waiters = self.waiters.remove(&record);
        if waiters.is_none() && self.report.events.len() >= self.most {
            return;
        }
        let report = EventReport {
            record,
            name: self.name(record),
            submitted,
            completed: slot.completed(),
            unfinished: self.unfinished(slot),
            waiters: self.waiters_of(slot, waiters.as_deref().unwrap_or_default()),
            opened_by,
        };
        match waiters {
            Some(_) => self.awaited.push(report),
            None => self.report.events.push(report),
        }
    }

    fn unfinished(&self, slot: &Slot) -> Vec<UnfinishedSignal> {
        let unfinished = slot.unfinished_signals(MAX_LISTED_SIGNALS);
        unfinished.iter().map(|of| self.signal(of)).collect()
    }

    fn waiters_of(&self, slot: &Slot, sleepers: &[(u16, Sleeper)]) -> Vec<Waiter> {
        let now = process::monotonic_nanoseconds();
        let waiter = |(owner, sleeper): &(u16, Sleeper)| {
            let (pid, program) = self.peer(*owner);
            Waiter {
                owner: *owner,
                pid,
                program,
                thread: sleeper.thread,
                number: sleeper.number,
                waiting_ns: now.saturating_sub(sleeper.since),
                culprit: slot.culprit_of(sleeper.number).map(|of| self.signal(&of)),
            }
        };
        sleepers.iter().map(waiter).collect()
    }

    fn signal(&self, of: &Unfinished) -> UnfinishedSignal {
        let (pid, program) = self.peer(of.owner);
        UnfinishedSignal {
            number: of.number,
            owner: of.owner,
            pid,
            program,
        }
    }

    /// Returns the importers that have a record open, and counts the record for each.
    fn openers(&mut self, record: u32, bytes: u64) -> Vec<OpenedBy> {
        let mut openers = Vec::new();
        for (importer, opened) in self.sources.importers.iter().zip(&mut self.opened) {
            if self.looks == 0 {
                break;
            }
            self.looks -= 1;
            let times = importer.ledger.times_open(record);
            if times == 0 {
                continue;
            }
            opened.0 += 1;
            opened.1 += bytes;
            if openers.len() < MAX_LISTED_OPENERS {
                openers.push(OpenedBy {
                    owner: importer.owner,
                    times: times.into(),
                });
            }
        }
        openers
    }

    fn name(&self, record: u32) -> Option<String> {
        Some(self.sources.catalog.name(record)).filter(|name| !name.is_empty())
    }

    /// Returns the process id and the program of an owner, as far as known.
    fn peer(&self, owner: u16) -> (u32, String) {
        let peer = Owner::new(owner).map(|owner| self.sources.catalog.peer(owner));
        peer.map_or_else(Default::default, |peer| (peer.pid, peer.program))
    }

    fn finish(mut self) -> ContextReport {
        let mut events = std::mem::take(&mut self.awaited);
        events.append(&mut self.report.events);
        events.truncate(self.most);
        let importers = self.sources.importers.iter().zip(&self.opened);
        let importers = importers.take(self.most).map(|(importer, opened)| {
            let (pid, program) = self.peer(importer.owner);
            ImporterReport {
                owner: importer.owner,
                pid,
                program,
                user: importer.uid,
                attached_unix_s: importer.attached / 1_000_000_000,
                objects: opened.0,
                bytes: opened.1,
            }
        });
        let mut importers: Vec<_> = importers.collect();
        importers.sort_by_key(|importer| importer.owner);
        let counters = self.counters();
        ContextReport {
            events,
            importers,
            counters,
            ..self.report
        }
    }

    fn counters(&self) -> Counters {
        let Sources {
            counts,
            own,
            importers,
            ..
        } = self.sources;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let by_importers = importers.iter().map(|importer| importer.ledger.copied());
        // Peers may have written any values into their ledgers.
        let copied_bytes = by_importers
            .chain(own.map(Ledger::copied))
            .fold(get(&counts.copied_by_ended), u64::wrapping_add)
            .wrapping_add(get(&counts.copied));
        Counters {
            copied_bytes,
            signals: get(&counts.signals_of_freed).wrapping_add(self.signals),
            opens: get(&counts.opens),
            attaches: get(&counts.attaches),
            refusals: get(&counts.refusals),
            deaths: get(&counts.deaths),
        }
    }
}

fn found(object: &Exported) -> Found {
    match object {
        Exported::Memory(memory) => Found::Memory(memory.particulars, memory.access),
        Exported::Event(event) => {
            let isolated = event.as_ref().and_then(|event| event.isolated.as_ref());
            Found::Event(isolated.cloned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::Export;
    use crosshandle_handle::{HandleKind, Key};
    use crosshandle_types::observe::ExportedObject;
    use crosshandle_types::report::ObjectKind;

    /// A test context with one importer.
    struct World {
        label: Label,
        counts: Counts,
        catalog: Catalog,
        arenas: EventArenas,
        records: Mutex<Records>,
        ledger: Arc<Ledger>,
    }

    const IMPORTER: u16 = 3;

    impl World {
        fn new() -> Self {
            let catalog = Catalog::default();
            catalog.ensure(0).expect("made");
            for (owner, pid, program) in [(1, 10, "exporter"), (2, 20, "early"), (3, 30, "late")] {
                let owner = Owner::new(owner).expect("an owner");
                catalog.set_peer(owner, pid, program);
            }
            Self {
                label: Label::default(),
                counts: Counts::default(),
                catalog,
                arenas: EventArenas::default(),
                records: Mutex::new(Records::new().expect("random bytes")),
                ledger: Arc::new(Ledger::create(false).expect("a ledger").0),
            }
        }

        fn describe(&self, most: usize) -> ContextReport {
            let sources = Sources {
                number: 1,
                label: &self.label,
                counts: &self.counts,
                catalog: &self.catalog,
                arenas: &self.arenas,
                records: &self.records,
                own: None,
                importers: vec![ImporterView {
                    owner: IMPORTER,
                    ledger: Arc::clone(&self.ledger),
                    uid: 1000,
                    attached: 5_000_000_000,
                }],
            };
            describe(&sources, most)
        }

        fn export(&self, record: u32, object: Exported) {
            self.catalog.ensure(record).expect("made");
            let key = Key::from_bytes([1; 16]);
            let _counted = ExportedObject::new(HandleKind::Memory, 0);
            let export = Export {
                key,
                object,
                _counted,
            };
            self.records.lock().set_export(record, export);
        }

        fn event(&self, record: u32) -> &Slot {
            let made = self.arenas.common_or_new(record);
            let (arena, index) = made.expect("made");
            arena.slot(index).reset();
            self.export(record, Exported::Event(None));
            arena.slot(index)
        }

        fn sleep(&self, record: u32, number: u64) {
            let entered = self.ledger.enter(Sleeper {
                record,
                number,
                thread: 31,
                since: process::monotonic_nanoseconds(),
            });
            entered.expect("room");
        }
    }

    fn owner(number: u16) -> Owner {
        Owner::new(number).expect("an owner")
    }

    #[test]
    fn a_wait_is_told_with_the_signal_that_holds_it_up() {
        let world = World::new();
        let slot = world.event(4);
        let first = slot.issue(owner(2)).expect("a number");
        for _ in 2..=7 {
            let ticket = slot.issue(owner(3)).expect("a number");
            let _ = slot.complete(ticket);
        }
        let _unfinished = slot.issue(owner(3)).expect("the eighth");
        // These waits are for an event that does not exist, or for numbers without a culprit.
        for (record, number) in [
            (4, 8),
            (4, 3),
            (4, 9),
            (4, u64::MAX),
            (999, 1),
            (u32::MAX - 1, 1),
        ] {
            world.sleep(record, number);
        }
        world.catalog.set_name(4, "step");
        let report = world.describe(10);
        let [event] = &report.events[..] else {
            panic!("{report:?}");
        };
        assert_eq!(event.name.as_deref(), Some("step"));
        assert_eq!((event.submitted, event.completed), (8, 0));
        let signals = event.unfinished.iter();
        let signals: Vec<_> = signals.map(|of| (of.number, of.pid)).collect();
        assert_eq!(signals, [(1, 20), (8, 30)]);
        let mut waiters: Vec<_> = event
            .waiters
            .iter()
            .map(|waiter| {
                let culprit = waiter.culprit.as_ref();
                assert_eq!((waiter.pid, &*waiter.program), (30, "late"));
                (waiter.number, culprit.map(|of| (of.number, of.pid)))
            })
            .collect();
        waiters.sort_unstable();
        let expected = [(3, None), (8, Some((1, 20))), (9, None), (u64::MAX, None)];
        assert_eq!(waiters, expected);
        let _ = slot.complete(first);
        let report = world.describe(10);
        let waiters = report.events[0].waiters.iter();
        let culprits = waiters.filter_map(|waiter| waiter.culprit.as_ref());
        let culprits: Vec<_> = culprits.map(|of| (of.number, of.pid)).collect();
        assert_eq!(culprits, [(8, 30)]);
        assert_eq!(report.counters.signals, 8);
    }

    #[test]
    fn words_of_a_hostile_peer_make_no_report_longer() {
        let world = World::new();
        let slot = world.event(0);
        world.sleep(0, 1 << 40);
        let values = [
            0,
            1,
            3 << 14,
            1 << 40,
            1 << 63,
            u64::MAX,
            u64::MAX - (1 << 12),
        ];
        for field in 0..Slot::FIELDS {
            for value in values {
                slot.issue(owner(2)).ok();
                slot.overwrite(field, |_| value);
                let report = world.describe(10);
                assert!(report.events[0].unfinished.len() <= MAX_LISTED_SIGNALS);
                assert_eq!(report.events[0].waiters.len(), 1);
            }
            slot.reset();
        }
    }

    #[test]
    fn what_is_awaited_comes_first_and_the_rest_is_counted() {
        /// Memory whose particulars alone matter.
        struct Nothing;
        impl crate::BackendObject for Nothing {
            fn len(&self) -> usize {
                1
            }

            fn descriptor(
                &self,
                _: Access,
            ) -> crosshandle_types::error::Result<Arc<std::os::fd::OwnedFd>> {
                Err(crosshandle_types::error::Error::Stale)
            }
        }
        let world = World::new();
        for record in 0..2_000_u32 {
            let particulars = Particulars {
                kind: ObjectKind::Physical,
                len: 100,
                // Each allocation has two records.
                allocation: record as usize / 2,
            };
            let memory = crate::records::ExportedMemory {
                object: Arc::new(Nothing),
                segment: 1,
                access: Access::ReadOnly,
                is_prepared: true,
                is_moved: false,
                is_sealed: false,
                particulars,
            };
            world.export(record, Exported::Memory(memory));
        }
        for record in 2_000..2_100 {
            world.event(record);
        }
        world.sleep(2_099, 1);
        let count = world.ledger.count(5).expect("in the first chunk");
        count.store(7, Ordering::Relaxed);
        let report = world.describe(10);
        assert_eq!((report.memory.len(), report.events.len()), (10, 10));
        assert_eq!(report.events[0].record, 2_099);
        let totals = report.totals;
        let expected = (1_000, 100_000, 100);
        assert_eq!(
            (totals.memory, totals.memory_bytes, totals.events),
            expected
        );
        assert_eq!(report.memory[5].opened_by, [opener(7)]);
        let importer = &report.importers[0];
        assert_eq!((importer.objects, importer.bytes), (1, 100));
        assert_eq!((importer.attached_unix_s, importer.user), (5, 1000));
    }

    fn opener(times: u64) -> OpenedBy {
        let mut opener = OpenedBy::default();
        (opener.owner, opener.times) = (IMPORTER, times);
        opener
    }
}
