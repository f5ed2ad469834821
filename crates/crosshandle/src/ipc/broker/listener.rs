//! The exporter's socket: one for each process and directory.

use super::address::{self, PeerPolicy};
use super::client::{self, Client, no_room};
use super::directory::{DirectoryId, SocketDirectory};
use super::published;
use super::sweep;
use crate::error::{Error, Result};
use crate::ipc::liveness::{LivenessLock, LivenessLocks};
use crate::ipc::tuning::MAX_ACCEPTS;
use crate::observe::{self, Limit, Reason};
use crate::os::fork::{Birth, KeptFromChildren, PerProcess};
use crate::os::lock::LockKind;
use crate::os::socket;
use crate::os::socket::Guard;
use crate::sync::Mutex;
use crate::threads::exchange::{Next, Registration, Source, Watch, watch};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// This process's socket in one directory. Closed and removed when its last user drops it.
pub(crate) struct Broker {
    _watch: Watch,
    directory: SocketDirectory,
    /// The socket's name in it.
    name: String,
    cell: Arc<BrokerCell>,
    birth: Birth,
    /// Tells other exporters that this one lives. Dropped after the socket has been removed.
    liveness: Option<LivenessLock>,
}

/// The broker of one directory. Locked while it is set up or removed, so that one process has one.
type BrokerCell = Mutex<Weak<Broker>>;

/// The directories that this process listens in, or is about to.
static BROKERS: PerProcess<Mutex<BTreeMap<DirectoryId, Arc<BrokerCell>>>> =
    PerProcess::new(Mutex::default);

impl Broker {
    /// Starts to answer importers in the directory at `path`.
    pub(crate) fn listen(path: &Path, policy: &PeerPolicy) -> Result<Arc<Self>> {
        let shared = *policy != PeerPolicy::SameUser;
        // Before one looks for a broker, since two paths may lead to one directory.
        let directory = SocketDirectory::open(path, shared)?;
        let id = directory.id();
        let cell = Arc::clone(BROKERS.lock().entry(id).or_default());
        let mut listening = cell.lock();
        if let Some(broker) = listening.upgrade() {
            // First, since dropping the last broker takes the lock.
            drop(listening);
            if shared {
                let has_lock = broker.liveness.is_some();
                open_to(&broker.directory, &broker.name, true, has_lock)?;
            }
            return Ok(broker);
        }
        let created = Self::create(directory, shared, &cell);
        if let Ok(broker) = &created {
            *listening = Arc::downgrade(broker);
        }
        drop(listening);
        match &created {
            Ok(broker) => sweep::remove_dead_sockets(&broker.directory),
            Err(_) => forget_unused(id, &cell),
        }
        created
    }

    fn create(
        directory: SocketDirectory,
        shared: bool,
        cell: &Arc<BrokerCell>,
    ) -> Result<Arc<Self>> {
        let exporter = address::exporter_id()?;
        // Before there is a socket, so that no exporter takes it for a dead one.
        let liveness = lock_liveness(&directory, exporter)?;
        let name = address::socket_name(exporter);
        // Named only once it listens: a socket that refuses connections is a dead one.
        let unnamed = address::unnamed_name(exporter);
        let _ = directory.remove(&unnamed);
        let listening = socket::listen(&directory.path_of(&unnamed));
        let (listener, guard) = listening.map_err(Error::os("listening for importers"))?;
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
        Ok(Arc::new(Self {
            _watch: watch,
            directory,
            name,
            cell: Arc::clone(cell),
            birth: Birth::here(),
            liveness,
        }))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.birth.is_inherited() {
            return;
        }
        // Another thread may be listening there again; then the name is that broker's.
        let listening = self.cell.lock();
        if listening.strong_count() == 0 {
            let _ = self.directory.remove(&self.name);
        }
        drop(listening);
        forget_unused(self.directory.id(), &self.cell);
    }
}

/// Forgets a directory's cell unless another thread uses it.
fn forget_unused(directory: DirectoryId, cell: &Arc<BrokerCell>) {
    let mut places = BROKERS.lock();
    // The map's and the caller's. Others get theirs from the map alone.
    if Arc::strong_count(cell) == 2
        && places
            .get(&directory)
            .is_some_and(|of| Arc::ptr_eq(of, cell))
    {
        places.remove(&directory);
    }
}

/// Locks the exporter's byte of the directory, if that is possible: without the lock other exporters
/// only have to try whether the socket answers.
fn lock_liveness(directory: &SocketDirectory, exporter: u64) -> Result<Option<LivenessLock>> {
    let locks = LivenessLocks::get()?;
    if !locks.are_separate() {
        // Any look of this process into the directory would drop it.
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

/// Makes sure that a new socket, which the kernel takes a path for, is in the directory that was looked at.
fn check_place(directory: &SocketDirectory, name: &str) -> Result<()> {
    match directory.own_socket(name) {
        Some(_) => Ok(()),
        None => Err(Error::invalid(format!(
            "the socket directory {} was replaced by another one while a socket was made in it",
            directory.path_of("").display()
        ))),
    }
}

/// Lets only this user connect, or every user if `shared`. `has_lock`: this process holds a liveness
/// lock in the directory.
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

/// A listening socket at which this process answers for what others have handed over. The socket may
/// come from the process that did so before, with connections waiting in its queue.
pub(crate) struct HeldListener {
    _watch: Watch,
}

impl HeldListener {
    /// Begins to answer.
    pub(crate) fn serve(listener: OwnedFd) -> Result<Self> {
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

/// Makes a descriptor to keep in reserve, so that importers can be refused when there is none left.
fn spare() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC)
}

struct Listener {
    listener: KeptFromChildren,
    guard: Guard,
    spare: Mutex<Option<OwnedFd>>,
}

impl Listener {
    /// Refuses an importer when no descriptor is left: gives up the spare one to accept it and say
    /// so, rather than let it wait for ever. Returns `false` if even that fails.
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
        // The others are reported again, after other sources have had their turn.
        Next::Continue
    }

    fn deadline(&self) -> Option<Instant> {
        client::deadline()
    }

    fn late(&self) {
        client::hang_up_late();
    }
}
