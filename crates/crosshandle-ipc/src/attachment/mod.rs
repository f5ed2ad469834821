//! Attachments are the importing process's half of sharing. An attachment fetches objects from an
//! exporter and notices its death.

mod connect;
mod context_id;
mod expected_pieces;
mod fetch;
mod shared_files;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use context_id::ContextId;
pub use fetch::{Delivery, First, HandleAhead};

use super::broker::{Connection, OpenDeadline, PeerPolicy};
use super::chunks::{Catalog, Ledger};
use super::event_arena::{EventArenas, PeerWatches};
use super::exporter::Exporter;
use super::record::{Credential, Record};
use crosshandle_events::{Liveness, Owner, open_count};
use crosshandle_os::fork::Birth;
use crosshandle_os::process;
use crosshandle_os::threads::exchange::Watch;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::{self, Peer, Side};
use crosshandle_types::sync::Turn;
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Where an importer looks for exporters, which users it admits, and how long it waits for a reply.
#[derive(Clone, Debug)]
pub struct Origin {
    pub directory: Option<PathBuf>,
    pub policy: PeerPolicy,
    pub timeout: Duration,
}

/// This process's attachment to one exporting context. There is at most one for each context.
/// Another copy of this library in the same process is treated as another process (see
/// [`super::liveness`]).
pub struct Attachment {
    catalog: Arc<Catalog>,
    ledger: Arc<Ledger>,
    /// `None` only while the attachment is being dropped.
    arenas: Option<Arc<EventArenas>>,
    owner: Owner,
    location: Location,
    watches: PeerWatches,
    origin: ContextId,
    /// The lock is held while a chunk is fetched, so that only one thread fetches it.
    fetching: Turn,
    /// A value that is dropped with the attachment, before its other fields.
    ends_with_it: OnceLock<Box<dyn Any + Send + Sync>>,
    birth: Birth,
}

/// The connection to the exporter.
enum Location {
    /// The exporter is in this process. Its context may end before this attachment.
    Local(Weak<Exporter>),
    /// The exporter is another process.
    Remote {
        connection: Box<Connection>,
        /// Timeout of requests that are not part of an open.
        timeout: Duration,
        /// Time at which the exporter was found to have hung up, in nanoseconds since 1970, or 0 if
        /// it has not hung up.
        hung_up_at: AtomicU64,
        watch: OnceLock<Watch>,
    },
}

impl Attachment {
    pub(super) fn arenas(&self) -> &EventArenas {
        self.arenas.as_deref().expect("present until drop")
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns the name of an object that is open here, if it has one.
    pub fn name_of(&self, record: u32) -> Option<String> {
        Some(self.catalog.name(record)).filter(|name| !name.is_empty())
    }

    /// Returns when the exporter was found to have ended, in nanoseconds since 1970. Returns 0 if
    /// it is alive as far as known.
    pub(super) fn hung_up_at(&self) -> u64 {
        match &self.location {
            Location::Local(_) => 0,
            Location::Remote { hung_up_at, .. } => hung_up_at.load(Ordering::Acquire),
        }
    }

    /// Reports a change of the connection to the exporter to the program.
    fn tell(&self, what: fn(Side, &Peer<'_>)) {
        let exporter = self.catalog.peer(Owner::EXPORTER);
        let peer = Peer {
            context: self.origin.context,
            owner: self.owner.get(),
            pid: exporter.pid,
            program: &exporter.program,
        };
        what(Side::Importer, &peer);
    }

    /// Reports to the program that the exporter has hung up.
    fn tell_hung_up(&self) {
        match self.catalog.peer(Owner::EXPORTER).ended {
            0 => self.tell(observe::died),
            _ => self.tell(observe::detached),
        }
    }

    /// Returns the number of the exporting context.
    pub fn context(&self) -> u32 {
        self.origin.context
    }

    /// Returns the random number of the exporting process, and the number of its context.
    pub fn origin(&self) -> (u64, u32) {
        (self.origin.exporter, self.origin.context)
    }

    /// Fails the unfinished signals of dead processes in the events that this process has opened.
    fn fail_orphans(&self) {
        /// Cached liveness of processes. A lock query takes longer the more locks hostile processes
        /// have on the file, so each process is queried once.
        struct Known<'a>(&'a Attachment, RefCell<BTreeMap<u16, bool>>);
        impl Liveness for Known<'_> {
            fn is_dead(&self, owner: Owner) -> bool {
                let mut known = self.1.borrow_mut();
                *known
                    .entry(owner.get())
                    .or_insert_with(|| self.0.is_dead(owner))
            }
        }
        let known = Known(self, RefCell::default());
        self.arenas().for_each(|arena| arena.fail_orphans(&known));
    }

    /// Returns the place for a value that is dropped with the attachment, before its other fields.
    pub(super) fn ends_with_it(&self) -> &OnceLock<Box<dyn Any + Send + Sync>> {
        &self.ends_with_it
    }

    pub(super) fn shared_arenas(&self) -> Arc<EventArenas> {
        Arc::clone(self.arenas.as_ref().expect("present until drop"))
    }

    /// Returns the owner number that this process signals with.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Counts one open of a record. The caller must end it with [`release`](Self::release).
    #[inline]
    pub fn hold(&self, credential: &Credential, deadline: &OpenDeadline) -> Result<()> {
        match self.try_open(credential.record) {
            Some(true) => Ok(()),
            Some(false) => Err(Error::Stale),
            None => self.hold_in_new_chunk(credential, deadline),
        }
    }

    #[cold]
    fn hold_in_new_chunk(&self, credential: &Credential, deadline: &OpenDeadline) -> Result<()> {
        self.fetch_chunk(credential, deadline)?;
        match self.try_open(credential.record) {
            Some(true) => Ok(()),
            _ => Err(Error::Stale),
        }
    }

    /// Counts one open of a record. Returns `Some(false)` if the record has another generation, and
    /// `None` if the chunks with the record are missing.
    #[inline]
    fn try_open(&self, record: Record) -> Option<bool> {
        let count = self.ledger.count(record.index)?;
        let generation = self.catalog.generation(record.index)?;
        Some(open_count::try_open(count, generation, record.generation))
    }

    /// Returns whether a process that this one was forked from made this attachment.
    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// Ends one open of a record.
    #[inline]
    pub fn release(&self, record: u32) {
        if self.birth.is_inherited() {
            return;
        }
        if let Some(count) = self.ledger.count(record) {
            open_count::close(count);
        }
    }

    /// Returns the user id and the process id of the process that replies. The process id is 0 if
    /// the process has no id in this PID namespace.
    pub fn peer(&self) -> (u32, u32) {
        match &self.location {
            Location::Local(_) => (rustix::process::geteuid().as_raw(), process::pid()),
            Location::Remote { connection, .. } => (connection.uid(), connection.peer_pid()),
        }
    }

    /// Returns whether the exporter is this process.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.location, Location::Local(_))
    }

    /// Returns whether the exporter has hung up. Nothing new can then be fetched, but open objects
    /// stay open.
    pub fn is_hung_up(&self) -> bool {
        match &self.location {
            Location::Local(exporter) => exporter.strong_count() == 0,
            Location::Remote { hung_up_at, .. } => hung_up_at.load(Ordering::Acquire) != 0,
        }
    }

    /// Returns whether the exporter has hung up, even if only a thread that sent a request knows it
    /// so far. The thread that watches the exporter may be late. Afterwards all threads see the
    /// hang-up.
    pub fn has_lost_exporter(&self) -> bool {
        if let Location::Remote { connection, .. } = &self.location
            && connection.has_hung_up()
        {
            self.note_hang_up();
        }
        self.is_hung_up()
    }
}

impl Liveness for Attachment {
    fn is_dead(&self, owner: Owner) -> bool {
        match &self.location {
            // This process's own signals are alive, whatever happened to the context.
            _ if owner == self.owner => false,
            Location::Local(exporter) => match exporter.upgrade() {
                Some(exporter) => exporter.is_dead(owner),
                None => !self.arenas().is_alive(owner),
            },
            Location::Remote { .. } if owner == Owner::EXPORTER && self.is_hung_up() => true,
            Location::Remote { .. } => !self.arenas().is_alive(owner),
        }
    }

    fn is_known_abandoned(&self) -> bool {
        self.is_hung_up()
    }

    fn watch(&self, owner: &dyn Fn() -> Option<Owner>) {
        // The connection shows the exporter's own death. If the exporter is in this process, it
        // notices all other deaths.
        if let Location::Remote { .. } = self.location
            && let Some(owner) = owner()
            && owner != self.owner
            && owner != Owner::EXPORTER
            && let Some(arenas) = &self.arenas
        {
            self.watches.watch(owner, &self.catalog, arenas);
        }
    }

    fn is_abandoned(&self) -> bool {
        self.is_hung_up() || self.is_dead(Owner::EXPORTER)
    }
}
