//! Attachments: the importing process's half of sharing, which fetches from an exporter and notices
//! its death.

use super::arena::{Arena, MAX_RECORDS};
use super::broker::protocol::{Refusal, Reply, Request};
use super::broker::{self, Connection, Exports, Fetch, Fetched, PeerPolicy};
use super::exporter::Exporter;
use super::ledger::Ledger;
use super::liveness::LivenessLocks;
use super::open_count;
use super::records::MIRROR_SEGMENT;
use crate::error::{Error, Result};
use crate::event_protocol::{Liveness, Owner};
use crate::handle::{Fields, HandleError, Secret};
use crate::os::{process, wake_ticker};
use crate::sync::{Condvar, HashMap, Mutex};
use crate::threads::driver_jobs;
use crate::threads::exchange::{Next, Registration, Source, Watch, watch};
use crate::types::Access;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

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
    /// `None` only while it is being dropped.
    arena: Option<Arc<Arena>>,
    ledger: Arc<Ledger>,
    owner: Owner,
    link: Link,
    secret: Secret,
}

/// The way to the exporter.
enum Link {
    /// To this very process. The context may end before this does.
    Local(Weak<Exporter>),
    /// To another process.
    Remote {
        connection: Connection,
        has_hung_up: AtomicBool,
        watch: OnceLock<Watch>,
    },
}

/// Attachments to other processes by secret. `None`: one is being made.
type Attachments = HashMap<Secret, Option<Weak<Attachment>>>;
static ATTACHMENTS: LazyLock<Mutex<Attachments>> = LazyLock::new(Mutex::default);
/// Notified when an entry was filled or removed.
static CHANGED: Condvar = Condvar::new();

impl Attachment {
    /// Returns the attachment to the context that made a handle, made now if there is none.
    pub(crate) fn to(fields: &Fields, origin: &Origin) -> Result<Arc<Self>> {
        let secret = fields.secret;
        if let Some(exports) = broker::local_exports(secret) {
            let exporter = exports.as_any().downcast::<Exporter>();
            let exporter = exporter.map_err(|_| Error::Stale)?;
            return Ok(Arc::new(Self {
                arena: Some(exporter.shared_arena()),
                ledger: exporter.own_ledger()?,
                owner: Owner::EXPORTER,
                link: Link::Local(Arc::downgrade(&exporter)),
                secret,
            }));
        }
        if broker::address::exporter_id()? == fields.exporter {
            // Ours, and its context is dropped.
            return Err(Error::ExporterGone { pid: fields.pid });
        }
        let end = Instant::now().checked_add(origin.timeout);
        let mut attachments = ATTACHMENTS.lock();
        loop {
            match attachments.get(&secret) {
                None => break,
                Some(entry) => {
                    // `None`: one is being made, or is being dropped and closes the arena soon.
                    if let Some(attachment) = entry.as_ref().and_then(Weak::upgrade) {
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
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
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
        attachments.insert(secret, None);
        drop(attachments);
        let vacancy = Vacancy(secret);
        let attachment = Self::connect(fields, origin)?;
        vacancy.fill(&attachment);
        // Only now, since a hang-up may drop the attachment.
        attachment.watch_hang_up()?;
        Ok(attachment)
    }

    fn connect(fields: &Fields, origin: &Origin) -> Result<Arc<Self>> {
        let connection = Connection::open(
            fields.exporter,
            fields.pid,
            origin.directory.as_deref(),
            &origin.policy,
            origin.timeout,
        )?;
        if connection.is_self() && !LivenessLocks::get()?.are_separate() {
            return Err(Error::Unsupported(
                "the handle was made by another copy of crosshandle in this same process, and this \
                 system lacks what it takes to open it: close_range(2) with CLOSE_RANGE_UNSHARE \
                 (Linux 5.9)"
                    .into(),
            ));
        }
        let (ledger, ledger_file) = Ledger::create()?;
        let request = Request::Attach(fields.secret);
        let (reply, file) = connection.ask(request, Some(ledger_file.as_fd()))?;
        let Reply::Attached { owner } = reply else {
            return Err(Error::Protocol("it answers another question"));
        };
        let owner = Owner::new(owner)
            .filter(|owner| *owner != Owner::EXPORTER)
            .ok_or(Error::Protocol("it gave an owner that cannot be"))?;
        let arena = Arena::open(file)?;
        arena.lock_liveness(owner)?;
        Ok(Arc::new(Self {
            arena: Some(Arc::new(arena)),
            ledger: Arc::new(ledger),
            owner,
            link: Link::Remote {
                connection,
                has_hung_up: AtomicBool::new(false),
                watch: OnceLock::new(),
            },
            secret: fields.secret,
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

    pub(crate) fn arena(&self) -> &Arena {
        self.arena.as_deref().expect("present until drop")
    }

    /// Returns the owner that this process signals as.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Counts one open of a record, to be ended with [`release`](Self::release).
    #[inline]
    pub(crate) fn hold(&self, record: u32, generation: u32) -> Result<()> {
        if record >= MAX_RECORDS {
            return Err(Error::Stale);
        }
        let count = self.ledger.count(record);
        if open_count::try_open(count, self.arena().generation(record), generation) {
            return Ok(());
        }
        Err(Error::Stale)
    }

    /// Ends one open of a record.
    #[inline]
    pub(crate) fn release(&self, record: u32) {
        if process::is_forked() {
            return;
        }
        open_count::close(self.ledger.count(record));
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
    pub(crate) fn fetch(&self, fields: &Fields, access: Access) -> Result<Fetched> {
        let fetched = self.fetch_record(fields.record, fields.generation, access)?;
        if fetched.segment == MIRROR_SEGMENT {
            // The record is an event's.
            return Err(Error::Stale);
        }
        if fetched.segment != fields.segment {
            return Err(Error::Handle(HandleError::Malformed {
                field: "segment",
                why: "its exporter has the object in another one",
            }));
        }
        Ok(fetched)
    }

    pub(super) fn fetch_record(
        &self,
        record: u32,
        generation: u32,
        access: Access,
    ) -> Result<Fetched> {
        match &self.link {
            Link::Local(exporter) => {
                let gone = Error::ExporterGone {
                    pid: process::pid(),
                };
                let exporter = exporter.upgrade().ok_or(gone)?;
                let fetched = match exporter.fetch(record, generation, access) {
                    Ok(Fetch::Ready(fetched)) => Ok(fetched),
                    Ok(Fetch::CallsDriver(call)) => call(),
                    Err(refusal) => Err(refusal),
                };
                fetched.map_err(|refusal| match refusal {
                    Refusal::ReadOnly => Error::ReadOnly,
                    Refusal::NoRoom => Error::os("opening memory")(Errno::MFILE),
                    _ => Error::Stale,
                })
            }
            Link::Remote { connection, .. } => {
                let request = Request::Fetch {
                    record,
                    generation,
                    access,
                };
                match connection.ask(request, None)? {
                    (Reply::Fetched { segment, len, note }, file) => Ok(Fetched {
                        file: Arc::new(file),
                        segment,
                        len,
                        note,
                    }),
                    _ => Err(Error::Protocol("it answers another question")),
                }
            }
        }
    }

    /// Returns whether the exporter is this very process.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.link, Link::Local(_))
    }

    /// Returns whether the exporter has hung up: nothing new can be fetched, and what is open stays.
    pub(crate) fn is_hung_up(&self) -> bool {
        match &self.link {
            Link::Local(exporter) => exporter.strong_count() == 0,
            Link::Remote { has_hung_up, .. } => has_hung_up.load(Ordering::Acquire),
        }
    }
}

impl Liveness for Attachment {
    fn is_dead(&self, owner: Owner) -> bool {
        match &self.link {
            // Our own signals are alive, whatever became of the context.
            Link::Local(_) if owner == self.owner => false,
            Link::Local(exporter) => match exporter.upgrade() {
                Some(exporter) => exporter.is_dead(owner),
                None => !self.arena().is_alive(owner),
            },
            Link::Remote { .. } if owner == self.owner => false,
            Link::Remote { .. } if owner == Owner::EXPORTER && self.is_hung_up() => true,
            Link::Remote { .. } => !self.arena().is_alive(owner),
        }
    }

    fn is_known_abandoned(&self) -> bool {
        self.is_hung_up()
    }

    fn is_abandoned(&self) -> bool {
        self.is_hung_up() || self.is_dead(Owner::EXPORTER)
    }
}

/// The entry in [`ATTACHMENTS`] of an attachment that is being made. Dropped when it is made, or
/// when that has failed.
struct Vacancy(Secret);

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
        let Link::Remote {
            connection, watch, ..
        } = &mut self.link
        else {
            return;
        };
        drop(watch.take());
        // Where liveness locks are not separate, closing the arena drops every lock that this process
        // has on it, so no thread may attach anew before that: see `super::liveness`.
        self.arena = None;
        connection.hang_up();
        let mut attachments = ATTACHMENTS.lock();
        if let Some(Some(entry)) = attachments.get(&self.secret)
            && entry.strong_count() == 0
        {
            attachments.remove(&self.secret);
        }
        drop(attachments);
        CHANGED.notify_all();
    }
}

/// The watched source that notices that an exporter has hung up.
struct HangUp {
    stream: Arc<OwnedFd>,
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
        if let Link::Remote { has_hung_up, .. } = &attachment.link {
            has_hung_up.store(true, Ordering::Release);
            attachment.arena().fail_orphans(&*attachment);
            // Waits for signals that no process has submitted are over too.
            wake_ticker::wake_all();
        }
        if let Some(last) = Arc::into_inner(attachment) {
            driver_jobs::drop_later(last);
        }
        Next::Forget
    }
}
