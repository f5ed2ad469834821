//! Transfers memory contents over UCX. A thread that starts a transfer first drives UCX's worker
//! itself for a short time. After that, the link's thread drives the worker.

mod devices;
mod moves;
mod replace;
#[cfg(test)]
mod tests;

pub(crate) use moves::{Direction, Piece};

use crate::error::{Error, Result};
use crate::options::Staging;
use crate::tuning::REDIALS_PER_KEEP_ALIVE;
use crate::ucx::worker::{Registration, RemoteKey, Request, Settings, Worker};
use crate::wait::wait_until;
use crosshandle::adapter_support::Deadline;
use rustix::event::epoll;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time without progress after which a UCX transfer replaces its endpoint. If the keep-alive is
/// shorter, a shorter time applies. With a shorter time, pauses for retransmissions would restart
/// transfers. With a longer time, a stuck network card is detected later.
const STALL_TIMEOUT: Duration = Duration::from_secs(45);

/// Minimum time that a new endpoint gets to show that it works. It must suffice on a busy machine.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(1);

/// User data of the only descriptor in the epoll set. It is never read.
const EVENT: epoll::EventData = epoll::EventData::new_u64(0);

/// A UCX worker that threads share, and its endpoint, which is [replaced](replace) when it fails.
pub(crate) struct DataPath {
    shared: Mutex<Shared>,
    /// Notified when a transfer makes progress, and when the endpoint changes.
    changed: Condvar,
    /// Number of threads that sleep until a transfer progresses.
    sleepers: AtomicUsize,
    limits: Limits,
    staging: Staging,
    /// An epoll set that contains UCX's descriptor, and on which the link's thread sleeps. It
    /// reports the descriptor only while no other thread drives the worker.
    events: OwnedFd,
}

/// Time limits for transfers, which depend on the keep-alive.
struct Limits {
    /// Maximum time without progress before a transfer treats its endpoint as failed.
    stall: Duration,
    /// Maximum time until a new endpoint must have reached the peer.
    proof: Duration,
    /// Maximum time without a working endpoint before the link ends.
    outage: Duration,
}

impl Limits {
    fn new(keep_alive: Duration) -> Self {
        Self {
            stall: keep_alive.clamp(ENDPOINT_TIMEOUT, STALL_TIMEOUT),
            proof: (keep_alive / REDIALS_PER_KEEP_ALIVE).max(ENDPOINT_TIMEOUT),
            outage: keep_alive,
        }
    }
}

struct Shared {
    worker: Worker,
    event_fd: OwnedFd,
    endpoint: Endpoint,
    /// Number of the worker. It is 1 for the first worker, and increases with each replacement.
    generation: u32,
    /// The generation and the address of the peer's latest endpoint, as long as this side has not
    /// connected to it.
    offered: Option<(u32, Vec<u8>)>,
    last_offered: u32,
    /// Number of transfers that have requests on this worker.
    moves: usize,
    outage: Option<Outage>,
    /// Number of endpoints that have failed since the last successful transfer.
    failures: u32,
    /// Earliest time at which this side may replace its endpoint after the peer has replaced its
    /// own. `None` means at once.
    follows_at: Option<Instant>,
    /// A flush on a new endpoint. Its completion shows that the endpoint reaches the peer.
    probe: Option<Request>,
    /// Deadline for the probe. `None` after the endpoint has reached the peer.
    proven_by: Option<Instant>,
    keys: HashMap<u32, Key>,
    next_key: u32,
    /// Number of threads that drive the worker themselves.
    lookers: usize,
    /// Whether the epoll set reports the worker's descriptor.
    is_heard: bool,
    /// Time at which the worker last made progress.
    moved_at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Endpoint {
    /// The peer has not sent the address of its endpoint yet.
    Awaited,
    Made,
    /// The endpoint is closed. Its worker is replaced as soon as no transfer uses it.
    Failed,
    /// The link has ended, so the endpoint is not replaced.
    Closed,
}

/// A period without a working endpoint.
struct Outage {
    since: Instant,
    why: Error,
    /// Earliest time at which the next endpoint may be created.
    replace_at: Instant,
}

/// UCX's key for memory of the peer.
struct Key {
    bytes: Vec<u8>,
    /// The key as unpacked for the current endpoint.
    unpacked: Option<RemoteKey>,
}

impl Shared {
    fn progress(&mut self) -> bool {
        let has_moved = self.worker.progress();
        if has_moved {
            self.moved_at = Instant::now();
        }
        has_moved
    }

    /// Returns `true` if the worker may be driven. UCX 1.22 aborts the *process* if it handles a
    /// message for a failed endpoint and cannot send its reply.
    fn may_progress(&self) -> bool {
        self.is_alive() && self.worker.failure().is_none()
    }

    /// Returns `true` if this worker has an endpoint or will get one.
    fn is_alive(&self) -> bool {
        matches!(self.endpoint, Endpoint::Awaited | Endpoint::Made)
    }

    /// Returns key number `key`, unpacked for the current endpoint.
    fn unpacked(&mut self, key: u32) -> Result<RemoteKey> {
        let key = self.keys.get_mut(&key);
        let key = key.ok_or(Error::Protocol("the memory's key was removed"))?;
        match key.unpacked {
            Some(unpacked) => Ok(unpacked),
            None => {
                // SAFETY: the authenticated peer has sent this key, and made it with UCX. Links
                // over UCX trust their peer, as `docs/hosts.md` says.
                let unpacked = unsafe { self.worker.unpack(&key.bytes)? };
                key.unpacked = Some(unpacked);
                Ok(unpacked)
            }
        }
    }

    fn destroy_keys(&mut self) {
        for key in self.keys.values_mut() {
            if let Some(unpacked) = key.unpacked.take() {
                // SAFETY: this worker has unpacked the key, because all keys are destroyed before a
                // worker is renewed. No transfer has requests when a worker is renewed or the data
                // path is dropped.
                unsafe { self.worker.destroy_key(unpacked) };
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.worker.close_endpoint();
        if let Some(probe) = self.probe.take() {
            // The endpoint is closed, so the probe has normally ended. If a device still uses the
            // probe, it is freed with the worker.
            let _ = self.worker.is_done(&mut Some(probe));
        }
        self.destroy_keys();
    }
}

impl DataPath {
    pub(crate) fn new(settings: &Settings, staging: Staging, keep_alive: Duration) -> Result<Self> {
        let mut worker = Worker::new(settings)?;
        let event_fd = take_event_fd(&mut worker)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Error::os("making a descriptor to wait on"))?;
        epoll::add(&events, &event_fd, EVENT, epoll::EventFlags::IN)
            .map_err(Error::os("waiting for UCX's descriptor"))?;
        Ok(Self {
            shared: Mutex::new(Shared {
                worker,
                event_fd,
                endpoint: Endpoint::Awaited,
                generation: 1,
                offered: None,
                last_offered: 0,
                moves: 0,
                outage: None,
                failures: 0,
                follows_at: None,
                probe: None,
                proven_by: None,
                keys: HashMap::new(),
                next_key: 1,
                lookers: 0,
                is_heard: true,
                moved_at: Instant::now(),
            }),
            changed: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            limits: Limits::new(keep_alive),
            staging,
            events,
        })
    }

    /// Sets the keep-alive that both sides have agreed on.
    pub(crate) fn set_keep_alive(&mut self, keep_alive: Duration) {
        self.limits = Limits::new(keep_alive);
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts driving the worker from this thread.
    fn begin_to_look(&self, shared: &mut Shared) {
        shared.lookers += 1;
        self.listen(shared);
    }

    /// Stops driving the worker from this thread. If no other thread drives the worker but it needs
    /// attention, wakes the link's thread.
    fn stop_looking(&self, shared: &mut Shared, wake: &dyn Fn()) {
        shared.lookers -= 1;
        if shared.lookers > 0 {
            return;
        }
        match self.arm(shared) {
            Ok(()) if !shared.needs_care() => {}
            // After an error, the link's thread gets the same error and replaces the endpoint.
            _ => wake(),
        }
        self.listen(shared);
    }

    /// Makes the epoll set report the worker's descriptor, unless another thread drives the worker
    /// or there is no endpoint. A worker without an endpoint is not driven, so its descriptor would
    /// stay readable and wake the link's thread again and again.
    fn listen(&self, shared: &mut Shared) {
        let is_heard = shared.lookers == 0 && shared.is_alive();
        if is_heard != shared.is_heard {
            // This object owns both descriptors and they are open, so the call cannot fail.
            let _ = epoll::modify(&self.events, &shared.event_fd, EVENT, flags(is_heard));
            shared.is_heard = is_heard;
        }
    }

    /// Drives the worker until it makes no more progress, and then arms its descriptor for the next
    /// event.
    fn arm(&self, shared: &mut Shared) -> Result<()> {
        let mut has_moved = false;
        while shared.may_progress() {
            if shared.progress() {
                has_moved = true;
            } else if shared.worker.arm()? {
                break;
            }
        }
        if has_moved && self.sleepers.load(Ordering::SeqCst) > 0 {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Returns the number of times that the endpoint was replaced.
    pub(crate) fn replacements(&self) -> u32 {
        self.shared().generation - 1
    }

    /// Returns the generation and the address of this side's endpoint.
    pub(crate) fn address(&self) -> Result<(u32, Vec<u8>)> {
        let mut shared = self.shared();
        Ok((shared.generation, shared.worker.address()?))
    }

    /// # Safety
    /// The caller must uphold the contract of [`Worker::register`].
    pub(crate) unsafe fn register(
        &self,
        start: *mut u8,
        len: usize,
        is_writable: bool,
    ) -> Result<Registration> {
        // SAFETY: the caller upholds the same contract for this call.
        unsafe { self.shared().worker.register(start, len, is_writable) }
    }

    pub(crate) fn unregister(&self, registration: &Registration) {
        self.shared().worker.unregister(registration);
    }

    /// Stores UCX's key for memory of the peer, and returns the number that this side assigns to
    /// it. Unpacking a key needs an endpoint. If there is none yet, the key is unpacked later.
    pub(crate) fn add_key(&self, key: &[u8]) -> Result<u32> {
        if key.is_empty() {
            return Err(Error::Protocol("its memory has no key"));
        }
        let mut shared = self.shared();
        let number = shared.next_key;
        // The numbers wrap around after about four billion opens. Skip numbers that are in use.
        let mut next = number.wrapping_add(1);
        while shared.keys.contains_key(&next) || next == number {
            next = next.wrapping_add(1);
        }
        shared.next_key = next;
        let bytes = key.to_vec();
        let unpacked = None;
        shared.keys.insert(number, Key { bytes, unpacked });
        if shared.is_usable()
            && let Err(error) = shared.unpacked(number)
            && shared.is_usable()
        {
            shared.keys.remove(&number);
            return Err(error);
        }
        Ok(number)
    }

    /// Removes a key. No transfer may use the key any more.
    pub(crate) fn remove_key(&self, key: u32) {
        let mut shared = self.shared();
        if let Some(unpacked) = shared.keys.remove(&key).and_then(|key| key.unpacked) {
            // SAFETY: this worker has unpacked the key, because all keys are destroyed before the
            // worker is renewed. Only dropping the memory removes its key, and a transfer keeps its
            // memory alive, so no transfer uses the key.
            unsafe { shared.worker.destroy_key(unpacked) };
        }
    }

    /// Ends all transfers, and waits until none of them uses the worker. After that, memory that
    /// the peer could access may be unmapped. If a device does not finish, the wait ends after the
    /// time limit for stalled transfers.
    pub(crate) fn close(&self) {
        let deadline = Deadline::after(self.limits.stall);
        let mut shared = self.shared();
        shared.endpoint = Endpoint::Closed;
        shared.worker.close_endpoint();
        self.listen(&mut shared);
        self.changed.notify_all();
        while shared.moves > 0 {
            if deadline.is_over() {
                return;
            }
            shared = wait_until(&self.changed, shared, deadline);
        }
    }
}

fn flags(is_heard: bool) -> epoll::EventFlags {
    match is_heard {
        true => epoll::EventFlags::IN,
        false => epoll::EventFlags::empty(),
    }
}

fn take_event_fd(worker: &mut Worker) -> Result<OwnedFd> {
    worker
        .take_event_fd()
        .ok_or(Error::Protocol("UCX's worker has no descriptor"))
}

impl AsFd for DataPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
