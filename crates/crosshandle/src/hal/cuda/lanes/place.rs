//! Which stream a command goes to, if one can take it.

use super::Lanes;
use crate::error::Result;
use crate::hal::cuda::caretaker;
use crate::hal::cuda::held::Held;
use crate::hal::cuda::lane::{Due, Lane, profile_of};
use crate::hal::cuda::leftovers;
use crate::hal::cuda::waits;
use crate::hal::cuda::waits::Wait;
use crate::hal::cuda::work;
use crate::hal::{Submission, Work};
use crate::types::QueueOrder;
use std::sync::Arc;

/// Where a command goes.
pub(super) struct Operand {
    pub(super) lane: usize,
    pub(super) due: Due,
}

impl Lanes {
    /// Where a new command goes. Nowhere if it is to be kept back; then its signal has a number.
    pub(super) fn place_now(&mut self, held: &mut Held) -> Result<Option<Operand>> {
        if self.is_shared {
            self.lanes[0].check_recording()?;
        }
        self.feed();
        if let Some(profile) = profile_of(&held.submission.signal) {
            profile.restart();
        }
        if self.held.is_empty() {
            // Whether its signal takes a wait is only known with its number.
            let signal = held.submission.signal.as_ref();
            if signal.is_some_and(|event| self.lanes[0].turn(event, None).is_some()) {
                held.number(&self.gpu)?;
            }
            let mut place = self.place(held)?;
            if place.is_none() && self.gpu.traffic().is_crowded() {
                // Perhaps only because nobody has looked.
                leftovers::leaving_to_others(caretaker::settle);
                place = self.place(held)?;
            }
            if place.is_some() {
                return Ok(place);
            }
        }
        held.number(&self.gpu).map(|()| None)
    }

    /// The stream that can take a command now, if one can. Its waits are admitted then.
    #[inline]
    pub(super) fn place(&mut self, held: &Held) -> Result<Option<Operand>> {
        let submission = &held.submission;
        // Who submits by himself needs it done when the call returns.
        let is_kept_never = self.is_shared || matches!(submission.work, Work::Native(_));
        let lane = match self.order {
            QueueOrder::InOrder => {
                self.lanes[0].prune();
                0
            }
            QueueOrder::OutOfOrder if submission.after_earlier => 0,
            QueueOrder::OutOfOrder => match self.choose()? {
                Some(lane) => lane,
                None if is_kept_never => 0,
                None => return Ok(None),
            },
        };
        let due = self.lanes[lane].due(&submission.waits)?;
        if due.failed.is_some() {
            return Ok(Some(Operand { lane, due }));
        }
        let of_order = match self.order {
            QueueOrder::InOrder => Vec::new(),
            QueueOrder::OutOfOrder => self.waits_of_order(lane, submission),
        };
        let chosen = &self.lanes[lane];
        let signal = submission.signal.as_ref().filter(|_| !submission.may_fail);
        let turn = held
            .ticket
            .and_then(|ticket| chosen.turn(signal?, Some(ticket)));
        let has_waits = !(due.is_empty() && of_order.is_empty() && turn.is_none());
        let waits = || {
            let due = due.of(&submission.waits);
            let due = due.map(|wait| Wait::Event(Arc::clone(&wait.event), wait.number));
            due.chain(of_order).chain(turn)
        };
        if is_kept_never || !chosen.may_hold() {
            chosen.waits().add(waits());
            return Ok(Some(Operand { lane, due }));
        }
        let is_call = matches!(submission.work, Work::Call(_));
        if !chosen.has_room(submission, &due) && chosen.is_blocked() {
            return Ok(None);
        }
        // Such a call would return only when the stream goes on.
        if work::may_hold_up(&submission.work)
            && (has_waits || chosen.is_blocked())
            && work::holds_up(&self.gpu, &submission.work)
        {
            return Ok(None);
        }
        let is_admitted = chosen.waits().begin()
            && match (has_waits, is_call) {
                (true, _) => chosen.waits().admit(waits()),
                (false, true) => chosen.waits().admit_function(),
                (false, false) => true,
            };
        if !is_admitted {
            chosen.rest();
            return Ok(None);
        }
        Ok(Some(Operand { lane, due }))
    }

    /// What a lane waits for so that a command comes after those before it.
    fn waits_of_order(&self, lane: usize, submission: &Submission) -> Vec<Wait> {
        let mut waits = Vec::new();
        if submission.after_earlier {
            for other in &self.lanes[1..] {
                waits.extend(other.waits().pending());
            }
        } else if self.lanes[lane].barrier < self.barriers
            && let Some((_, behind)) = &self.barrier
        {
            waits.extend(behind.iter().filter(|wait| !wait.is_over()).cloned());
        }
        waits
    }

    /// The lane for a command in free order, where nothing holds it up, if there is one.
    fn choose(&mut self) -> Result<Option<usize>> {
        for lane in &mut self.lanes {
            lane.prune();
        }
        let count = self.lanes.len();
        let index = match self.lanes.iter().position(Lane::is_idle) {
            Some(idle) => idle,
            None => {
                let next = (1..=count).map(|step| (self.latest + step) % count);
                let mut running = next.filter(|index| !self.lanes[*index].is_blocked());
                let (next, others) = (running.next(), running.count());
                let is_enough = next.is_some() && others + 1 >= waits::most_running();
                // Not one that might have to be waited for: this may be looking after all queues.
                let more = match is_enough {
                    true => Ok(None),
                    false => self.gpu.stock().try_take(&self.gpu),
                };
                match (more, next) {
                    (Ok(Some(stream)), _) => {
                        self.lanes.push(Lane::new(&self.gpu, stream)?);
                        count
                    }
                    (_, Some(next)) => next,
                    (Ok(None), None) => return Ok(None),
                    // It might be the one that those wait for, so it can't wait for them.
                    (Err(error), None) => return Err(error),
                }
            }
        };
        self.latest = index;
        Ok(Some(index))
    }
}
