//! The bytes of memory over UCX: threads that move memory look after it themselves for a while, then leave
//! that to the link's thread.

use crate::error::{Error, Result};
use crate::tuning::{LISTEN_SPIN, MAX_SLEEP, SPIN};
use crate::ucx::worker::{Registration, RemoteKey, Request, Settings, Worker};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A worker that threads share.
pub(crate) struct DataPath {
    worker: Mutex<Worker>,
    /// Notified when something has moved.
    moved: Condvar,
    /// Threads that sleep until something moves.
    sleepers: AtomicUsize,
    /// Threads that look after the worker themselves.
    lookers: AtomicUsize,
    /// The link's thread does not look after the worker until it is woken.
    is_left_alone: AtomicBool,
    is_closed: AtomicBool,
    event_fd: OwnedFd,
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
        Ok(Self {
            worker: Mutex::new(worker),
            moved: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            lookers: AtomicUsize::new(0),
            is_left_alone: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            event_fd,
        })
    }

    fn worker(&self) -> MutexGuard<'_, Worker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn address(&self) -> Result<Vec<u8>> {
        self.worker().address()
    }

    pub(crate) fn connect(&self, address: &[u8]) -> Result<()> {
        self.worker().connect(address)
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
        unsafe { self.worker().register(start, len, is_writable) }
    }

    pub(crate) fn unregister(&self, registration: &Registration) {
        self.worker().unregister(registration);
    }

    pub(crate) fn unpack(&self, key: &[u8]) -> Result<RemoteKey> {
        self.worker().unpack(key)
    }

    pub(crate) fn destroy_key(&self, key: RemoteKey) {
        self.worker().destroy_key(key);
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
        self.lookers.fetch_add(1, Ordering::SeqCst);
        let mut under_way = Vec::new();
        // SAFETY: the caller's promise; `finish` returns when nothing is under way any more.
        let started = unsafe { self.start(direction, key, pieces, &mut under_way) };
        let finished = self.finish(under_way, wake);
        if self.lookers.fetch_sub(1, Ordering::SeqCst) == 1
            && self.is_left_alone.swap(false, Ordering::SeqCst)
        {
            wake();
        }
        started.and(finished)
    }

    /// # Safety
    /// As [`move_pieces`](Self::move_pieces), until all that is in `under_way` is done.
    unsafe fn start(
        &self,
        direction: Direction,
        key: RemoteKey,
        pieces: impl Iterator<Item = Piece>,
        under_way: &mut Vec<Option<Request>>,
    ) -> Result<()> {
        let mut worker = self.worker();
        if self.is_closed.load(Ordering::Acquire) {
            return Err(closed());
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

    /// Waits until nothing is under way any more.
    fn finish(&self, mut under_way: Vec<Option<Request>>, wake: &dyn Fn()) -> Result<()> {
        let mut result = Ok(());
        let mut last_move = None;
        while !under_way.is_empty() {
            let mut worker = self.worker();
            let has_moved = worker.progress();
            while let Some(last) = under_way.last_mut() {
                match worker.is_done(last) {
                    Ok(false) => break,
                    Ok(true) => {}
                    Err(error) => result = result.and(Err(error)),
                }
                under_way.pop();
            }
            if has_moved {
                last_move = None;
                self.tell_sleepers();
                continue;
            }
            let now = Instant::now();
            if now.duration_since(*last_move.get_or_insert(now)) > SPIN && !under_way.is_empty() {
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                if self.lookers.fetch_sub(1, Ordering::SeqCst) == 1
                    && self.is_left_alone.swap(false, Ordering::SeqCst)
                {
                    wake();
                }
                drop(self.moved.wait_timeout(worker, MAX_SLEEP));
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
                self.lookers.fetch_add(1, Ordering::SeqCst);
                last_move = None;
            }
        }
        result
    }

    fn tell_sleepers(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.moved.notify_all();
        }
    }

    /// Looks after the worker, as the link's thread does before it sleeps. Returns whether it should also
    /// sleep for [`event_fd`](Self::as_fd): not while other threads look after the worker.
    pub(crate) fn look_after(&self) -> Result<bool> {
        if self.is_closed.load(Ordering::Acquire) {
            return Ok(false);
        }
        if self.lookers.load(Ordering::SeqCst) > 0 {
            self.is_left_alone.store(true, Ordering::SeqCst);
            if self.lookers.load(Ordering::SeqCst) > 0 {
                return Ok(false);
            }
        }
        self.is_left_alone.store(false, Ordering::SeqCst);
        let mut worker = self.worker();
        let mut has_moved = false;
        loop {
            let mut until = None;
            loop {
                if worker.progress() {
                    has_moved = true;
                    until = Some(Instant::now() + LISTEN_SPIN);
                } else if until.is_none_or(|until| Instant::now() >= until) {
                    break;
                }
            }
            if worker.arm()? {
                break;
            }
        }
        let failure = worker.failure();
        drop(worker);
        if has_moved {
            self.tell_sleepers();
        }
        failure.map_or(Ok(true), Err)
    }

    /// Ends all that is under way.
    pub(crate) fn close(&self) {
        let mut worker = self.worker();
        self.is_closed.store(true, Ordering::Release);
        worker.close_endpoint();
        drop(worker);
        self.moved.notify_all();
    }
}

pub(crate) fn closed() -> Error {
    Error::Protocol("the data connection is closed")
}

impl AsFd for DataPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event_fd.as_fd()
    }
}
