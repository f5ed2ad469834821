//! Transfers of memory contents, called *moves*. The calling thread drives its move until all bytes
//! have arrived. If an endpoint fails, the move continues on the next endpoint.

use super::{DataPath, Endpoint, Shared};
use crate::error::{Error, Result};
use crate::ucx::worker::{RemoteKey, Request, Worker};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for which a thread that moves memory polls for completion. After this time, the thread
/// sleeps, and the link's thread polls. With a shorter time, more transfers have to wake two
/// threads. With a longer time, polling uses more CPU time.
const SPIN: Duration = Duration::from_micros(100);

/// Maximum time that a thread sleeps while it waits for its transfer. Normally, a notification
/// wakes the thread earlier. The limit matters only if a notification is lost.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Number of failed endpoints after which a transfer fails, even if each endpoint had reached the
/// peer. With the pauses between them, this takes about 6 s. With a smaller number, transfers fail
/// in networks that often break connections. With a larger number, a network card that cannot
/// access the memory is detected later.
const MAX_PROVEN_FAILURES: u32 = 16;

const STALLED: &str = "moving memory: UCX made no progress";

#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) local: *mut u8,
    pub(crate) len: usize,
    pub(crate) remote: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To the peer.
    Put,
    /// From the peer.
    Get,
}

/// The requests of one move on one endpoint.
#[derive(Default)]
struct UnderWay {
    /// Each request, and the index of its piece. A flush has no piece.
    requests: Vec<(Option<usize>, Request)>,
    /// Indexes of the pieces that were not transferred.
    unmoved: Vec<usize>,
    /// Whether pieces may have been written without a flush that confirms them.
    is_unflushed: bool,
    error: Option<Error>,
}

/// The history of a failed attempt, which is a move over one endpoint.
struct Attempt {
    started_at: Instant,
    /// Time at which the endpoint last made progress.
    moved_at: Instant,
    ended_at: Instant,
    /// Whether at least one piece has arrived.
    has_pieces: bool,
    /// Whether the endpoint had already reached the peer.
    was_proven: bool,
}

/// Counts the failed attempts of a move, to decide when to give up.
#[derive(Default)]
struct Failing {
    /// Start of the current series of failures. Enough progress ends a series.
    since: Option<Instant>,
    /// Number of endpoints that reached the peer but transferred no piece.
    proven: u32,
}

impl Failing {
    /// Counts a failed attempt. Returns `true` if the move should give up, because it has made no
    /// progress for `limit`, or because too many endpoints that reach the peer have failed.
    fn is_hopeless(&mut self, attempt: &Attempt, limit: Duration) -> bool {
        let worked_for = attempt
            .moved_at
            .saturating_duration_since(attempt.started_at);
        if attempt.has_pieces || worked_for > limit {
            self.since = None;
        }
        if attempt.has_pieces {
            self.proven = 0;
        } else if attempt.was_proven {
            self.proven += 1;
        }
        let since = *self.since.get_or_insert(attempt.ended_at);
        attempt.ended_at.duration_since(since) > limit || self.proven >= MAX_PROVEN_FAILURES
    }
}

impl DataPath {
    /// Transfers pieces of memory, and returns when all bytes have arrived. If the endpoint fails,
    /// transfers the missing pieces again over the next endpoint. `wake` wakes the link's thread.
    ///
    /// # Errors
    /// Returns an error if the link has ended or UCX rejects the move. Also returns an error if the
    /// move fails repeatedly for as long as the keep-alive, or on [`MAX_PROVEN_FAILURES`] endpoints
    /// that reach the peer.
    ///
    /// # Safety
    /// The caller must ensure that the pieces' local bytes can be read, and for `Get` written,
    /// until this function returns.
    pub(crate) unsafe fn move_pieces(
        &self,
        direction: Direction,
        key: u32,
        pieces: &[Piece],
        wake: &dyn Fn(),
    ) -> Result<()> {
        if pieces.iter().all(|piece| piece.len == 0) {
            // Without this check, a move without bytes would complete even on an endpoint that does
            // not work.
            return Ok(());
        }
        // The pieces that remain. `None` means all pieces.
        let mut left: Option<Vec<usize>> = None;
        let mut failing = Failing::default();
        loop {
            let mut shared = self.wait_until_usable(wake)?;
            let key = match shared.unpacked(key) {
                Ok(key) => key,
                Err(error) if shared.is_usable() => return Err(error),
                // The endpoint has failed since the wait.
                Err(_) => continue,
            };
            shared.moves += 1;
            self.begin_to_look(&mut shared);
            let mut under_way = UnderWay::default();
            let worker = &mut shared.worker;
            // SAFETY: the caller guarantees that the memory is valid until this function returns.
            // `finish` returns only when no request is in flight.
            unsafe {
                match &left {
                    None => {
                        under_way.start(worker, direction, key, pieces.iter().copied().enumerate())
                    }
                    Some(left) => {
                        let some = left.iter().map(|index| (*index, pieces[*index]));
                        under_way.start(worker, direction, key, some);
                    }
                }
            }
            drop(shared);
            let tried = left.as_ref().map_or(pieces.len(), Vec::len);
            let mut attempt = self.finish(&mut under_way, wake);
            let Some(error) = under_way.error else {
                return Ok(());
            };
            if error.is_definitive() {
                return Err(error);
            }
            // Count only reads, because a write that no flush has confirmed may not have arrived.
            if direction == Direction::Get {
                attempt.has_pieces = under_way.unmoved.len() < tried;
                left = Some(under_way.unmoved);
            }
            if failing.is_hopeless(&attempt, self.limits.outage) {
                return Err(error);
            }
        }
    }

    /// Waits for a usable endpoint. Fails if the link ends, which also happens if no endpoint works
    /// for too long.
    fn wait_until_usable(&self, wake: &dyn Fn()) -> Result<MutexGuard<'_, Shared>> {
        let mut shared = self.shared();
        loop {
            if shared.endpoint == Endpoint::Closed {
                return Err(Error::Protocol("the data connection is closed"));
            }
            if shared.is_usable() {
                return Ok(shared);
            }
            if let (Endpoint::Made, Some(failure)) = (shared.endpoint, shared.worker.failure()) {
                shared.fail(failure);
                self.changed.notify_all();
            }
            if shared.needs_care() {
                wake();
            }
            let waited = self.changed.wait_timeout(shared, MAX_SLEEP);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Drives the worker until no request is in flight. Describes the attempt.
    fn finish(&self, under_way: &mut UnderWay, wake: &dyn Fn()) -> Attempt {
        let mut last_move = None;
        let started_at = Instant::now();
        loop {
            let mut shared = self.shared();
            if let (Endpoint::Made, Some(failure)) = (shared.endpoint, shared.worker.failure()) {
                shared.fail(failure);
                self.changed.notify_all();
            }
            // Requests on a closed endpoint end at once, unless a device has started to process
            // them.
            let has_moved = match shared.may_progress() || last_move.is_some_and(is_long_ago) {
                true => shared.progress(),
                false => false,
            };
            let has_failed = !shared.is_usable();
            under_way.take_done(&mut shared.worker, has_failed);
            if under_way.requests.is_empty() {
                let attempt = Attempt {
                    started_at,
                    moved_at: shared.moved_at,
                    ended_at: Instant::now(),
                    has_pieces: false,
                    was_proven: shared.proven_by.is_none(),
                };
                match &under_way.error {
                    None => shared.note_works(),
                    // Close the endpoint, because bytes in flight must not arrive after this
                    // function has returned.
                    Some(error) if !error.is_definitive() || under_way.is_unflushed => {
                        shared.fail(error.clone());
                    }
                    Some(_) => {}
                }
                shared.moves -= 1;
                self.stop_looking(&mut shared, wake);
                if !shared.is_usable() {
                    // Wake other moves, which must detect that the endpoint has failed, and
                    // `close`, which waits for the end of this move.
                    self.changed.notify_all();
                }
                return attempt;
            }
            if has_moved {
                last_move = None;
                if self.sleepers.load(Ordering::SeqCst) > 0 {
                    self.changed.notify_all();
                }
                continue;
            }
            let now = Instant::now();
            let still_since = shared.moved_at.max(started_at);
            if shared.endpoint == Endpoint::Made
                && now.saturating_duration_since(still_since) > self.limits.stall
            {
                // After this call, the requests end with an error and no longer use their memory.
                shared.fail(Error::TimedOut(STALLED));
                self.changed.notify_all();
                continue;
            }
            if now.duration_since(*last_move.get_or_insert(now)) > SPIN {
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                self.stop_looking(&mut shared, wake);
                let waited = self.changed.wait_timeout(shared, MAX_SLEEP);
                shared = waited.unwrap_or_else(PoisonError::into_inner).0;
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
                self.begin_to_look(&mut shared);
                last_move = None;
            }
        }
    }
}

/// Returns `true` if requests on a closed endpoint have had enough time to end.
fn is_long_ago(last_move: Instant) -> bool {
    last_move.elapsed() > SPIN / 2
}

impl UnderWay {
    /// # Safety
    /// The caller must uphold the contract of [`DataPath::move_pieces`], until all requests are
    /// done.
    unsafe fn start(
        &mut self,
        worker: &mut Worker,
        direction: Direction,
        key: RemoteKey,
        pieces: impl Iterator<Item = (usize, Piece)>,
    ) {
        for (index, Piece { local, len, remote }) in pieces {
            if self.error.is_some() {
                self.unmoved.push(index);
                continue;
            }
            // SAFETY: the caller guarantees that the local bytes can be read, and for `Get`
            // written, until all requests are done.
            let request = unsafe {
                match direction {
                    Direction::Put => worker.put(local, len, remote, key),
                    Direction::Get => worker.get(local, len, remote, key),
                }
            };
            match request {
                Ok(Some(request)) => self.requests.push((Some(index), request)),
                Ok(None) => {}
                Err(error) => self.note_failed(Some(index), error),
            }
        }
        // Flush after an error too, because the flush waits for the writes before the error.
        if direction == Direction::Put {
            match worker.flush() {
                Ok(Some(request)) => self.requests.push((None, request)),
                Ok(None) => {}
                Err(error) => self.note_failed(None, error),
            }
        }
    }

    fn note_failed(&mut self, piece: Option<usize>, error: Error) {
        match piece {
            Some(piece) => self.unmoved.push(piece),
            None => self.is_unflushed = true,
        }
        // Keep the first error, unless a later error means that repeating the move is useless.
        if self.error.is_none() || error.is_definitive() {
            self.error = Some(error);
        }
    }

    /// Removes completed requests, starting with the last one. If the endpoint has failed, treats
    /// them as failed, because UCX's result is not reliable: a flush on a closed endpoint succeeds
    /// although the bytes have not arrived.
    fn take_done(&mut self, worker: &mut Worker, has_failed: bool) {
        while let Some((piece, request)) = self.requests.pop() {
            let mut request = Some(request);
            match worker.is_done(&mut request) {
                Ok(true) if has_failed => {
                    self.note_failed(piece, Error::TimedOut("moving memory by UCX"));
                }
                Ok(true) => {}
                Err(error) => self.note_failed(piece, error),
                Ok(false) => {
                    self.requests
                        .extend(request.map(|request| (piece, request)));
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Returns whether a move gives up after the given attempts. Each attempt is
    /// `(start, last_progress, end, pieces_arrived)`, with times in seconds.
    fn is_given_up(attempts: &[(u64, u64, u64, bool)]) -> bool {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut failing = Failing::default();
        attempts
            .iter()
            .any(|&(started_at, moved_at, ended_at, has_pieces)| {
                let attempt = Attempt {
                    started_at: at(started_at),
                    moved_at: at(moved_at),
                    ended_at: at(ended_at),
                    has_pieces,
                    was_proven: true,
                };
                failing.is_hopeless(&attempt, LIMIT)
            })
    }

    #[test]
    fn moves_are_given_up_when_nothing_moves_and_not_when_they_are_long() {
        assert!(!is_given_up(&[(0, 5, 5, false)]));
        // An endpoint that made progress for a long time, one that stalled, and one that
        // transferred pieces.
        assert!(!is_given_up(&[(0, 5, 5, false), (6, 50, 50, false)]));
        assert!(is_given_up(&[(0, 5, 5, false), (6, 7, 50, false)]));
        assert!(!is_given_up(&[(0, 5, 5, false), (6, 7, 50, true)]));
        let fast = vec![(1, 1, 1, false); MAX_PROVEN_FAILURES as usize];
        assert!(is_given_up(&fast) && !is_given_up(&fast[1..]));
        assert!(!is_given_up(&vec![(1, 1, 1, true); fast.len() * 2]));
    }
}
