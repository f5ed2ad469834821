//! The exporter's socket: one for each process and directory.

use super::address::{self, PeerPolicy};
use super::client::{Client, no_room};
use super::sweep;
use crate::error::{Error, Result};
use crate::ipc::liveness::{LivenessLock, LivenessLocks};
use crate::os::lock::LockKind;
use crate::os::{process, socket};
use crate::sync::Mutex;
use crate::threads::exchange::{Next, Registration, Source, Watch, watch};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};

/// This process's socket in one directory. Closed and removed when its last user drops it.
pub(crate) struct Broker {
    _watch: Watch,
    path: PathBuf,
    cell: Arc<BrokerCell>,
    /// Tells other exporters that this one lives. Dropped after the socket has been removed.
    _liveness: Option<LivenessLock>,
}

/// The broker of one directory. Locked while it is set up or removed, so that one process has one.
type BrokerCell = Mutex<Weak<Broker>>;

/// The directories that this process listens in, or is about to.
static BROKERS: LazyLock<Mutex<HashMap<PathBuf, Arc<BrokerCell>>>> = LazyLock::new(Mutex::default);

impl Broker {
    /// Starts to answer importers in `directory`.
    pub(crate) fn listen(directory: &Path, policy: &PeerPolicy) -> Result<Arc<Self>> {
        let shared = *policy != PeerPolicy::SameUser;
        let cell = Arc::clone(BROKERS.lock().entry(directory.to_owned()).or_default());
        let mut listening = cell.lock();
        if let Some(broker) = listening.upgrade() {
            // First, since dropping the last broker takes the lock.
            drop(listening);
            if shared {
                open_to(&broker.path, true)?;
            }
            return Ok(broker);
        }
        let created = Self::create(directory, shared, &cell);
        if let Ok(broker) = &created {
            *listening = Arc::downgrade(broker);
        }
        drop(listening);
        match &created {
            Ok(_) => sweep::remove_dead_sockets(directory),
            Err(_) => forget_unused(directory, &cell),
        }
        created
    }

    fn create(directory: &Path, shared: bool, cell: &Arc<BrokerCell>) -> Result<Arc<Self>> {
        address::prepare(directory, shared)?;
        let exporter = address::exporter_id()?;
        // Before there is a socket, so that no exporter takes it for a dead one.
        let liveness = lock_liveness(directory, exporter)?;
        let path = address::socket_path(directory, exporter);
        // Named only once it listens: a socket that refuses connections is a dead one.
        let unnamed = path.with_extension("new");
        let _ = fs::remove_file(&unnamed);
        let listener = socket::listen(&unnamed).map_err(Error::os("listening for importers"))?;
        let named = open_to(&unnamed, shared).and_then(|()| {
            fs::rename(&unnamed, &path).map_err(system("naming the broker's socket"))
        });
        if let Err(error) = named {
            let _ = fs::remove_file(&unnamed);
            return Err(error);
        }
        let listener = Listener {
            spare: Mutex::new(spare().ok()),
            listener,
        };
        let watch = watch(Arc::new(listener)).inspect_err(|_| {
            let _ = fs::remove_file(&path);
        })?;
        Ok(Arc::new(Self {
            _watch: watch,
            path,
            cell: Arc::clone(cell),
            _liveness: liveness,
        }))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // Another thread may be listening there again; then the name is that broker's.
        let listening = self.cell.lock();
        if listening.strong_count() == 0 {
            let _ = fs::remove_file(&self.path);
        }
        drop(listening);
        if let Some(directory) = self.path.parent() {
            forget_unused(directory, &self.cell);
        }
    }
}

/// Forgets a directory's cell unless another thread uses it.
fn forget_unused(directory: &Path, cell: &Arc<BrokerCell>) {
    let mut places = BROKERS.lock();
    // The map's and the caller's. Others get theirs from the map alone.
    if Arc::strong_count(cell) == 2
        && places
            .get(directory)
            .is_some_and(|of| Arc::ptr_eq(of, cell))
    {
        places.remove(directory);
    }
}

/// Locks the exporter's byte of the directory, if that is possible: without the lock other exporters
/// only have to try whether the socket answers.
fn lock_liveness(directory: &Path, exporter: u64) -> Result<Option<LivenessLock>> {
    let locks = LivenessLocks::get()?;
    if !locks.are_separate() {
        // Any look of this process into the directory would drop it.
        return Ok(None);
    }
    let opened = File::open(directory).map_err(|error| Errno::from_io_error(&error));
    let opened = opened.map_err(|errno| errno.unwrap_or(Errno::IO));
    let index = sweep::lock_of(exporter);
    match opened.and_then(|file| locks.hold(file.as_fd(), index, LockKind::Shared)) {
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

/// Lets only this user connect, or every user if `shared`.
fn open_to(path: &Path, shared: bool) -> Result<()> {
    let mode = if shared { 0o666 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(system("setting the permissions of the broker's socket"))
}

fn system(operation: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::os(operation)(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Makes a descriptor to keep in reserve, so that importers can be refused when there is none left.
fn spare() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC)
}

struct Listener {
    listener: OwnedFd,
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
        tracing::warn!("no descriptor left for an importer");
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
        match socket::accept(&self.listener) {
            Ok(stream) => Client::serve(stream),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::MFILE | Errno::NFILE) if self.refuse() => {}
            Err(error) => {
                tracing::error!(%error, "an importer cannot connect");
                return Next::Rest;
            }
        }
        // One importer a call: the next one is reported again, and other sources get their turn.
        Next::Continue
    }
}
