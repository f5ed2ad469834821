//! Deaths of importers, and how waits of this process and of other importers learn of them.
//!
//! A signal that a dead importer left unfinished is failed. A signal that was never submitted has
//! no owner. A wait for it ends if a process ended with the event open, and no other process has
//! the event open. Waits of this process check the ledgers. Waits of an importer find both facts in
//! the event's slot.

use super::Exporter;
use crate::chunks::Ledger;
use crate::event_arena::ArenaKey;
use crate::platform::Slot;
use crosshandle_events::{Liveness, Owner};
use crosshandle_os::sleepers;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl Exporter {
    /// Records the importer's end in every event that it has open, and returns the events' records.
    /// The importer's opens are still counted, so that no slot is reused during this call.
    pub(super) fn note_death(&self, owner: Owner, ledger: &Ledger) -> Vec<u32> {
        let mut events = Vec::new();
        self.arenas.for_each_shared(|record, arena, slot| {
            if ledger.has_event_open(record, arena) {
                slot.note_death(owner);
                events.push(record);
            }
        });
        if !events.is_empty() {
            self.has_bereaved.store(true, Ordering::Relaxed);
        }
        events
    }

    /// Ends the waits for events that can no longer succeed after a death. The dead importer's
    /// opens no longer count.
    pub(super) fn tell_bereaved(&self, events: &[u32]) {
        if events.is_empty() {
            return;
        }
        let records = self.records();
        let retired: BTreeSet<_> = records.retired.iter().map(|one| one.index).collect();
        for record in events.iter().filter(|record| retired.contains(record)) {
            self.mark_if_alone(*record);
        }
        drop(records);
        sleepers::wake_all();
    }

    /// Records in a retired event that only one process is left, if another process ended with it
    /// open. The caller holds the lock on the records, so none is reused.
    pub(super) fn mark_if_alone(&self, record: u32) {
        if !self.has_bereaved.load(Ordering::Relaxed) {
            return;
        }
        self.arenas.with_slot(record, |arena, slot| {
            if slot.latest_death().is_some() && self.count_openers(record, arena) == 1 {
                slot.mark_alone();
            }
        });
    }

    /// Returns whether a process is known to have ended with an event of this exporter open, and no
    /// other process has it open. If this process opened it by a handle, that is treated as another
    /// process.
    pub fn is_known_deserted(&self, record: u32, arena: ArenaKey, slot: &Slot) -> bool {
        slot.latest_death().is_some() && self.count_openers(record, arena) == 0
    }

    /// Returns whether an event is deserted, even if a dead importer has not hung up yet because a
    /// child of it has its connection.
    pub fn is_deserted(&self, record: u32, arena: ArenaKey, slot: &Slot) -> bool {
        if self.is_known_deserted(record, arena, slot) {
            return true;
        }
        if self.has_own_open(record) {
            return false;
        }
        let owners: Vec<_> = {
            let importers = self.importers();
            let openers = importers.by_owner.iter();
            openers
                .filter(|(_, importer)| importer.ledger.has_event_open(record, arena))
                .filter_map(|(owner, _)| Owner::new(*owner))
                .collect()
        };
        let is_deserted = owners.iter().all(|owner| self.is_dead(*owner));
        match owners.last() {
            Some(last) if is_deserted => {
                slot.note_death(*last);
                true
            }
            _ => false,
        }
    }

    fn has_own_open(&self, record: u32) -> bool {
        self.own_ledger_if_any()
            .is_some_and(|own| own.is_open(record))
    }

    /// Returns how many processes have an event open, not counting this exporter's own object.
    fn count_openers(&self, record: u32, arena: ArenaKey) -> usize {
        let importers = self.importers();
        let openers = importers.by_owner.values();
        let openers = openers.filter(|importer| importer.ledger.has_event_open(record, arena));
        openers.count() + usize::from(self.has_own_open(record))
    }
}
