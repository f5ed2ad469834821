//! Clients are importers' connections on the exporter's side. Their requests arrive here, and so
//! does the hang-up of a dead importer.

mod under_way;

use crate::broker::admission::{Admission, Limits, Number, Verdict};
use crate::broker::exports::{
    Attached, Exports, Fetch, Fetched, FetchedHandle, FetchedPieces, Newcomer, PieceFile, Supply,
};
use crate::broker::protocol::{
    BadMessage, PieceTable, ProgramName, REPLY_SIZE, REQUEST_SIZE, Refusal, Reply, Request,
    program_text,
};
use crate::broker::published::{REFUSALS, describe, exports_for, is_admitted_anywhere, with};
use crate::broker::reports;
use crate::record::Credential;
use crate::tuning::UNDER_WAY_LOOK;
use crosshandle_os::fork::PerProcess;
use crosshandle_os::socket::{self, FEW_DESCRIPTORS, Guard, Peer, Pending, Received};
use crosshandle_os::threads::disposer::PeerStream;
use crosshandle_os::threads::exchange::{Next, Registration, Source, Watch, watch};
use crosshandle_os::threads::round_robin::Party;
use crosshandle_os::threads::{background, driver_jobs};
use crosshandle_types::observe::{self, Limit, Peer as Observed, Side};
use crosshandle_types::sync::Mutex;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;
use under_way::UnderWay;

/// Maximum size of the replies that an importer has not read yet, in bytes of the exporter's kernel
/// memory. Its further requests wait until it reads. A reply takes about one kilobyte. The value is
/// below a quarter of the usual send buffer.
const MAX_UNREAD_BYTES: usize = 32 << 10;

/// Returns the reply to a request that could not be read because no descriptor was free.
pub(super) fn no_room() -> [u8; REPLY_SIZE] {
    Reply::Refused(Refusal::NoRoom).encode(0)
}

/// The connections of this process, with references that can hang them up.
static ADMISSION: PerProcess<Mutex<Admission<Weak<Client>>>> =
    PerProcess::new(|| Mutex::new(Admission::new(rustix::process::geteuid().as_raw())));

/// The descriptors in transit to importers of this process.
static UNDER_WAY: PerProcess<Mutex<UnderWay<Client>>> =
    PerProcess::new(|| Mutex::new(UnderWay::new()));

/// A connection's place in [`ADMISSION`], which is freed on drop.
#[derive(Debug)]
struct AdmittedPlace(Number);

impl Drop for AdmittedPlace {
    fn drop(&mut self) {
        ADMISSION.lock().leave(self.0);
    }
}

/// The newcomer was refused because there are too many connections.
#[derive(Debug)]
pub struct Crowded;

/// Returns the limits on connections, based on the process's current descriptor limit.
fn limits() -> Limits {
    let limit = getrlimit(Resource::Nofile).current;
    Limits::of(limit.unwrap_or(u64::MAX))
}

/// Returns when [`hang_up_late`] must be called next.
pub(super) fn deadline() -> Option<Instant> {
    ADMISSION.lock().deadline()
}

/// Hangs up connections that have sent nothing in time.
pub(super) fn hang_up_late() {
    let late = ADMISSION.lock().take_late(Instant::now());
    dismiss_all(late);
}

fn dismiss_all(clients: impl IntoIterator<Item = Weak<Client>>) {
    for client in clients.into_iter().filter_map(|client| client.upgrade()) {
        client.dismiss();
    }
}

/// Checks from time to time whether importers that have hung up have read their replies, until none
/// is left.
fn look_after_left() {
    static IS_LOOKING: PerProcess<AtomicBool> = PerProcess::new(|| AtomicBool::new(false));
    if IS_LOOKING.swap(true, Ordering::AcqRel) {
        return;
    }
    background::repeat(UNDER_WAY_LOOK, || {
        let mut under_way = UNDER_WAY.lock();
        let is_left = under_way.forget_taken(Client::has_unread);
        IS_LOOKING.store(is_left, Ordering::Release);
        is_left
    });
}

/// A connected importer.
pub struct Client {
    stream: PeerStream<AdmittedPlace>,
    uid: u32,
    /// Whether the importer's user is not the user of this process.
    is_stranger: bool,
    /// The process id in this process's PID namespace, or 0 if it has none there.
    pid: u32,
    seat: Mutex<Seat>,
    /// Whether the client has attached. This is not part of the seat, whose lock is taken before
    /// the lock on the exchange thread's sources.
    was_attached: AtomicBool,
    /// Whether the client's latest request to attach was refused. Only the exchange thread uses it.
    was_refused: AtomicBool,
    /// Present until the client is dismissed.
    watch: Mutex<Option<Watch>>,
    /// A weak reference to this client, to hand to other objects.
    this: Weak<Client>,
}

/// Where a client is attached.
enum Seat {
    /// The client is not attached yet.
    None,
    /// The client is attached to these exports with this owner number.
    Attached(Weak<dyn Exports>, u16),
    /// The client has hung up and is no longer attached.
    Left,
}

/// A reply with its descriptors.
struct FullReply {
    reply: Reply,
    pieces: Option<PieceTable>,
    files: Vec<Arc<OwnedFd>>,
}

impl FullReply {
    fn new(reply: Reply, files: impl Into<Vec<Arc<OwnedFd>>>) -> Self {
        Self {
            reply,
            pieces: None,
            files: files.into(),
        }
    }
}

impl Client {
    /// Serves an importer until it hangs up.
    ///
    /// # Errors
    /// Returns [`Crowded`] if there are too many connections.
    pub(super) fn serve(stream: OwnedFd, guard: Guard) -> Result<(), Crowded> {
        if socket::pending(&stream) == Pending::HangUp {
            // The importer has already hung up, so it is neither served nor counted.
            drop(PeerStream::new(stream, guard, ()));
            return Ok(());
        }
        let Some(client) = Self::admit(stream, guard)? else {
            return Ok(());
        };
        match watch(Arc::<Self>::clone(&client)) {
            Ok(watch) => *client.watch.lock() = Some(watch),
            Err(error) => {
                static LIMIT: Limit = Limit::new();
                if let Some(suppressed) = LIMIT.admit() {
                    tracing::warn!(%error, suppressed, "an importer cannot be served");
                }
            }
        }
        Ok(())
    }

    /// Admits an importer that is not watched yet. Returns `None` if its user may not open
    /// anything.
    ///
    /// # Errors
    /// Returns [`Crowded`] if there are too many connections.
    pub fn admit(stream: OwnedFd, guard: Guard) -> Result<Option<Arc<Self>>, Crowded> {
        let descriptor = stream.as_raw_fd();
        let place = AdmittedPlace(ADMISSION.lock().number());
        let number = place.0;
        let stream = PeerStream::new(stream, guard, place);
        let Ok(Peer { uid, pid, .. }) = socket::peer(&stream) else {
            return Ok(None);
        };
        if !is_admitted_anywhere(uid) {
            REFUSALS.fetch_add(1, Ordering::Relaxed);
            observe::refused(Refusal::NotAdmitted.reason(), pid);
            let refusal = Reply::Refused(Refusal::NotAdmitted).encode(0);
            let _ = socket::send(&stream, &refusal, &[]);
            return Ok(None);
        }
        let client = Arc::new_cyclic(|this| Self {
            stream,
            uid,
            is_stranger: uid != rustix::process::geteuid().as_raw(),
            pid,
            seat: Mutex::new(Seat::None),
            was_attached: AtomicBool::new(false),
            was_refused: AtomicBool::new(false),
            watch: Mutex::default(),
            this: this.clone(),
        });
        let verdict = ADMISSION.lock().admit(
            number,
            uid,
            descriptor,
            &limits(),
            Instant::now(),
            Arc::downgrade(&client),
        );
        match verdict {
            Verdict::Welcome => {}
            Verdict::InsteadOf(other) => dismiss_all([other]),
            Verdict::Refused => {
                REFUSALS.fetch_add(1, Ordering::Relaxed);
                observe::refused(Refusal::Busy.reason(), pid);
                let refusal = Reply::Refused(Refusal::Busy).encode(0);
                let _ = socket::send(&client.stream, &refusal, &[]);
                return Err(Crowded);
            }
        }
        Ok(Some(client))
    }

    /// Ends the connection. The importer treats this like the death of this process.
    pub fn hang_up(&self) {
        self.stream.hang_up();
    }

    /// Hangs up an unattached client, and removes it.
    fn dismiss(&self) {
        self.hang_up();
        // The lock is released first, because this may drop the last reference to the client.
        let watch = self.watch.lock().take();
        drop(watch);
    }

    fn handle(&self, message: &[u8], registration: Registration) -> Result<(), Errno> {
        let (request, serial) = match Request::decode(message) {
            Ok(request) => request,
            Err(BadMessage::Version) => return self.refuse(Refusal::Version, 0),
            Err(BadMessage::Malformed(_)) => return self.refuse(Refusal::BadRequest, 0),
        };
        if self.was_refused.load(Ordering::Relaxed) && !request.is_of_no_context() {
            // The request was sent together with the refused request to attach, so this refusal is
            // not reported separately.
            let refusal = Reply::Refused(Refusal::BadRequest).encode(serial);
            return socket::send(&self.stream, &refusal, &[]);
        }
        let is_mirror = matches!(request, Request::Mirror(_));
        let fetch = match request {
            Request::Attach {
                context,
                credential,
                program,
            } => {
                let attached = self.attach(context, credential, program);
                // If an attached client asks to attach again, only that request is refused.
                let is_outside = !self.was_attached.load(Ordering::Relaxed);
                let was_refused = attached.is_err() && is_outside;
                self.was_refused.store(was_refused, Ordering::Relaxed);
                return self.reply(attached, serial);
            }
            Request::Chunk(credential) => {
                let chunk = self.with_exports(|exports, owner| exports.chunk(owner, &credential));
                let sent = chunk.map(|files| FullReply::new(Reply::Sent, files));
                return self.reply(sent, serial);
            }
            Request::Arena(credential) => {
                let arena = self.with_exports(|exports, owner| exports.arena(owner, &credential));
                let sent = arena.map(|files| FullReply::new(Reply::Sent, files));
                return self.reply(sent, serial);
            }
            Request::Memory {
                credential,
                access,
                span,
            } => {
                self.with_exports(|exports, owner| exports.memory(owner, &credential, access, span))
            }
            Request::Mirror(credential) => {
                self.with_exports(|exports, _| exports.mirror(&credential))
            }
            Request::Describe => return self.describe(serial, registration),
        };
        match fetch {
            Ok(Fetch::Ready(fetched)) => self.reply(Ok(fetched.into()), serial),
            // This check comes before the driver makes descriptors that could not be sent.
            Ok(Fetch::CallsDriver {
                brings_many: true, ..
            }) if self.has_unread() => self.refuse(Refusal::Busy, serial),
            Ok(Fetch::CallsDriver { call, .. }) => {
                let Some(client) = self.this.upgrade() else {
                    return Err(Errno::CONNRESET);
                };
                let paused = registration.pause();
                driver_jobs::run(move || {
                    if client.reply(as_reply(call(), is_mirror), serial).is_err() {
                        client.hang_up();
                    }
                    drop(paused);
                });
                Ok(())
            }
            Err(refusal) => self.reply(as_reply(Err(refusal), is_mirror), serial),
        }
    }

    /// Replies with a report, from a background thread.
    fn describe(&self, serial: u32, registration: Registration) -> Result<(), Errno> {
        // The report covers all contexts, so their policies for other users do not apply.
        if self.uid != rustix::process::geteuid().as_raw() {
            return self.refuse(Refusal::NotAdmitted, serial);
        }
        let Some(client) = self.this.upgrade() else {
            return Err(Errno::CONNRESET);
        };
        let paused = registration.pause();
        reports::make_for(describe, move |file| {
            let full = file.map(|file| FullReply::new(Reply::Sent, [file]));
            if client.reply(full, serial).is_err() {
                client.hang_up();
            }
            drop(paused);
        });
        Ok(())
    }

    fn refuse(&self, refusal: Refusal, serial: u32) -> Result<(), Errno> {
        self.reply(Err(refusal), serial)
    }

    fn reply(&self, full: Result<FullReply, Refusal>, serial: u32) -> Result<(), Errno> {
        if full
            .as_ref()
            .is_err_and(|refusal| refusal.is_of_no_context())
            && !matches!(&*self.seat.lock(), Seat::Attached(..))
        {
            REFUSALS.fetch_add(1, Ordering::Relaxed);
        }
        let full = full.and_then(|full| self.within_bounds(full));
        let full = full.unwrap_or_else(|refusal| {
            observe::refused(refusal.reason(), self.pid);
            FullReply::new(Reply::Refused(refusal), [])
        });
        let files: Vec<_> = full.files.iter().map(|file| file.as_fd()).collect();
        let mut bytes = Vec::from(full.reply.encode(serial));
        if let Some(pieces) = &full.pieces {
            pieces.encode(&mut bytes);
        }
        let send = || socket::send(&self.stream, &bytes, &files);
        match send() {
            // Retries once, because a hang-up would look like the death of this process.
            Err(Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN) => send(),
            // The user has more descriptors in transit than one process may have.
            Err(Errno::TOOMANYREFS) => {
                observe::refused(Refusal::NoRoom.reason(), self.pid);
                let refusal = Reply::Refused(Refusal::NoRoom).encode(serial);
                socket::send(&self.stream, &refusal, &[])
            }
            result => result,
        }
    }

    /// Refuses many descriptors to an importer that has not read the last ones. Refuses them to all
    /// importers while too many are unread, because descriptors in transit count against the limit
    /// of this process's user.
    fn within_bounds(&self, full: FullReply) -> Result<FullReply, Refusal> {
        let count = full.files.len();
        if full.pieces.is_none() && count <= FEW_DESCRIPTORS {
            if self.is_stranger && count > 0 {
                let has_taken = !self.has_unread();
                let mut under_way = UNDER_WAY.lock();
                under_way.add_few(&self.this, self.uid, count, has_taken);
            }
            return Ok(full);
        }
        match !self.has_unread() && self.is_under_way_with(count) {
            true => Ok(full),
            false => Err(Refusal::Busy),
        }
    }

    /// Counts descriptors that will be in transit to the importer. Returns whether there is room
    /// for them.
    fn is_under_way_with(&self, count: usize) -> bool {
        let mut under_way = UNDER_WAY.lock();
        let stranger = self.is_stranger.then_some(self.uid);
        under_way.add(&self.this, stranger, count, Self::has_unread)
    }

    /// Returns whether to receive the next request now. Requests of another user wait while too
    /// many descriptors are in transit to that user.
    fn may_be_replied_to(&self) -> bool {
        !self.is_stranger || UNDER_WAY.lock().has_room(self.uid, Self::has_unread)
    }

    /// Detaches the client. Its connection stays as long as descriptors are in transit on it.
    fn leave(&self) {
        self.detach();
        if !self.is_stranger {
            return;
        }
        let Some(client) = self.this.upgrade().filter(|_| self.has_unread()) else {
            return UNDER_WAY.lock().forget(&self.this);
        };
        if UNDER_WAY.lock().keep(&client) {
            look_after_left();
        }
    }

    /// Returns whether the importer has unread replies.
    fn has_unread(&self) -> bool {
        socket::has_unread(&self.stream) != Ok(false)
    }

    fn attach(
        &self,
        context: u32,
        credential: Credential,
        program: ProgramName,
    ) -> Result<FullReply, Refusal> {
        let mut seat = self.seat.lock();
        let (Seat::None, Some(client)) = (&*seat, self.this.upgrade()) else {
            return Err(Refusal::BadRequest);
        };
        let exports = exports_for(context, credential.key).ok_or(Refusal::UnknownContext)?;
        let weak = Arc::downgrade(&exports);
        let newcomer = Newcomer {
            credential,
            pid: self.pid,
            uid: self.uid,
            program,
        };
        let attached = with(Some(exports), |exports| {
            let kept = exports.descriptors_kept();
            self.check_quota(kept)?;
            match exports.admits(self.uid) {
                true => Ok((exports.attach(&client, newcomer)?, kept)),
                false => Err(Refusal::NotAdmitted),
            }
        });
        let (attached, kept) = attached.ok_or(Refusal::UnknownContext)??;
        let Attached {
            owner,
            files,
            locks_ledger,
        } = attached;
        ADMISSION.lock().attach(self.stream.counted().0, 1 + kept);
        *seat = Seat::Attached(weak, owner);
        self.was_attached.store(true, Ordering::Relaxed);
        drop(seat);
        let peer = Observed {
            context,
            owner,
            pid: self.pid,
            program: &program_text(&program),
        };
        observe::attached(Side::Exporter, &peer);
        let reply = Reply::Attached {
            owner,
            locks_ledger,
        };
        Ok(FullReply::new(reply, files))
    }

    /// Checks that the client may attach where this process keeps `kept` descriptors for it. The
    /// result stays valid until the client is attached, because only the exchange thread attaches.
    fn check_quota(&self, kept: usize) -> Result<(), Refusal> {
        let limits = limits();
        let number = self.stream.counted().0;
        if !ADMISSION.lock().may_attach(number, 1 + kept, &limits) {
            return Err(Refusal::Busy);
        }
        if kept == 0 {
            return Ok(());
        }
        // The kernel always gives the lowest free number.
        let next = self.stream.as_fd().try_clone_to_owned();
        let next = next.map_err(|_| Refusal::NoRoom)?;
        match limits.has_room(next.as_raw_fd()) {
            true => Ok(()),
            false => Err(Refusal::NoRoom),
        }
    }

    /// Calls `f` with the exports to which the client is attached, and its owner number there.
    fn with_exports<R>(
        &self,
        f: impl FnOnce(&dyn Exports, u16) -> Result<R, Refusal>,
    ) -> Result<R, Refusal> {
        let Seat::Attached(exports, owner) = &*self.seat.lock() else {
            return Err(Refusal::BadRequest);
        };
        let owner = *owner;
        with(exports.upgrade(), |exports| f(exports, owner)).ok_or(Refusal::UnknownContext)?
    }

    /// Detaches the client, if it is attached.
    fn detach(&self) {
        let seat = mem::replace(&mut *self.seat.lock(), Seat::Left);
        if let Seat::Attached(exports, owner) = seat {
            with(exports.upgrade(), |exports| exports.detach(owner));
        }
    }
}

/// Returns the reply to a request for an object. Importers request a mirror without knowing whether
/// it exists, so a missing mirror is not reported as a refusal.
fn as_reply(fetched: Result<Supply, Refusal>, is_mirror: bool) -> Result<FullReply, Refusal> {
    match fetched {
        Err(none @ Refusal::Stale) if is_mirror => Ok(FullReply::new(Reply::Refused(none), [])),
        fetched => fetched.map(Into::into),
    }
}

impl From<Supply> for FullReply {
    fn from(supply: Supply) -> Self {
        match supply {
            Supply::Whole(fetched) => fetched.into(),
            Supply::DriverHandle(FetchedHandle {
                segment,
                len,
                handle,
            }) => Self::new(
                Reply::DriverHandle {
                    segment,
                    len,
                    handle,
                },
                [],
            ),
            Supply::Pieces(FetchedPieces {
                segment,
                len,
                batch,
            }) => {
                let note = batch.note;
                let part = |piece: &PieceFile| piece.part;
                let table = PieceTable {
                    total: batch.total,
                    first: batch.first,
                    parts: batch.files.iter().map(part).collect(),
                };
                Self {
                    reply: Reply::Pieces { segment, len, note },
                    pieces: Some(table),
                    files: batch.files.into_iter().map(|piece| piece.file).collect(),
                }
            }
        }
    }
}

impl From<Fetched> for FullReply {
    fn from(fetched: Fetched) -> Self {
        let Fetched {
            file,
            segment,
            len,
            note,
            disposal: _,
        } = fetched;
        Self::new(Reply::Fetched { segment, len, note }, [file])
    }
}

impl Source for Client {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn peer(&self) -> Option<Party> {
        Some(Party::peer(self.uid, self.pid))
    }

    fn must_read_first(&self) -> bool {
        // The kernel reports that the peer has read something while it still counts a part of it.
        // So this function must not wait for the last byte.
        socket::unread_bytes(&self.stream).is_ok_and(|unread| unread > MAX_UNREAD_BYTES)
    }

    fn hung_up(&self, _: Registration) -> Next {
        // Requests that the importer sent before it hung up are not answered.
        self.leave();
        Next::Forget
    }

    fn ready(&self, registration: Registration) -> Next {
        if !self.may_be_replied_to() {
            return Next::Rest;
        }
        let mut buffer = [0; REQUEST_SIZE];
        // One message is taken per call. The next one is reported again after other sources have
        // had their turn.
        let result = match socket::receive(&self.stream, &mut buffer, self.stream.guard()) {
            Err(Errno::AGAIN | Errno::INTR) => return Next::Continue,
            // This process is temporarily out of memory, so the importer has not ended.
            Err(Errno::NOMEM | Errno::NOBUFS) => return Next::Rest,
            Ok(Received::Message(len, ())) => {
                let number = self.stream.counted().0;
                let may_ask = ADMISSION.lock().spoke(number, Instant::now());
                match may_ask {
                    true => self.handle(&buffer[..len], registration),
                    false => Err(Errno::CONNRESET),
                }
            }
            // Importers send no descriptors.
            Ok(Received::Unwanted | Received::HungUp) => Err(Errno::CONNRESET),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => Next::Continue,
            // The client hung up, does not read its replies, or violates the protocol.
            Err(_) => {
                self.leave();
                Next::Forget
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.detach();
    }
}
