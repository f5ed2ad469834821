//! The exporting context's half of sharing.

use super::arena::Arena;
use super::holding;
use super::ledger::Ledger;
use super::lingering::{self, Holders};
use super::native_mirror::MIRROR_SEGMENT;
use super::record::{Export, KeepAlive, Record, RecordCell, Records, Shared};
use crate::error::{Error, Result};
use crate::event_protocol::{Liveness, Owner};
use crate::handle::Secret;
use crate::ipc::broker;
use crate::ipc::broker::protocol::Refusal;
use crate::ipc::broker::{Broker, Client, Exports, Fetched, PeerPolicy, address};
use crate::os::process;
use crate::types::Access;
use std::any::Any;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Retired objects that are looked at when one more is retired or needed: several, so that they
/// are let go of faster than they are added.
const LOOKS: usize = 32;

struct Importer {
    ledger: Arc<Ledger>,
    client: Weak<Client>,
}

/// A context's exports.
pub(crate) struct Exporter {
    arena: Arc<Arena>,
    secret: Secret,
    policy: PeerPolicy,
    directory: Option<PathBuf>,
    broker: OnceLock<Arc<Broker>>,
    records: Mutex<Records>,
    importers: Mutex<HashMap<u16, Importer>>,
    /// Opens by this process itself.
    own_ledger: OnceLock<Arc<Ledger>>,
    /// Whether freed memory comes back by the driver while importers have it open.
    lingers: bool,
    this: Weak<Exporter>,
}

impl Exporter {
    /// `lingers`: memory that importers have open is kept beyond the context's end.
    pub(crate) fn new(
        policy: PeerPolicy,
        directory: Option<PathBuf>,
        lingers: bool,
    ) -> Result<Arc<Self>> {
        lingering::sweep(usize::MAX);
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
            lingers,
            this: this.clone(),
        }))
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    pub(crate) fn secret(&self) -> Secret {
        self.secret
    }

    /// Answers importers from now on, if it doesn't yet.
    pub(crate) fn go_public(&self) -> Result<()> {
        if self.broker.get().is_some() {
            return Ok(());
        }
        self.arena.lock_liveness(Owner::EXPORTER)?;
        let directories = address::directories(self.directory.as_deref());
        let broker = Broker::listen(&directories[0], &self.policy)?;
        let this: Weak<dyn Exports> = self.this.clone();
        broker::publish(self.secret, this);
        // A thread that was faster has done the same; the broker is one and the same.
        let _ = self.broker.set(broker);
        Ok(())
    }

    /// A record for a new object.
    pub(crate) fn begin(&self, is_event: bool) -> Result<Record> {
        let index = self.records_with_room().take_index()?;
        let generation = self.arena.begin(index, is_event);
        Ok(Record { index, generation })
    }

    /// A record that lets importers fetch memory.
    fn export(&self, export: Export) -> Result<Record> {
        let mut records = self.records_with_room();
        let index = records.take_index()?;
        records.set_export(index, export);
        let generation = self.arena.begin(index, false);
        Ok(Record { index, generation })
    }

    /// Lets importers fetch what rides along with an event.
    pub(super) fn offer(&self, record: Record, memory: Arc<dyn Shared>) {
        let export = Export {
            memory,
            segment: MIRROR_SEGMENT,
            access: Access::ReadWrite,
        };
        self.records().set_export(record.index, export);
    }

    /// The record in `place`; made now if there is none. `segment` is the memory's number.
    pub(crate) fn export_at(
        &self,
        place: &RecordCell,
        memory: &Arc<dyn Shared>,
        segment: u32,
        access: Access,
    ) -> Result<Record> {
        self.go_public()?;
        let record = self.export(Export {
            memory: Arc::clone(memory),
            segment,
            access,
        })?;
        let kept = place.keep(record);
        if kept != record {
            // Another thread was faster.
            self.retire(record, false, None);
        }
        Ok(kept)
    }

    /// Frees an object. `keep` is dropped once no importer has it open any more. An object of
    /// which no handle was ever made (`!exported`) is free at once.
    pub(crate) fn retire(&self, record: Record, exported: bool, keep: KeepAlive) {
        if process::is_forked() {
            return;
        }
        holding::retire(self.arena.generation(record.index));
        let held = exported && self.is_held(record.index);
        let mut records = self.records();
        let export = records
            .exports
            .get_mut(record.index as usize)
            .and_then(Option::take);
        if held && !records.is_closed {
            records.retired.push_back((record.index, keep));
        } else if held && self.lingers && keep.is_some() {
            drop(records);
            lingering::add(record.index, &Arc::new(self.holders()), keep);
        } else {
            self.arena.end(record.index);
            records.free.push(record.index);
            drop(records);
            drop(keep);
        }
        drop(export);
    }

    /// Lets go of what importers have closed in the meantime. Looks at a few at a time, in turn,
    /// so that its cost doesn't grow with what they hold.
    pub(crate) fn reclaim(&self) {
        self.reclaim_among(LOOKS);
    }

    /// Lets go of all that importers have closed.
    pub(crate) fn reclaim_all(&self) {
        self.reclaim_among(usize::MAX);
    }

    /// The same for at most so many retired objects.
    fn reclaim_among(&self, most: usize) {
        if process::is_forked() {
            return;
        }
        lingering::sweep(most);
        let mut freed = Vec::new();
        {
            let mut records = self.records();
            for _ in 0..records.retired.len().min(most) {
                let Some((index, keep)) = records.retired.pop_front() else {
                    break;
                };
                if self.is_held(index) {
                    records.retired.push_back((index, keep));
                } else {
                    self.arena.end(index);
                    records.free.push(index);
                    freed.push(keep);
                }
            }
        }
        // Without the lock: dropping may retire more.
        drop(freed);
    }

    /// Keeps nothing for importers from now on: its context allocates no more.
    pub(crate) fn close(&self) {
        let retired = {
            let mut records = self.records();
            records.is_closed = true;
            std::mem::take(&mut records.retired)
        };
        if !self.lingers || retired.is_empty() {
            return;
        }
        let holders = Arc::new(self.holders());
        for (record, keep) in retired.into_iter().filter(|(_, keep)| keep.is_some()) {
            lingering::add(record, &holders, keep);
        }
        lingering::sweep(LOOKS);
    }

    fn holders(&self) -> Holders {
        let importers = self.importers();
        Holders {
            arena: Arc::clone(&self.arena),
            own: self.own_ledger.get().cloned(),
            importers: importers
                .iter()
                .map(|(owner, importer)| (*owner, Arc::clone(&importer.ledger)))
                .collect(),
        }
    }

    fn is_held(&self, record: u32) -> bool {
        let own = self.own_ledger.get();
        own.is_some_and(|ledger| holding::is_held(ledger.count(record)))
            || self
                .importers()
                .values()
                .any(|importer| holding::is_held(importer.ledger.count(record)))
    }

    /// The ledger for opens by this process itself.
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

    /// The records, after a search for what can be let go of if they are full.
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
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn importers(&self) -> MutexGuard<'_, HashMap<u16, Importer>> {
        self.importers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
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
                // One that hung up may live on, and hold its place.
                !importers.contains_key(owner)
                    && Owner::new(*owner).is_some_and(|owner| !self.arena.is_alive(owner))
            })
            .ok_or(Refusal::NoRoom)?;
        let client = Arc::downgrade(&client);
        let ledger = Arc::new(ledger);
        importers.insert(owner, Importer { ledger, client });
        Ok((owner, Arc::clone(self.arena.file())))
    }

    fn fetch(&self, record: u32, generation: u32, access: Access) -> Result<Fetched, Refusal> {
        let (memory, segment) = {
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
            (Arc::clone(&export.memory), export.segment)
        };
        Ok(Fetched {
            file: memory.descriptor(access).map_err(|error| match error {
                // An event with which none of the driver's rides along.
                Error::Unsupported(_) => Refusal::Stale,
                _ => Refusal::NoRoom,
            })?,
            segment,
            len: memory.len() as u64,
            note: memory.note(),
        })
    }

    fn detach(&self, owner: u16) {
        /// The importer hung up, so nothing of its is under way, whatever its lock says.
        struct Gone(u16);
        impl Liveness for Gone {
            fn is_dead(&self, owner: Owner) -> bool {
                owner.get() == self.0
            }
        }
        // Buried before its number can go to somebody else.
        self.arena.fail_orphans(&Gone(owner));
        if let Some(importer) = self.importers().remove(&owner) {
            importer.ledger.end();
        }
        self.reclaim_all();
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
