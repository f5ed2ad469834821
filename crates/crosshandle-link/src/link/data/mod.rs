//! The bytes of memory over UCX: threads that move memory look after it themselves for a while, then leave
//! that to the link's thread.

mod devices;
mod moves;
mod replace;
#[cfg(test)]
mod tests;

pub(crate) use moves::{Direction, Piece};

use crate::error::{Error, Result};
use crate::options::Staging;
use crate::tuning::{ENDPOINT_TIMEOUT, REDIALS_PER_KEEP_ALIVE, STALL_TIMEOUT};
use crate::ucx::worker::{Registration, RemoteKey, Request, Settings, Worker};
use crate::wait::wait_until;
use crosshandle::Deadline;
use rustix::event::epoll;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the epoll says of its only descriptor, which nobody asks.
const EVENT: epoll::EventData = epoll::EventData::new_u64(0);

/// A worker that threads share, and its endpoint, which is [replaced](replace) when it fails.
pub(crate) struct DataPath {
    shared: Mutex<Shared>,
    /// Notified when something has moved, and when the endpoint has changed.
    changed: Condvar,
    /// Threads that sleep until something moves.
    sleepers: AtomicUsize,
    limits: Limits,
    staging: Staging,
    /// An epoll that has UCX's descriptor, but only while no other thread looks after the worker: so these
    /// don't wake the link's thread.
    events: OwnedFd,
}

/// How long what may take. They follow from the keep-alive.
struct Limits {
    /// Memory that moves may make no progress before its endpoint counts as failed.
    stall: Duration,
    /// A new endpoint may take to show that it works.
    proof: Duration,
    /// No endpoint may work before the link ends.
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
    /// Which worker this is: 1, and one more for each that replaced another.
    generation: u32,
    /// The other side's last endpoint that this side has not connected to yet.
    offered: Option<(u32, Vec<u8>)>,
    last_offered: u32,
    /// Moves whose requests are the worker's.
    moves: usize,
    outage: Option<Outage>,
    /// Endpoints that have failed since memory last moved.
    failures: u32,
    /// The earliest time to follow the other side to a new endpoint; `None`: at once.
    follows_at: Option<Instant>,
    /// A flush that is done when the endpoint works.
    probe: Option<Request>,
    /// When the probe has taken too long; `None` once the endpoint has shown that it works.
    proven_by: Option<Instant>,
    keys: HashMap<u32, Key>,
    next_key: u32,
    /// Threads that look after the worker themselves.
    lookers: usize,
    /// The epoll tells of the worker's descriptor.
    is_heard: bool,
    /// When the worker last had something to do.
    moved_at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Endpoint {
    /// The other side has not said where its own is.
    Awaited,
    Made,
    /// It is closed, and its worker goes when nothing of that is in use any more.
    Failed,
    /// The link has ended, and nothing takes its place.
    Closed,
}

/// A time without an endpoint that works.
struct Outage {
    since: Instant,
    why: Error,
    /// The next one is made no earlier.
    replace_at: Instant,
}

/// The key of memory of the other side.
struct Key {
    bytes: Vec<u8>,
    /// As the present endpoint has it.
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

    /// Returns whether the worker may be worked for. UCX 1.22 ends the *process* when it handles what comes for an
    /// endpoint that has failed and cannot send its answer.
    fn may_progress(&self) -> bool {
        self.is_alive() && self.worker.failure().is_none()
    }

    /// Returns whether there is an endpoint, or will be one of this worker.
    fn is_alive(&self) -> bool {
        matches!(self.endpoint, Endpoint::Awaited | Endpoint::Made)
    }

    /// Returns a key as the endpoint knows it.
    fn unpacked(&mut self, key: u32) -> Result<RemoteKey> {
        let key = self.keys.get_mut(&key);
        let key = key.ok_or(Error::Protocol("memory has no key any more"))?;
        match key.unpacked {
            Some(unpacked) => Ok(unpacked),
            None => {
                let unpacked = self.worker.unpack(&key.bytes)?;
                key.unpacked = Some(unpacked);
                Ok(unpacked)
            }
        }
    }

    fn destroy_keys(&mut self) {
        for key in self.keys.values_mut() {
            if let Some(unpacked) = key.unpacked.take() {
                self.worker.destroy_key(unpacked);
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.worker.close_endpoint();
        if let Some(probe) = self.probe.take() {
            // Closed, so done. One that a device holds on to goes with the worker.
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
            .map_err(Error::os("making a descriptor to wait by"))?;
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

    /// Begins to look after the worker.
    fn begin_to_look(&self, shared: &mut Shared) {
        shared.lookers += 1;
        self.listen(shared);
    }

    /// Leaves the worker to the link's thread, unless another thread looks after it.
    fn stop_looking(&self, shared: &mut Shared, wake: &dyn Fn()) {
        shared.lookers -= 1;
        if shared.lookers > 0 {
            return;
        }
        match self.arm(shared) {
            Ok(()) if !shared.needs_care() => {}
            // The link's thread finds it again, and replaces the endpoint.
            _ => wake(),
        }
        self.listen(shared);
    }

    /// Has the epoll tell of the worker's descriptor if somebody is to be woken by it. Nobody works for a worker whose
    /// endpoint is gone, so what has come to it would be told of again and again.
    fn listen(&self, shared: &mut Shared) {
        let is_heard = shared.lookers == 0 && shared.is_alive();
        if is_heard != shared.is_heard {
            // Both descriptors are ours and open, so it cannot fail.
            let _ = epoll::modify(&self.events, &shared.event_fd, EVENT, flags(is_heard));
            shared.is_heard = is_heard;
        }
    }

    /// Does all there is to do, and has the descriptor tell of what comes then.
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

    /// Returns how many endpoints have taken the place of others.
    pub(crate) fn replacements(&self) -> u32 {
        self.shared().generation - 1
    }

    /// Returns the generation of this side's endpoint and its address.
    pub(crate) fn address(&self) -> Result<(u32, Vec<u8>)> {
        let mut shared = self.shared();
        Ok((shared.generation, shared.worker.address()?))
    }

    /// # Safety
    /// As [`Worker::register`].
    pub(crate) unsafe fn register(
        &self,
        start: *mut u8,
        len: usize,
        is_writable: bool,
    ) -> Result<Registration> {
        // SAFETY: the caller's promise.
        unsafe { self.shared().worker.register(start, len, is_writable) }
    }

    pub(crate) fn unregister(&self, registration: &Registration) {
        self.shared().worker.unregister(registration);
    }

    /// Takes a key of the other side's memory, and returns its number here. It is read now if there is an
    /// endpoint, else when there is one.
    pub(crate) fn add_key(&self, key: &[u8]) -> Result<u32> {
        if key.is_empty() {
            return Err(Error::Protocol("its memory has no key"));
        }
        let mut shared = self.shared();
        let number = shared.next_key;
        // Wraps after four thousand million opens; numbers that are in use are skipped.
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

    pub(crate) fn remove_key(&self, key: u32) {
        let mut shared = self.shared();
        if let Some(unpacked) = shared.keys.remove(&key).and_then(|key| key.unpacked) {
            shared.worker.destroy_key(unpacked);
        }
    }

    /// Ends all that is under way, and waits until no thread works for the worker any more: memory that the other side
    /// reaches may then be unmapped. What a device does not let go of is waited for as long as for a move that stalls.
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
