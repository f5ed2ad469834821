//! Exporters: the exporting context's half of sharing, which answers importers and takes back what
//! a dead one had open.

use super::broker::protocol::{Refusal, program_text};
use super::broker::{
    self, Attached, Broker, Client, Exports, Fetch, Fetched, FetchedPieces, Newcomer, PeerPolicy,
    Supply, address,
};
use super::chunks::{Catalog, Ledger, place_of};
use super::deferred_reclaim::{self, Openers};
use super::describe::{self, Counts, ImporterView, Label, Sources};
use super::event_arena::{EventArena, EventArenas};
use super::open_count;
use super::record::{Credential, Record};
use super::records::{
    Export, ExportCells, Exported, ExportedEvent, ExportedMemory, KeepAlive, MIRROR_SEGMENT,
    Particulars, Records, Retired, Shared,
};
use super::tuning::RECLAIM_LOOKS;
use crate::error::{Error, Result};
use crate::event_protocol::{Liveness, Owner};
use crate::handle::HandleKind;
use crate::observe::{self, ExportedObject, Peer, Side};
use crate::os::{is_planted, process};
use crate::sync::{HashMap, Mutex, MutexGuard};
use crate::threads::driver_jobs;
use crate::types::Access;
use crate::types::report::{ContextReport, ObjectKind};
use std::any::Any;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A process that is attached.
struct Importer {
    ledger: Arc<Ledger>,
    client: Weak<Client>,
    uid: u32,
    /// When it attached, in nanoseconds since 1970.
    attached: u64,
}

/// The attached processes.
struct Importers {
    by_owner: HashMap<u16, Importer>,
    /// The owner number that was given out last. Numbers are reused as late as possible, because
    /// errors name the process that had one.
    latest: u16,
}

/// A context's exports. Lock order: records, then importers.
pub(crate) struct Exporter {
    number: u32,
    label: Label,
    counts: Counts,
    catalog: Arc<Catalog>,
    arenas: Arc<EventArenas>,
    policy: PeerPolicy,
    directory: Option<PathBuf>,
    broker: OnceLock<Arc<Broker>>,
    records: Mutex<Records>,
    /// Whether there may be retired records, so that looking costs nothing while there are none. Changed
    /// under the lock on the records.
    has_retired: AtomicBool,
    importers: Mutex<Importers>,
    /// Counts opens by this process itself.
    own_ledger: OnceLock<Arc<Ledger>>,
    /// Whether memory that importers have open is kept beyond the context's end, because the driver
    /// would give it to others.
    defers_reclaim: bool,
    /// Dropped when the exporter is, before anything else of it.
    ends_with_it: OnceLock<Box<dyn Any + Send + Sync>>,
    /// A reference to this exporter, to hand out.
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
    /// Makes a context's exports, which answer no importer yet. `defers_reclaim`: memory that
    /// importers have open is kept beyond the context's end.
    pub(crate) fn new(
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
            own_ledger: OnceLock::new(),
            defers_reclaim,
            ends_with_it: OnceLock::new(),
            this: this.clone(),
        }))
    }

    /// Returns the context's number in this process. Never zero.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the count of bytes that commands of the context's queues have copied.
    pub(crate) fn copied(&self) -> &Arc<AtomicU64> {
        &self.counts.copied
    }

    pub(super) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    pub(super) fn arenas(&self) -> &Arc<EventArenas> {
        &self.arenas
    }

    /// Names a record's object, for people.
    pub(crate) fn set_name(&self, record: Record, name: &str) {
        if process::is_forked() {
            // The catalog is the parent's.
            return;
        }
        let _records = self.records();
        if self.is_current(record) {
            self.catalog.set_name(record.index, name);
        }
    }

    /// Starts to answer importers.
    pub(crate) fn go_public(&self) -> Result<()> {
        if process::is_forked() {
            // What it would write is the parent's: the socket's name, and the catalog.
            return Err(Error::forked());
        }
        if self.broker.get().is_some() {
            return Ok(());
        }
        // The first chunk describes the processes, whatever is exported.
        self.catalog.ensure(0)?;
        self.catalog
            .set_peer(Owner::EXPORTER, process::pid(), &process::program());
        let directories = address::directories(self.directory.as_deref());
        let broker = Broker::listen(&directories[0], &self.policy)?;
        let this: Weak<dyn Exports> = self.this.clone();
        broker::publish(self.number, self.policy.clone(), this);
        // A thread that was faster has set the same broker.
        let _ = self.broker.set(broker);
        Ok(())
    }

    /// Makes a record for a new event. `isolated`: its slot is not in the context's own arenas.
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

    /// Puts a record whose chunk is there to use.
    fn start_use(&self, index: u32, kind: HandleKind) -> Record {
        let generation = self.catalog.start_use(index, kind as u64);
        Record {
            index,
            generation: generation.expect("its chunk is there"),
        }
    }

    /// Lets importers open an event, and returns its key. `mirror` is its native mirror.
    pub(super) fn export_event(
        &self,
        record: Record,
        isolated: Option<&Arc<EventArena>>,
        mirror: Option<Arc<dyn Shared>>,
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

    /// Remembers that a record's object calls no driver any more when an importer fetches it.
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

    /// Returns whether a record is still in the use that its generation stands for.
    fn is_current(&self, record: Record) -> bool {
        let generation = self.catalog.generation(record.index);
        generation.is_some_and(|now| {
            let now = now.load(Ordering::SeqCst);
            match is_planted("finding-12") {
                true => now as u32 == record.generation as u32,
                false => now == record.generation,
            }
        })
    }

    /// Returns an object's credential for an access, made now if there is none. The caller has prepared
    /// the memory; `segment` is its number.
    #[inline]
    pub(crate) fn export_at(
        &self,
        cells: &ExportCells,
        particulars: Particulars,
        memory: &Arc<dyn Shared>,
        segment: u32,
        access: Access,
    ) -> Result<Credential> {
        self.go_public()?;
        let kind = match particulars.kind {
            ObjectKind::Physical => HandleKind::PhysicalMemory,
            _ => HandleKind::Memory,
        };
        let len = particulars.len as usize;
        let object = Exported::Memory(ExportedMemory {
            object: Arc::clone(memory),
            segment,
            access,
            is_prepared: true,
            is_moved: false,
            particulars,
        });
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
        let credential = Credential { record, key };
        cells.set(access, credential);
        drop(records);
        observe::exported(self.number, index, kind, len);
        Ok(credential)
    }

    /// Frees an object: its handles are stale from now on, and `keep` is dropped once no importer has
    /// it open any more. The record of an object of which no handle was ever made (`!exported`) is
    /// free at once.
    pub(crate) fn retire(&self, record: Record, exported: bool, keep: KeepAlive) {
        if process::is_forked() {
            return;
        }
        let mut records = self.records();
        if records.is_moved(record.index) {
            // Its handles stay good: the holder answers for them. So the number is never used again.
            drop(records);
            match self.defers_reclaim {
                // Nobody in this process knows when the last importer has closed it.
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
        let memory = self.note_freed(record.index, export.as_ref());
        let mut keep = Some(keep);
        let mut is_deferred = false;
        if !is_open {
            self.end_use(record.index);
            records.free.push(record.index);
        } else if !records.is_closed {
            let index = record.index;
            records.retired.extend(keep.take().map(|keep| Retired {
                index,
                segment,
                keep,
                memory,
            }));
            self.has_retired.store(true, Ordering::Relaxed);
        } else {
            is_deferred = self.defers_reclaim;
        }
        drop(records);
        if exported && !is_open {
            observe::reclaimed(self.number, record.index);
        }
        // Without the lock: dropping either may call a driver, or retire more.
        if let Some(keep) = keep.take_if(|keep| is_deferred && keep.is_some()) {
            let openers = Arc::new(self.openers());
            deferred_reclaim::add(self.number, record.index, segment, &openers, keep);
        }
        drop((keep, export));
    }

    /// Counts the signals of an event that is freed. Returns what reports tell of freed memory.
    fn note_freed(&self, index: u32, export: Option<&Export>) -> Option<(Particulars, Access)> {
        match &export?.object {
            Exported::Memory(memory) => Some((memory.particulars, memory.access)),
            Exported::Event(event) => {
                let isolated = event.as_ref().and_then(|event| event.isolated.as_ref());
                let signals = match isolated {
                    Some(arena) => arena.slot(0).issued(),
                    None => {
                        let common = self.arenas.common(index);
                        common.map_or(0, |(arena, index)| arena.slot(index).issued())
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

    /// Drops the retired objects that importers have closed in the meantime. Looks at a few records
    /// at a time, in turn, so that its cost does not grow with what importers have open.
    pub(crate) fn reclaim(&self) {
        drop(self.take_closed(RECLAIM_LOOKS));
    }

    /// Does the same for all retired objects on a background thread, a few at a time: anybody who has
    /// a handle can attach and leave as often as they like.
    fn reclaim_in_background(&self) {
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
    pub(crate) fn reclaim_all(&self) {
        drop(self.take_closed(usize::MAX));
    }

    /// Takes out the objects that importers have closed, among at most `most` retired records. The
    /// caller drops them without a lock: that may call a driver, or retire more.
    #[must_use = "dropping the result may call a driver"]
    fn take_closed(&self, most: usize) -> Closed {
        let mut closed = Closed::default();
        if process::is_forked() {
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

    /// Ends the exports of a context that allocates no more. Memory that importers have open
    /// outlives them if the driver would reuse it.
    pub(crate) fn close(&self) {
        let retired = {
            let mut records = self.records();
            records.is_closed = true;
            std::mem::take(&mut records.retired)
        };
        if !self.defers_reclaim || retired.is_empty() {
            return;
        }
        let openers = Arc::new(self.openers());
        for one in retired.into_iter().filter(|one| one.keep.is_some()) {
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

    /// Returns the open counts as they are now.
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

    /// Returns whether this process or an attached one has a record open.
    fn is_open(&self, record: u32, segment: Option<u32>) -> bool {
        // Ledgers grow under this lock: who gets a count later than this look sees the record's new
        // generation.
        let importers = self.importers();
        let mut ledgers = importers.by_owner.values().map(|importer| &importer.ledger);
        self.own_ledger.get().is_some_and(|own| own.is_open(record))
            || ledgers.any(|ledger| ledger.has_open(record, segment))
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

    /// Makes sure that this process's own ledger, which is there, has a count for a record.
    pub(super) fn extend_own_ledger(&self, record: u32) -> Result<()> {
        let _importers = self.importers();
        let own = self.own_ledger.get();
        own.map_or(Ok(()), |ledger| ledger.ensure(record))
    }

    /// Returns that ledger if there is one.
    pub(super) fn own_ledger_if_any(&self) -> Option<&Ledger> {
        self.own_ledger.get().map(|ledger| &**ledger)
    }

    /// Returns the place for what is dropped when the exporter is, before anything else of it.
    pub(super) fn ends_with_it(&self) -> &OnceLock<Box<dyn Any + Send + Sync>> {
        &self.ends_with_it
    }

    /// Locks the records, after reclaiming all that importers have closed if they are full.
    fn records_with_room(&self) -> MutexGuard<'_, Records> {
        let records = self.records();
        if !records.is_full() {
            return records;
        }
        drop(records);
        self.reclaim_all();
        self.records()
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock()
    }

    fn importers(&self) -> MutexGuard<'_, Importers> {
        self.importers.lock()
    }
}

/// Memory that goes from one process to another: what a context hands over, and what a holder answers
/// for in its stead.
impl Exporter {
    /// Lets a holder answer for a record's memory from now on. Returns the last use of the memory by this
    /// exporter, which the caller drops; `None` if the object was freed.
    pub(crate) fn hand_over(&self, record: Record) -> Option<Arc<dyn Shared>> {
        let mut records = self.records();
        if !self.is_current(record) {
            return None;
        }
        let export = records.export_mut(record.index)?;
        let Exported::Memory(memory) = &mut export.object else {
            return None;
        };
        memory.is_moved = true;
        let moved: Arc<dyn Shared> = Arc::new(Moved);
        Some(std::mem::replace(&mut memory.object, moved))
    }

    /// Makes the exports of a context of another process, which hold nothing yet. `number`: of that
    /// context in that process.
    pub(crate) fn of_another(number: u32, label: Label, policy: PeerPolicy) -> Result<Arc<Self>> {
        let exporter = Self::numbered(number, label, policy, None, false)?;
        // The first chunk describes the processes, whatever is held.
        exporter.catalog.ensure(0)?;
        let program = process::program();
        (exporter.catalog).set_peer(Owner::EXPORTER, process::pid(), &program);
        Ok(exporter)
    }

    /// Answers for a record of another process's context from now on, under its own number, generation
    /// and key.
    pub(crate) fn hold(
        &self,
        credential: Credential,
        memory: HeldMemory,
        name: &str,
    ) -> Result<()> {
        let Credential { record, key } = credential;
        self.catalog.ensure(record.index)?;
        let HeldMemory {
            object,
            segment,
            access,
            particulars,
        } = memory;
        let export = Export {
            key,
            _counted: ExportedObject::new(HandleKind::Memory, particulars.len as usize),
            object: Exported::Memory(ExportedMemory {
                object,
                segment,
                access,
                is_prepared: true,
                is_moved: false,
                particulars,
            }),
        };
        self.records().set_export(record.index, export);
        if let Some(generation) = self.catalog.generation(record.index) {
            generation.store(record.generation, Ordering::SeqCst);
        }
        self.catalog.set_name(record.index, name);
        let this: Weak<dyn Exports> = self.this.clone();
        broker::hold(key, self.policy.clone(), this);
        Ok(())
    }

    /// Ends that. Who has the memory open keeps it.
    pub(crate) fn release_held(&self, credential: Credential) {
        broker::release_held(credential.key);
        if let Some(generation) = self.catalog.generation(credential.record.index) {
            open_count::end_generation(generation);
        }
        let export = self.records().take_export(credential.record.index);
        // Without the lock: it may be the last descriptor of the memory.
        drop(export);
    }
}

/// Memory that was handed over, and that the driver would give to others in this process although
/// importers have it open: it stays until the process ends.
static HANDED_OVER: Mutex<Vec<Box<dyn Any + Send + Sync>>> = Mutex::new(Vec::new());

/// Memory that another process has handed over.
pub(crate) struct HeldMemory {
    pub(crate) object: Arc<dyn Shared>,
    pub(crate) segment: u32,
    pub(crate) access: Access,
    pub(crate) particulars: Particulars,
}

/// What is left of memory that was handed over, in the exporter.
struct Moved;

impl Shared for Moved {
    fn len(&self) -> usize {
        0
    }

    fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
        Err(Error::HolderGone)
    }
}

/// Objects that importers have closed, to be dropped without a lock.
#[derive(Default)]
struct Closed {
    kept: Vec<(u32, KeepAlive)>,
    _deferred: Vec<deferred_reclaim::Deferred>,
}

/// Answers an importer's fetch of an object, or of some of its pieces from number `first` on. Calls a driver
/// unless the object is prepared.
fn answer(
    object: &dyn Shared,
    segment: u32,
    access: Access,
    first: u32,
) -> Result<Supply, Refusal> {
    let refusal = |error| match error {
        // An event without a native mirror.
        Error::Unsupported(_) if segment == MIRROR_SEGMENT => Refusal::Stale,
        Error::Unsupported(_) => Refusal::NoReadOnly,
        _ => Refusal::NoRoom,
    };
    let len = object.len() as u64;
    if let Some(pieces) = object.pieces() {
        let batch = pieces.lend(first, access).ok_or(Refusal::BadRequest)?;
        return Ok(Supply::Pieces(FetchedPieces {
            segment,
            len,
            batch: batch.map_err(refusal)?,
        }));
    }
    if first != 0 {
        return Err(Refusal::BadRequest);
    }
    Ok(Supply::Whole(Fetched {
        file: object.descriptor(access).map_err(refusal)?,
        segment,
        len,
        note: object.note(),
        disposal: None,
    }))
}

impl Exporter {
    /// Returns the export that a credential opens.
    fn find<'a>(
        &self,
        records: &'a Records,
        credential: &Credential,
    ) -> Result<&'a Exported, Refusal> {
        let export = records.export(credential.record.index);
        let export = export.ok_or(Refusal::Stale)?;
        // Under the records' lock, so that the export found is the one of this generation.
        if !self.is_current(credential.record) {
            return Err(Refusal::Stale);
        }
        if export.key != credential.key && !is_planted("finding-1") {
            return Err(Refusal::WrongKey);
        }
        match &export.object {
            Exported::Memory(memory) if memory.is_moved => Err(Refusal::Moved),
            object => Ok(object),
        }
    }

    fn fetch(
        &self,
        memory: &ExportedMemory,
        record: Record,
        access: Access,
        first: u32,
    ) -> Result<Fetch, Refusal> {
        if access == Access::ReadWrite && memory.access == Access::ReadOnly {
            return Err(Refusal::ReadOnly);
        }
        let pieces = memory.object.pieces();
        let lends_by_driver = pieces.and_then(|pieces| pieces.lends_by_driver(first));
        if memory.is_prepared && lends_by_driver != Some(true) {
            // Under the lock still: it calls no driver, and a reference taken along could be the last.
            return answer(&*memory.object, memory.segment, access, first).map(Fetch::Ready);
        }
        let (object, segment) = (Arc::clone(&memory.object), memory.segment);
        let exporter = self.this.clone();
        Ok(Fetch::CallsDriver(Box::new(move || {
            let supply = answer(&*object, segment, access, first)?;
            if let Some(exporter) = exporter.upgrade() {
                exporter.mark_prepared(record);
            }
            Ok(supply)
        })))
    }
}

/// The answers to importers' requests, not counted yet.
impl Exporter {
    fn let_in(&self, client: &Arc<Client>, newcomer: Newcomer) -> Result<Attached, Refusal> {
        self.find(&self.records(), &newcomer.credential)?;
        let catalog = self.catalog.file(0).ok_or(Refusal::NoRoom)?;
        let locks_ledger = self.defers_reclaim;
        let ledger = Ledger::create(locks_ledger);
        let (ledger, ledger_file) = ledger.map_err(|_| Refusal::NoRoom)?;
        let mut importers = self.importers();
        let owner = importers.next_owner().ok_or(Refusal::NoRoom)?;
        let importer = Importer {
            ledger: Arc::new(ledger),
            client: Arc::downgrade(client),
            uid: newcomer.uid,
            attached: process::time(),
        };
        importers.by_owner.insert(owner, importer);
        importers.latest = owner;
        drop(importers);
        if let Some(owner) = Owner::new(owner) {
            let program = program_text(&newcomer.program);
            self.catalog.set_peer(owner, newcomer.pid, &program);
        }
        Ok(Attached {
            owner,
            files: [catalog, Arc::new(ledger_file)],
            locks_ledger,
        })
    }

    fn chunks_of(&self, owner: u16, credential: &Credential) -> Result<[Arc<OwnedFd>; 2], Refusal> {
        self.find(&self.records(), credential)?;
        let place = place_of(credential.record.index).ok_or(Refusal::Stale)?;
        let catalog = self.catalog.file(place.chunk()).ok_or(Refusal::Stale)?;
        let importers = self.importers();
        let importer = importers.by_owner.get(&owner).ok_or(Refusal::BadRequest)?;
        let ledger = importer.ledger.extend(place.chunk());
        let ledger = ledger.map_err(|_| Refusal::NoRoom)?;
        // It asks once for each chunk, and again if it got no answer.
        let ledger = ledger.ok_or(Refusal::BadRequest)?;
        Ok([catalog, Arc::new(ledger)])
    }

    fn find_memory(
        &self,
        owner: u16,
        credential: &Credential,
        access: Access,
        first: u32,
    ) -> Result<Fetch, Refusal> {
        let records = self.records();
        match self.find(&records, credential)? {
            Exported::Memory(memory) => {
                let fetch = self.fetch(memory, credential.record, access, first)?;
                if let Some(importer) = self.importers().by_owner.get(&owner) {
                    importer.ledger.note_given(memory.segment);
                }
                Ok(fetch)
            }
            Exported::Event(_) => Err(Refusal::BadRequest),
        }
    }

    fn find_arena(&self, credential: &Credential) -> Result<[Arc<OwnedFd>; 2], Refusal> {
        let records = self.records();
        let file = match self.find(&records, credential)? {
            Exported::Memory(_) => return Err(Refusal::BadRequest),
            Exported::Event(event) => {
                match event.as_ref().and_then(|event| event.isolated.as_ref()) {
                    Some(arena) => arena.file(),
                    None => {
                        let common = self.arenas.common(credential.record.index);
                        common.and_then(|(arena, _)| arena.file())
                    }
                }
            }
        };
        let file = file.ok_or(Refusal::Stale)?;
        Ok([file, self.arenas.liveness_file().ok_or(Refusal::Stale)?])
    }

    fn find_mirror(&self, credential: &Credential) -> Result<Fetch, Refusal> {
        let records = self.records();
        match self.find(&records, credential)? {
            Exported::Memory(_) => Err(Refusal::BadRequest),
            Exported::Event(event) => {
                let mirror = event.as_ref().and_then(|event| event.mirror.as_ref());
                let mirror = mirror.ok_or(Refusal::Stale)?;
                self.fetch(mirror, credential.record, Access::ReadWrite, 0)
            }
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

impl Importers {
    /// Returns the next owner number that no attached process has.
    fn next_owner(&self) -> Option<u16> {
        let first = Owner::EXPORTER.get() + 1;
        let after = self.latest.max(Owner::EXPORTER.get()) + 1;
        (after..=Owner::MAX)
            .chain(first..after)
            .find(|owner| !self.by_owner.contains_key(owner))
    }
}

impl Exports for Exporter {
    fn number(&self) -> u32 {
        self.number
    }

    fn descriptors_kept(&self) -> usize {
        usize::from(self.defers_reclaim)
    }

    fn admits(&self, uid: u32) -> bool {
        self.policy.admits(uid)
    }

    fn attach(&self, client: &Arc<Client>, newcomer: Newcomer) -> Result<Attached, Refusal> {
        self.counts.count_attach(self.let_in(client, newcomer))
    }

    fn chunk(&self, owner: u16, credential: &Credential) -> Result<[Arc<OwnedFd>; 2], Refusal> {
        self.counts.count_refusal(self.chunks_of(owner, credential))
    }

    fn memory(
        &self,
        owner: u16,
        credential: &Credential,
        access: Access,
        first: u32,
    ) -> Result<Fetch, Refusal> {
        let found = self.find_memory(owner, credential, access, first);
        match first {
            0 => self.counts.count_open(found),
            // One opening, whose first question was counted.
            _ => self.counts.count_refusal(found),
        }
    }

    fn arena(&self, credential: &Credential) -> Result<[Arc<OwnedFd>; 2], Refusal> {
        self.counts.count_open(self.find_arena(credential))
    }

    fn mirror(&self, credential: &Credential) -> Result<Fetch, Refusal> {
        // Not counted: importers ask for one whether there is one or not.
        self.find_mirror(credential)
    }

    fn describe(&self, most: usize) -> ContextReport {
        let view = |(owner, importer): (&u16, &Importer)| ImporterView {
            owner: *owner,
            ledger: Arc::clone(&importer.ledger),
            uid: importer.uid,
            attached: importer.attached,
        };
        let importers = self.importers().by_owner.iter().map(view).collect();
        let sources = Sources {
            number: self.number,
            label: &self.label,
            counts: &self.counts,
            catalog: &self.catalog,
            arenas: &self.arenas,
            records: &self.records,
            own: self.own_ledger_if_any(),
            importers,
        };
        describe::describe(&sources, most)
    }

    fn detach(&self, owner: u16) {
        /// The liveness of an importer that has hung up: it counts as dead, whatever its lock says.
        struct HungUp(u16);
        impl Liveness for HungUp {
            fn is_dead(&self, owner: Owner) -> bool {
                owner.get() == self.0
            }
        }
        if let Some(owner) = Owner::new(owner) {
            self.catalog.set_ended(owner, process::time());
        }
        // First, before its number can go to another process.
        self.arenas
            .for_each(|arena| arena.fail_orphans(&HungUp(owner)));
        let importer = self.importers().by_owner.remove(&owner);
        if let Some(importer) = &importer {
            importer.ledger.mark_hung_up();
            self.counts.count_end_of(&importer.ledger);
        }
        self.reclaim_in_background();
        if let Some(importer) = importer {
            self.tell_detached(owner, &importer.ledger);
        }
    }

    fn release(self: Arc<Self>) {
        if let Some(last) = Arc::into_inner(self) {
            driver_jobs::drop_later(last);
        }
    }

    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

impl Exporter {
    /// Tells the program of an importer that has hung up.
    fn tell_detached(&self, owner: u16, ledger: &Ledger) {
        let peer = Owner::new(owner).map(|owner| self.catalog.peer(owner));
        let peer = peer.unwrap_or_default();
        let peer = Peer {
            context: self.number,
            owner,
            pid: peer.pid,
            program: &peer.program,
        };
        match ledger.has_left() {
            true => observe::detached(Side::Exporter, &peer),
            false => observe::died(Side::Exporter, &peer),
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // Tells importers that the context was dropped, and its process has not died.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::broker::protocol::{ProgramName, Reply, Request};
    use crate::ipc::broker::{Connection, Deadline, Route};
    use crate::ipc::chunks::LedgerChunk;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    const DEADLINE: Duration = Duration::from_secs(20);

    /// Returns an exporter that answers in a directory of its own.
    fn exporter() -> (Arc<Exporter>, PathBuf) {
        let name = format!("xh-exporter-{}", address::exporter_id().unwrap());
        let directory = std::env::temp_dir().join(name);
        let policy = PeerPolicy::default();
        let exporter =
            Exporter::new(Label::default(), policy, Some(directory.clone()), false).unwrap();
        exporter.go_public().unwrap();
        (exporter, directory)
    }

    /// Makes an event that can be opened with the result.
    fn event(exporter: &Exporter, mirror: Option<Arc<dyn Shared>>) -> Credential {
        let record = exporter.create_event_record(false).unwrap();
        exporter.export_event(record, None, mirror).unwrap()
    }

    /// Attaches as another process does, and opens an event. The connection's timeout is the test's
    /// deadline.
    fn attach(
        exporter: &Exporter,
        directory: &Path,
        credential: Credential,
    ) -> Result<(Connection, Ledger)> {
        let number = address::exporter_id()?;
        let policy = PeerPolicy::default();
        let deadline = Deadline::after(DEADLINE);
        let connection = Connection::open(
            number,
            0,
            Route::Exporter,
            Some(directory),
            &policy,
            &deadline,
        )?;
        let request = Request::Attach {
            context: exporter.number(),
            credential,
            program: ProgramName::default(),
        };
        let (reply, [_, file]) = connection.ask_for_memory(request, None, &deadline)?;
        assert!(matches!(reply, Reply::Attached { .. }));
        let ledger = Ledger::default();
        ledger.add(LedgerChunk::open(&file, 0)?);
        Ok((connection, ledger))
    }

    /// A value whose drop says that it has begun, and then blocks until it may go on.
    struct Blocking(Sender<()>, std::sync::Mutex<Receiver<()>>);

    impl Drop for Blocking {
        fn drop(&mut self) {
            let _ = self.0.send(());
            let _ = self.1.lock().map(|release| release.recv());
        }
    }

    #[test]
    fn a_drop_that_blocks_after_a_hang_up_holds_up_no_other_importer() {
        let (exporter, directory) = exporter();
        let event = event(&exporter, None);
        let Credential { record, .. } = event;
        let (connection, ledger) = attach(&exporter, &directory, event).unwrap();
        let generation = exporter.catalog.generation(record.index).unwrap();
        let count = ledger.count(record.index).unwrap();
        assert!(open_count::try_open(count, generation, record.generation));
        let other = self::event(&exporter, None);
        let (dropping, is_dropping) = channel();
        let (release, released) = channel::<()>();
        let keep = Blocking(dropping, std::sync::Mutex::new(released));
        exporter.retire(record, true, Some(Box::new(keep)));
        assert!(is_dropping.try_recv().is_err(), "an importer has it open");

        connection.hang_up();
        is_dropping.recv_timeout(DEADLINE).expect("it is dropped");
        let attached = attach(&exporter, &directory, other).map(drop);
        drop(release);
        attached.expect("another importer attaches meanwhile");
        drop(exporter);
        let _ = std::fs::remove_dir(&directory);
    }

    #[test]
    fn a_driver_call_for_one_importer_holds_up_no_other() {
        /// An object whose descriptor takes as long as the test likes.
        struct Slow(Sender<()>, std::sync::Mutex<Receiver<()>>);
        impl Shared for Slow {
            fn len(&self) -> usize {
                1
            }

            fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
                let _ = self.0.send(());
                let _ = self.1.lock().map(|release| release.recv());
                Err(Error::Unsupported("only a test".into()))
            }
        }
        let (exporter, _) = exporter();
        let directory = exporter.directory.clone().unwrap();
        let (asked, is_asked) = channel();
        let (release, released) = channel::<()>();
        let slow = Slow(asked, std::sync::Mutex::new(released));
        let slow = event(&exporter, Some(Arc::new(slow)));
        std::thread::scope(|scope| {
            let (first, _ledger) = attach(&exporter, &directory, slow).unwrap();
            let asking = scope.spawn(move || {
                let deadline = Deadline::after(DEADLINE);
                let ask = || first.ask::<1>(Request::Mirror(slow), &deadline).is_err();
                // Questions are taken again after the answer.
                (ask(), ask())
            });
            is_asked
                .recv_timeout(DEADLINE)
                .expect("the driver is asked");
            let attached = attach(&exporter, &directory, slow).map(drop);
            drop(release);
            attached.expect("another importer attaches meanwhile");
            let answers = asking.join().unwrap();
            assert_eq!(answers, (true, true), "there is no such event");
            // Both answers came long before the deadline, so they are refusals.
            assert!(is_asked.try_recv().is_ok(), "the driver was asked again");
        });
    }
}
