//! The bytes of memory over UCX: threads that move memory look after it themselves for a while, then leave
//! that to the link's thread.

use crate::error::{Error, Result};
use crate::tuning::{MAX_SLEEP, SPIN, STALL_TIMEOUT};
use crate::ucx::worker::{Registration, RemoteKey, Request, Settings, Worker};
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the epoll says of its only descriptor, which nobody asks.
const EVENT: epoll::EventData = epoll::EventData::new_u64(0);

const STALLED: &str = "moving memory: UCX made no progress";

/// A worker that threads share.
pub(crate) struct DataPath {
    shared: Mutex<Shared>,
    /// Notified when something has moved.
    moved: Condvar,
    /// Threads that sleep until something moves.
    sleepers: AtomicUsize,
    is_closed: AtomicBool,
    /// Memory that was to move made no progress for too long.
    has_stalled: AtomicBool,
    /// For how long it may.
    patience: Duration,
    /// An epoll that has UCX's descriptor, but only while no other thread looks after the worker: so these
    /// don't wake the link's thread.
    events: OwnedFd,
    event_fd: OwnedFd,
}

struct Shared {
    worker: Worker,
    /// Threads that look after the worker themselves.
    lookers: usize,
    /// When the worker last had something to do.
    moved_at: Instant,
}

impl Shared {
    fn progress(&mut self) -> bool {
        let has_moved = self.worker.progress();
        if has_moved {
            self.moved_at = Instant::now();
        }
        has_moved
    }
}

/// One piece of memory to be moved.
pub(crate) struct Piece {
    pub(crate) local: *mut u8,
    pub(crate) len: usize,
    pub(crate) remote: u64,
}

/// The direction in which memory moves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the other side.
    Put,
    /// From the other side.
    Get,
}

impl DataPath {
    pub(crate) fn new(settings: &Settings) -> Result<Self> {
        let mut worker = Worker::new(settings)?;
        let event_fd = worker
            .take_event_fd()
            .ok_or(Error::Protocol("UCX's worker has no descriptor"))?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Error::os("making a descriptor to wait by"))?;
        epoll::add(&events, &event_fd, EVENT, epoll::EventFlags::IN)
            .map_err(Error::os("waiting for UCX's descriptor"))?;
        Ok(Self {
            shared: Mutex::new(Shared {
                worker,
                lookers: 0,
                moved_at: Instant::now(),
            }),
            moved: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            has_stalled: AtomicBool::new(false),
            patience: STALL_TIMEOUT,
            events,
            event_fd,
        })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to look after the worker.
    fn begin_to_look(&self, shared: &mut Shared) {
        shared.lookers += 1;
        if shared.lookers == 1 {
            self.listen_for(epoll::EventFlags::empty());
        }
    }

    /// Leaves the worker to the link's thread, unless another thread looks after it.
    fn stop_looking(&self, shared: &mut Shared, wake: &dyn Fn()) {
        shared.lookers -= 1;
        if shared.lookers > 0 {
            return;
        }
        match self.arm(shared) {
            Ok(()) if shared.worker.failure().is_none() => {}
            // The link's thread finds it again, and ends the link.
            _ => wake(),
        }
        self.listen_for(epoll::EventFlags::IN);
    }

    fn listen_for(&self, flags: epoll::EventFlags) {
        // Both descriptors are ours and open, so it cannot fail.
        let _ = epoll::modify(&self.events, &self.event_fd, EVENT, flags);
    }

    /// Does all there is to do, and has the descriptor tell of what comes then.
    fn arm(&self, shared: &mut Shared) -> Result<()> {
        let mut has_moved = false;
        loop {
            while shared.progress() {
                has_moved = true;
            }
            if shared.worker.arm()? {
                break;
            }
        }
        if has_moved && self.sleepers.load(Ordering::SeqCst) > 0 {
            self.moved.notify_all();
        }
        Ok(())
    }

    pub(crate) fn address(&self) -> Result<Vec<u8>> {
        self.shared().worker.address()
    }

    pub(crate) fn connect(&self, address: &[u8]) -> Result<()> {
        self.shared().worker.connect(address)
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

    pub(crate) fn unpack(&self, key: &[u8]) -> Result<RemoteKey> {
        self.shared().worker.unpack(key)
    }

    pub(crate) fn destroy_key(&self, key: RemoteKey) {
        self.shared().worker.destroy_key(key);
    }

    /// Moves pieces of memory, and returns when all bytes are where they belong. `wake` wakes the link's
    /// thread.
    ///
    /// # Safety
    /// The pieces' local bytes can be read, and for `Get` written, until this returns.
    pub(crate) unsafe fn move_pieces(
        &self,
        direction: Direction,
        key: RemoteKey,
        pieces: impl Iterator<Item = Piece>,
        wake: &dyn Fn(),
    ) -> Result<()> {
        let mut under_way = Vec::new();
        let mut shared = self.shared();
        self.begin_to_look(&mut shared);
        // SAFETY: the caller's promise; `finish` returns when nothing is under way any more.
        let started =
            unsafe { self.start(&mut shared.worker, direction, key, pieces, &mut under_way) };
        drop(shared);
        let finished = self.finish(under_way, wake);
        match self.has_stalled.load(Ordering::Acquire) {
            true => Err(Error::TimedOut(STALLED)),
            false => started.and(finished),
        }
    }

    /// # Safety
    /// As [`move_pieces`](Self::move_pieces), until all that is in `under_way` is done.
    unsafe fn start(
        &self,
        worker: &mut Worker,
        direction: Direction,
        key: RemoteKey,
        pieces: impl Iterator<Item = Piece>,
        under_way: &mut Vec<Option<Request>>,
    ) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Protocol("the data connection is closed"));
        }
        for Piece { local, len, remote } in pieces {
            // SAFETY: the caller's promise.
            let request = unsafe {
                match direction {
                    Direction::Put => worker.put(local, len, remote, key)?,
                    Direction::Get => worker.get(local, len, remote, key)?,
                }
            };
            under_way.extend(request.map(Some));
        }
        if direction == Direction::Put {
            under_way.extend(worker.flush()?.map(Some));
        }
        Ok(())
    }

    /// Waits until nothing is under way any more, and stops looking after the worker.
    fn finish(&self, mut under_way: Vec<Option<Request>>, wake: &dyn Fn()) -> Result<()> {
        let mut result = Ok(());
        let mut last_move = None;
        let started_at = Instant::now();
        loop {
            let mut shared = self.shared();
            let has_moved = shared.progress();
            while let Some(last) = under_way.last_mut() {
                match shared.worker.is_done(last) {
                    Ok(false) => break,
                    Ok(true) => {}
                    Err(error) => result = result.and(Err(error)),
                }
                under_way.pop();
            }
            if under_way.is_empty() {
                self.stop_looking(&mut shared, wake);
                return result;
            }
            if has_moved {
                last_move = None;
                if self.sleepers.load(Ordering::SeqCst) > 0 {
                    self.moved.notify_all();
                }
                continue;
            }
            let now = Instant::now();
            let still_since = shared.moved_at.max(started_at);
            if now.saturating_duration_since(still_since) > self.patience
                && !self.has_stalled.swap(true, Ordering::AcqRel)
            {
                // What is under way then ends with an error, and lets go of its memory.
                self.is_closed.store(true, Ordering::Release);
                shared.worker.close_endpoint();
                continue;
            }
            if now.duration_since(*last_move.get_or_insert(now)) > SPIN {
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                self.stop_looking(&mut shared, wake);
                let waited = self.moved.wait_timeout(shared, MAX_SLEEP);
                shared = waited.unwrap_or_else(PoisonError::into_inner).0;
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
                self.begin_to_look(&mut shared);
                last_move = None;
            }
        }
    }

    /// Looks after the worker, as the link's thread does before it sleeps.
    pub(crate) fn look_after(&self) -> Result<()> {
        if self.has_stalled.load(Ordering::Acquire) {
            return Err(Error::TimedOut(STALLED));
        }
        if self.is_closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut shared = self.shared();
        if shared.lookers == 0 {
            self.arm(&mut shared)?;
        }
        shared.worker.failure().map_or(Ok(()), Err)
    }

    /// Returns whether the endpoint has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_stalled.load(Ordering::Acquire) || self.shared().worker.failure().is_some()
    }

    /// Ends all that is under way.
    pub(crate) fn close(&self) {
        let mut shared = self.shared();
        self.is_closed.store(true, Ordering::Release);
        shared.worker.close_endpoint();
        // Nobody looks after it any more.
        self.listen_for(epoll::EventFlags::empty());
        drop(shared);
        self.moved.notify_all();
    }
}

impl AsFd for DataPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other side's worker is never looked after, so what is asked of it never comes.
    #[test]
    fn a_move_without_progress_ends_and_lets_go_of_its_memory() {
        let settings = Settings {
            interface: Some("lo".into()),
            transports: Some("tcp".into()),
        };
        let (mut still, mut data) = match (Worker::new(&settings), DataPath::new(&settings)) {
            (Ok(still), Ok(data)) => (still, data),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!(
                    "SKIPPED a_move_without_progress_ends_and_lets_go_of_its_memory: {error}"
                );
                return;
            }
        };
        data.patience = Duration::from_millis(200);
        let mut there = vec![7u8; 1 << 20];
        // SAFETY: the memory outlives the worker's use of it.
        let made = unsafe { still.register(there.as_mut_ptr(), there.len(), true) }.unwrap();
        data.connect(&still.address().unwrap()).unwrap();
        let key = data.unpack(&made.key).unwrap();
        let mut here = vec![0u8; 1 << 20];
        let piece = Piece {
            local: here.as_mut_ptr(),
            len: here.len(),
            remote: made.address,
        };
        // SAFETY: the bytes are here until it returns.
        let moved =
            unsafe { data.move_pieces(Direction::Get, key, std::iter::once(piece), &|| ()) };
        assert!(moved.unwrap_err().is_timeout());
        assert!(data.has_failed() && data.look_after().is_err());
        drop(here);
        data.destroy_key(key);
        still.unregister(&made);
    }
}
