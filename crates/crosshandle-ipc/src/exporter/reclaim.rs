//! Reclaiming freed objects, which are kept until no importer has them open.

use super::Exporter;
use super::hand_over::HANDED_OVER;
use crate::deferred_reclaim::{self, Openers};
use crate::record::Record;
use crate::records::{Export, Exported, KeepAlive, Particulars, Retired};
use crosshandle_events::open_count;
use crosshandle_os::threads::driver_jobs;
use crosshandle_types::{Access, observe};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of retired records that are checked when another record is retired or needed. It is more
/// than one, so that records are reclaimed faster than they are retired. A larger number makes each
/// drop of exported memory slower while importers hold other memory.
const RECLAIM_LOOKS: usize = 32;

/// Objects that importers have closed, which the caller drops without a lock.
#[derive(Default)]
struct Closed {
    kept: Vec<(u32, KeepAlive)>,
    _deferred: Vec<deferred_reclaim::Deferred>,
}

impl Exporter {
    /// Frees an object. Its handles are stale from now on, and `keep` is dropped once no importer
    /// has the object open. If no handle was ever made (`!exported`), the record is free at once.
    pub fn retire(&self, record: Record, exported: bool, keep: KeepAlive) {
        self.retire_with(record, exported, keep, false);
    }

    /// Frees a part of lent memory. `keep` stays until no importer has the part open, even if the
    /// context ends before. `keep` keeps the exporter alive, so that the exporter notices
    /// importers' deaths.
    pub fn retire_loaned(&self, record: Record, keep: KeepAlive) {
        self.retire_with(record, true, keep, true);
    }

    fn retire_with(&self, record: Record, exported: bool, keep: KeepAlive, is_loaned: bool) {
        if self.birth.is_inherited() {
            return;
        }
        let mut records = self.records();
        if records.is_moved(record.index) {
            // Its handles stay valid, because the holder serves the memory. The record number is
            // therefore never reused.
            drop(records);
            match self.defers_reclaim {
                // No code in this process can know when the last importer has closed the memory.
                true => HANDED_OVER.lock().extend(keep),
                false => drop(keep),
            }
            return;
        }
        if let Some(generation) = self.catalog.generation(record.index) {
            open_count::end_generation(generation);
        }
        let segment = records.segment_of(record.index);
        let is_open = exported && self.is_open(record.index, segment);
        let export = records.take_export(record.index);
        if export.as_ref().is_some_and(Export::is_sealed) {
            self.catalog.clear_sealed_handle(record.index);
        }
        let memory = self.note_freed(record.index, export.as_ref());
        let mut keep = Some(keep);
        let mut is_deferred = false;
        if !is_open {
            self.end_use(record.index);
            records.free.push(record.index);
        } else if !records.is_closed {
            let index = record.index;
            if memory.is_none() {
                self.mark_if_alone(index);
            }
            records.retired.extend(keep.take().map(|keep| Retired {
                index,
                segment,
                keep,
                is_loaned,
                memory,
            }));
            self.has_retired.store(true, Ordering::Relaxed);
        } else {
            is_deferred = self.defers_reclaim || is_loaned;
        }
        drop(records);
        if exported && !is_open {
            observe::reclaimed(self.number, record.index);
        }
        // The lock is released first, because dropping either may call a driver or retire other
        // objects.
        if let Some(keep) = keep.take_if(|keep| is_deferred && keep.is_some()) {
            let openers = Arc::new(self.openers());
            deferred_reclaim::add(self.number, record.index, segment, &openers, keep);
        }
        drop((keep, export));
    }

    /// Counts the signals of a freed event. Returns the properties of freed memory that reports
    /// show.
    fn note_freed(&self, index: u32, export: Option<&Export>) -> Option<(Particulars, Access)> {
        match &export?.object {
            Exported::Memory(memory) => Some((memory.particulars, memory.access)),
            Exported::Event(event) => {
                let isolated = event.as_ref().and_then(|event| event.isolated.as_ref());
                let signals = match isolated {
                    Some(arena) => arena.slot(0).submitted(),
                    None => {
                        let common = self.arenas.common(index);
                        common.map_or(0, |(arena, index)| arena.slot(index).submitted())
                    }
                };
                self.counts.add_signals_of_freed(signals);
                None
            }
        }
    }

    /// Ends the use of a record that no process has open.
    fn end_use(&self, index: u32) {
        if let Some((arena, index)) = self.arenas.common(index) {
            arena.unmark_shared(index);
        }
    }

    /// Drops retired objects that importers have closed since they were retired. Each call checks a
    /// few records, in rotation, so that its cost does not grow with the number of open objects.
    pub fn reclaim(&self) {
        drop(self.take_closed(RECLAIM_LOOKS));
    }

    /// Drops all retired objects that importers have closed, on a background thread and a few at a
    /// time. Any process with a handle can attach and detach as often as it wants.
    pub fn reclaim_in_background(&self) {
        if self.records().retired.is_empty() && !deferred_reclaim::has_some() {
            return;
        }
        let this = self.this.clone();
        driver_jobs::run(move || {
            let Some(exporter) = this.upgrade() else {
                return;
            };
            let mut left = exporter.records().retired.len().max(1);
            while left > 0 {
                exporter.reclaim();
                left = left.saturating_sub(RECLAIM_LOOKS);
            }
        });
    }

    /// Drops all retired objects that importers have closed.
    pub fn reclaim_all(&self) {
        drop(self.take_closed(usize::MAX));
    }

    /// Removes and returns the objects that importers have closed, among at most `most` retired
    /// records. The caller drops them without a lock, because that may call a driver or retire
    /// other objects.
    #[must_use = "dropping the result may call a driver"]
    fn take_closed(&self, most: usize) -> Closed {
        let mut closed = Closed::default();
        if self.birth.is_inherited() {
            return closed;
        }
        closed._deferred = deferred_reclaim::take_closed(most);
        if !self.has_retired.load(Ordering::Relaxed) {
            return closed;
        }
        let mut records = self.records();
        for _ in 0..records.retired.len().min(most) {
            let Some(retired) = records.retired.pop_front() else {
                break;
            };
            if self.is_open(retired.index, retired.segment) {
                if retired.memory.is_none() {
                    self.mark_if_alone(retired.index);
                }
                records.retired.push_back(retired);
            } else {
                self.end_use(retired.index);
                records.free.push(retired.index);
                closed.kept.push((retired.index, retired.keep));
            }
        }
        let has_retired = !records.retired.is_empty();
        self.has_retired.store(has_retired, Ordering::Relaxed);
        drop(records);
        for (index, _) in &closed.kept {
            observe::reclaimed(self.number, *index);
        }
        closed
    }

    /// Ends the exports of a context that no longer allocates. Memory that importers have open
    /// outlives them if the driver would reuse it.
    pub fn close(&self) {
        let retired = {
            let mut records = self.records();
            records.is_closed = true;
            std::mem::take(&mut records.retired)
        };
        let is_kept = |one: &Retired| one.keep.is_some() && (self.defers_reclaim || one.is_loaned);
        let (kept, dropped): (Vec<_>, Vec<_>) = retired.into_iter().partition(is_kept);
        drop(dropped);
        if kept.is_empty() {
            return;
        }
        let openers = Arc::new(self.openers());
        for one in kept {
            let Retired {
                index,
                segment,
                keep,
                ..
            } = one;
            deferred_reclaim::add(self.number, index, segment, &openers, keep);
        }
        drop(deferred_reclaim::take_closed(RECLAIM_LOOKS));
    }

    /// Returns the present open counts.
    fn openers(&self) -> Openers {
        let importers = self.importers();
        let ledgers = importers.by_owner.values();
        Openers {
            own: self.own_ledger.get().cloned(),
            importers: ledgers
                .map(|importer| Arc::clone(&importer.ledger))
                .collect(),
        }
    }

    /// Returns whether this process or an attached process has a record open.
    fn is_open(&self, record: u32, segment: Option<u32>) -> bool {
        // Ledgers grow under this lock. An importer that gets a count later sees the record's new
        // generation.
        let importers = self.importers();
        let mut ledgers = importers.by_owner.values().map(|importer| &importer.ledger);
        self.own_ledger.get().is_some_and(|own| own.is_open(record))
            || ledgers.any(|ledger| ledger.has_open(record, segment))
    }
}
