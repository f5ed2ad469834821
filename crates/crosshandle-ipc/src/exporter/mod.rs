//! Exporters are the exporting context's half of sharing. An exporter replies to importers, and
//! reclaims what a dead importer had open.

mod deaths;
mod hand_over;
mod importers;
mod reclaim;
mod replies;
#[cfg(test)]
mod tests;

pub use hand_over::HeldMemory;

use super::broker::{self, Broker, Exports, FetchedHandle, PeerPolicy, address};
use super::chunks::{Catalog, Ledger, MAX_RECORDS, seal};
use super::deferred_reclaim;
use super::describe::{Counts, Label};
use super::event_arena::{EventArena, EventArenas};
use super::record::{Credential, Record};
use super::records::{
    BackendObject, Export, ExportCells, Exported, ExportedEvent, ExportedMemory, Particulars,
    Records,
};
use crosshandle_events::{Liveness, Owner};
use crosshandle_handle::HandleKind;
use crosshandle_os::fork::Birth;
use crosshandle_os::process;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::{self, ExportedObject, trace};
use crosshandle_types::report::ObjectKind;
use crosshandle_types::sync::{HashMap, Mutex, MutexGuard};
use importers::Importers;
use std::any::Any;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A context's exports. Lock order: records before importers.
pub struct Exporter {
    number: u32,
    label: Label,
    counts: Counts,
    catalog: Arc<Catalog>,
    arenas: Arc<EventArenas>,
    policy: PeerPolicy,
    directory: Option<PathBuf>,
    broker: OnceLock<Arc<Broker>>,
    records: Mutex<Records>,
    /// Whether there may be retired records, so that the check is free while there are none.
    /// Changed under the lock on the records.
    has_retired: AtomicBool,
    importers: Mutex<Importers>,
    /// Whether an importer ended while it had an event open. Before that, no checks are necessary.
    has_bereaved: AtomicBool,
    /// Counts opens by this process itself.
    own_ledger: OnceLock<Arc<Ledger>>,
    /// Whether memory that importers have open is kept after the context's end, because the driver
    /// would reuse it.
    defers_reclaim: bool,
    /// A value that is dropped with the exporter, before its other fields.
    ends_with_it: OnceLock<Box<dyn Any + Send + Sync>>,
    birth: Birth,
    /// A reference to this exporter that other objects can get.
    this: Weak<Exporter>,
}

/// Returns the number of a new context.
fn next_number() -> Result<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let next = |number: u32| number.checked_add(1);
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        .map_err(|_| Error::LimitReached {
            what: "this process has made 2^32 contexts".into(),
            remedy: "start it again".into(),
        })
}

impl Exporter {
    /// Makes a context's exports, which do not reply to importers yet. If `defers_reclaim`, memory
    /// that importers have open is kept after the context's end.
    pub fn new(
        label: Label,
        policy: PeerPolicy,
        directory: Option<PathBuf>,
        defers_reclaim: bool,
    ) -> Result<Arc<Self>> {
        drop(deferred_reclaim::take_closed(usize::MAX));
        Self::numbered(next_number()?, label, policy, directory, defers_reclaim)
    }

    fn numbered(
        number: u32,
        label: Label,
        policy: PeerPolicy,
        directory: Option<PathBuf>,
        defers_reclaim: bool,
    ) -> Result<Arc<Self>> {
        let records = Mutex::new(Records::new()?);
        Ok(Arc::new_cyclic(|this| Self {
            number,
            label,
            counts: Counts::default(),
            catalog: Arc::default(),
            arenas: Arc::default(),
            policy,
            directory,
            broker: OnceLock::new(),
            records,
            has_retired: AtomicBool::new(false),
            importers: Mutex::new(Importers {
                by_owner: HashMap::default(),
                latest: Owner::EXPORTER.get(),
            }),
            has_bereaved: AtomicBool::new(false),
            own_ledger: OnceLock::new(),
            defers_reclaim,
            ends_with_it: OnceLock::new(),
            birth: Birth::here(),
            this: this.clone(),
        }))
    }

    /// Returns whether a process that this one was forked from made this exporter.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// Returns the context's number in this process. Never zero.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the counter of bytes that commands of the context's queues have copied.
    pub fn copied(&self) -> &Arc<AtomicU64> {
        &self.counts.copied
    }

    pub(super) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    pub(super) fn arenas(&self) -> &Arc<EventArenas> {
        &self.arenas
    }

    /// Sets the name of a record's object, for people.
    pub fn set_name(&self, record: Record, name: &str) {
        if self.birth.is_inherited() {
            // The catalog belongs to the parent.
            return;
        }
        let _records = self.records();
        if self.is_current(record) {
            self.catalog.set_name(record.index, name);
        }
    }

    /// Starts to reply to importers.
    pub fn go_public(&self) -> Result<()> {
        if self.birth.is_inherited() {
            // The socket's name and the catalog belong to the parent.
            return Err(Error::forked());
        }
        if let Some(broker) = self.broker.get() {
            return broker.ensure();
        }
        // The first chunk also describes the processes, so it is always needed.
        self.catalog.ensure(0)?;
        self.catalog
            .set_peer(Owner::EXPORTER, process::pid(), &process::program());
        let broker = Broker::listen(self.directory.as_deref(), &self.policy)?;
        let this: Weak<dyn Exports> = self.this.clone();
        broker::publish(self.number, self.policy.clone(), this);
        // A thread that was faster has set the same broker.
        let _ = self.broker.set(broker);
        Ok(())
    }

    /// Makes a record for a new event. If `isolated`, its slot is not in an arena of the context.
    pub(super) fn create_event_record(&self, isolated: bool) -> Result<Record> {
        let index = self.records_with_room().take_index()?;
        let made = self.catalog.ensure(index).and_then(|()| match isolated {
            true => Ok(()),
            false => self
                .arenas
                .common_or_new(index)
                .map(|(arena, index)| arena.slot(index).reset()),
        });
        match made {
            Ok(()) => Ok(self.start_use(index, HandleKind::Event)),
            Err(error) => {
                self.records().free.push(index);
                Err(error)
            }
        }
    }

    /// Starts a use of a record whose chunk exists.
    fn start_use(&self, index: u32, kind: HandleKind) -> Record {
        let generation = self.catalog.start_use(index, kind as u64);
        Record {
            index,
            generation: generation.expect("its chunk is there"),
        }
    }

    /// Lets importers open an event, and returns its credential. `mirror` is its native mirror.
    pub(super) fn export_event(
        &self,
        record: Record,
        isolated: Option<&Arc<EventArena>>,
        mirror: Option<Arc<dyn BackendObject>>,
    ) -> Result<Credential> {
        self.go_public()?;
        self.arenas.show_liveness()?;
        match isolated {
            Some(arena) => {
                self.arenas.add_isolated(record, arena);
                arena.mark_shared(0);
            }
            None => {
                let (arena, index) = self.arenas.common(record.index).expect("it has a slot");
                arena.mark_shared(index);
            }
        }
        let event = match (isolated, mirror) {
            (None, None) => None,
            (isolated, mirror) => Some(ExportedEvent::boxed(isolated.cloned(), mirror)),
        };
        let _counted = ExportedObject::new(HandleKind::Event, 0);
        let mut records = self.records();
        // Another thread may have been faster.
        if let Some(export) = records.export(record.index) {
            return Ok(Credential {
                record,
                key: export.key,
            });
        }
        let key = records.next_key();
        let export = Export {
            key,
            object: Exported::Event(event),
            _counted,
        };
        records.set_export(record.index, export);
        drop(records);
        observe::exported(self.number, record.index, HandleKind::Event, 0);
        Ok(Credential { record, key })
    }

    /// Records that fetching a record's object no longer calls a driver.
    fn mark_prepared(&self, record: Record) {
        let mut records = self.records();
        if !self.is_current(record) {
            return;
        }
        if let Some(Export { object, .. }) = records.export_mut(record.index)
            && let Some(memory) = object.memory_mut()
        {
            memory.is_prepared = true;
        }
    }

    /// Returns whether a record still has this generation.
    fn is_current(&self, record: Record) -> bool {
        let generation = self.catalog.generation(record.index);
        generation.is_some_and(|now| now.load(Ordering::SeqCst) == record.generation)
    }

    /// Returns the credential of a memory object for `access`, and creates the record if it does
    /// not exist yet. The caller must have prepared the memory for export. `segment` is the number
    /// of its segment.
    #[inline]
    pub fn export_at(
        &self,
        cells: &ExportCells,
        particulars: Particulars,
        memory: Arc<dyn BackendObject>,
        segment: u32,
        access: Access,
    ) -> Result<Credential> {
        self.go_public()?;
        let kind = match particulars.kind {
            ObjectKind::Physical => HandleKind::PhysicalMemory,
            _ => HandleKind::Memory,
        };
        let len = particulars.len as usize;
        let driver_handle = memory.driver_handle();
        let driver_handle = driver_handle.map(|handle| (handle, memory.len() as u64));
        let object = Exported::Memory(ExportedMemory {
            object: memory,
            segment,
            access,
            is_prepared: true,
            is_moved: false,
            is_sealed: driver_handle.is_some(),
            particulars,
        });
        let begun = trace::begin();
        let _counted = ExportedObject::new(kind, len);
        let mut records = self.records_with_room();
        if let Some(credential) = cells.get(access) {
            // Another thread was faster.
            return Ok(credential);
        }
        let key = records.next_key();
        let index = records.take_index()?;
        if let Err(error) = self.catalog.ensure(index) {
            records.free.push(index);
            return Err(error);
        }
        let export = Export {
            key,
            object,
            _counted,
        };
        records.set_export(index, export);
        let record = self.start_use(index, kind);
        if let Some((handle, len)) = driver_handle {
            let sealed = FetchedHandle {
                segment,
                len,
                handle,
            };
            let sealed = seal(&key, &sealed);
            self.catalog.set_sealed_handle(index, &sealed);
        }
        let credential = Credential { record, key };
        cells.set(access, credential);
        drop(records);
        observe::exported(self.number, index, kind, len);
        begun.end(|| {
            let object = trace::Object {
                exporter: address::exporter_id().unwrap_or(0),
                context: self.number,
                record: index,
                generation: record.generation,
                name: Some(self.catalog.name(index)),
            };
            trace::Step::Get(kind, object, len)
        });
        Ok(credential)
    }

    /// Returns the ledger that counts opens by this process itself.
    pub(super) fn own_ledger(&self) -> Result<Arc<Ledger>> {
        if let Some(ledger) = self.own_ledger.get() {
            return Ok(Arc::clone(ledger));
        }
        let (ledger, _) = Ledger::create(false)?;
        let _importers = self.importers();
        Ok(Arc::clone(self.own_ledger.get_or_init(|| Arc::new(ledger))))
    }

    /// Ensures that this process's own ledger, which exists, has a count for a record.
    pub(super) fn extend_own_ledger(&self, record: u32) -> Result<()> {
        let _importers = self.importers();
        let own = self.own_ledger.get();
        own.map_or(Ok(()), |ledger| ledger.ensure(record))
    }

    /// Returns this process's own ledger, if it exists.
    pub(super) fn own_ledger_if_any(&self) -> Option<&Ledger> {
        self.own_ledger.get().map(|ledger| &**ledger)
    }

    /// Returns the place for a value that is dropped with the exporter, before its other fields.
    pub(super) fn ends_with_it(&self) -> &OnceLock<Box<dyn Any + Send + Sync>> {
        &self.ends_with_it
    }

    /// Locks the records. If they are full, it first reclaims all that importers have closed.
    fn records_with_room(&self) -> MutexGuard<'_, Records> {
        let records = self.records();
        if !records.is_full() {
            return records;
        }
        drop(records);
        self.reclaim_all();
        self.records()
    }

    /// Clears the drivers' handles in the catalog, which importers keep.
    fn clear_sealed_handles(&self) {
        let records = self.records();
        let exports = records.exports_from(0, MAX_RECORDS).into_iter().flatten();
        for (record, _) in exports.filter(|(_, export)| export.is_sealed()) {
            self.catalog.clear_sealed_handle(record);
        }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock()
    }

    fn importers(&self) -> MutexGuard<'_, Importers> {
        self.importers.lock()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if self.birth.is_inherited() {
            return;
        }
        self.clear_sealed_handles();
        // This shows importers that the context was dropped and its process has not died.
        self.catalog.set_ended(Owner::EXPORTER, process::time());
        drop(self.ends_with_it.take());
        if self.broker.get().is_some() {
            broker::withdraw(self.number);
        }
        let clients: Vec<_> = self
            .importers()
            .by_owner
            .drain()
            .filter_map(|(_, importer)| importer.client.upgrade())
            .collect();
        for client in clients {
            client.hang_up();
        }
    }
}

impl Liveness for Exporter {
    fn is_dead(&self, owner: Owner) -> bool {
        owner != Owner::EXPORTER
            && (!self.importers().by_owner.contains_key(&owner.get())
                || !self.arenas.is_alive(owner))
    }
}
