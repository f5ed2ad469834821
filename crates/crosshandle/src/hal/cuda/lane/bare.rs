//! Commands that only wait and signal: the most frequent ones, without detours.

use super::{AROUND, Lane, MOST_CALLS};
use crate::error::Result;
use crate::event_protocol::Ticket;
use crate::hal::cuda::entry::Entry;
use crate::hal::cuda::held;
use crate::hal::cuda::waits::Wait;
use crate::hal::{Submission, WaitList, WaitPoint};
use std::mem;
use std::sync::{Arc, Weak};

/// Some of a submission's waits: a bit for each.
#[derive(Clone, Copy)]
struct Pending(u32);

impl Pending {
    /// Those waits, out of all of the submission.
    fn of(self, all: &[WaitPoint]) -> impl Iterator<Item = &WaitPoint> {
        let is_pending = move |index: usize| self.0 & 1 << index != 0;
        let all = all.iter().enumerate();
        all.filter_map(move |(index, wait)| is_pending(index).then_some(wait))
    }
}

impl Lane {
    /// Submits a command that does nothing itself and cannot fail, and takes from it what has to
    /// be kept. `false`: it is as it was, and not as simple as that, or to be kept back.
    #[inline]
    pub(crate) fn submit_bare(&mut self, submission: &mut Submission) -> Result<bool> {
        if !self.has_room_for_bare(submission) {
            return Ok(false);
        }
        let Some(pending) = self.pending(&submission.waits) else {
            return Ok(false);
        };
        let calls = pending.0.count_ones() + u32::from(submission.signal.is_some());
        if calls == 0 {
            return Ok(true);
        }
        if !self.begin_bare(pending, &submission.waits) {
            self.rest();
            return Ok(false);
        }
        self.is_joined = false;
        let mut ticket = None;
        let submitted = self.enqueue_bare(submission, pending, &mut ticket, calls);
        if let (Err(error), Some(event)) = (&submitted, &submission.signal) {
            self.take_back(event, ticket.take(), error);
        }
        let mut entry = Entry {
            signal: submission.signal.take(),
            ticket,
            _waits: WaitList::None,
            // And a mark.
            calls: calls + u32::from(matches!(submitted, Ok(Some(_)))),
            used: None,
        };
        if !submission.waits.is_empty() {
            entry._waits = mem::take(&mut submission.waits);
        }
        self.keep(entry, submitted).map(|()| true)
    }

    /// Whether it would not hold up its caller, and its signal has not to wait for another one.
    #[inline]
    fn has_room_for_bare(&self, submission: &Submission) -> bool {
        let calls = submission.waits.len() as u32 + AROUND;
        if self.calls + calls > MOST_CALLS && self.is_blocked() {
            return false;
        }
        let signal = submission.signal.as_ref();
        signal.is_none_or(|event| self.turn(event, None).is_none())
    }

    /// What the stream has to wait for, if nothing has failed.
    #[inline]
    fn pending(&self, waits: &[WaitPoint]) -> Option<Pending> {
        let mut pending = 0;
        if waits.len() > u32::BITS as usize {
            return None;
        }
        for (index, wait) in waits.iter().enumerate() {
            if self.is_latest_wait(wait) {
                pending |= 1 << index;
                continue;
            }
            match self.end_of(wait) {
                Ok(None) => pending |= 1 << index,
                Ok(Some(Ok(()))) => {}
                Ok(Some(Err(_))) | Err(_) => return None,
            }
        }
        Some(Pending(pending))
    }

    /// Takes note that the stream will have something to do and to wait for, if it may.
    #[inline]
    fn begin_bare(&mut self, pending: Pending, waits: &[WaitPoint]) -> bool {
        if !self.waits.begin() {
            return false;
        }
        // One, as a rule.
        match (pending.0, waits) {
            (0, _) => true,
            (_, [only]) => self.is_latest_wait(only) || self.admit_one(only),
            _ => {
                let wait = |wait: &WaitPoint| Wait::Event(Arc::clone(&wait.event), wait.number);
                self.waits.admit(pending.of(waits).map(wait))
            }
        }
    }

    /// Whether the stream waits for it already, and it was not even submitted: then everybody knows
    /// that the stream waits, and what is submitted makes no difference.
    #[inline]
    fn is_latest_wait(&self, wait: &WaitPoint) -> bool {
        let (event, number) = &self.latest_wait;
        let is_same = Weak::as_ptr(event) == Arc::as_ptr(&wait.event) && *number == wait.number;
        is_same && wait.number > wait.event.issued()
    }

    fn admit_one(&mut self, wait: &WaitPoint) -> bool {
        let (event, number) = (&wait.event, wait.number);
        let is_admitted = self.waits.admit_more(event, number)
            || self.waits.admit([Wait::Event(Arc::clone(event), number)]);
        if is_admitted {
            let (latest, latest_number) = &mut self.latest_wait;
            if Weak::as_ptr(latest) != Arc::as_ptr(event) {
                *latest = Arc::downgrade(event);
            }
            *latest_number = number;
        }
        is_admitted
    }

    /// Hands it to the driver, and then a mark, if it is time for one.
    #[inline]
    fn enqueue_bare(
        &mut self,
        submission: &Submission,
        pending: Pending,
        ticket: &mut Option<Ticket>,
        weight: u32,
    ) -> Result<Option<u32>> {
        for wait in pending.of(&submission.waits) {
            self.wait(&wait.event, wait.number, wait.number as u32)?;
        }
        if let Some(event) = &submission.signal {
            let issued = held::issue(event, &self.gpu)?;
            *ticket = Some(issued);
            self.signal(event, issued)?;
        }
        self.flush_and_mark(weight)
    }
}
