//! The exporter's socket: each process has one per directory.

use super::address::{self, PeerPolicy};
use super::client::{self, Client, no_room};
use super::directory::{DirectoryId, SocketDirectory};
use super::published;
use super::sweep;
use crate::liveness::{LivenessLock, LivenessLocks};
use crosshandle_os::fork::{Birth, KeptFromChildren, PerProcess};
use crosshandle_os::lock::LockKind;
use crosshandle_os::process;
use crosshandle_os::socket;
use crosshandle_os::socket::Guard;
use crosshandle_os::threads::background;
use crosshandle_os::threads::exchange::{Next, Registration, Source, Watch, watch};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::{self, Limit, Reason};
use crosshandle_types::sync::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of connections that the exchange thread accepts from a socket before it serves
/// other sources, about 100 µs. More would delay attached importers during a flood of connections,
/// and fewer would delay new importers.
const MAX_ACCEPTS: usize = 16;

/// Delay after which an exporter listens again if its socket was removed. A shorter delay may
/// recreate the directory while a program is still removing it. During the delay, importers are
/// refused.
const RESTORE_DELAY: Duration = Duration::from_millis(100);

/// Time for which an export relies on an earlier check that the socket exists. The check is a
/// system call, which takes longer than the rest of an export. If the socket is removed in this
/// time, importers are refused until inotify reports the removal, or until a later export.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Longest expected time from a removal until inotify's report of it is read.
const REPORT_DELAY: Duration = Duration::from_secs(1);

/// This process's socket in one directory. It is closed and removed when its last user drops it.
///
/// Other programs may remove the socket or the directory, for example `logind` at the end of a
/// session, or cleaners of temporary directories. The broker then listens again under the same
/// name. inotify reports the removal, if the system has a free instance. The broker also checks at
/// exports, at most once per [`CHECK_INTERVAL`].
pub struct Broker {
    place: Mutex<Listening>,
    latest_check: Arc<LatestCheck>,
    /// The directory that the program chose. `None` for the default directory, which is recreated
    /// if it is removed.
    chosen: Option<PathBuf>,
    /// Whether other users are admitted.
    is_shared: AtomicBool,
    /// Name of the socket.
    name: String,
    birth: Birth,
}

/// The latest check that the socket exists.
#[derive(Default)]
struct LatestCheck {
    /// Time of the check, in nanoseconds of
    /// [`coarse_nanoseconds`](process::coarse_nanoseconds), or 0 if the next export must check.
    time: AtomicU64,
    /// Whether an export relied on this check instead of making its own.
    is_relied_on: AtomicBool,
}

impl LatestCheck {
    fn set(&self, now: u64) {
        self.is_relied_on.store(false, Ordering::Relaxed);
        self.time.store(now, Ordering::Relaxed);
    }

    /// Returns whether an export may rely on this check, and notes that one did.
    #[inline]
    fn covers(&self, now: u64) -> bool {
        let time = self.time.load(Ordering::Relaxed);
        let covers = time != 0 && now.saturating_sub(time) < CHECK_INTERVAL.as_nanos() as u64;
        // The store would take the line from other threads, so it happens once for each check.
        if covers && !self.is_relied_on.load(Ordering::Relaxed) {
            self.is_relied_on.store(true, Ordering::Relaxed);
        }
        covers
    }

    /// Makes the next export check. Returns whether an export may have relied on the check after
    /// the socket was removed, if its removal is reported `now`.
    fn forget(&self, now: u64) -> bool {
        let time = self.time.swap(0, Ordering::Relaxed);
        let is_recent = now.saturating_sub(time) < REPORT_DELAY.as_nanos() as u64;
        self.is_relied_on.load(Ordering::Relaxed) && is_recent
    }
}

/// The place where a broker listens. The fields are dropped in this order.
struct Listening {
    _listening: Watch,
    _removal: Option<Watch>,
    directory: SocketDirectory,
    cell: Arc<BrokerCell>,
    /// Identity of the socket's file.
    file: Option<(u64, u64)>,
    /// Shows other exporters that this one is alive. Dropped after the socket has been removed.
    liveness: Option<LivenessLock>,
    /// Another broker of this process that was faster to recreate the directory.
    other: Option<Arc<Broker>>,
}

/// The broker of one directory. It is locked during setup and removal, so that a process has only
/// one. No lock on a [`Listening`] may be taken while this lock is held.
type BrokerCell = Mutex<Weak<Broker>>;

/// The directories in which this process listens or is about to listen.
static BROKERS: PerProcess<Mutex<BTreeMap<DirectoryId, Arc<BrokerCell>>>> =
    PerProcess::new(Mutex::default);

fn cell_of(id: DirectoryId) -> Arc<BrokerCell> {
    Arc::clone(BROKERS.lock().entry(id).or_default())
}

impl Broker {
    /// Starts to reply to importers in the directory that the program chose, or in the default
    /// directory.
    pub fn listen(chosen: Option<&Path>, policy: &PeerPolicy) -> Result<Arc<Self>> {
        let shared = *policy != PeerPolicy::SameUser;
        // The directory is opened before the search for a broker, because two paths may lead to one
        // directory.
        let directory = SocketDirectory::open(&address::directories(chosen)[0], shared)?;
        let id = directory.id();
        let cell = cell_of(id);
        let mut listening = cell.lock();
        if let Some(broker) = listening.upgrade() {
            // The lock is released first, because dropping the last broker takes it.
            drop(listening);
            broker.ensure()?;
            if shared {
                broker.open_to_others()?;
            }
            return Ok(broker);
        }
        let created = Listening::new(directory, shared, &cell, None).map(|place| {
            Arc::new(Self {
                place: Mutex::new(place),
                latest_check: Arc::default(),
                chosen: chosen.map(Path::to_owned),
                is_shared: AtomicBool::new(shared),
                name: place_name(),
                birth: Birth::here(),
            })
        });
        if let Ok(broker) = &created {
            *listening = Arc::downgrade(broker);
        }
        drop(listening);
        match &created {
            Ok(broker) => {
                let mut place = broker.place.lock();
                place.watch(broker);
                sweep::remove_dead_sockets(&place.directory);
            }
            Err(_) => forget_unused(id, &cell),
        }
        created
    }

    /// Lets other users connect too.
    fn open_to_others(&self) -> Result<()> {
        self.is_shared.store(true, Ordering::Relaxed);
        let place = self.place.lock();
        match place.other.clone() {
            Some(other) => {
                drop(place);
                other.open_to_others()
            }
            None => open_to(&place.directory, &self.name, true, place.liveness.is_some()),
        }
    }

    /// Ensures that importers can find the socket, before an object is exported.
    ///
    /// # Errors
    /// Returns the errors of [`listen`](Self::listen), if the socket was removed.
    #[inline]
    pub fn ensure(self: &Arc<Self>) -> Result<()> {
        let now = process::coarse_nanoseconds();
        if self.latest_check.covers(now) {
            return Ok(());
        }
        self.check(now)
    }

    /// Checks that the socket exists, and listens again if it does not.
    #[cold]
    fn check(self: &Arc<Self>, now: u64) -> Result<()> {
        let place = self.place.lock();
        if place.other.is_none() && place.has_name(&self.name) {
            // Stored under the lock, so that a later report of a removal is not overwritten.
            self.latest_check.set(now);
            return Ok(());
        }
        drop(place);
        self.restore(true)
    }

    /// Listens again if the socket or its directory was removed. With `makes`, it also recreates a
    /// directory that the program chose, which may have been removed on purpose.
    #[cold]
    fn restore(self: &Arc<Self>, makes: bool) -> Result<()> {
        if self.birth.is_inherited() {
            return Ok(());
        }
        let mut place = self.place.lock();
        if let Some(other) = place.other.clone() {
            drop(place);
            return other.restore(makes);
        }
        let path = address::directories(self.chosen.as_deref()).swap_remove(0);
        let found = SocketDirectory::existing(&path).ok().flatten();
        let is_same = found.as_ref().map(SocketDirectory::id) == Some(place.directory.id());
        if place.has_name(&self.name) && is_same {
            return Ok(());
        }
        if found.is_none() && self.chosen_by_program() && !makes {
            return Ok(());
        }
        let shared = self.is_shared.load(Ordering::Relaxed);
        let directory = SocketDirectory::open(&path, shared)?;
        let id = directory.id();
        let cell = cell_of(id);
        let mut listening = cell.lock();
        let other = listening.upgrade();
        if let Some(other) = other.filter(|other| !Arc::ptr_eq(other, self)) {
            drop(listening);
            // No thread can find this broker any more, so brokers cannot wait for each other in a
            // cycle.
            *place.cell.lock() = Weak::new();
            place.other = Some(other);
            return Ok(());
        }
        let before = (place.directory.id(), Arc::clone(&place.cell));
        let liveness = match before.0 == id {
            true => place.liveness.take(),
            false => None,
        };
        let made = Listening::new(directory, shared, &cell, liveness);
        if made.is_ok() {
            *listening = Arc::downgrade(self);
        }
        drop(listening);
        let made = made.inspect_err(|_| forget_unused(id, &cell))?;
        tracing::info!(path = %path.display(), "the socket was removed, and is there again");
        let former = std::mem::replace(&mut *place, made);
        place.watch(self);
        drop(place);
        // They are dropped without the lock, because the drops may involve threads or other
        // brokers.
        drop((former, cell));
        if before.0 != id {
            forget_unused(before.0, &before.1);
        }
        Ok(())
    }

    fn chosen_by_program(&self) -> bool {
        self.chosen.is_some() || address::is_set_by_environment()
    }
}

/// Returns the name of this process's socket. The process already has its exporter number.
fn place_name() -> String {
    address::exporter_id().map_or(String::new(), address::socket_name)
}

impl Listening {
    /// Listens in a directory. `liveness` is the lock that this process may already have there.
    fn new(
        directory: SocketDirectory,
        shared: bool,
        cell: &Arc<BrokerCell>,
        liveness: Option<LivenessLock>,
    ) -> Result<Self> {
        let exporter = address::exporter_id()?;
        // The lock is taken before the socket exists, so that no exporter treats the socket as
        // dead.
        let liveness = match liveness {
            Some(held) => Some(held),
            None => lock_liveness(&directory, exporter)?,
        };
        let name = address::socket_name(exporter);
        // The socket gets its name only after it listens, because a socket that refuses connections
        // looks dead.
        let unnamed = address::unnamed_name(exporter);
        let _ = directory.remove(&unnamed);
        let listening = socket::listen(&directory.path_of(&unnamed));
        let (listener, guard) = listening.map_err(Error::os("listening for importers"))?;
        let file = directory.file_id(&unnamed);
        let named = check_place(&directory, &unnamed)
            .and_then(|()| open_to(&directory, &unnamed, shared, liveness.is_some()))
            .and_then(|()| {
                directory
                    .rename(&unnamed, &name)
                    .map_err(Error::os("naming the broker's socket"))
            });
        if let Err(error) = named {
            let _ = directory.remove(&unnamed);
            return Err(error);
        }
        let listener = Listener {
            spare: Mutex::new(spare().ok()),
            listener: KeptFromChildren::new(listener),
            guard,
        };
        let watch = watch(Arc::new(listener)).inspect_err(|_| {
            let _ = directory.remove(&name);
        })?;
        Ok(Self {
            _listening: watch,
            _removal: None,
            directory,
            cell: Arc::clone(cell),
            file,
            liveness,
            other: None,
        })
    }

    /// Requests a notification when the socket or the directory is removed, if the system supports
    /// it.
    fn watch(&mut self, broker: &Arc<Broker>) {
        let removal = Removal::watch(&self.directory, broker);
        self._removal = removal
            .inspect_err(|error| {
                tracing::debug!(%error, "a removed socket is noticed at the next export only");
            })
            .ok();
        // The socket may have been removed before the watch began.
        if !self.has_name(&broker.name) {
            let broker = Arc::clone(broker);
            background::run(move || drop(broker.restore(false)));
        }
    }

    /// Returns whether the socket still has its name in the directory, wherever the directory is
    /// now.
    fn has_name(&self, name: &str) -> bool {
        self.file.is_some() && self.directory.file_id(name) == self.file
    }
}

/// Notices that a socket or its directory is removed or renamed.
struct Removal {
    inotify: KeptFromChildren,
    broker: Weak<Broker>,
    latest_check: Arc<LatestCheck>,
}

impl Removal {
    fn watch(directory: &SocketDirectory, broker: &Arc<Broker>) -> Result<Watch> {
        let failed = Error::os("watching the socket directory");
        let inotify =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(&failed)?;
        let gone = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        // Only changes of the file itself are watched, because other exporters often change the
        // directory. The file's attributes include the number of its names.
        let file = gone | WatchFlags::ATTRIB | WatchFlags::DONT_FOLLOW;
        inotify::add_watch(&inotify, directory.path_of(&broker.name), file).map_err(&failed)?;
        inotify::add_watch(&inotify, directory.path_of(""), gone | WatchFlags::ONLYDIR)
            .map_err(&failed)?;
        watch(Arc::new(Self {
            inotify: KeptFromChildren::new(inotify),
            broker: Arc::downgrade(broker),
            latest_check: Arc::clone(&broker.latest_check),
        }))
    }
}

impl Source for Removal {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, _: Registration) -> Next {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        // All events are skipped, because only the present state matters.
        while events.next().is_ok() {}
        if self.broker.strong_count() == 0 {
            // The broker has removed its socket itself.
            return Next::Continue;
        }
        let broker = Weak::clone(&self.broker);
        // An export after the removal needs its directory, even one that the program chose.
        let makes = self.latest_check.forget(process::coarse_nanoseconds());
        // Looking into a directory may block, and so may dropping the last broker.
        background::run(move || {
            thread::sleep(RESTORE_DELAY);
            let restored = broker.upgrade().map(|broker| broker.restore(makes));
            if let Some(Err(error)) = restored {
                tracing::warn!(%error, "importers cannot connect any more");
            }
        });
        Next::Continue
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.birth.is_inherited() {
            return;
        }
        let mut place = self.place.lock();
        // The broker makes the following removal itself.
        place._removal = None;
        // Another thread may be listening there again, and then the name belongs to its broker.
        let listening = place.cell.lock();
        if listening.strong_count() == 0 && place.other.is_none() && place.has_name(&self.name) {
            let _ = place.directory.remove(&self.name);
        }
        drop(listening);
        forget_unused(place.directory.id(), &place.cell);
    }
}

/// Removes a directory's cell unless another thread uses it.
fn forget_unused(directory: DirectoryId, cell: &Arc<BrokerCell>) {
    let mut places = BROKERS.lock();
    // The two references are the map's and the caller's. Other threads get references only from the
    // map.
    if Arc::strong_count(cell) == 2
        && places
            .get(&directory)
            .is_some_and(|of| Arc::ptr_eq(of, cell))
    {
        places.remove(&directory);
    }
}

/// Locks the exporter's byte of the directory, if possible. Without the lock, other exporters only
/// have to probe whether the socket replies.
fn lock_liveness(directory: &SocketDirectory, exporter: u64) -> Result<Option<LivenessLock>> {
    let locks = LivenessLocks::get()?;
    if !locks.are_separate() {
        // Any access of this process to the directory would drop the lock.
        return Ok(None);
    }
    let index = sweep::lock_of(exporter);
    match directory
        .open_entries()
        .and_then(|file| locks.hold(file.as_fd(), index, LockKind::Shared))
    {
        Ok(lock) => Ok(Some(lock)),
        Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
            Err(Error::os("locking a place in the socket directory")(errno))
        }
        Err(error) => {
            tracing::debug!(%error, "no liveness lock in the socket directory");
            Ok(None)
        }
    }
}

/// Checks that a new socket is in the directory that was opened, because the kernel takes a path
/// for it.
fn check_place(directory: &SocketDirectory, name: &str) -> Result<()> {
    match directory.own_socket(name) {
        Some(_) => Ok(()),
        None => Err(Error::invalid(format!(
            "the socket directory {} was replaced by another one while a socket was made in it",
            directory.path_of("").display()
        ))),
    }
}

/// Lets only this user connect, or every user if `shared`. `has_lock` says whether this process
/// holds a liveness lock in the directory.
pub(super) fn open_to(
    directory: &SocketDirectory,
    name: &str,
    shared: bool,
    has_lock: bool,
) -> Result<()> {
    let mode = if shared { 0o666 } else { 0o600 };
    let mode = match has_lock {
        true => mode | sweep::HAS_LOCK,
        false => mode,
    };
    directory
        .set_mode(name, mode)
        .map_err(Error::os("setting the permissions of the broker's socket"))
}

/// A listening socket at which this process serves memory that other processes have handed over.
/// The socket may come from the process that did so before, with connections waiting in its queue.
pub struct HeldListener {
    _watch: Watch,
}

impl HeldListener {
    /// Starts to reply.
    pub fn serve(listener: OwnedFd) -> Result<Self> {
        published::note_start();
        let guard = socket::refuse_descriptors(&listener);
        let listener = Listener {
            spare: Mutex::new(spare().ok()),
            listener: KeptFromChildren::new(listener),
            guard,
        };
        Ok(Self {
            _watch: watch(Arc::new(listener))?,
        })
    }
}

/// Makes a reserve descriptor, so that importers can be refused when no other descriptor is free.
fn spare() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC)
}

struct Listener {
    listener: KeptFromChildren,
    guard: Guard,
    spare: Mutex<Option<OwnedFd>>,
}

impl Listener {
    /// Refuses an importer when no descriptor is free. It gives up the reserve descriptor to accept
    /// the importer and send the refusal, so that the importer does not wait forever. Returns
    /// `false` if even that fails.
    fn refuse(&self) -> bool {
        let mut spare_place = self.spare.lock();
        drop(spare_place.take());
        let newcomer = socket::accept(&self.listener);
        if let Ok(stream) = &newcomer {
            let _ = socket::send(stream, &no_room(), &[]);
        }
        let is_refused = newcomer.is_ok();
        drop(newcomer);
        *spare_place = spare().ok();
        drop(spare_place);
        observe::refused(Reason::NoRoom, 0);
        is_refused
    }
}

impl Source for Listener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, _: Registration) -> Next {
        for _ in 0..MAX_ACCEPTS {
            match socket::accept(&self.listener) {
                Ok(stream) => {
                    if Client::serve(stream, self.guard).is_err() {
                        return Next::Rest;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) if self.refuse() => {}
                Err(error) => {
                    static LIMIT: Limit = Limit::new();
                    if let Some(suppressed) = LIMIT.admit() {
                        tracing::error!(%error, suppressed, "an importer cannot connect");
                    }
                    return Next::Rest;
                }
            }
        }
        // The remaining connections are reported again after other sources have had their turn.
        Next::Continue
    }

    fn deadline(&self) -> Option<Instant> {
        client::deadline()
    }

    fn late(&self) {
        client::hang_up_late();
    }
}
