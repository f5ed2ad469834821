//! Attaching a process to an exporting context, and the end of an attachment.

use super::{Attachment, ContextId, First, Location, Origin};
use crate::broker::protocol::{ProgramName, Reply, Request};
use crate::broker::{self, Connection, OpenDeadline, Route};
use crate::chunks::{Catalog, CatalogChunk, Ledger, LedgerChunk};
use crate::event_arena::PeerWatches;
use crate::exporter::Exporter;
use crate::liveness::LivenessLocks;
use crate::record::Credential;
use crosshandle_events::Owner;
use crosshandle_handle::Fields;
use crosshandle_os::fork::{Birth, PerProcess};
use crosshandle_os::socket::interrupt;
use crosshandle_os::threads::disposer::PeerStream;
use crosshandle_os::threads::driver_jobs;
use crosshandle_os::threads::exchange::{Next, Registration, Source, watch};
use crosshandle_os::{process, sleepers};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe;
use crosshandle_types::sync::{Condvar, HashMap, Mutex, Turn};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Interval at which an importer reconnects to an exporter that hung up without a reply.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(1);

/// Attachments to other processes. An entry is `None` while its attachment is being made.
type Attachments = HashMap<ContextId, Option<Weak<Attachment>>>;
static ATTACHMENTS: PerProcess<Mutex<Attachments>> = PerProcess::new(Mutex::default);
/// Notified when an entry was filled or removed.
static CHANGED: PerProcess<Condvar> = PerProcess::new(Condvar::new);

impl Attachment {
    /// Returns the attachment to the context that made a handle, or to its holder, and makes it if
    /// necessary.
    ///
    /// `next` is the first object that the caller will fetch. If the exporter must be asked, the
    /// request for that object is sent at the same time.
    pub fn to(
        fields: &Fields,
        route: Route,
        origin: &Origin,
        next: First,
        deadline: &OpenDeadline,
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
                location: Location::Local(Arc::downgrade(&exporter)),
                watches: PeerWatches::default(),
                origin: context,
                fetching: Turn::default(),
                ends_with_it: OnceLock::new(),
                birth: Birth::here(),
            }));
        }
        if is_local {
            // The exporter is this process, and its context was dropped.
            return Err(Error::ExporterGone { pid: fields.pid });
        }
        // The ended attachment is dropped after the lock is released, because its drop takes the
        // lock.
        let mut _ended = None;
        let mut attachments = ATTACHMENTS.lock();
        loop {
            match attachments.get(&context) {
                None => break,
                Some(entry) => {
                    // If the upgrade fails, an attachment is being made, or is being dropped and
                    // will soon close the arena.
                    if let Some(attachment) = entry.as_ref().and_then(Weak::upgrade) {
                        // A holder's successor continues where the holder ended.
                        if route == Route::Holder && attachment.is_hung_up() {
                            _ended = Some(attachment);
                            break;
                        }
                        // The lock is released first, because dropping the last attachment takes
                        // it.
                        drop(attachments);
                        attachment.check_admitted(origin)?;
                        if attachment.is_hung_up() {
                            return Err(Error::ExporterGone { pid: fields.pid });
                        }
                        return Ok(attachment);
                    }
                }
            }
            let is_made = |attachments: &mut Attachments| {
                let entry = attachments.get(&context);
                entry.is_some_and(|entry| entry.as_ref().is_none_or(|of| of.strong_count() == 0))
            };
            let waited;
            (attachments, waited) =
                interrupt::wait_while(&CHANGED, attachments, deadline.get(), is_made);
            match waited {
                Ok(()) => {}
                Err(Errno::TIMEDOUT) => {
                    return Err(Error::NoAnswer {
                        doing: "waiting for another open of the same exporter,",
                        pid: fields.pid,
                        program: String::new(),
                    });
                }
                Err(errno) => {
                    return Err(Error::os("waiting for another open of the same exporter")(
                        errno,
                    ));
                }
            }
        }
        attachments.insert(context, None);
        drop(attachments);
        let vacancy = Vacancy(context);
        let attachment = Self::connect(fields, route, origin, next, deadline)?;
        vacancy.fill(&attachment);
        // This comes last, because a hang-up may drop the attachment.
        if let Err(error) = attachment.watch_hang_up() {
            // Other threads that have found the attachment must not use it, because it would never
            // notice a hang-up.
            attachment.note_hang_up();
            return Err(error);
        }
        attachment.tell(observe::attached);
        Ok(attachment)
    }

    /// Attaches, and retries if the exporter hangs up before it has replied. An exporter with too
    /// many connections hangs up on those that have not sent a request.
    fn connect(
        fields: &Fields,
        route: Route,
        origin: &Origin,
        next: First,
        deadline: &OpenDeadline,
    ) -> Result<Arc<Self>> {
        let _span = observe::attaching(fields.context, fields.pid);
        // The liveness thread must exist before this process has a peer's descriptor. On its start,
        // that thread closes all descriptors in its own table. Closing a peer's descriptor could
        // block for as long as a hostile peer wants. If the thread cannot start, the code that
        // needs it gets the error.
        let _ = LivenessLocks::get();
        loop {
            let connection = Self::open_connection(fields, route, origin, deadline)?;
            let request = Request::Attach {
                context: fields.context,
                credential: Credential::of(fields),
                program: program_name(),
            };
            match connection.ask_for_memory(request, Some(next.request(fields)), deadline) {
                Err(_) if connection.has_hung_up() && !deadline.get().is_over() => {
                    deadline.get().sleep(RECONNECT_INTERVAL);
                }
                full => {
                    let context = ContextId::by(fields, route);
                    return Self::accepted(context, connection, origin.timeout, full?);
                }
            }
        }
    }

    fn open_connection(
        fields: &Fields,
        route: Route,
        origin: &Origin,
        deadline: &OpenDeadline,
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

    pub(super) fn accepted(
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
            return Err(Error::Protocol("it does not match the request"));
        };
        let owner = Owner::new(owner)
            .filter(|owner| *owner != Owner::EXPORTER)
            .ok_or(Error::Protocol("it has an invalid owner number"))?;
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
            location: Location::Remote {
                connection: Box::new(connection),
                timeout,
                hung_up_at: AtomicU64::new(0),
                watch: OnceLock::new(),
            },
            watches: PeerWatches::default(),
            origin,
            fetching: Turn::default(),
            ends_with_it: OnceLock::new(),
            birth: Birth::here(),
        }))
    }

    fn watch_hang_up(self: &Arc<Self>) -> Result<()> {
        if let Location::Remote {
            connection,
            watch: registered,
            ..
        } = &self.location
        {
            let notice = HangUp {
                stream: connection.stream(),
                attachment: Arc::downgrade(self),
            };
            let _ = registered.set(watch(Arc::new(notice))?);
        }
        Ok(())
    }

    pub(super) fn note_hang_up(&self) {
        if let Location::Remote { hung_up_at, .. } = &self.location {
            hung_up_at.store(process::time().max(1), Ordering::Release);
        }
    }

    /// Checks the exporter against a context's policy, because another context of this process with
    /// a wider policy may have attached to it.
    fn check_admitted(&self, origin: &Origin) -> Result<()> {
        match &self.location {
            Location::Remote { connection, .. } if !origin.policy.admits(connection.uid()) => {
                Err(Error::NotAdmitted {
                    uid: connection.uid(),
                })
            }
            _ => Ok(()),
        }
    }
}

/// Returns the name of this program in the form that messages carry.
fn program_name() -> ProgramName {
    let name = process::program();
    let mut bytes = ProgramName::default();
    let end = name.floor_char_boundary(bytes.len().min(name.len()));
    bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
    bytes
}

/// The entry in [`ATTACHMENTS`] of an attachment that is being made. It is dropped when the
/// attachment is made or has failed.
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
        if self.birth.is_inherited() {
            return;
        }
        drop(self.ends_with_it.take());
        let Location::Remote {
            connection, watch, ..
        } = &mut self.location
        else {
            return;
        };
        drop(watch.take());
        self.ledger.leave_all();
        // If liveness locks are not separate, closing an arena drops every lock of this process on
        // it. No thread may attach again before the arena is closed (see `super::liveness`).
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
        // Waits for signals that no process has submitted end too.
        sleepers::wake_all();
        attachment.tell_hung_up();
        if let Some(last) = Arc::into_inner(attachment) {
            driver_jobs::drop_later(last);
        }
        Next::Forget
    }
}
