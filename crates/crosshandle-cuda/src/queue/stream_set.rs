//! The streams of a queue. Chooses a stream for each command, and keeps the pending commands.
//!
//! The driver accepts only a limited number of commands for a waiting stream, and blocks the caller
//! after that. The number of streams that may wait is limited too (see
//! [`scheduler`](crate::scheduler)). Commands beyond these limits stay pending here, in
//! order, and are offered again whenever a thread tends the queue.

use super::graph::Turn;
use super::host_function::HostFunctions;
use super::in_flight::{Barrier, Finished, InFlight, Pending};
use super::stream::{Due, QueueStream, profile_of};
use super::work;
use crate::device::Gpu;
use crate::driver::StreamHandle;
use crate::scheduler::admission::{self, HoldOff, Wait};
use crosshandle_hal::{Submission, Work};
use crosshandle_ipc::EventCore;
use crosshandle_types::QueueOrder;
use crosshandle_types::error::{Error, Result};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

/// The stream that a command goes to, with the waits that are due.
struct Placement {
    stream: usize,
    due: Due,
    /// Allows the stream to begin to wait for a host function, until this is dropped.
    _hold_off: Option<HoldOff>,
}

/// The streams of a queue. The device's context is current during all methods.
pub(super) struct StreamSet {
    gpu: Arc<Gpu>,
    order: QueueOrder,
    functions: Arc<HostFunctions>,
    /// The first stream takes the commands that follow all earlier ones. An in-order queue has no
    /// other stream.
    streams: Vec<QueueStream>,
    /// The stream that took the latest command, if the queue is out of order.
    latest: usize,
    /// The number of barriers so far, and the latest one.
    barriers: u64,
    barrier: Option<Arc<Barrier>>,
    pending: VecDeque<Pending>,
    /// Whether the program submits to the first stream too, and relies on the order of the calls.
    is_shared: bool,
}

impl StreamSet {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        order: QueueOrder,
        functions: &Arc<HostFunctions>,
        first: QueueStream,
    ) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            order,
            functions: Arc::clone(functions),
            streams: vec![first],
            latest: 0,
            barriers: 0,
            barrier: None,
            pending: VecDeque::new(),
            is_shared: false,
        }
    }

    /// Marks the first stream as one to which the program submits too, and returns it. From now on
    /// no command stays pending, so that the program's work follows the commands submitted before
    /// it. The caller holds off quiet calls.
    pub(super) fn share(&mut self) -> StreamHandle {
        self.is_shared = true;
        let stream = self.streams[0].share();
        self.feed();
        stream
    }

    /// Returns the stream that takes the commands that follow all earlier ones.
    pub(super) fn first(&self) -> StreamHandle {
        self.streams[0].handle()
    }

    /// Returns whether the program records the first stream in a graph.
    pub(super) fn is_recording(&self) -> Result<bool> {
        self.streams[0].is_recording()
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Stops using borrowed streams (see [`QueueStream::abandon_if_borrowed`]).
    pub(super) fn abandon_if_borrowed(&mut self) {
        let streams = self.streams.iter_mut();
        streams.for_each(QueueStream::abandon_if_borrowed);
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Submits a command, or keeps it pending. Also returns `Ok` if the command is skipped because
    /// a signal that it waits for has failed. If no command may stay pending, the caller holds off
    /// quiet calls.
    pub(super) fn submit(&mut self, pending: &mut Pending) -> Result<()> {
        if self.order == QueueOrder::InOrder && is_nothing(&pending.submission) {
            return Ok(());
        }
        match self.place_new(pending) {
            Ok(Some(placement)) => return self.enqueue(placement, pending),
            Ok(None) => {
                let mut pending = pending.take();
                pending.turn = Turn::take(&pending.submission.work);
                self.pending.push_back(pending);
            }
            Err(error) => {
                pending.refuse(&error, &mut self.streams[0].finished);
                return Err(error);
            }
        }
        // In an out-of-order queue, the command may pass commands that are pending.
        if self.order == QueueOrder::OutOfOrder {
            self.feed();
        }
        Ok(())
    }

    /// Finds the place of a new command. Returns `None` if the command has to stay pending. Its
    /// signal then has a number.
    fn place_new(&mut self, pending: &mut Pending) -> Result<Option<Placement>> {
        if self.is_shared {
            self.streams[0].check_recording()?;
        }
        self.feed();
        if let Some(profile) = profile_of(&pending.submission.signal) {
            profile.restart();
        }
        if self.pending.is_empty() {
            // Only the signal's number shows whether the signal needs a wait.
            let signal = pending.submission.signal.as_ref();
            let stream = &self.streams[0];
            if signal.is_some_and(|event| stream.predecessor(event, None).is_some()) {
                pending.number(&self.gpu)?;
            }
            let placement = self.place(pending)?;
            if placement.is_some() {
                return Ok(placement);
            }
        }
        pending.number(&self.gpu).map(|()| None)
    }

    /// Finds a stream that can take the command now, if there is one, and admits the waits.
    fn place(&mut self, pending: &Pending) -> Result<Option<Placement>> {
        let submission = &pending.submission;
        // A program that submits to the stream itself relies on the command being submitted on
        // return.
        let is_never_pending = self.is_shared || matches!(submission.work, Work::Native(_));
        let index = match self.order {
            QueueOrder::InOrder => {
                self.streams[0].prune();
                0
            }
            QueueOrder::OutOfOrder if submission.after_earlier => 0,
            QueueOrder::OutOfOrder => match self.choose()? {
                Some(index) => index,
                None if is_never_pending => 0,
                None => return Ok(None),
            },
        };
        let stream = &self.streams[index];
        let due = stream.due(&submission.waits)?;
        let placement = |due, hold_off| Placement {
            stream: index,
            due,
            _hold_off: hold_off,
        };
        if due.failed.is_some() {
            return Ok(Some(placement(due, None)));
        }
        let of_order = match self.order {
            QueueOrder::InOrder => Vec::new(),
            QueueOrder::OutOfOrder => self.waits_of_order(index, pending),
        };
        let signal = submission.signal.as_ref().filter(|_| !submission.may_fail);
        let predecessor = pending
            .ticket
            .and_then(|ticket| stream.predecessor(signal?, Some(ticket)));
        let has_waits = !(due.is_empty() && of_order.is_empty() && predecessor.is_none());
        // Most commands wait for at most one signal.
        let only = match (&due.waits[..], &of_order[..], &predecessor) {
            ([index], [], None) => Some(&submission.waits[*index as usize]),
            _ => None,
        };
        let waits = || {
            let due = due.of(&submission.waits);
            let due = due.map(|wait| Wait::Event(Arc::clone(&wait.event), wait.number));
            due.chain(of_order).chain(predecessor)
        };
        if is_never_pending {
            stream.waits().note(waits());
            return Ok(Some(placement(due, None)));
        }
        if !stream.has_room(submission, &due) && stream.is_blocked() {
            return Ok(None);
        }
        if !Turn::has_come(&submission.work, pending.turn.as_ref()) {
            return Ok(None);
        }
        // A launch of a graph behind a wait can return only when the stream continues: the driver
        // holds up a thread that updates or launches a graph whose earlier launch waits.
        let is_run = matches!(submission.work, Work::Graph(_));
        if is_run && (has_waits || stream.is_blocked()) {
            return Ok(None);
        }
        // A call for such a copy would return only when the stream continues.
        if work::copies(&submission.work)
            && (has_waits || stream.is_blocked())
            && work::holds_up(&self.gpu, &submission.work)
        {
            return Ok(None);
        }
        let is_call = matches!(submission.work, Work::Call(_));
        let hold_off = match is_call {
            true => self.gpu.scheduler().try_hold_off(),
            false => None,
        };
        let is_admitted = is_call == hold_off.is_some()
            && stream.waits().begin()
            && match (has_waits, is_call) {
                (true, _) if only.is_some_and(|wait| stream.waits().admit_more(wait)) => true,
                (true, _) => stream.waits().admit(waits()),
                (false, true) => stream.waits().admit_function(),
                (false, false) => true,
            };
        if !is_admitted {
            stream.end_if_idle();
            return Ok(None);
        }
        Ok(Some(placement(due, hold_off)))
    }

    /// Returns the waits that make a command follow the commands before it.
    fn waits_of_order(&self, index: usize, pending: &Pending) -> Vec<Wait> {
        let mut waits = Vec::new();
        if pending.submission.after_earlier {
            for other in &self.streams[1..] {
                waits.extend(other.waits().pending());
            }
        } else if let Some(barrier) = self.barrier_of(pending)
            && self.streams[index].barrier < barrier.number
        {
            let behind = barrier.waits.iter();
            waits.extend(behind.filter(|wait| !wait.is_over()).cloned());
        }
        waits
    }

    /// Returns the barrier that a command follows.
    fn barrier_of<'a>(&'a self, pending: &'a Pending) -> Option<&'a Arc<Barrier>> {
        pending.passed.as_ref().unwrap_or(&self.barrier).as_ref()
    }

    /// Adds a barrier after all work in a stream so far.
    fn add_barrier(&mut self, index: usize) -> Result<()> {
        let driver = self.gpu.driver();
        let previous = self.barrier.take();
        // A command that the barrier has passed may still need the previous one.
        let event = match previous.map(Arc::try_unwrap) {
            Some(Ok(previous)) => previous.event,
            _ => driver.create_event(false)?,
        };
        let stream = &mut self.streams[index];
        driver.record_event(event.handle(), stream.handle())?;
        self.barriers += 1;
        stream.barrier = self.barriers;
        self.barrier = Some(Arc::new(Barrier {
            number: self.barriers,
            event,
            waits: stream.waits().pending(),
        }));
        Ok(())
    }

    /// Chooses a stream in which no other work delays a command of an out-of-order queue, if there
    /// is one.
    fn choose(&mut self) -> Result<Option<usize>> {
        for stream in &mut self.streams {
            stream.prune();
        }
        let count = self.streams.len();
        let index = match self.streams.iter().position(QueueStream::is_idle) {
            Some(idle) => idle,
            None => {
                let next = (1..=count).map(|step| (self.latest + step) % count);
                let mut running = next.filter(|index| !self.streams[*index].is_blocked());
                let (next, others) = (running.next(), running.count());
                let is_enough = next.is_some() && others + 1 >= admission::most_running();
                let more = match is_enough {
                    true => Ok(None),
                    false => self.gpu.pool().try_take(&self.gpu),
                };
                match (more, next) {
                    (Ok(Some(stream)), _) => {
                        self.streams.push(QueueStream::new(&self.gpu, stream)?);
                        count
                    }
                    (_, Some(next)) => next,
                    (Ok(None), None) => return Ok(None),
                    // The streams may wait for this very command, so the command cannot wait for
                    // them.
                    (Err(error), None) => return Err(error),
                }
            }
        };
        self.latest = index;
        Ok(Some(index))
    }

    /// Gives the streams the pending commands that they can take now. Returns whether a stream took
    /// one.
    #[inline]
    pub(super) fn feed(&mut self) -> bool {
        match self.pending.is_empty() {
            true => false,
            false => self.feed_pending(),
        }
    }

    /// Feeds pending commands. In an in-order queue, stops at the first command that no stream can
    /// take. In an out-of-order queue, tries all commands except those behind a pending barrier,
    /// and barriers that follow a pending command.
    fn feed_pending(&mut self) -> bool {
        let mut kept = VecDeque::<Pending>::new();
        let mut before = mem::take(&mut self.pending);
        let mut has_fed = false;
        while let Some(pending) = before.pop_front() {
            let is_behind = pending.submission.after_earlier && !kept.is_empty();
            let passes = pending.submission.before_later && !is_behind;
            if passes {
                // The barrier may wait for the kept commands, so they must not follow it.
                for kept in &mut kept {
                    kept.passed.get_or_insert_with(|| self.barrier.clone());
                }
            }
            let back = match is_behind {
                true => Some(pending),
                false => self.offer(pending),
            };
            let Some(pending) = back else {
                has_fed = true;
                continue;
            };
            let ends_order = pending.submission.before_later || self.order == QueueOrder::InOrder;
            kept.push_back(pending);
            if ends_order {
                break;
            }
        }
        kept.append(&mut before);
        self.pending = kept;
        has_fed
    }

    /// Gives a pending command to a stream if one can take it now, and returns it otherwise. The
    /// call that submitted it has returned, so an error goes to the command's signal or to
    /// `finish`.
    fn offer(&mut self, mut pending: Pending) -> Option<Pending> {
        // The submitter of a native command held off quiet calls only until the command became
        // pending.
        let _hold_off = match pending.submission.work {
            Work::Native(_) if !self.is_shared => match self.gpu.scheduler().try_hold_off() {
                None => return Some(pending),
                hold_off => hold_off,
            },
            _ => None,
        };
        let has_signal = pending.submission.signal.is_some();
        let done = match self.place(&pending) {
            Ok(None) => return Some(pending),
            Ok(Some(placement)) => self.enqueue(placement, &mut pending),
            Err(error) => pending.skip(error, &self.functions, &mut self.streams[0].finished),
        };
        if let Err(error) = done {
            tracing::warn!(%error, "a command that was kept back was refused");
            if !has_signal {
                self.functions.note_error(error);
            }
        }
        None
    }

    /// Submits a command to its stream. In an out-of-order queue, makes it follow all earlier
    /// commands, or precede all later ones, if it requires that.
    fn enqueue(&mut self, mut placement: Placement, pending: &mut Pending) -> Result<()> {
        let index = placement.stream;
        let failed = placement.due.failed.take();
        let is_skipped = failed.is_some();
        let before_later = pending.submission.before_later;
        let functions = &self.functions;
        let submit = |stream: &mut QueueStream, pending: &mut Pending| match failed {
            Some(error) => pending.skip(error, functions, &mut stream.finished),
            None => stream.submit(pending, &placement.due, functions),
        };
        // A skipped command does not reach its stream. The stream must not wait for other streams
        // because of it, as the scheduler would not know of that wait.
        if self.order == QueueOrder::InOrder || is_skipped && !before_later {
            return submit(&mut self.streams[index], pending);
        }
        let ordered = match pending.submission.after_earlier {
            true => join_all(&mut self.streams),
            false => {
                let barrier = self.barrier_of(pending).cloned();
                self.streams[index].come_after(barrier.as_deref())
            }
        };
        let stream = &mut self.streams[index];
        if let Err(error) = ordered {
            pending.refuse(&error, &mut stream.finished);
            stream.clear_waits_if_idle();
            return Err(error);
        }
        let submitted = submit(stream, pending);
        if before_later {
            self.add_barrier(index)?;
        }
        submitted
    }

    /// Returns whether all work is finished. An error means that the device or the driver has
    /// failed permanently.
    pub(super) fn finish(&mut self) -> Result<bool> {
        let mut is_done = self.pending.is_empty();
        for stream in &mut self.streams {
            is_done &= stream.finish()?;
        }
        Ok(is_done)
    }

    /// Returns whether the device has reported that all work is finished (see
    /// [`QueueStream::is_done`]).
    pub(super) fn is_done(&mut self) -> bool {
        self.feed();
        let mut is_done = self.pending.is_empty();
        // All streams are asked, so that the device writes its fences at the same time.
        for stream in &mut self.streams {
            is_done &= stream.is_done();
        }
        is_done
    }

    /// Returns whether objects of finished commands are waiting to be dropped.
    #[inline]
    pub(super) fn has_finished(&self) -> bool {
        self.streams
            .iter()
            .any(|stream| !stream.finished.is_empty())
    }

    /// Takes the objects that finished commands used. They may belong to the program.
    pub(super) fn take_finished(&mut self) -> Finished {
        let mut finished = Finished::new();
        for stream in &mut self.streams {
            finished.append(&mut stream.finished);
        }
        finished
    }

    /// Fails all commands, because the device has stopped. The caller drops the result without a
    /// lock, because it may keep objects of the program.
    pub(super) fn fail_all(&mut self, error: &Error) -> Failed {
        let streams = self.streams.iter_mut();
        let in_flight = streams.flat_map(|stream| stream.fail_all(error)).collect();
        let mut pending = mem::take(&mut self.pending);
        for pending in &mut pending {
            pending.fail(error);
        }
        Failed {
            _in_flight: in_flight,
            _pending: pending,
        }
    }

    /// Describes the streams and the pending commands, a line for each.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for (index, stream) in self.streams.iter().enumerate() {
            text += &format!("\n  stream {index}: {}", stream.describe());
        }
        for Pending { submission, .. } in &self.pending {
            let signal = submission.signal.as_ref().map(admission::describe);
            let waits = submission.waits.iter();
            let waits = waits.map(|wait| (wait.number, admission::describe(&wait.event)));
            let waits: Vec<_> = waits.collect();
            text += &format!("\n  pending: signals {signal:?}, waits for {waits:?}");
        }
        text
    }

    /// Returns the signals that streams and pending commands wait for now.
    pub(super) fn blockers(&self) -> Vec<(Arc<EventCore>, u64)> {
        let streams = self.streams.iter();
        let mut blockers: Vec<_> = streams
            .filter_map(|stream| stream.waits().first_event())
            .collect();
        for pending in &self.pending {
            let waits = pending.submission.waits.iter();
            let unfinished = waits.filter(|wait| !wait.event.is_finished(wait.number));
            blockers.extend(unfinished.map(|wait| (Arc::clone(&wait.event), wait.number)));
        }
        blockers
    }
}

/// Makes later work in the first stream follow all work in the other streams.
fn join_all(streams: &mut [QueueStream]) -> Result<()> {
    let (first, others) = streams.split_first_mut().expect("there always is one");
    let first = first.handle();
    let mut others = others.iter_mut();
    others.try_for_each(|stream| stream.join_into(first))
}

/// Returns whether a command has no effect: it has no work, no waits and no signal.
fn is_nothing(submission: &Submission) -> bool {
    matches!(submission.work, Work::Marker)
        && submission.waits.is_empty()
        && submission.signal.is_none()
}

/// Commands that will not run. They are dropped without a lock.
pub(super) struct Failed {
    _in_flight: VecDeque<InFlight>,
    _pending: VecDeque<Pending>,
}
