//! The exporter's side: answers importers, and learns of their deaths.

use super::address::{self, PeerPolicy};
use super::protocol::{BackendBlob, BadMessage, REPLY_SIZE, REQUEST_SIZE, Refusal, Reply, Request};
use super::reactor::{Next, Source, Watch, watch};
use crate::error::{Error, Result};
use crate::handle::Secret;
use crate::os::process;
use crate::os::socket;
use crate::os::socket::Received;
use crate::types::Access;
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

/// What a context lets importers have.
pub(crate) trait Exports: Send + Sync {
    /// Whether this user's processes may attach.
    fn admits(&self, uid: u32) -> bool;

    /// Lets an importer in: the number it signals as, and the arena.
    fn attach(&self, client: Arc<Client>, ledger: OwnedFd) -> Result<(u16, Arc<OwnedFd>), Refusal>;

    /// The memory behind an export record.
    fn fetch(&self, record: u32, generation: u32, access: Access) -> Result<Fetched, Refusal>;

    /// The importer is gone.
    fn detach(&self, owner: u16);

    /// For an importer in the same process.
    fn as_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync>;
}

/// The memory behind an export record.
pub(crate) struct Fetched {
    pub(crate) file: Arc<OwnedFd>,
    /// The number that handles to this memory give its segment.
    pub(crate) segment: u32,
    /// Bytes in the segment.
    pub(crate) len: u64,
    /// What the exporter's backend says about it.
    pub(crate) note: BackendBlob,
}

/// All contexts of this process that have exported something.
static EXPORTS: LazyLock<RwLock<HashMap<Secret, Weak<dyn Exports>>>> =
    LazyLock::new(RwLock::default);

/// Makes a context reachable for importers.
pub(crate) fn publish(secret: Secret, exports: Weak<dyn Exports>) {
    let mut all = EXPORTS.write().unwrap_or_else(PoisonError::into_inner);
    all.insert(secret, exports);
}

/// Makes it unreachable again.
pub(crate) fn withdraw(secret: Secret) {
    let mut all = EXPORTS.write().unwrap_or_else(PoisonError::into_inner);
    all.remove(&secret);
}

/// The context of this process that has this secret.
pub(crate) fn local_exports(secret: Secret) -> Option<Arc<dyn Exports>> {
    let all = EXPORTS.read().unwrap_or_else(PoisonError::into_inner);
    all.get(&secret)?.upgrade()
}

/// Whether a user may open anything here at all. Others take no descriptor of ours.
fn is_admitted_anywhere(uid: u32) -> bool {
    let all = EXPORTS.read().unwrap_or_else(PoisonError::into_inner);
    let exports: Vec<_> = all.values().filter_map(Weak::upgrade).collect();
    drop(all);
    exports.iter().any(|exports| exports.admits(uid))
}

/// This process's socket in one directory. Closed and removed when its last user drops it.
pub(crate) struct Broker {
    _watch: Watch,
    path: PathBuf,
}

type Brokers = HashMap<PathBuf, Weak<Broker>>;
static BROKERS: LazyLock<Mutex<Brokers>> = LazyLock::new(Mutex::default);

fn brokers() -> MutexGuard<'static, Brokers> {
    BROKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Broker {
    /// Answers in `directory` from now on.
    pub(crate) fn listen(directory: &Path, policy: &PeerPolicy) -> Result<Arc<Self>> {
        let mut brokers = brokers();
        let shared = *policy != PeerPolicy::SameUser;
        if let Some(broker) = brokers.get(directory).and_then(Weak::upgrade) {
            let result = if shared {
                open_to(&broker.path, true)
            } else {
                Ok(())
            };
            // First, since dropping the last broker takes the lock.
            drop(brokers);
            return result.map(|()| broker);
        }
        address::prepare(directory, shared)?;
        address::sweep(directory);
        let path = address::socket_path(directory, address::exporter_id()?);
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
        let broker = Arc::new(Self {
            _watch: watch,
            path,
        });
        brokers.insert(directory.to_owned(), Arc::downgrade(&broker));
        Ok(broker)
    }
}

/// Lets this user alone connect, or everybody.
fn open_to(path: &Path, shared: bool) -> Result<()> {
    let mode = if shared { 0o666 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(system("setting the permissions of the broker's socket"))
}

fn system(operation: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::os(operation)(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

impl Drop for Broker {
    fn drop(&mut self) {
        if process::is_forked() {
            return;
        }
        // Another thread may be listening there again; then the name is its own.
        let mut brokers = brokers();
        if let Some(directory) = self.path.parent()
            && brokers
                .get(directory)
                .is_some_and(|broker| broker.strong_count() == 0)
        {
            brokers.remove(directory);
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A descriptor kept in reserve, to be able to turn importers away when there is none left.
fn spare() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
}

/// The answer to a question that could not be read for lack of descriptors.
fn no_room() -> [u8; REPLY_SIZE] {
    Reply::Refused(Refusal::NoRoom).encode(0)
}

/// So that a trouble that lasts doesn't keep the thread busy.
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}

struct Listener {
    listener: OwnedFd,
    spare: Mutex<Option<OwnedFd>>,
}

impl Source for Listener {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self) -> Next {
        loop {
            match socket::accept(&self.listener) {
                Ok(stream) => Client::serve(stream),
                Err(Errno::AGAIN) => return Next::KeepAlive,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) => {
                    // Turn it away with the spare's place, rather than let it wait for ever.
                    let mut spare_place = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
                    drop(spare_place.take());
                    let newcomer = socket::accept(&self.listener);
                    if let Ok(stream) = &newcomer {
                        let _ = socket::send(stream, &no_room(), None);
                    }
                    let refused = newcomer.is_ok();
                    drop(newcomer);
                    *spare_place = spare().ok();
                    tracing::warn!("no descriptor left for an importer");
                    if !refused {
                        pause();
                        return Next::KeepAlive;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "an importer cannot connect");
                    pause();
                    return Next::KeepAlive;
                }
            }
        }
    }
}

/// An importer that is connected.
pub(crate) struct Client {
    stream: OwnedFd,
    uid: u32,
    /// Where it is attached, and as which owner.
    seat: OnceLock<(Weak<dyn Exports>, u16)>,
    /// For handing itself out.
    this: Weak<Client>,
}

impl Client {
    fn serve(stream: OwnedFd) {
        let Ok((uid, _)) = socket::peer(&stream) else {
            return;
        };
        if !is_admitted_anywhere(uid) {
            let refusal = Reply::Refused(Refusal::NotAdmitted).encode(0);
            let _ = socket::send(&stream, &refusal, None);
            return;
        }
        let client = Arc::new_cyclic(|this| Self {
            stream,
            uid,
            seat: OnceLock::new(),
            this: this.clone(),
        });
        match watch(client) {
            // Watched until it hangs up.
            Ok(watch) => std::mem::forget(watch),
            Err(error) => tracing::warn!(%error, "an importer cannot be served"),
        }
    }

    /// Ends the connection; the importer takes it as our death.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
    }

    fn answer(&self, message: &[u8], descriptor: Option<OwnedFd>) -> Result<(), Errno> {
        let (answer, serial) = match Request::decode(message) {
            Ok((request, serial)) => (self.grant(request, descriptor), serial),
            Err(BadMessage::Version) => (Err(Refusal::Version), 0),
            Err(BadMessage::Malformed(_)) => (Err(Refusal::BadRequest), 0),
        };
        let (reply, granted) = match answer {
            Ok((reply, granted)) => (reply, Some(granted)),
            Err(refusal) => (Reply::Refused(refusal), None),
        };
        let granted = granted.as_ref().map(|file| file.as_fd());
        socket::send(&self.stream, &reply.encode(serial), granted)
    }

    fn grant(
        &self,
        request: Request,
        descriptor: Option<OwnedFd>,
    ) -> Result<(Reply, Arc<OwnedFd>), Refusal> {
        match (request, self.seat.get(), descriptor) {
            (Request::Attach(secret), None, Some(ledger)) => {
                let exports = local_exports(secret).ok_or(Refusal::UnknownContext)?;
                if !exports.admits(self.uid) {
                    return Err(Refusal::NotAdmitted);
                }
                let client = self.this.upgrade().ok_or(Refusal::BadRequest)?;
                let (owner, arena) = exports.attach(client, ledger)?;
                let _ = self.seat.set((Arc::downgrade(&exports), owner));
                Ok((Reply::Attached { owner }, arena))
            }
            (
                Request::Fetch {
                    record,
                    generation,
                    access,
                },
                Some((exports, _)),
                None,
            ) => {
                let exports = exports.upgrade().ok_or(Refusal::UnknownContext)?;
                let Fetched {
                    file,
                    segment,
                    len,
                    note,
                } = exports.fetch(record, generation, access)?;
                Ok((Reply::Fetched { segment, len, note }, file))
            }
            _ => Err(Refusal::BadRequest),
        }
    }
}

impl Source for Client {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self) -> Next {
        let mut buffer = [0; REQUEST_SIZE];
        // One message a call: the next one is reported again, and others get their turn.
        let result = match socket::receive(&self.stream, &mut buffer) {
            Err(Errno::AGAIN | Errno::INTR) => return Next::KeepAlive,
            Ok(Received::Message(len, descriptor)) => self.answer(&buffer[..len], descriptor),
            Ok(Received::HungUp) => Err(Errno::CONNRESET),
            // The question's descriptor found no place here.
            Err(Errno::MFILE) => socket::send(&self.stream, &no_room(), None),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => Next::KeepAlive,
            // Hung up, or does not read its answers, or neither listening nor making sense: no importer of ours.
            Err(_) => Next::Drop,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some((exports, owner)) = self.seat.get()
            && let Some(exports) = exports.upgrade()
        {
            exports.detach(*owner);
        }
    }
}
