//! Exporters: the exporting context's half of sharing, which answers importers and takes back what
//! a dead one had open.

use super::arena::Arena;
use super::broker::protocol::Refusal;
use super::broker::{self, Broker, Client, Exports, Fetch, Fetched, PeerPolicy, address};
use super::deferred_reclaim::{self, Openers};
use super::ledger::Ledger;
use super::open_count;
use super::records::{Export, KeepAlive, MIRROR_SEGMENT, Record, RecordCell, Records, Shared};
use super::tuning::RECLAIM_LOOKS;
use crate::error::{Error, Result};
use crate::event_protocol::{Liveness, Owner};
use crate::handle::Secret;
use crate::os::process;
use crate::sync::{HashMap, Mutex, MutexGuard};
use crate::threads::driver_jobs;
use crate::types::Access;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

/// A process that is attached.
struct Importer {
    ledger: Arc<Ledger>,
    client: Weak<Client>,
}

/// A context's exports. Lock order: records, then importers.
pub(crate) struct Exporter {
    arena: Arc<Arena>,
    secret: Secret,
    policy: PeerPolicy,
    directory: Option<PathBuf>,
    broker: OnceLock<Arc<Broker>>,
    records: Mutex<Records>,
    /// Attached processes by owner number.
    importers: Mutex<HashMap<u16, Importer>>,
    /// Counts opens by this process itself.
    own_ledger: OnceLock<Arc<Ledger>>,
    /// Whether memory that importers have open is kept beyond the context's end, because the driver
    /// would give it to others.
    defers_reclaim: bool,
    /// A reference to this exporter, to hand out.
    this: Weak<Exporter>,
}

impl Exporter {
    /// Makes a context's exports, which answer no importer yet. `defers_reclaim`: memory that
    /// importers have open is kept beyond the context's end.
    pub(crate) fn new(
        policy: PeerPolicy,
        directory: Option<PathBuf>,
        defers_reclaim: bool,
    ) -> Result<Arc<Self>> {
        drop(deferred_reclaim::take_closed(usize::MAX));
        let mut secret = [0; 16];
        process::random(&mut secret).map_err(Error::os("reading random bytes"))?;
        // A handle with an all-zero secret is refused, so this one never occurs.
        secret[0] |= 1;
        let arena = Arena::create()?;
        Ok(Arc::new_cyclic(|this| Self {
            arena: Arc::new(arena),
            secret: Secret::from_bytes(secret),
            policy,
            directory,
            broker: OnceLock::new(),
            records: Mutex::default(),
            importers: Mutex::default(),
            own_ledger: OnceLock::new(),
            defers_reclaim,
            this: this.clone(),
        }))
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn secret(&self) -> Secret {
        self.secret
    }

    /// Starts to answer importers.
    pub(crate) fn go_public(&self) -> Result<()> {
        if self.broker.get().is_some() {
            return Ok(());
        }
        self.arena.lock_liveness(Owner::EXPORTER)?;
        let directories = address::directories(self.directory.as_deref());
        let broker = Broker::listen(&directories[0], &self.policy)?;
        let this: Weak<dyn Exports> = self.this.clone();
        broker::publish(self.secret, self.policy.clone(), this);
        // A thread that was faster has set the same broker.
        let _ = self.broker.set(broker);
        Ok(())
    }

    /// Makes a record for a new event.
    pub(super) fn create_event_record(&self) -> Result<Record> {
        let index = self.records_with_room().take_index()?;
        let generation = self.arena.start_use(index, true);
        Ok(Record { index, generation })
    }

    /// Makes a record that lets importers fetch memory.
    fn export(&self, export: Export) -> Result<Record> {
        let mut records = self.records_with_room();
        let index = records.take_index()?;
        records.set_export(index, export);
        let generation = self.arena.start_use(index, false);
        Ok(Record { index, generation })
    }

    /// Remembers that a record's object calls no driver any more when an importer fetches it.
    fn mark_prepared(&self, record: u32, generation: u32) {
        let mut records = self.records();
        let is_current = self.arena.generation(record).load(Ordering::SeqCst) == generation;
        let export = records.exports.get_mut(record as usize);
        if let Some(export) = export.and_then(Option::as_mut).filter(|_| is_current) {
            export.is_prepared = true;
        }
    }

    /// Lets importers fetch an event's native mirror.
    pub(super) fn offer_mirror(&self, record: Record, mirror: Arc<dyn Shared>) {
        let export = Export {
            object: mirror,
            segment: MIRROR_SEGMENT,
            access: Access::ReadWrite,
            is_prepared: false,
        };
        self.records().set_export(record.index, export);
    }

    /// Returns the record in `place`, made now if there is none. The caller has prepared the memory;
    /// `segment` is its number.
    pub(crate) fn export_at(
        &self,
        place: &RecordCell,
        memory: &Arc<dyn Shared>,
        segment: u32,
        access: Access,
    ) -> Result<Record> {
        self.go_public()?;
        let record = self.export(Export {
            object: Arc::clone(memory),
            segment,
            access,
            is_prepared: true,
        })?;
        let set = place.get_or_set(record);
        if set != record {
            // Another thread was faster.
            self.retire(record, false, None);
        }
        Ok(set)
    }

    /// Frees an object: its handles are stale from now on, and `keep` is dropped once no importer has
    /// it open any more. The record of an object of which no handle was ever made (`!exported`) is
    /// free at once.
    pub(crate) fn retire(&self, record: Record, exported: bool, keep: KeepAlive) {
        if process::is_forked() {
            return;
        }
        open_count::end_generation(self.arena.generation(record.index));
        let is_open = exported && self.is_open(record.index);
        let mut records = self.records();
        let export = records.exports.get_mut(record.index as usize);
        let export = export.and_then(Option::take);
        let mut keep = Some(keep);
        let mut is_deferred = false;
        if !is_open {
            self.arena.end_use(record.index);
            records.free.push(record.index);
        } else if !records.is_closed {
            records
                .retired
                .extend(keep.take().map(|keep| (record.index, keep)));
        } else {
            is_deferred = self.defers_reclaim;
        }
        drop(records);
        // Without the lock: dropping either may call a driver, or retire more.
        if let Some(keep) = keep.take_if(|keep| is_deferred && keep.is_some()) {
            deferred_reclaim::add(record.index, &Arc::new(self.openers()), keep);
        }
        drop((keep, export));
    }

    /// Drops the retired objects that importers have closed in the meantime. Looks at a few records
    /// at a time, in turn, so that its cost does not grow with what importers have open.
    pub(crate) fn reclaim(&self) {
        drop(self.take_closed(RECLAIM_LOOKS));
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
        let mut records = self.records();
        for _ in 0..records.retired.len().min(most) {
            let Some((index, keep)) = records.retired.pop_front() else {
                break;
            };
            if self.is_open(index) {
                records.retired.push_back((index, keep));
            } else {
                self.arena.end_use(index);
                records.free.push(index);
                closed.kept.push(keep);
            }
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
        for (record, keep) in retired.into_iter().filter(|(_, keep)| keep.is_some()) {
            deferred_reclaim::add(record, &openers, keep);
        }
        drop(deferred_reclaim::take_closed(RECLAIM_LOOKS));
    }

    /// Returns the open counts as they are now.
    fn openers(&self) -> Openers {
        let importers = self.importers();
        Openers {
            arena: Arc::clone(&self.arena),
            own: self.own_ledger.get().cloned(),
            importers: importers
                .iter()
                .map(|(owner, importer)| (*owner, Arc::clone(&importer.ledger)))
                .collect(),
        }
    }

    /// Returns whether this process or an attached one has a record open.
    fn is_open(&self, record: u32) -> bool {
        let is_open = |ledger: &Ledger| open_count::is_open(ledger.count(record));
        self.own_ledger.get().is_some_and(|ledger| is_open(ledger))
            || self
                .importers()
                .values()
                .any(|importer| is_open(&importer.ledger))
    }

    /// Returns the ledger that counts opens by this process itself.
    pub(super) fn own_ledger(&self) -> Result<Arc<Ledger>> {
        if let Some(ledger) = self.own_ledger.get() {
            return Ok(Arc::clone(ledger));
        }
        let (ledger, _) = Ledger::create()?;
        Ok(Arc::clone(self.own_ledger.get_or_init(|| Arc::new(ledger))))
    }

    pub(super) fn shared_arena(&self) -> Arc<Arena> {
        Arc::clone(&self.arena)
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

    fn importers(&self) -> MutexGuard<'_, HashMap<u16, Importer>> {
        self.importers.lock()
    }
}

/// Objects that importers have closed, to be dropped without a lock.
#[derive(Default)]
struct Closed {
    kept: Vec<KeepAlive>,
    _deferred: Vec<deferred_reclaim::Deferred>,
}

impl Closed {
    fn is_empty(&self) -> bool {
        self.kept.iter().all(Option::is_none) && self._deferred.is_empty()
    }
}

/// Answers an importer's fetch of an object. Calls a driver unless the object is prepared.
fn answer(object: &dyn Shared, segment: u32, access: Access) -> Result<Fetched, Refusal> {
    let file = object.descriptor(access).map_err(|error| match error {
        // An event without a native mirror.
        Error::Unsupported(_) => Refusal::Stale,
        _ => Refusal::NoRoom,
    })?;
    Ok(Fetched {
        file,
        segment,
        len: object.len() as u64,
        note: object.note(),
    })
}

impl Liveness for Exporter {
    fn is_dead(&self, owner: Owner) -> bool {
        owner != Owner::EXPORTER
            && (!self.importers().contains_key(&owner.get()) || !self.arena.is_alive(owner))
    }
}

impl Exports for Exporter {
    fn admits(&self, uid: u32) -> bool {
        self.policy.admits(uid)
    }

    fn attach(&self, client: Arc<Client>, ledger: OwnedFd) -> Result<(u16, Arc<OwnedFd>), Refusal> {
        let ledger = Ledger::open(&ledger).map_err(|error| match error {
            Error::Protocol(_) => Refusal::BadRequest,
            _ => Refusal::NoRoom,
        })?;
        let mut importers = self.importers();
        let owner = (Owner::EXPORTER.get() + 1..=Owner::MAX)
            .find(|owner| {
                // A process that hung up may live on, and hold its lock.
                !importers.contains_key(owner)
                    && Owner::new(*owner).is_some_and(|owner| !self.arena.is_alive(owner))
            })
            .ok_or(Refusal::NoRoom)?;
        let client = Arc::downgrade(&client);
        let ledger = Arc::new(ledger);
        importers.insert(owner, Importer { ledger, client });
        Ok((owner, Arc::clone(self.arena.file())))
    }

    fn fetch(&self, record: u32, generation: u32, access: Access) -> Result<Fetch, Refusal> {
        let records = self.records();
        let export = records.exports.get(record as usize);
        let export = export.and_then(Option::as_ref).ok_or(Refusal::Stale)?;
        // Under the lock, so that the export found is the one of this generation.
        let current = self.arena.generation(record).load(Ordering::SeqCst);
        if current != generation {
            return Err(Refusal::Stale);
        }
        if access == Access::ReadWrite && export.access == Access::ReadOnly {
            return Err(Refusal::ReadOnly);
        }
        if export.is_prepared {
            // Under the lock still: it calls no driver, and a reference taken along could be the last.
            return answer(&*export.object, export.segment, access).map(Fetch::Ready);
        }
        let (object, segment) = (Arc::clone(&export.object), export.segment);
        let exporter = self.this.clone();
        Ok(Fetch::CallsDriver(Box::new(move || {
            let fetched = answer(&*object, segment, access)?;
            if let Some(exporter) = exporter.upgrade() {
                exporter.mark_prepared(record, generation);
            }
            Ok(fetched)
        })))
    }

    fn detach(&self, owner: u16) {
        /// The liveness of an importer that has hung up: it counts as dead, whatever its lock says.
        struct HungUp(u16);
        impl Liveness for HungUp {
            fn is_dead(&self, owner: Owner) -> bool {
                owner.get() == self.0
            }
        }
        // First, before its number can go to another process.
        self.arena.fail_orphans(&HungUp(owner));
        if let Some(importer) = self.importers().remove(&owner) {
            importer.ledger.mark_hung_up();
        }
        let closed = self.take_closed(usize::MAX);
        if !closed.is_empty() {
            driver_jobs::drop_later(closed);
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

impl Drop for Exporter {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        if self.broker.get().is_some() {
            broker::withdraw(self.secret);
        }
        let clients: Vec<_> = self
            .importers()
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
    use crate::ipc::broker::Connection;
    use crate::ipc::broker::protocol::{Reply, Request};
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    const DEADLINE: Duration = Duration::from_secs(20);

    /// Returns an exporter that answers in a directory of its own.
    fn exporter() -> (Arc<Exporter>, PathBuf) {
        let name = format!("xh-exporter-{}", address::exporter_id().unwrap());
        let directory = std::env::temp_dir().join(name);
        let policy = PeerPolicy::default();
        let exporter = Exporter::new(policy, Some(directory.clone()), false).unwrap();
        exporter.go_public().unwrap();
        (exporter, directory)
    }

    /// Attaches as another process does. The connection's timeout is the test's deadline.
    fn attach(exporter: &Exporter, directory: &Path) -> Result<(Connection, Ledger)> {
        let number = address::exporter_id()?;
        let policy = PeerPolicy::default();
        let connection = Connection::open(number, 0, Some(directory), &policy, DEADLINE)?;
        let (ledger, file) = Ledger::create()?;
        let request = Request::Attach(exporter.secret());
        let (reply, _) = connection.ask(request, Some(file.as_fd()))?;
        assert!(matches!(reply, Reply::Attached { .. }));
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
        let (connection, ledger) = attach(&exporter, &directory).unwrap();
        let record = exporter.create_event_record().unwrap();
        let generation = exporter.arena().generation(record.index);
        let count = ledger.count(record.index);
        assert!(open_count::try_open(count, generation, record.generation));
        let (dropping, is_dropping) = channel();
        let (release, released) = channel::<()>();
        let keep = Blocking(dropping, std::sync::Mutex::new(released));
        exporter.retire(record, true, Some(Box::new(keep)));
        assert!(is_dropping.try_recv().is_err(), "an importer has it open");

        connection.hang_up();
        is_dropping.recv_timeout(DEADLINE).expect("it is dropped");
        let attached = attach(&exporter, &directory).map(drop);
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
        let record = exporter.create_event_record().unwrap();
        let slow = Slow(asked, std::sync::Mutex::new(released));
        exporter.offer_mirror(record, Arc::new(slow));
        std::thread::scope(|scope| {
            let (first, _ledger) = attach(&exporter, &directory).unwrap();
            let asking = scope.spawn(move || {
                let request = Request::Fetch {
                    record: record.index,
                    generation: record.generation,
                    access: Access::ReadWrite,
                };
                let answer = first.ask(request, None);
                // Questions are taken again after the answer.
                (answer.is_err(), first.ask(request, None).is_err())
            });
            is_asked
                .recv_timeout(DEADLINE)
                .expect("the driver is asked");
            let attached = attach(&exporter, &directory).map(drop);
            drop(release);
            attached.expect("another importer attaches meanwhile");
            let answers = asking.join().unwrap();
            assert_eq!(answers, (true, true), "there is no such event");
            // Both answers came long before the deadline, so they are refusals.
            assert!(is_asked.try_recv().is_ok(), "the driver was asked again");
        });
    }
}
