//! Several questions at a time: of one opening that takes several answers, and of many openings.

use super::{Answer, AskError, Connection};
use crate::error::{Error, Result};
use crate::ipc::broker::deadline::OpenDeadline;
use crate::ipc::broker::protocol::{Refusal, Request};
use crate::ipc::tuning::{MAX_QUESTIONS_AHEAD, MAX_TAKEN_PART, PIECES_RETRY_INTERVAL};
use crate::os::fork::PerProcess;
use crate::os::socket::MAX_DESCRIPTORS;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What an importer asks in several questions, and does with the answers.
pub(crate) trait Dialogue {
    /// Returns the next question, for `most` descriptors at most.
    fn question(&mut self, most: usize) -> Request;

    /// Does what can be done before the first question is answered. Not called if other threads wait to ask; who comes
    /// then waits until it returns, and whether the exporter lives shows after it alone.
    fn meanwhile(&mut self) {}

    /// Looks at the answer to the question that was returned last; returns whether there is another
    /// question.
    fn look(&mut self, answer: &Answer) -> Result<bool>;

    /// Takes the answer that was looked at last.
    fn take(&mut self, answer: Answer) -> Result<()>;

    /// Returns whether there was an answer already.
    fn has_begun(&self) -> bool;
}

/// Descriptors that openings of memory of pieces may have at a time, in this process.
static TAKEN: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);

/// A part of those, until drop.
#[derive(Default)]
struct DescriptorShare {
    /// The number that an answer may bring; 0 if no part was taken.
    most: usize,
}

impl DescriptorShare {
    /// Takes what there is, up to the descriptors of one answer in hand and one under way. Never waits:
    /// an opening goes on with one piece at a time. What an earlier call took is given back first, so that an
    /// opening that began among many has more when they are over.
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
    /// Asks what a dialogue wants to know. The next question is asked before the dialogue takes an answer, so
    /// that both sides work at the same time; unless other threads wait to ask, who have their turn then.
    /// The time that the dialogue takes does not count.
    pub(crate) fn converse(
        &self,
        dialogue: &mut impl Dialogue,
        deadline: &OpenDeadline,
    ) -> Result<()> {
        // Whether the memory consists of pieces, the first answer shows. Its question is for as many as there
        // may be, as the one that was sent ahead is.
        let mut share = DescriptorShare::default();
        let mut most = MAX_DESCRIPTORS;
        // What this process was seen to have room for.
        let mut room = MAX_DESCRIPTORS;
        let mut is_last_attempt = false;
        let mut turn = self.await_turn(deadline)?;
        let mut asked = dialogue.question(most);
        self.send(asked, &mut turn)?;
        if !self.has_waiting() {
            deadline.excluding(|| dialogue.meanwhile());
        }
        loop {
            let failure = match self.receive(&mut turn, asked, deadline.get()) {
                Ok(answer) => {
                    let is_over = !dialogue.look(&answer)?;
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
                            asked = dialogue.question(most);
                            self.send(asked, &mut turn)?;
                            Some(turn)
                        }
                    };
                    // If it fails, the answer that is under way is told from later ones by its number.
                    deadline.excluding(|| dialogue.take(answer))?;
                    if is_over {
                        return Ok(());
                    }
                    turn = match in_between {
                        Some(turn) => turn,
                        None => {
                            let mut turn = self.await_turn(deadline)?;
                            asked = dialogue.question(most);
                            self.send(asked, &mut turn)?;
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
                // What had no room may have been an answer that nobody waits for, with more than one.
                AskError::NoDescriptors if !is_last_attempt => is_last_attempt = true,
                failure => return Err(self.explain_failure(failure)),
            }
            if deadline.get().is_over() {
                return Err(match failure {
                    // One for which there are too many connections has no other question to ask.
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
            asked = dialogue.question(most);
            self.send(asked, &mut turn)?;
        }
    }

    /// Asks several questions, and hands each answer on. Some are asked ahead, so that both sides work at the
    /// same time, unless other threads wait to ask. Ends at the first refusal; answers that are under way then are
    /// told from later ones by their numbers. `meanwhile` gets the place of a question before its answer is waited for,
    /// unless other threads wait to ask; who comes then waits until it returns. The time that both take does not count.
    pub(crate) fn ask_each(
        &self,
        requests: &[Request],
        deadline: &OpenDeadline,
        mut meanwhile: impl FnMut(usize),
        mut take: impl FnMut(Answer) -> Result<()>,
    ) -> Result<()> {
        let mut rest = requests.iter().enumerate();
        let mut asked = VecDeque::new();
        let mut turn = self.await_turn(deadline)?;
        loop {
            while asked.len() < MAX_QUESTIONS_AHEAD
                && (asked.is_empty() || !self.has_waiting())
                && let Some((place, request)) = rest.next()
            {
                turn.renew();
                self.send(*request, &mut turn)?;
                asked.push_back((place, *request, turn.serial, turn.early.take()));
            }
            let Some((place, request, serial, early)) = asked.pop_front() else {
                return Ok(());
            };
            if !self.has_waiting() {
                deadline.excluding(|| meanwhile(place));
            }
            (turn.serial, turn.early) = (serial, early);
            let answer = self.receive(&mut turn, request, deadline.get());
            let answer = answer.map_err(|failure| self.explain_failure(failure))?;
            deadline.excluding(|| take(answer))?;
            if asked.is_empty() && self.has_waiting() {
                drop(turn);
                turn = self.await_turn(deadline)?;
            }
        }
    }
}
