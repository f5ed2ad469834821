//! Clients: importers' connections, on the exporter's side. Requests and the hang-up of a dead
//! importer arrive here.

use super::address::PeerPolicy;
use super::protocol::{BackendBlob, BadMessage, REPLY_SIZE, REQUEST_SIZE, Refusal, Reply, Request};
use crate::error::Result;
use crate::handle::Secret;
use crate::os::socket::{self, Received};
use crate::sync::Mutex;
use crate::threads::driver_jobs;
use crate::threads::exchange::{Next, Registration, Source, watch};
use crate::types::Access;
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::any::Any;
use std::collections::HashMap;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock, Weak};
use std::time::Instant;

/// A context's exports, as the exchange thread uses them. None of the methods blocks or calls a
/// driver.
pub(crate) trait Exports: Send + Sync {
    /// Returns whether this user's processes may attach.
    fn admits(&self, uid: u32) -> bool;

    /// Lets an importer in: returns its owner number and the arena.
    fn attach(&self, client: Arc<Client>, ledger: OwnedFd) -> Result<(u16, Arc<OwnedFd>), Refusal>;

    /// Finds the object behind an export record.
    fn fetch(&self, record: u32, generation: u32, access: Access) -> Result<Fetch, Refusal>;

    /// Takes note that an importer has hung up: fails its unfinished signals and forgets its opens.
    fn detach(&self, owner: u16);

    /// Ends one use of the exports. If it was the last, they are dropped in the background.
    fn release(self: Arc<Self>);

    /// Returns the exports as their own type, for an importer in the same process.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
}

/// The answer to a request for an object.
pub(crate) enum Fetch {
    /// The object is ready.
    Ready(Fetched),
    /// The object takes a call, which may block in a driver.
    CallsDriver(Box<dyn FnOnce() -> Result<Fetched, Refusal> + Send>),
}

/// An object's descriptor and what belongs to it.
pub(crate) struct Fetched {
    pub(crate) file: Arc<OwnedFd>,
    /// The number that handles to this object give its segment.
    pub(crate) segment: u32,
    /// Bytes in the segment.
    pub(crate) len: u64,
    /// The blob that the exporter's backend sends to the importer's.
    pub(crate) note: BackendBlob,
}

/// A context that has exported something.
struct Published {
    policy: PeerPolicy,
    exports: Weak<dyn Exports>,
}

/// All contexts of this process that have exported something.
static PUBLISHED: LazyLock<RwLock<HashMap<Secret, Published>>> = LazyLock::new(RwLock::default);

/// Makes a context reachable for importers.
pub(crate) fn publish(secret: Secret, policy: PeerPolicy, exports: Weak<dyn Exports>) {
    let mut all = PUBLISHED.write().unwrap_or_else(PoisonError::into_inner);
    all.insert(secret, Published { policy, exports });
}

/// Makes a context unreachable for importers again.
pub(crate) fn withdraw(secret: Secret) {
    let mut all = PUBLISHED.write().unwrap_or_else(PoisonError::into_inner);
    all.remove(&secret);
}

/// Returns the context of this process that has this secret.
pub(crate) fn local_exports(secret: Secret) -> Option<Arc<dyn Exports>> {
    let all = PUBLISHED.read().unwrap_or_else(PoisonError::into_inner);
    all.get(&secret)?.exports.upgrade()
}

/// Returns whether a user may open anything of this process. Other users are sent no descriptor,
/// and theirs are not received.
fn is_admitted_anywhere(uid: u32) -> bool {
    let all = PUBLISHED.read().unwrap_or_else(PoisonError::into_inner);
    all.values().any(|published| published.policy.admits(uid))
}

/// Calls `f` with exports, and releases them so that the exchange thread never drops them itself.
fn with<R>(exports: Option<Arc<dyn Exports>>, f: impl FnOnce(&dyn Exports) -> R) -> Option<R> {
    let exports = exports?;
    let result = f(&*exports);
    exports.release();
    Some(result)
}

/// Returns the answer to a request that could not be read for lack of descriptors.
pub(super) fn no_room() -> [u8; REPLY_SIZE] {
    Reply::Refused(Refusal::NoRoom).encode(0)
}

/// An importer that is connected.
pub(crate) struct Client {
    stream: OwnedFd,
    uid: u32,
    seat: Mutex<Seat>,
    /// Whether a background thread is about to answer. Messages wait meanwhile.
    is_answering: AtomicBool,
    /// A reference to this client, to hand out.
    this: Weak<Client>,
}

/// The place at which a client is attached.
enum Seat {
    /// Nowhere yet.
    None,
    /// At these exports, as this owner.
    Attached(Weak<dyn Exports>, u16),
    /// Nowhere any more: it has hung up.
    Left,
}

/// An answer: the reply, and the descriptor that goes along.
type Answer = Result<(Reply, Arc<OwnedFd>), Refusal>;

impl Client {
    /// Serves an importer until it hangs up.
    pub(super) fn serve(stream: OwnedFd) {
        let Ok((uid, _)) = socket::peer(&stream) else {
            return;
        };
        if !is_admitted_anywhere(uid) {
            let refusal = Reply::Refused(Refusal::NotAdmitted).encode(0);
            let _ = socket::send(&stream, &refusal, &[]);
            return;
        }
        let client = Arc::new_cyclic(|this| Self {
            stream,
            uid,
            seat: Mutex::new(Seat::None),
            is_answering: AtomicBool::new(false),
            this: this.clone(),
        });
        match watch(client) {
            // Watched until it hangs up.
            Ok(watch) => mem::forget(watch),
            Err(error) => tracing::warn!(%error, "an importer cannot be served"),
        }
    }

    /// Ends the connection; the importer takes it as this process's death.
    pub(crate) fn hang_up(&self) {
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Both);
    }

    fn handle(
        &self,
        message: &[u8],
        descriptor: Option<OwnedFd>,
        registration: Registration,
    ) -> Result<(), Errno> {
        let (request, serial) = match Request::decode(message) {
            Ok(request) => request,
            Err(BadMessage::Version) => return self.send(Err(Refusal::Version), 0),
            Err(BadMessage::Malformed(_)) => return self.send(Err(Refusal::BadRequest), 0),
        };
        let fetch = match (request, descriptor) {
            (Request::Attach(secret), Some(ledger)) => {
                return self.send(self.attach(secret, ledger), serial);
            }
            (
                Request::Fetch {
                    record,
                    generation,
                    access,
                },
                None,
            ) => self.fetch(record, generation, access),
            _ => Err(Refusal::BadRequest),
        };
        match fetch {
            Ok(Fetch::Ready(fetched)) => self.send(Ok(fetched.into()), serial),
            Ok(Fetch::CallsDriver(call)) => {
                let Some(client) = self.this.upgrade() else {
                    return Err(Errno::CONNRESET);
                };
                self.is_answering.store(true, Ordering::Relaxed);
                let paused = registration.pause();
                driver_jobs::run(move || {
                    if client.send(call().map(Into::into), serial).is_err() {
                        client.hang_up();
                    }
                    client.is_answering.store(false, Ordering::Release);
                    drop(paused);
                });
                Ok(())
            }
            Err(refusal) => self.send(Err(refusal), serial),
        }
    }

    fn send(&self, answer: Answer, serial: u32) -> Result<(), Errno> {
        let (reply, granted) = match answer {
            Ok((reply, granted)) => (reply, Some(granted)),
            Err(refusal) => (Reply::Refused(refusal), None),
        };
        let granted: Vec<_> = granted.iter().map(|file| file.as_fd()).collect();
        socket::send(&self.stream, &reply.encode(serial), &granted)
    }

    fn attach(&self, secret: Secret, ledger: OwnedFd) -> Answer {
        let mut seat = self.seat.lock();
        let (Seat::None, Some(client)) = (&*seat, self.this.upgrade()) else {
            return Err(Refusal::BadRequest);
        };
        let exports = local_exports(secret).ok_or(Refusal::UnknownContext)?;
        let weak = Arc::downgrade(&exports);
        let attached = with(Some(exports), |exports| match exports.admits(self.uid) {
            true => exports.attach(client, ledger),
            false => Err(Refusal::NotAdmitted),
        });
        let (owner, arena) = attached.ok_or(Refusal::UnknownContext)??;
        *seat = Seat::Attached(weak, owner);
        Ok((Reply::Attached { owner }, arena))
    }

    fn fetch(&self, record: u32, generation: u32, access: Access) -> Result<Fetch, Refusal> {
        let Seat::Attached(exports, _) = &*self.seat.lock() else {
            return Err(Refusal::BadRequest);
        };
        let fetch = |exports: &dyn Exports| exports.fetch(record, generation, access);
        with(exports.upgrade(), fetch).ok_or(Refusal::UnknownContext)?
    }

    /// Gives up the client's place, if it has one.
    fn detach(&self) {
        let seat = mem::replace(&mut *self.seat.lock(), Seat::Left);
        if let Seat::Attached(exports, owner) = seat {
            with(exports.upgrade(), |exports| exports.detach(owner));
        }
    }
}

impl From<Fetched> for (Reply, Arc<OwnedFd>) {
    fn from(fetched: Fetched) -> Self {
        let Fetched {
            file,
            segment,
            len,
            note,
        } = fetched;
        (Reply::Fetched { segment, len, note }, file)
    }
}

impl Source for Client {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, registration: Registration) -> Next {
        if self.is_answering.load(Ordering::Acquire) {
            // Messages wait meanwhile, so this is the hang-up.
            self.detach();
            return Next::Forget;
        }
        let mut buffer = [0; REQUEST_SIZE];
        // One message a call: the next one is reported again, and other sources get their turn.
        let now = Some(Instant::now());
        let result = match socket::receive_until(&self.stream, &mut buffer, now) {
            Err(Errno::TIMEDOUT) => return Next::Continue,
            Ok(Received::Message(len, mut granted)) => {
                self.handle(&buffer[..len], granted.pop(), registration)
            }
            Ok(Received::Unwanted | Received::HungUp) => Err(Errno::CONNRESET),
            // The question's descriptor found no place here.
            Err(Errno::MFILE) => socket::discard(&self.stream)
                .and_then(|()| socket::send(&self.stream, &no_room(), &[])),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => Next::Continue,
            // It hung up, does not read its answers, or makes no sense: no importer of ours.
            Err(_) => {
                self.detach();
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
