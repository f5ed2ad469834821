//! Which stream a command goes to, and which commands are kept back.
//!
//! The driver takes only so many commands for a stream that waits, and then makes its caller wait
//! too; and only so many streams may wait (see [`waits`](super::waits)). What would go beyond that
//! is kept here, in order, and tried again whenever somebody looks.

mod bare;
mod place;

use super::call::Worker;
use super::device::Gpu;
use super::driver::{EventHandle, StreamHandle};
use super::entry::{Entry, Left};
use super::held::Held;
use super::lane::Lane;
use super::waits::Wait;
use crate::error::{Error, Result};
use crate::hal::Submission;
use crate::ipc::EventCore;
use crate::types::QueueOrder;
use place::Operand;
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

/// The streams of a queue. In all methods the device's context is current.
pub(super) struct Lanes {
    gpu: Arc<Gpu>,
    order: QueueOrder,
    worker: Arc<Worker>,
    /// The first one is the only one, if the queue is in order, and has the barriers.
    lanes: Vec<Lane>,
    /// The lane that took the latest command, if order is free.
    latest: usize,
    /// How many barriers there were, an event that happens after the latest, and what that waits
    /// for.
    barriers: u64,
    barrier: Option<(EventHandle, Vec<Wait>)>,
    /// Commands that no stream has yet.
    held: VecDeque<Held>,
    /// Others submit to the first stream too, and rely on the order of the calls.
    is_shared: bool,
}

impl Lanes {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        order: QueueOrder,
        worker: &Arc<Worker>,
        first: Lane,
    ) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            order,
            worker: Arc::clone(worker),
            lanes: vec![first],
            latest: 0,
            barriers: 0,
            barrier: None,
            held: VecDeque::new(),
            is_shared: false,
        }
    }

    /// The stream with the barriers, to which others will submit too. From now on nothing is kept
    /// back, so that their commands come after what was submitted before them.
    pub(super) fn share(&mut self) -> StreamHandle {
        self.is_shared = true;
        let stream = self.lanes[0].share();
        self.feed();
        stream
    }

    /// Nothing will be submitted any more: see [`Lane::leave`].
    pub(super) fn leave(&mut self) {
        self.lanes.iter_mut().for_each(Lane::leave);
    }

    /// Takes a command. `Ok` also if it is skipped, because what it waits for has failed.
    #[inline(never)]
    pub(super) fn submit(&mut self, submission: Submission) -> Result<()> {
        let mut held = Held::new(submission);
        match self.place_now(&mut held) {
            Ok(Some(place)) => return self.enqueue(place, held),
            Ok(None) => self.held.push_back(held),
            Err(error) => {
                held.refuse(&error, &mut self.lanes[0].left);
                return Err(error);
            }
        }
        // In free order it may pass those that wait.
        if self.order == QueueOrder::OutOfOrder {
            self.feed();
        }
        Ok(())
    }

    /// Whether commands are kept back.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Gives the streams what they can take now. Whether that was anything.
    #[inline]
    pub(super) fn feed(&mut self) -> bool {
        match self.order {
            QueueOrder::InOrder => self.feed_first(),
            QueueOrder::OutOfOrder => self.feed_any(),
        }
    }

    /// In order: one after the other.
    fn feed_first(&mut self) -> bool {
        let mut has_fed = false;
        while !self.held.is_empty()
            && let Some(held) = self.held.pop_front()
        {
            if let Some(kept) = self.offer(held) {
                self.held.push_front(kept);
                break;
            }
            has_fed = true;
        }
        has_fed
    }

    /// In free order: all that come neither after one that is kept nor behind a barrier.
    fn feed_any(&mut self) -> bool {
        let mut kept = VecDeque::new();
        let mut before = mem::take(&mut self.held);
        let mut has_fed = false;
        while let Some(held) = before.pop_front() {
            let back = match held.submission.after_earlier && !kept.is_empty() {
                true => Some(held),
                false => self.offer(held),
            };
            let Some(held) = back else {
                has_fed = true;
                continue;
            };
            let is_barrier = held.submission.before_later;
            kept.push_back(held);
            if is_barrier {
                break;
            }
        }
        kept.append(&mut before);
        self.held = kept;
        has_fed
    }

    /// Gives a command that was kept back to a stream, if one can take it now; otherwise back. What
    /// goes wrong now its caller doesn't learn at once.
    fn offer(&mut self, held: Held) -> Option<Held> {
        let has_signal = held.submission.signal.is_some();
        let done = match self.place(&held) {
            Ok(None) => return Some(held),
            Ok(Some(place)) => self.enqueue(place, held),
            Err(error) => held.skip(error, &self.worker, &mut self.lanes[0].left),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "a command that was kept back was refused");
            if !has_signal {
                self.worker.note(error);
            }
        }
        None
    }

    /// Submits a command to its lane: in free order after all others, if it wants that, and before
    /// all later ones.
    #[inline]
    fn enqueue(&mut self, place: Operand, held: Held) -> Result<()> {
        let Operand { lane: index, due } = place;
        if self.order == QueueOrder::InOrder {
            return self.lanes[index].submit(held, due, &self.worker);
        }
        let before_later = held.submission.before_later;
        let ordered = match held.submission.after_earlier {
            true => self.join_all(),
            false => self.come_after_barrier(index),
        };
        if let Err(error) = ordered {
            held.refuse(&error, &mut self.lanes[index].left);
            self.lanes[index].wait_for_nothing_if_idle();
            return Err(error);
        }
        let lane = &mut self.lanes[index];
        let submitted = lane.submit(held, due, &self.worker);
        if before_later {
            self.barriers += 1;
            lane.barrier = self.barriers;
            self.barrier = Some((lane.note()?, lane.waits().pending()));
        }
        submitted
    }

    /// Lets whatever comes later in the first lane come after all that is in the others.
    fn join_all(&mut self) -> Result<()> {
        let (first, others) = self.lanes.split_first_mut().expect("there always is one");
        let first = first.stream();
        others.iter_mut().try_for_each(|lane| lane.join_into(first))
    }

    fn come_after_barrier(&mut self, index: usize) -> Result<()> {
        let lane = &mut self.lanes[index];
        if lane.barrier < self.barriers
            && let Some((barrier, _)) = &self.barrier
        {
            self.gpu.driver().wait_for_event(lane.stream(), *barrier)?;
            lane.barrier = self.barriers;
        }
        Ok(())
    }

    /// Whether nothing is left to do. An error is that of the device or of the driver, for good.
    pub(super) fn finish(&mut self) -> Result<bool> {
        let mut is_done = self.held.is_empty();
        for lane in &mut self.lanes {
            is_done &= lane.finish()?;
        }
        Ok(is_done)
    }

    /// The same, as far as the devices have said so: see [`Lane::is_done`].
    pub(super) fn is_done(&mut self) -> bool {
        self.feed();
        let mut is_done = self.held.is_empty();
        // All of them, so that the device is asked everywhere at once.
        for lane in &mut self.lanes {
            is_done &= lane.is_done();
        }
        is_done
    }

    /// Whether there is anything that commands used that are done.
    #[inline]
    pub(super) fn has_left(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.left.is_empty())
    }

    /// What commands used that are done. May be the user's.
    pub(super) fn take_left(&mut self) -> Left {
        let mut left = Left::new();
        for lane in self.lanes.iter_mut().filter(|lane| !lane.left.is_empty()) {
            left.append(&mut lane.left);
        }
        left
    }

    /// Fails all that is to be done: the device has stopped. What comes back may be the user's.
    pub(super) fn abandon(&mut self, error: &Error) -> Abandoned {
        let lanes = self.lanes.iter_mut();
        let entries = lanes.flat_map(|lane| lane.abandon(error)).collect();
        let mut held = mem::take(&mut self.held);
        for held in &mut held {
            held.fail(error);
        }
        Abandoned { entries, held }
    }

    /// The signals that streams and commands wait for at the moment.
    pub(super) fn blockers(&self) -> Vec<(Arc<EventCore>, u64)> {
        let lanes = self.lanes.iter();
        let mut blockers: Vec<_> = lanes
            .filter_map(|lane| lane.waits().first_event())
            .collect();
        for held in &self.held {
            let waits = held.submission.waits.iter();
            let pending = waits.filter(|wait| !wait.event.is_finished(wait.number));
            blockers.extend(pending.map(|wait| (Arc::clone(&wait.event), wait.number)));
        }
        blockers
    }
}

/// What is left of commands that will not run; to be dropped without a lock.
#[derive(Default)]
pub(super) struct Abandoned {
    entries: VecDeque<Entry>,
    held: VecDeque<Held>,
}

impl Abandoned {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.held.is_empty()
    }
}
