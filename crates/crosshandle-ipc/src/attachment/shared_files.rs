//! The files that an exporter shares with its importers: event arenas, and chunks of catalog and
//! ledger.

use super::{Attachment, Location};
use crate::broker::OpenDeadline;
use crate::broker::protocol::{Reply, Request};
use crate::chunks::{CatalogChunk, LedgerChunk, capacity, place_of};
use crate::event_arena::EventArena;
use crate::record::Credential;
use crosshandle_os::socket::interrupt;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::TurnGuard;
use std::sync::Arc;

impl Attachment {
    /// Returns the arena and the slot index of an event that lies in an arena of the context.
    #[inline]
    pub fn event(
        &self,
        credential: &Credential,
        deadline: &OpenDeadline,
    ) -> Result<(&EventArena, usize)> {
        match self.arenas().common(credential.record.index) {
            Some(found) => Ok(found),
            None => self.fetch_common(credential, deadline),
        }
    }

    #[cold]
    fn fetch_common(
        &self,
        credential: &Credential,
        deadline: &OpenDeadline,
    ) -> Result<(&EventArena, usize)> {
        let _turn = self.take_turn(deadline)?;
        let (arenas, record) = (self.arenas(), credential.record.index);
        if arenas.common(record).is_none() {
            let place = place_of(record).ok_or(Error::Stale)?;
            arenas.add_common(
                record,
                self.fetch_arena(credential, capacity(place.chunk()), deadline)?,
            );
        }
        arenas.common(record).ok_or(Error::Stale)
    }

    /// Returns the arena that an event has to itself.
    pub fn isolated_event(
        &self,
        credential: &Credential,
        deadline: &OpenDeadline,
    ) -> Result<Arc<EventArena>> {
        let (arenas, event) = (self.arenas(), credential.record);
        if let Some(found) = arenas.isolated(event) {
            return Ok(found);
        }
        let _turn = self.take_turn(deadline)?;
        if let Some(found) = arenas.isolated(event) {
            return Ok(found);
        }
        let arena = Arc::new(self.fetch_arena(credential, 1, deadline)?);
        arenas.add_isolated(event, &arena);
        Ok(arena)
    }

    /// Waits until no other thread fetches shared files.
    fn take_turn(&self, deadline: &OpenDeadline) -> Result<TurnGuard<'_>> {
        const DOING: &str = "waiting for an earlier request to the exporter";
        let end = interrupt::deadline(deadline.get());
        loop {
            if let Some(turn) = self.fetching.take(interrupt::step(end)) {
                return Ok(turn);
            }
            if end.is_over() {
                return Err(Error::TimedOut(DOING));
            }
            interrupt::check().map_err(Error::os(DOING))?;
        }
    }

    fn fetch_arena(
        &self,
        credential: &Credential,
        slots: usize,
        deadline: &OpenDeadline,
    ) -> Result<EventArena> {
        let Location::Remote { connection, .. } = &self.location else {
            // The exporter's own arenas all exist in this process.
            return Err(Error::Stale);
        };
        let request = Request::Arena(*credential);
        let (reply, [file, liveness]) = connection.ask_for_memory(request, None, deadline)?;
        if reply != Reply::Sent {
            return Err(Error::Protocol("it does not match the request"));
        }
        let arena = EventArena::open(&file, slots)?;
        self.arenas().show_liveness_in(liveness, self.owner)?;
        Ok(arena)
    }

    /// Fetches the catalog and ledger chunks of a record, unless this process has them.
    #[cold]
    pub fn fetch_chunk(&self, credential: &Credential, deadline: &OpenDeadline) -> Result<()> {
        let record = credential.record.index;
        let place = place_of(record).ok_or(Error::Stale)?;
        let _turn = self.take_turn(deadline)?;
        if self.catalog.generation(record).is_some() && self.ledger.count(record).is_some() {
            return Ok(());
        }
        let connection = match &self.location {
            Location::Local(exporter) => {
                // The catalog is complete in this process.
                let exporter = exporter.upgrade().ok_or(Error::Stale)?;
                return match self.catalog.generation(record) {
                    Some(_) => exporter.extend_own_ledger(record),
                    None => Err(Error::Stale),
                };
            }
            Location::Remote { connection, .. } => connection,
        };
        let request = Request::Chunk(*credential);
        let (reply, [catalog, ledger]) = connection.ask_for_memory(request, None, deadline)?;
        if reply != Reply::Sent {
            return Err(Error::Protocol("it does not match the request"));
        }
        let catalog = CatalogChunk::open(&catalog, place.chunk())?;
        self.ledger.add(LedgerChunk::open(&ledger, place.chunk())?);
        self.catalog.add(catalog);
        Ok(())
    }
}
