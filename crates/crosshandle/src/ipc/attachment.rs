//! Attachments: the importing process's half of sharing, which fetches from an exporter and notices
//! its death.

use super::broker::protocol::{BackendBlob, PieceTable, ProgramName, Refusal, Reply, Request};
use super::broker::{
    self, Answer, Connection, Deadline, Exports, Fetch, Fetched, FetchedPieces, PeerPolicy,
    PieceBatch, PieceFile, Route, Supply,
};
use super::chunks::{Catalog, CatalogChunk, Ledger, LedgerChunk, capacity, place_of};
use super::event_arena::{EventArena, EventArenas, PeerWatches};
use super::exporter::Exporter;
use super::liveness::LivenessLocks;
use super::open_count;
use super::record::{Credential, Record};
use super::records::MIRROR_SEGMENT;
use super::tuning::RECONNECT_INTERVAL;
use crate::error::{Error, Result};
use crate::event_protocol::{Liveness, Owner};
use crate::handle::{Fields, HandleError};
use crate::observe::{self, Peer, Side};
use crate::os::{is_planted, process, sleepers};
use crate::sync::{Condvar, HashMap, Mutex, Turn, TurnGuard};
use crate::threads::disposer::{Disposal, PeerDescriptor, PeerStream};
use crate::threads::driver_jobs;
use crate::threads::exchange::{Next, Registration, Source, Watch, watch};
use crate::types::Access;
use rustix::io::Errno;
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::thread;
use std::time::Duration;

/// The directory in which to look for exporters, the admitted users, and the time to wait for an
/// answer.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) policy: PeerPolicy,
    pub(crate) timeout: Duration,
}

/// This process's place in one exporting context. There is at most one for each context. (Another
/// copy of this library in the same process counts as another process: see [`super::liveness`].)
pub(crate) struct Attachment {
    catalog: Arc<Catalog>,
    ledger: Arc<Ledger>,
    /// `None` only while it is being dropped.
    arenas: Option<Arc<EventArenas>>,
    owner: Owner,
    link: Link,
    watches: PeerWatches,
    origin: ContextId,
    /// Held while a chunk is fetched, so that it is fetched once.
    fetching: Turn,
    /// Dropped when the attachment is, before anything else of it.
    ends_with_it: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// A context of any process, as its exporter answers for it or a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ContextId {
    exporter: u64,
    context: u32,
    route: Route,
}

impl Hash for ContextId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.to_word());
    }
}

impl ContextId {
    /// Returns the context that made a handle.
    #[inline]
    pub(crate) fn of(fields: &Fields) -> Self {
        Self::by(fields, Route::Exporter)
    }

    /// Returns the context that made a handle, as one answers for it.
    #[inline]
    pub(crate) fn by(fields: &Fields, route: Route) -> Self {
        Self {
            route,
            exporter: match is_planted("finding-8") {
                true => 0,
                false => fields.exporter,
            },
            context: fields.context,
        }
    }

    /// Returns a word that few contexts have in common: the numbers of exporters are random. Contexts of
    /// one exporter differ in its upper half.
    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        self.exporter ^ u64::from(self.context) << 32
    }
}

/// What an importer fetches first of a context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum First {
    /// The memory of the handle, for this access.
    Memory(Access),
    /// The arena of the event.
    Arena,
}

impl First {
    fn request(self, fields: &Fields) -> Request {
        let credential = Credential::of(fields);
        match self {
            Self::Memory(access) => Request::Memory {
                credential,
                access,
                first: 0,
            },
            Self::Arena => Request::Arena(credential),
        }
    }
}

/// The way to the exporter.
enum Link {
    /// To this very process. The context may end before this does.
    Local(Weak<Exporter>),
    /// To another process.
    Remote {
        connection: Connection,
        /// The longest time that a question may take which no open asks.
        timeout: Duration,
        /// When the exporter was found to have hung up, in nanoseconds since 1970; 0: it has not.
        hung_up_at: AtomicU64,
        watch: OnceLock<Watch>,
    },
}

/// Attachments to other processes. `None`: one is being made.
type Attachments = HashMap<ContextId, Option<Weak<Attachment>>>;
static ATTACHMENTS: LazyLock<Mutex<Attachments>> = LazyLock::new(Mutex::default);
/// Notified when an entry was filled or removed.
static CHANGED: Condvar = Condvar::new();

impl Attachment {
    /// Returns the attachment to the context that made a handle, or to its holder, made now if there is
    /// none.
    ///
    /// `next` is what the caller will fetch first: if the exporter has to be asked, it is asked for that at
    /// the same time.
    pub(crate) fn to(
        fields: &Fields,
        route: Route,
        origin: &Origin,
        next: First,
        deadline: &Deadline,
    ) -> Result<Arc<Self>> {
        let context = ContextId::by(fields, route);
        let is_local =
            route == Route::Exporter && broker::address::exporter_id()? == fields.exporter;
        if is_local && let Some(exports) = broker::local_exports(fields.context) {
            let exporter = exports.as_any().downcast::<Exporter>();
            let exporter = exporter.map_err(|_| Error::Stale)?;
            return Ok(Arc::new(Self {
                catalog: Arc::clone(exporter.catalog()),
                ledger: exporter.own_ledger()?,
                arenas: Some(Arc::clone(exporter.arenas())),
                owner: Owner::EXPORTER,
                link: Link::Local(Arc::downgrade(&exporter)),
                watches: PeerWatches::default(),
                origin: context,
                fetching: Turn::default(),
                ends_with_it: OnceLock::new(),
            }));
        }
        if is_local {
            // Ours, and its context is dropped.
            return Err(Error::ExporterGone { pid: fields.pid });
        }
        // Dropped without the lock, which its drop takes.
        let mut _ended = None;
        let mut attachments = ATTACHMENTS.lock();
        loop {
            match attachments.get(&context) {
                None => break,
                Some(entry) => {
                    // `None`: one is being made, or is being dropped and closes the arena soon.
                    if let Some(attachment) = entry.as_ref().and_then(Weak::upgrade) {
                        // A holder's successor goes on where it ended.
                        if route == Route::Holder && attachment.is_hung_up() {
                            _ended = Some(attachment);
                            break;
                        }
                        // First, since dropping the last attachment takes the lock.
                        drop(attachments);
                        attachment.check_admitted(origin)?;
                        if attachment.is_hung_up() {
                            return Err(Error::ExporterGone { pid: fields.pid });
                        }
                        return Ok(attachment);
                    }
                }
            }
            let left = deadline.left();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::TimedOut(
                    "waiting for another open of the same exporter",
                ));
            }
            attachments = match left {
                Some(left) => CHANGED.wait_timeout(attachments, left).0,
                None => CHANGED.wait(attachments),
            };
        }
        attachments.insert(context, None);
        drop(attachments);
        let vacancy = Vacancy(context);
        let attachment = Self::connect(fields, route, origin, next, deadline)?;
        vacancy.fill(&attachment);
        // Only now, since a hang-up may drop the attachment.
        if let Err(error) = attachment.watch_hang_up() {
            // Nobody may go on with it who has found it meanwhile: it would never notice a hang-up.
            attachment.note_hang_up();
            return Err(error);
        }
        attachment.tell(observe::attached);
        Ok(attachment)
    }

    /// Attaches, again if the exporter hangs up before it has answered: it does so when it has too many
    /// connections, to those that have said nothing yet.
    fn connect(
        fields: &Fields,
        route: Route,
        origin: &Origin,
        next: First,
        deadline: &Deadline,
    ) -> Result<Arc<Self>> {
        let _span = observe::attaching(fields.context, fields.pid);
        // Before a peer's descriptor is here: the thread closes all in a table of its own, which lasts
        // as long as the owner of a hostile one likes. Who needs it asks again for the error.
        let _ = LivenessLocks::get();
        loop {
            let connection = Self::open_connection(fields, route, origin, deadline)?;
            let request = Request::Attach {
                context: fields.context,
                credential: Credential::of(fields),
                program: program_name(),
            };
            match connection.ask_for_memory(request, Some(next.request(fields)), deadline) {
                Err(_) if connection.has_hung_up() && !deadline.is_over() => {
                    thread::sleep(RECONNECT_INTERVAL);
                }
                answer => {
                    let context = ContextId::by(fields, route);
                    return Self::accepted(context, connection, origin.timeout, answer?);
                }
            }
        }
    }

    fn open_connection(
        fields: &Fields,
        route: Route,
        origin: &Origin,
        deadline: &Deadline,
    ) -> Result<Connection> {
        let connection = Connection::open(
            fields.exporter,
            fields.pid,
            route,
            origin.directory.as_deref(),
            &origin.policy,
            deadline,
        )?;
        if connection.is_self() && !LivenessLocks::get()?.are_separate() {
            return Err(Error::Unsupported(
                "the handle was made by another copy of crosshandle in this same process, and this \
                 system lacks what it takes to open it: close_range(2) with CLOSE_RANGE_UNSHARE \
                 (Linux 5.9)"
                    .into(),
            ));
        }
        Ok(connection)
    }

    fn accepted(
        origin: ContextId,
        connection: Connection,
        timeout: Duration,
        (reply, [catalog_file, ledger_file]): (Reply, [OwnedFd; 2]),
    ) -> Result<Arc<Self>> {
        let Reply::Attached {
            owner,
            locks_ledger,
        } = reply
        else {
            return Err(Error::Protocol("it answers another question"));
        };
        let owner = Owner::new(owner)
            .filter(|owner| *owner != Owner::EXPORTER)
            .ok_or(Error::Protocol("it gave an owner that cannot be"))?;
        let (catalog, ledger) = (Catalog::default(), Ledger::default());
        catalog.add(CatalogChunk::open(&catalog_file, 0)?);
        ledger.add(LedgerChunk::open(&ledger_file, 0)?);
        if locks_ledger {
            ledger.lock_liveness(&ledger_file)?;
        }
        Ok(Arc::new(Self {
            catalog: Arc::new(catalog),
            ledger: Arc::new(ledger),
            arenas: Some(Arc::default()),
            owner,
            link: Link::Remote {
                connection,
                timeout,
                hung_up_at: AtomicU64::new(0),
                watch: OnceLock::new(),
            },
            watches: PeerWatches::default(),
            origin,
            fetching: Turn::default(),
            ends_with_it: OnceLock::new(),
        }))
    }

    fn watch_hang_up(self: &Arc<Self>) -> Result<()> {
        if let Link::Remote {
            connection,
            watch: registered,
            ..
        } = &self.link
        {
            let notice = HangUp {
                stream: connection.stream(),
                attachment: Arc::downgrade(self),
            };
            let _ = registered.set(watch(Arc::new(notice))?);
        }
        Ok(())
    }

    fn note_hang_up(&self) {
        if let Link::Remote { hung_up_at, .. } = &self.link {
            hung_up_at.store(process::time().max(1), Ordering::Release);
        }
    }

    pub(super) fn arenas(&self) -> &EventArenas {
        self.arenas.as_deref().expect("present until drop")
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Returns the name of an object that is open here, if it has one.
    pub(crate) fn name_of(&self, record: u32) -> Option<String> {
        Some(self.catalog.name(record)).filter(|name| !name.is_empty())
    }

    /// Returns when the exporter was found to have ended, in nanoseconds since 1970; 0 if it lives, as
    /// far as is known.
    pub(super) fn hung_up_at(&self) -> u64 {
        match &self.link {
            Link::Local(_) => 0,
            Link::Remote { hung_up_at, .. } => hung_up_at.load(Ordering::Acquire),
        }
    }

    /// Returns the arena and the index of the slot of an event that is in one of the context's own.
    #[inline]
    pub(super) fn event(
        &self,
        credential: &Credential,
        deadline: &Deadline,
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
        deadline: &Deadline,
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

    /// Returns the arena of an event that has one to itself.
    pub(super) fn isolated_event(
        &self,
        credential: &Credential,
        deadline: &Deadline,
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

    /// Waits until no other thread fetches what all share.
    fn take_turn(&self, deadline: &Deadline) -> Result<TurnGuard<'_>> {
        self.fetching.take(deadline.left()).ok_or(Error::TimedOut(
            "waiting for an earlier question to the exporter",
        ))
    }

    fn fetch_arena(
        &self,
        credential: &Credential,
        slots: usize,
        deadline: &Deadline,
    ) -> Result<EventArena> {
        let Link::Remote { connection, .. } = &self.link else {
            // The exporter's own arenas are all here.
            return Err(Error::Stale);
        };
        let request = Request::Arena(*credential);
        let (reply, [file, liveness]) = connection.ask_for_memory(request, None, deadline)?;
        if reply != Reply::Sent {
            return Err(Error::Protocol("it answers another question"));
        }
        let arena = EventArena::open(&file, slots)?;
        self.arenas().show_liveness_in(liveness, self.owner)?;
        Ok(arena)
    }

    /// Fetches the chunks of catalog and ledger that a record lies in, unless they are here.
    #[cold]
    fn fetch_chunk(&self, credential: &Credential, deadline: &Deadline) -> Result<()> {
        let record = credential.record.index;
        let place = place_of(record).ok_or(Error::Stale)?;
        let _turn = self.take_turn(deadline)?;
        if self.catalog.generation(record).is_some() && self.ledger.count(record).is_some() {
            return Ok(());
        }
        let connection = match &self.link {
            Link::Local(exporter) => {
                // Its catalog is all here.
                let exporter = exporter.upgrade().ok_or(Error::Stale)?;
                return match self.catalog.generation(record) {
                    Some(_) => exporter.extend_own_ledger(record),
                    None => Err(Error::Stale),
                };
            }
            Link::Remote { connection, .. } => connection,
        };
        let request = Request::Chunk(*credential);
        let (reply, [catalog, ledger]) = connection.ask_for_memory(request, None, deadline)?;
        if reply != Reply::Sent {
            return Err(Error::Protocol("it answers another question"));
        }
        let catalog = CatalogChunk::open(&catalog, place.chunk())?;
        self.ledger.add(LedgerChunk::open(&ledger, place.chunk())?);
        self.catalog.add(catalog);
        Ok(())
    }

    /// Tells the program something of the exporter.
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

    /// Tells the program that the exporter has hung up.
    fn tell_hung_up(&self) {
        match self.catalog.peer(Owner::EXPORTER).ended {
            0 => self.tell(observe::died),
            _ => self.tell(observe::detached),
        }
    }

    /// Returns the number of the exporting context.
    pub(crate) fn context(&self) -> u32 {
        self.origin.context
    }

    /// Fails what dead processes left unfinished in the events that this process has opened.
    fn fail_orphans(&self) {
        /// The liveness of processes, each asked for once: a look at a lock takes as long as hostile
        /// processes have locks on the file.
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

    /// Returns the place for what is dropped when the attachment is, before anything else of it.
    pub(super) fn ends_with_it(&self) -> &OnceLock<Box<dyn Any + Send + Sync>> {
        &self.ends_with_it
    }

    pub(super) fn shared_arenas(&self) -> Arc<EventArenas> {
        Arc::clone(self.arenas.as_ref().expect("present until drop"))
    }

    /// Returns the owner that this process signals as.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Counts one open of a record, to be ended with [`release`](Self::release).
    #[inline]
    pub(crate) fn hold(&self, credential: &Credential, deadline: &Deadline) -> Result<()> {
        match self.try_open(credential.record) {
            Some(true) => Ok(()),
            Some(false) => Err(Error::Stale),
            None => self.hold_in_new_chunk(credential, deadline),
        }
    }

    #[cold]
    fn hold_in_new_chunk(&self, credential: &Credential, deadline: &Deadline) -> Result<()> {
        self.fetch_chunk(credential, deadline)?;
        match self.try_open(credential.record) {
            Some(true) => Ok(()),
            _ => Err(Error::Stale),
        }
    }

    /// Counts one open of a record, unless it has another generation; `None` if its chunks are not here.
    #[inline]
    fn try_open(&self, record: Record) -> Option<bool> {
        let count = self.ledger.count(record.index)?;
        let generation = self.catalog.generation(record.index)?;
        Some(open_count::try_open(count, generation, record.generation))
    }

    /// Ends one open of a record.
    #[inline]
    pub(crate) fn release(&self, record: u32) {
        if process::is_forked() {
            return;
        }
        if let Some(count) = self.ledger.count(record) {
            open_count::close(count);
        }
    }

    /// Checks the exporter against a context's policy: another context of this process, with a wider
    /// one, may have attached to it.
    fn check_admitted(&self, origin: &Origin) -> Result<()> {
        match &self.link {
            Link::Remote { connection, .. } if !origin.policy.admits(connection.uid()) => {
                Err(Error::NotAdmitted {
                    uid: connection.uid(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Fetches the memory that a handle names. The exporter says which segment that is in: other
    /// handles that name this segment will find it under its number.
    pub(crate) fn fetch(
        &self,
        fields: &Fields,
        access: Access,
        deadline: &Deadline,
    ) -> Result<Fetched> {
        let credential = Credential::of(fields);
        let _span = observe::fetching(self.origin.context, fields.record);
        let request = Request::Memory {
            credential,
            access,
            first: 0,
        };
        let fetched = self.ask_for(request, deadline)?;
        self.check_segment(fetched, fields)
    }

    /// Fetches the memory that a handle names, as [`fetch`](Self::fetch) does. If the memory consists of
    /// pieces, `take` gets all of them in their order, some at a time, and the result is `None`.
    pub(crate) fn fetch_segment(
        &self,
        fields: &Fields,
        access: Access,
        deadline: &Deadline,
        mut take: impl FnMut(FetchedPieces) -> Result<()>,
    ) -> Result<Option<Fetched>> {
        let credential = Credential::of(fields);
        let request = |first| Request::Memory {
            credential,
            access,
            first,
        };
        let _span = observe::fetching(self.origin.context, fields.record);
        let mut expected = ExpectedPieces::new(fields.segment);
        let connection = match &self.link {
            Link::Remote { connection, .. } => connection,
            Link::Local(exporter) => loop {
                match Self::ask_here(exporter, request(expected.next))? {
                    Supply::Whole(fetched) => {
                        return self.check_segment(fetched, fields).map(Some);
                    }
                    Supply::Pieces(pieces) => {
                        expected.check(&pieces)?;
                        take(pieces)?;
                    }
                }
                if expected.is_done() {
                    return Ok(None);
                }
            },
        };
        let mut whole = None;
        let next = |answer: &Answer| {
            if let (Reply::Pieces { segment, len, .. }, Some(table)) =
                (answer.reply, &answer.pieces)
            {
                expected.check_table(segment, len, table)?;
                return Ok((!expected.is_done()).then(|| request(expected.next)));
            }
            match expected.next {
                0 => Ok(None),
                _ => Err(OTHER_QUESTION),
            }
        };
        let received = |answer: Answer| {
            match supplied(answer)? {
                Supply::Whole(fetched) => whole = Some(self.check_segment(fetched, fields)?),
                Supply::Pieces(pieces) => take(pieces)?,
            }
            Ok(())
        };
        connection.converse(request(0), deadline, next, received)?;
        Ok(whole)
    }

    /// Checks that fetched memory is the segment that the handle names.
    fn check_segment(&self, fetched: Fetched, fields: &Fields) -> Result<Fetched> {
        if fetched.segment == MIRROR_SEGMENT {
            return Err(Error::Protocol("its memory is an event"));
        }
        if fetched.segment != fields.segment {
            return Err(other_segment());
        }
        Ok(fetched)
    }

    /// Fetches the native mirror of an event.
    pub(super) fn fetch_mirror(&self, credential: Credential) -> Result<Fetched> {
        let _span = observe::fetching(self.origin.context, credential.record.index);
        let timeout = match &self.link {
            Link::Local(_) => Duration::MAX,
            Link::Remote { timeout, .. } => *timeout,
        };
        let deadline = Deadline::after(timeout);
        let fetched = self.ask_for(Request::Mirror(credential), &deadline)?;
        if fetched.segment != MIRROR_SEGMENT {
            return Err(Error::Protocol("its event is memory"));
        }
        Ok(fetched)
    }

    fn ask_for(&self, request: Request, deadline: &Deadline) -> Result<Fetched> {
        match &self.link {
            Link::Local(exporter) => match Self::ask_here(exporter, request)? {
                Supply::Whole(fetched) => Ok(fetched),
                Supply::Pieces(_) => Err(OTHER_QUESTION),
            },
            Link::Remote { connection, .. } => match connection.ask(request, deadline)? {
                (Reply::Fetched { segment, len, note }, [file]) => {
                    Ok(fetched(file, segment, len, note))
                }
                _ => Err(OTHER_QUESTION),
            },
        }
    }

    /// Asks an exporter in this process.
    fn ask_here(exporter: &Weak<Exporter>, request: Request) -> Result<Supply> {
        let gone = Error::ExporterGone {
            pid: process::pid(),
        };
        let exporter = exporter.upgrade().ok_or(gone)?;
        let fetch = match request {
            Request::Memory {
                credential,
                access,
                first,
            } => exporter.memory(Owner::EXPORTER.get(), &credential, access, first),
            Request::Mirror(credential) => exporter.mirror(&credential),
            _ => Err(Refusal::BadRequest),
        };
        let supply = match fetch {
            Ok(Fetch::Ready(supply)) => Ok(supply),
            Ok(Fetch::CallsDriver(call)) => call(),
            Err(refusal) => Err(refusal),
        };
        supply.map_err(|refusal| match refusal {
            Refusal::ReadOnly => Error::ReadOnly,
            Refusal::WrongKey => Error::WrongKey,
            Refusal::Moved => Error::HolderGone,
            Refusal::NoRoom => Error::os("opening memory")(Errno::MFILE),
            Refusal::NoReadOnly => Error::Unsupported(
                "a descriptor for reading only cannot be made, since there is no /proc".into(),
            ),
            _ => Error::Stale,
        })
    }

    /// Returns whether the exporter is this very process.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.link, Link::Local(_))
    }

    /// Returns whether the exporter has hung up: nothing new can be fetched, and what is open stays.
    pub(crate) fn is_hung_up(&self) -> bool {
        match &self.link {
            Link::Local(exporter) => exporter.strong_count() == 0,
            Link::Remote { hung_up_at, .. } => hung_up_at.load(Ordering::Acquire) != 0,
        }
    }
}

impl Liveness for Attachment {
    fn is_dead(&self, owner: Owner) -> bool {
        match &self.link {
            // Our own signals are alive, whatever became of the context.
            _ if owner == self.owner => false,
            Link::Local(exporter) => match exporter.upgrade() {
                Some(exporter) => exporter.is_dead(owner),
                None => !self.arenas().is_alive(owner),
            },
            Link::Remote { .. } if owner == Owner::EXPORTER && self.is_hung_up() => true,
            Link::Remote { .. } => !self.arenas().is_alive(owner),
        }
    }

    fn is_known_abandoned(&self) -> bool {
        self.is_hung_up()
    }

    fn watch(&self, owner: &dyn Fn() -> Option<Owner>) {
        // Of the exporter's own death the connection tells, and of other deaths the exporter in this
        // process.
        if let Link::Remote { .. } = self.link
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

const OTHER_QUESTION: Error = Error::Protocol("it answers another question");

/// Returns what an answer has brought.
fn supplied(answer: Answer) -> Result<Supply> {
    let Answer {
        reply,
        pieces,
        granted,
    } = answer;
    let another_number = Error::Protocol("it came with another number of descriptors");
    match (reply, pieces) {
        (Reply::Fetched { segment, len, note }, None) => {
            let [file] = granted.into_vec().try_into().map_err(|_| another_number)?;
            Ok(Supply::Whole(fetched(file, segment, len, note)))
        }
        (Reply::Pieces { segment, len, note }, Some(table)) => {
            if granted.len() != table.parts.len() {
                return Err(another_number);
            }
            let files = granted.into_iter().zip(table.parts);
            let file = |(file, part): (PeerDescriptor, _)| {
                let (file, disposal) = kept(file);
                PieceFile {
                    file,
                    part,
                    disposal,
                }
            };
            let batch = PieceBatch {
                total: table.total,
                first: table.first,
                files: files.map(file).collect(),
                note,
            };
            Ok(Supply::Pieces(FetchedPieces {
                segment,
                len,
                batch,
            }))
        }
        _ => Err(OTHER_QUESTION),
    }
}

fn fetched(file: PeerDescriptor, segment: u32, len: u64, note: BackendBlob) -> Fetched {
    let (file, disposal) = kept(file);
    Fetched {
        file,
        segment,
        len,
        note,
        disposal,
    }
}

/// Returns a peer's descriptor, and what to drop after it unless any thread may close it.
fn kept(file: PeerDescriptor) -> (Arc<OwnedFd>, Option<Disposal>) {
    match file.into_memory() {
        Ok(memory) => (Arc::new(memory), None),
        Err(file) => {
            let (file, disposal) = file.lend();
            (file, Some(disposal))
        }
    }
}

/// What an exporter has to send of a segment that consists of pieces: each piece once, in their order, and
/// as many bytes as it said.
struct ExpectedPieces {
    segment: u32,
    /// The number of the next piece.
    next: u32,
    /// The number of all pieces, and their bytes, once it has said so.
    all: Option<(u32, u64)>,
    /// Bytes of the pieces so far.
    bytes: u64,
}

impl ExpectedPieces {
    fn new(segment: u32) -> Self {
        Self {
            segment,
            next: 0,
            all: None,
            bytes: 0,
        }
    }

    fn check(&mut self, pieces: &FetchedPieces) -> Result<()> {
        let batch = &pieces.batch;
        let table = PieceTable {
            total: batch.total,
            first: batch.first,
            parts: batch.files.iter().map(|file| file.part).collect(),
        };
        self.check_table(pieces.segment, pieces.len, &table)
    }

    fn check_table(&mut self, segment: u32, len: u64, table: &PieceTable) -> Result<()> {
        if segment != self.segment {
            return Err(other_segment());
        }
        let all = (table.total, len);
        if *self.all.get_or_insert(all) != all || table.first != self.next {
            return Err(Error::Protocol("its pieces don't follow each other"));
        }
        self.next += table.parts.len() as u32;
        for part in &table.parts {
            self.bytes = self.bytes.saturating_add(part.len);
        }
        let is_right = match self.is_done() {
            true => self.bytes == len,
            false => self.bytes < len,
        };
        match is_right {
            true => Ok(()),
            false => Err(Error::Protocol("its pieces have another length in all")),
        }
    }

    fn is_done(&self) -> bool {
        self.all.is_some_and(|(total, _)| self.next == total)
    }
}

fn other_segment() -> Error {
    Error::Handle(HandleError::Malformed {
        field: "segment",
        why: "its exporter has the object in another one",
    })
}

/// Returns the name of this program, as messages carry it.
fn program_name() -> ProgramName {
    let name = process::program();
    let mut bytes = ProgramName::default();
    let end = name.floor_char_boundary(bytes.len().min(name.len()));
    bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
    bytes
}

/// The entry in [`ATTACHMENTS`] of an attachment that is being made. Dropped when it is made, or
/// when that has failed.
struct Vacancy(ContextId);

impl Vacancy {
    fn fill(self, attachment: &Arc<Attachment>) {
        let mut attachments = ATTACHMENTS.lock();
        attachments.insert(self.0, Some(Arc::downgrade(attachment)));
    }
}

impl Drop for Vacancy {
    fn drop(&mut self) {
        let mut attachments = ATTACHMENTS.lock();
        if let Some(None) = attachments.get(&self.0) {
            attachments.remove(&self.0);
        }
        drop(attachments);
        CHANGED.notify_all();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        drop(self.ends_with_it.take());
        let Link::Remote {
            connection, watch, ..
        } = &mut self.link
        else {
            return;
        };
        drop(watch.take());
        self.ledger.leave_all();
        // Where liveness locks are not separate, closing an arena drops every lock that this process
        // has on it, so no thread may attach anew before that: see `super::liveness`.
        self.arenas = None;
        connection.hang_up();
        let mut attachments = ATTACHMENTS.lock();
        if let Some(Some(entry)) = attachments.get(&self.origin)
            && entry.strong_count() == 0
        {
            attachments.remove(&self.origin);
        }
        drop(attachments);
        CHANGED.notify_all();
    }
}

/// The watched source that notices that an exporter has hung up.
struct HangUp {
    stream: Arc<PeerStream>,
    attachment: Weak<Attachment>,
}

impl Source for HangUp {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn wants_messages(&self) -> bool {
        false
    }

    fn ready(&self, _: Registration) -> Next {
        let Some(attachment) = self.attachment.upgrade() else {
            return Next::Forget;
        };
        attachment.note_hang_up();
        attachment.fail_orphans();
        // Waits for signals that no process has submitted are over too.
        sleepers::wake_all();
        attachment.tell_hung_up();
        if let Some(last) = Arc::into_inner(attachment) {
            driver_jobs::drop_later(last);
        }
        Next::Forget
    }
}
