//! The exporter's replies to its importers.

use super::Exporter;
use super::importers::Importer;
use crate::broker::protocol::{PieceSpan, Refusal, program_text};
use crate::broker::{
    Attached, Client, Exports, Fetch, Fetched, FetchedHandle, FetchedPieces, Newcomer, Supply,
};
use crate::chunks::{Ledger, place_of};
use crate::describe::{self, ImporterView, Sources};
use crate::event_arena::ArenaKey;
use crate::record::{Credential, Record};
use crate::records::{BackendObject, Exported, ExportedMemory, MIRROR_SEGMENT, Records};
use crosshandle_events::{Liveness, Owner};
use crosshandle_os::process;
use crosshandle_os::threads::driver_jobs;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::{self, Peer, Side};
use crosshandle_types::report::ContextReport;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Makes the delivery of an object, or of some of its pieces, for an importer. Calls a driver
/// unless the object is prepared.
fn answer(
    object: &dyn BackendObject,
    segment: u32,
    access: Access,
    span: PieceSpan,
) -> Result<Supply, Refusal> {
    let refusal = |error| match error {
        // This is an event without a native mirror.
        Error::Unsupported(_) if segment == MIRROR_SEGMENT => Refusal::Stale,
        Error::Unsupported(_) => Refusal::NoReadOnly,
        _ => Refusal::NoRoom,
    };
    let len = object.len() as u64;
    if let Some(pieces) = object.pieces() {
        let batch = pieces.lend(span, access).ok_or(Refusal::BadRequest)?;
        return Ok(Supply::Pieces(FetchedPieces {
            segment,
            len,
            batch: batch.map_err(refusal)?,
        }));
    }
    if span.first != 0 {
        return Err(Refusal::BadRequest);
    }
    if let Some(handle) = object.driver_handle() {
        return Ok(Supply::DriverHandle(FetchedHandle {
            segment,
            len,
            handle,
        }));
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
        // The lock on the records is held, so that the export belongs to this generation.
        if !self.is_current(credential.record) {
            return Err(Refusal::Stale);
        }
        if let Exported::Memory(memory) = &export.object
            && memory.is_moved
        {
            // This comes before the key check, because the holder may have changed the key.
            return Err(Refusal::Moved);
        }
        if export.key != credential.key {
            return Err(Refusal::WrongKey);
        }
        Ok(&export.object)
    }

    fn fetch(
        &self,
        memory: &ExportedMemory,
        record: Record,
        access: Access,
        span: PieceSpan,
    ) -> Result<Fetch, Refusal> {
        if access == Access::ReadWrite && memory.access == Access::ReadOnly {
            return Err(Refusal::ReadOnly);
        }
        let pieces = memory.object.pieces();
        let lends_by_driver = pieces.and_then(|pieces| pieces.lends_by_driver(span));
        if memory.is_prepared && lends_by_driver != Some(true) {
            // The lock is still held. This calls no driver, and a reference taken along could be
            // the last one.
            return answer(&*memory.object, memory.segment, access, span).map(Fetch::Ready);
        }
        let (object, segment) = (Arc::clone(&memory.object), memory.segment);
        let exporter = self.this.clone();
        let brings_many = pieces.is_some();
        let call = Box::new(move || {
            let supply = answer(&*object, segment, access, span)?;
            if let Some(exporter) = exporter.upgrade() {
                exporter.mark_prepared(record);
            }
            Ok(supply)
        });
        Ok(Fetch::CallsDriver { brings_many, call })
    }
}

/// The replies to importers' requests, before they are counted.
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
        // An importer requests each chunk once, and again only if it got no reply.
        let ledger = ledger.ok_or(Refusal::BadRequest)?;
        Ok([catalog, Arc::new(ledger)])
    }

    fn find_memory(
        &self,
        owner: u16,
        credential: &Credential,
        access: Access,
        span: PieceSpan,
    ) -> Result<Fetch, Refusal> {
        let records = self.records();
        match self.find(&records, credential)? {
            Exported::Memory(memory) => {
                let fetch = self.fetch(memory, credential.record, access, span)?;
                if let Some(importer) = self.importers().by_owner.get(&owner) {
                    let retired = || {
                        let retired = records.retired.iter().filter_map(|one| one.segment);
                        (!records.is_closed).then(|| retired.collect())
                    };
                    (importer.ledger).note_given(memory.segment, &memory.object, retired);
                }
                Ok(fetch)
            }
            Exported::Event(_) => Err(Refusal::BadRequest),
        }
    }

    fn find_arena(
        &self,
        owner: u16,
        credential: &Credential,
    ) -> Result<[Arc<OwnedFd>; 2], Refusal> {
        let index = credential.record.index;
        let records = self.records();
        let (key, file) = match self.find(&records, credential)? {
            Exported::Memory(_) => return Err(Refusal::BadRequest),
            Exported::Event(event) => {
                match event.as_ref().and_then(|event| event.isolated.as_ref()) {
                    Some(arena) => (ArenaKey::isolated(index), arena.file()),
                    None => {
                        let common = self.arenas.common(index);
                        let file = common.and_then(|(arena, _)| arena.file());
                        (ArenaKey::common(index), file)
                    }
                }
            }
        };
        let file = file.ok_or(Refusal::Stale)?;
        let liveness = self.arenas.liveness_file().ok_or(Refusal::Stale)?;
        if let Some(importer) = self.importers().by_owner.get(&owner) {
            importer.ledger.note_given_arena(key);
        }
        Ok([file, liveness])
    }

    fn find_mirror(&self, credential: &Credential) -> Result<Fetch, Refusal> {
        let records = self.records();
        match self.find(&records, credential)? {
            Exported::Memory(_) => Err(Refusal::BadRequest),
            Exported::Event(event) => {
                let mirror = event.as_ref().and_then(|event| event.mirror.as_ref());
                let mirror = mirror.ok_or(Refusal::Stale)?;
                self.fetch(mirror, credential.record, Access::ReadWrite, PieceSpan::ALL)
            }
        }
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
        span: PieceSpan,
    ) -> Result<Fetch, Refusal> {
        let found = self.find_memory(owner, credential, access, span);
        match span.first {
            0 => self.counts.count_open(found),
            // This is the same open, whose first request was counted.
            _ => self.counts.count_refusal(found),
        }
    }

    fn arena(&self, owner: u16, credential: &Credential) -> Result<[Arc<OwnedFd>; 2], Refusal> {
        self.counts.count_open(self.find_arena(owner, credential))
    }

    fn mirror(&self, credential: &Credential) -> Result<Fetch, Refusal> {
        // This is not counted, because importers request a mirror without knowing whether it
        // exists.
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
        /// The liveness of an importer that has hung up, which is treated as dead whatever its lock
        /// says.
        struct HungUp(u16);
        impl Liveness for HungUp {
            fn is_dead(&self, owner: Owner) -> bool {
                owner.get() == self.0
            }
        }
        if let Some(owner) = Owner::new(owner) {
            self.catalog.set_ended(owner, process::time());
        }
        // This comes before another process can get the importer's owner number.
        self.arenas
            .for_each(|arena| arena.fail_orphans(&HungUp(owner)));
        let ledger = {
            let importers = self.importers();
            let importer = importers.by_owner.get(&owner);
            importer.map(|importer| Arc::clone(&importer.ledger))
        };
        let bereaved = match (Owner::new(owner), &ledger) {
            (Some(owner), Some(ledger)) => self.note_death(owner, ledger),
            _ => Vec::new(),
        };
        let importer = self.importers().by_owner.remove(&owner);
        if let Some(importer) = &importer {
            importer.ledger.mark_hung_up();
            self.counts.count_end_of(&importer.ledger);
        }
        self.tell_bereaved(&bereaved);
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
    /// Reports to the program that an importer has hung up.
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
