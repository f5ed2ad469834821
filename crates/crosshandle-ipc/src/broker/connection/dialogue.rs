//! Several requests at a time, for one open that needs several replies, or for many opens.

use super::{AskError, Connection, FullReply};
use crate::broker::deadline::OpenDeadline;
use crate::broker::protocol::{Refusal, Request};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::socket::MAX_DESCRIPTORS;
use crosshandle_types::error::{Error, Result};
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Share of a process's descriptor limit that its opens of memory in pieces may use at a time, as a
/// divisor. The rest stays available to other calls.
const MAX_TAKEN_PART: usize = 4;

/// Maximum number of requests for memory that an importer sends before it has their replies, when
/// it opens many objects at a time. Each reply brings a descriptor. With fewer, the exporter's
/// driver and the importer's driver may wait for each other. With more, other threads wait longer
/// for their turn.
const MAX_REQUESTS_AHEAD: usize = 16;

/// Interval at which an importer repeats a request for pieces for which the exporter had no free
/// descriptors.
const PIECES_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The requests of an importer that needs several replies, and its use of them.
pub trait Dialogue {
    /// Returns the next request, for at most `most` descriptors.
    fn request(&mut self, most: usize) -> Request;

    /// Does work that is possible before the reply to the first request. Not called if other
    /// threads wait for their turn. Threads that arrive during the call wait until it returns, and
    /// only then is the exporter's death noticed.
    fn meanwhile(&mut self) {}

    /// Checks the reply to the latest request, and returns whether there is another request.
    fn look(&mut self, full: &FullReply) -> Result<bool>;

    /// Takes the reply that was checked last.
    fn take(&mut self, full: FullReply) -> Result<()>;

    /// Returns whether a reply has been received.
    fn has_begun(&self) -> bool;
}

/// Number of descriptors that all opens of memory in pieces currently use in this process.
static TAKEN: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);

/// A share of the descriptors for opens of memory in pieces, which is returned on drop.
#[derive(Default)]
struct DescriptorShare {
    /// Maximum number of descriptors in a reply, or 0 if no share is taken.
    most: usize,
}

impl DescriptorShare {
    /// Takes the available descriptors, at most enough for one received reply and one reply in
    /// transit. Never waits, because an open can always continue with one piece at a time. The
    /// earlier share is returned first, so an open can get a larger share after other opens have
    /// ended.
    fn renew(&mut self) -> usize {
        TAKEN.fetch_sub(2 * std::mem::take(&mut self.most), Ordering::Relaxed);
        let limit = getrlimit(Resource::Nofile).current;
        let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let limit = limit / MAX_TAKEN_PART;
        let most_of = |taken: usize| (limit.saturating_sub(taken) / 2).clamp(1, MAX_DESCRIPTORS);
        let next = |taken: usize| Some(taken + 2 * most_of(taken));
        let taken = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        self.most = most_of(taken.unwrap_or(0));
        self.most
    }
}

impl Drop for DescriptorShare {
    fn drop(&mut self) {
        TAKEN.fetch_sub(2 * self.most, Ordering::Relaxed);
    }
}

impl Connection {
    /// Sends the requests of a dialogue, and passes the replies to it. The next request is sent
    /// before the dialogue takes a reply, so that both sides work at the same time. If other
    /// threads wait, they get their turn instead. The dialogue's own time does not count.
    pub fn converse(&self, dialogue: &mut impl Dialogue, deadline: &OpenDeadline) -> Result<()> {
        // Only the first reply shows whether the memory consists of pieces. Its request asks for
        // the maximum, like a request that was sent ahead.
        let mut share = DescriptorShare::default();
        let mut most = MAX_DESCRIPTORS;
        // Number of descriptors for which this process has had room.
        let mut room = MAX_DESCRIPTORS;
        let mut is_last_attempt = false;
        let mut turn = self.await_turn(deadline)?;
        let mut asked = dialogue.request(most);
        self.send(asked, &mut turn, deadline)?;
        if !self.has_waiting() {
            deadline.excluding(|| dialogue.meanwhile());
        }
        loop {
            let failure = match self.receive(&mut turn, asked, deadline.get()) {
                Ok(full) => {
                    let is_over = !dialogue.look(&full)?;
                    if !is_over {
                        room = MAX_DESCRIPTORS.min(room + 1);
                        most = room.min(share.renew());
                        is_last_attempt = false;
                    }
                    let in_between = match self.has_waiting() {
                        true => {
                            drop(turn);
                            None
                        }
                        false if is_over => {
                            drop(turn);
                            None
                        }
                        false => {
                            turn.renew();
                            asked = dialogue.request(most);
                            self.send(asked, &mut turn, deadline)?;
                            Some(turn)
                        }
                    };
                    // If this call fails, a later request recognizes the reply in transit by its
                    // number, and skips it.
                    deadline.excluding(|| dialogue.take(full))?;
                    if is_over {
                        return Ok(());
                    }
                    turn = match in_between {
                        Some(turn) => turn,
                        None => {
                            let mut turn = self.await_turn(deadline)?;
                            asked = dialogue.request(most);
                            self.send(asked, &mut turn, deadline)?;
                            turn
                        }
                    };
                    continue;
                }
                Err(failure) => failure,
            };
            drop(turn);
            match failure {
                AskError::Refused(Refusal::Busy) => {}
                AskError::Refused(Refusal::NoRoom) if dialogue.has_begun() => {}
                AskError::NoDescriptors if most > 1 => {
                    most /= 2;
                    room = most;
                }
                // The reply without room may have belonged to an abandoned request with more
                // descriptors.
                AskError::NoDescriptors if !is_last_attempt => is_last_attempt = true,
                failure => return Err(self.explain_failure(failure)),
            }
            if deadline.get().is_over() {
                return Err(match failure {
                    // A client that is refused because of too many connections has no other request
                    // to send.
                    AskError::Refused(Refusal::Busy) => Error::LimitReached {
                        what: "the exporter has too many descriptors under way to other processes"
                            .into(),
                        remedy: "try again, open fewer memories of pieces at a time, or raise the \
                                 exporter's RLIMIT_NOFILE"
                            .into(),
                    },
                    failure => self.explain_failure(failure),
                });
            }
            if !matches!(failure, AskError::NoDescriptors) {
                deadline.get().sleep(PIECES_RETRY_INTERVAL);
            }
            turn = self.await_turn(deadline)?;
            asked = dialogue.request(most);
            self.send(asked, &mut turn, deadline)?;
        }
    }

    /// Sends several requests, and passes each reply to `take`. Some requests are sent ahead, so
    /// that both sides work at the same time, unless other threads wait for their turn. The
    /// operation ends at the first refusal, and replies still in transit are recognized by their
    /// numbers.
    ///
    /// `meanwhile` gets the index of a request before the wait for its reply, unless other threads
    /// wait. Threads that arrive during the call wait until it returns. The time of both callbacks
    /// does not count.
    pub fn ask_each(
        &self,
        requests: &[Request],
        deadline: &OpenDeadline,
        mut meanwhile: impl FnMut(usize),
        mut take: impl FnMut(FullReply) -> Result<()>,
    ) -> Result<()> {
        let mut rest = requests.iter().enumerate();
        let mut asked = VecDeque::new();
        let mut turn = self.await_turn(deadline)?;
        loop {
            while asked.len() < MAX_REQUESTS_AHEAD
                && (asked.is_empty() || !self.has_waiting())
                && let Some((place, request)) = rest.next()
            {
                turn.renew();
                self.send(*request, &mut turn, deadline)?;
                asked.push_back((place, *request, turn.serial, turn.early.take()));
            }
            let Some((place, request, serial, early)) = asked.pop_front() else {
                return Ok(());
            };
            if !self.has_waiting() {
                deadline.excluding(|| meanwhile(place));
            }
            (turn.serial, turn.early) = (serial, early);
            let full = self.receive(&mut turn, request, deadline.get());
            let full = full.map_err(|failure| self.explain_failure(failure))?;
            deadline.excluding(|| take(full))?;
            if asked.is_empty() && self.has_waiting() {
                drop(turn);
                turn = self.await_turn(deadline)?;
            }
        }
    }
}
