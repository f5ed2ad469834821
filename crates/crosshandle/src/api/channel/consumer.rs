//! Consumers.

use super::core::ChannelCore;
use super::events::check_interrupt;
use super::item::{ConsumerShared, Item, may_succeed_later};
use super::member::Member;
use crate::api::command::Command;
use crate::api::event::{Event, EventSet, Notifier, Reached};
use crate::api::queue::Queue;
use crosshandle_events::channel::{
    self, ChannelError, LIVENESS_INTERVAL, MAX_HELD, Presence, Received,
};
use crosshandle_ipc::channel::ChannelRole;
use crosshandle_os::fence::AsymmetricFence;
use crosshandle_os::process;
use crosshandle_types::error::{ChannelFault, Error, Result};
use crosshandle_types::sync::Deadline;
use futures_core::Stream;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// A consumer of a channel.
///
/// A consumer is also a stream of items. The stream ends when all producers have left and all items
/// were received.
///
/// Dropping a consumer makes it leave the channel. Its items stay valid until they are dropped.
pub struct Consumer {
    state: channel::Consumer,
    shared: Arc<ConsumerShared>,
    /// An item whose commands were not complete at the deadline of an earlier call, or the error of
    /// an item that an earlier call has skipped.
    pending: Option<Result<Item>>,
    notifier: Option<Notifier>,
    /// Signals of which a task awaits the first.
    awaited: Vec<Reached>,
    polling: Polling,
}

/// How often a consumer that finds no item looks for deaths, which takes longer than the poll.
#[derive(Default)]
struct Polling {
    /// When the consumer read the clock, by the system's monotonic clock.
    last: u64,
    /// Number of polls until the consumer reads the clock again.
    skipped: u32,
}

impl Polling {
    /// Number of polls in a tight loop for which the consumer reads the clock once.
    const POLLS: u32 = 32;
    /// Longest time in nanoseconds between two readings in a tight loop.
    const TIGHT: u64 = 100_000;

    /// Returns whether the consumer may look for deaths after this poll.
    #[inline]
    fn is_due(&mut self) -> bool {
        if self.skipped > 0 {
            self.skipped -= 1;
            return false;
        }
        let now = process::monotonic_nanoseconds();
        if now.saturating_sub(self.last) < Self::TIGHT {
            self.skipped = Self::POLLS;
        }
        self.last = now;
        true
    }
}

/// Token of the signal by which other members make the descriptor readable.
const WAKE: u64 = 0;
/// Tokens of the signals of commands: that produce a pending item, or after which places are free.
const COMPLETIONS: RangeInclusive<u64> = 1..=MAX_HELD as u64;
const RECEIVING: &str = "waiting for an item of a channel";
const RELEASING: &str = "waiting for a queue that releases items of a channel";

impl Consumer {
    pub(super) fn join(core: &Arc<ChannelCore>) -> Result<Self> {
        core.check_birth()?;
        let joined = core.words().join_consumer(core.control.owner(), &**core);
        let state = joined.map_err(|error| ChannelCore::error(error, RECEIVING))?;
        let shared = Arc::new(ConsumerShared {
            member: Member::new(core, ChannelRole::Consumer, state.key())?,
            freed: Default::default(),
            deferred: AtomicU32::new(0),
            awaits_place: AtomicBool::new(false),
            fence: AsymmetricFence::get(),
        });
        Ok(Self {
            state,
            shared,
            pending: None,
            notifier: None,
            awaited: Vec::new(),
            polling: Polling::default(),
        })
    }

    /// Receives the next item, and waits for it.
    ///
    /// # Errors
    /// - [`ChannelFault::Closed`] if all producers have left and no item is left. If one of them
    ///   died, [`ChannelFault::ProducerDied`]. A channel that awaits producers returns neither.
    /// - [`ChannelFault::TooManyHeld`] if the consumer has its maximum number of items. If queues
    ///   will release some of them ([`Item::release_on`]), the call waits for the queues instead.
    /// - [`ChannelFault::Corrupt`] for an invalid item, which is skipped.
    /// - [`Error::PeerDied`] or [`Error::CommandFailed`] for an item whose commands failed. The
    ///   item is skipped.
    pub fn receive(&mut self) -> Result<Item> {
        self.receive_by(Deadline::NEVER)
    }

    /// Receives the next item, and waits for it for at most `timeout`.
    ///
    /// # Errors
    /// As [`receive`](Self::receive). Also [`Error::TimedOut`].
    pub fn receive_timeout(&mut self, timeout: Duration) -> Result<Item> {
        self.receive_by(Deadline::after(timeout))
    }

    /// Receives the next item, or returns `None` if none is waiting. Also returns `None` if the
    /// consumer has its maximum number of items, and queues will release some of them.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    #[inline]
    pub fn try_receive(&mut self) -> Result<Option<Item>> {
        match self.look()? {
            Some(item) => Ok(Some(item)),
            None if self.notifier.is_some() => self.look_and_arm(),
            None => Ok(None),
        }
    }

    /// Receives the newest waiting item, and drops the older ones. Waits for at most `timeout` if
    /// no item is waiting.
    ///
    /// A consumer that can hold no other item drops its item before it receives a newer one. If
    /// another consumer of a queue takes the newer item, the call waits for the next item.
    ///
    /// # Errors
    /// As [`receive_timeout`](Self::receive_timeout). If the commands of a newer item have failed,
    /// the call returns the item before it, and the next call returns the error.
    pub fn receive_latest(&mut self, timeout: Duration) -> Result<Item> {
        let deadline = Deadline::after(timeout);
        let mut latest = self.receive_by(deadline)?;
        loop {
            match self.try_receive() {
                Ok(Some(newer)) => latest = newer,
                // A consumer that can hold no other item drops this one first.
                Err(Error::Channel(ChannelFault::TooManyHeld))
                    if self.shared.core().words().has_item(&self.state) =>
                {
                    drop(latest);
                    latest = self.receive_by(deadline)?;
                }
                Ok(None)
                    if self.is_blocked() && self.shared.core().words().has_item(&self.state) =>
                {
                    drop(latest);
                    latest = self.receive_by(deadline)?;
                }
                Ok(None) | Err(Error::Channel(_)) => return Ok(latest),
                Err(error) => {
                    // If the item may become complete later, it is pending.
                    if self.pending.is_none() {
                        self.pending = Some(Err(error));
                    }
                    return Ok(latest);
                }
            }
        }
    }

    /// Receives the next item, and makes all commands that are submitted to the queue later wait
    /// until the item is complete. Waits for a published item for at most `timeout`, but does not
    /// wait for the commands that produce it.
    ///
    /// # Errors
    /// As [`receive_timeout`](Self::receive_timeout), and the errors of [`Queue::submit`].
    pub fn receive_on(&mut self, queue: &Queue, timeout: Duration) -> Result<Item> {
        let deadline = Deadline::after(timeout);
        let mut item = match self.pending.take() {
            Some(pending) => pending?,
            None => self.published_by(deadline)?,
        };
        if let Err(error) = item.open_event(deadline) {
            return self.keep_for_later(item, error);
        }
        if let Some((event, number)) = item.signal()
            && let Err(error) = queue.submit(Command::barrier().after_value(event, number))
        {
            // Another call may receive the item.
            self.pending = Some(Ok(item));
            return Err(error);
        }
        item.set_complete();
        Ok(item)
    }

    #[inline]
    fn receive_by(&mut self, deadline: Deadline) -> Result<Item> {
        let item = match self.pending.take() {
            Some(pending) => pending?,
            None => self.published_by(deadline)?,
        };
        match item.is_complete() {
            true => Ok(item),
            false => self.complete(item, deadline),
        }
    }

    /// Waits until an item is complete. At the deadline the item becomes pending.
    #[cold]
    fn complete(&mut self, mut item: Item, deadline: Deadline) -> Result<Item> {
        let opened = item.open_event(deadline);
        let waited = opened.and_then(|()| match item.signal() {
            None => Ok(()),
            Some((event, number)) => event.wait_value_timeout(number, deadline.timeout()),
        });
        match waited {
            Ok(()) => {
                item.set_complete();
                Ok(item)
            }
            Err(error) => self.keep_for_later(item, error),
        }
    }

    /// Makes an item pending that cannot be received because of an error, or skips it.
    fn keep_for_later<T>(&mut self, item: Item, error: Error) -> Result<T> {
        if may_succeed_later(&error) {
            self.pending = Some(Ok(item));
        }
        Err(error)
    }

    /// Receives the next published item, whose commands may not be complete.
    #[inline]
    fn published_by(&mut self, deadline: Deadline) -> Result<Item> {
        self.shared.core().check_birth()?;
        loop {
            self.reuse_places();
            let core = self.shared.core();
            let received = core
                .words()
                .receive(&mut self.state, core, deadline.instant());
            match received {
                Ok(item) => return self.taken(item),
                Err(ChannelError::TooManyHeld) if self.state.has_deferred() => {
                    self.await_release(deadline)?;
                }
                Err(error) => {
                    if error == ChannelError::TimedOut {
                        core.look_for_deaths();
                    }
                    return Err(ChannelCore::error(error, RECEIVING));
                }
            }
        }
    }

    /// Wraps an item that this consumer has just taken, and wakes producers that wait for room.
    #[inline]
    fn taken(&self, item: channel::Item) -> Result<Item> {
        self.shared.core().wake_armed(ChannelRole::Producer);
        Item::wrap(&self.shared, item)
    }

    /// Waits a short time until one of this consumer's places is free.
    #[cold]
    fn await_release(&mut self, deadline: Deadline) -> Result<()> {
        if deadline.is_over() {
            return Err(Error::TimedOut(RELEASING));
        }
        check_interrupt()?;
        let (wake, next) = self.shared.member.next_wake()?;
        let was_awaited = self.shared.awaits_place.swap(true, Ordering::SeqCst);
        self.reuse_places();
        if self.is_blocked() {
            let releases = self.releases();
            let signals = releases.iter().map(|(work, number)| (work, *number));
            let signals = EventSet::values(signals.chain([(&wake, next)]));
            // The result of the commands does not matter. The caller looks again from time to time,
            // so this thread needs no heavy fence.
            let _ = signals.wait_any_timeout(deadline.remaining_within(LIVENESS_INTERVAL));
        }
        (self.shared.awaits_place).store(was_awaited, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the signals after which places of this consumer are free.
    fn releases(&self) -> Vec<(Event, u64)> {
        let Some(work) = self.shared.member.work() else {
            return Vec::new();
        };
        let words = self.shared.core().words();
        let numbers = words.releases(&self.state);
        numbers.map(|number| (work.clone(), number)).collect()
    }

    /// Returns whether the consumer can receive no item until a place is free.
    fn is_blocked(&self) -> bool {
        self.pending.is_none()
            && self.state.has_deferred()
            && self.shared.core().words().is_full(&self.state)
    }

    /// Returns the signal of the commands that produce the pending item, if there is one.
    fn completion(&self) -> Option<(&Event, u64)> {
        self.pending.as_ref()?.as_ref().ok()?.signal()
    }

    /// Returns the signals of commands after which an attempt to receive an item is worthwhile.
    fn awaited_signals(&self) -> Vec<(Event, u64)> {
        match self.completion() {
            Some((event, number)) => vec![(event.clone(), number)],
            None if self.is_blocked() => self.releases(),
            None => Vec::new(),
        }
    }

    /// Receives the next complete item if there is one.
    #[inline]
    fn look(&mut self) -> Result<Option<Item>> {
        let item = match self.pending.take() {
            Some(pending) => pending?,
            None => {
                self.shared.core().check_birth()?;
                self.reuse_places();
                let core = self.shared.core();
                match core.words().try_receive(&mut self.state) {
                    Ok(Received::Item(item)) => self.taken(item)?,
                    Ok(Received::Empty) => return self.look_again(),
                    Err(ChannelError::TooManyHeld) if self.state.has_deferred() => return Ok(None),
                    Err(error) => return Err(ChannelCore::error(error, RECEIVING)),
                }
            }
        };
        self.complete_or_keep(item)
    }

    /// Returns an item that is complete. Otherwise the item becomes pending.
    #[inline]
    fn complete_or_keep(&mut self, mut item: Item) -> Result<Option<Item>> {
        if !item.is_complete() {
            match item.try_complete() {
                Ok(true) => {}
                Ok(false) => {
                    self.pending = Some(Ok(item));
                    return Ok(None);
                }
                Err(error) => return self.keep_for_later(item, error),
            }
        }
        Ok(Some(item))
    }

    /// Looks closer after no item was found.
    fn look_again(&mut self) -> Result<Option<Item>> {
        let core = self.shared.core();
        if !self.polling.is_due() {
            return self.end_or_last();
        }
        let was_replaced = core.look_for_deaths() && core.words().skip_replaced(&mut self.state);
        match was_replaced {
            true => self.look(),
            false => self.end_or_last(),
        }
    }

    /// Returns whether more items can come, after no item was found.
    fn end_or_last(&mut self) -> Result<Option<Item>> {
        let core = self.shared.core();
        let Presence::Gone { died } = core.words().producers() else {
            return Ok(None);
        };
        if core.plan.shape.does_await_producers() {
            return Ok(None);
        }
        // A producer may have published an item before it left.
        let received = core.words().try_receive(&mut self.state);
        match received.map_err(|error| ChannelCore::error(error, RECEIVING))? {
            Received::Item(item) => {
                let item = self.taken(item)?;
                self.complete_or_keep(item)
            }
            Received::Empty => Err(Error::Channel(match died {
                true => ChannelFault::ProducerDied,
                false => ChannelFault::Closed,
            })),
        }
    }

    /// Makes places available again whose items were dropped or whose signals are complete.
    #[inline]
    fn reuse_places(&mut self) {
        let shared = &self.shared;
        let mut used = self.state.used();
        while used != 0 {
            let place = used.trailing_zeros();
            used &= used - 1;
            let freed = &shared.freed[place as usize];
            if freed.load(Ordering::Acquire) {
                freed.store(false, Ordering::Relaxed);
                self.state.reuse(1 << place);
            }
        }
        if shared.deferred.load(Ordering::Relaxed) != 0 {
            self.state.defer(shared.deferred.swap(0, Ordering::Acquire));
        }
        if self.state.has_deferred() {
            let words = shared.core().words();
            words.release_complete(&mut self.state, &**shared);
        }
    }

    /// Returns the number of items of a broadcast that were replaced before this consumer received
    /// them.
    pub fn lost(&self) -> u64 {
        self.state.lost()
    }

    /// Returns how many producers and consumers are alive.
    pub fn members(&self) -> (usize, usize) {
        super::members(self.shared.core())
    }

    /// Returns a future that receives the next item.
    pub fn receiving(&mut self) -> Receiving<'_> {
        Receiving(self)
    }

    /// Returns a descriptor that is readable when [`try_receive`](Self::try_receive) may return an
    /// item or an error. It works with `poll`, `epoll` and other event loops. The loop calls
    /// `try_receive` until that returns `None`, which makes the descriptor unreadable again.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if the process has no descriptor or thread left.
    pub fn descriptor(&mut self) -> Result<BorrowedFd<'_>> {
        if self.notifier.is_none() {
            self.notifier = Some(Notifier::new()?);
            let (event, next, _) = self.arm()?;
            self.notify(&event, next)?;
            // Items that were published before now make the descriptor readable at once.
            let _ = event.signal();
        }
        Ok(self.notifier.as_ref().expect("just made").as_fd())
    }

    fn notify(&self, event: &Event, next: u64) -> Result<()> {
        let notifier = self.notifier.as_ref().expect("the caller has checked");
        while notifier.next().is_some() {}
        notifier.remove(WAKE);
        for token in COMPLETIONS {
            notifier.remove(token);
        }
        notifier.add(event, next, WAKE)
    }

    /// Asks other members, or the items that use this consumer's places, to signal the consumer.
    /// Returns the event, the number of the next signal, and whether the consumer waits for a
    /// place.
    fn arm(&self) -> Result<(Event, u64, bool)> {
        let shared = &self.shared;
        let is_blocked = self.is_blocked();
        let (event, next) = match is_blocked {
            true => shared.member.next_wake()?,
            false => shared.member.arm()?,
        };
        shared.awaits_place.store(is_blocked, Ordering::SeqCst);
        if is_blocked {
            let fenced = shared.fence.heavy();
            fenced.map_err(Error::os("waiting for an item to be dropped"))?;
        }
        Ok((event, next, is_blocked))
    }

    /// Asks for signals that make the descriptor readable, and looks again.
    fn look_and_arm(&mut self) -> Result<Option<Item>> {
        loop {
            let (event, next, was_blocked) = self.arm()?;
            self.notify(&event, next)?;
            let looked = self.look();
            if matches!(looked, Ok(None)) {
                // The consumer now waits for an item.
                if was_blocked && !self.is_blocked() {
                    continue;
                }
                let notifier = self.notifier.as_ref().expect("the caller has checked");
                for (token, (event, number)) in COMPLETIONS.zip(self.awaited_signals()) {
                    notifier.add(&event, number, token)?;
                }
            } else {
                // The loop of the program continues until there is no item, so the descriptor stays
                // readable.
                let _ = event.signal();
            }
            return looked;
        }
    }

    fn disarm(&self) {
        // After a fork the request belongs to the parent.
        if self.notifier.is_none() && !self.shared.core().is_inherited() {
            self.shared.member.disarm();
            (self.shared.awaits_place).store(false, Ordering::Relaxed);
        }
    }

    fn poll_item(&mut self, task: &mut Context<'_>) -> Poll<Result<Item>> {
        loop {
            if !self.awaited.is_empty() {
                // Each of them wakes the task, so all are polled.
                let polled = self
                    .awaited
                    .iter_mut()
                    .map(|reached| Pin::new(reached).poll(task));
                if polled.filter(Poll::is_ready).count() == 0 {
                    return Poll::Pending;
                }
                self.awaited.clear();
            }
            let mut looked = self.look();
            if matches!(looked, Ok(None)) {
                if let Some((event, number)) = self.completion() {
                    let reached = event.reached(number);
                    self.awaited.push(reached);
                    continue;
                }
                let (event, next, was_blocked) = self.arm()?;
                // A producer may have published an item before it could see the request, and a
                // place may have become free.
                looked = self.look();
                if matches!(looked, Ok(None)) {
                    // The consumer now waits for an item.
                    if was_blocked && !self.is_blocked() {
                        continue;
                    }
                    let mut signals = self.awaited_signals();
                    signals.push((event, next));
                    let signals = signals.into_iter();
                    self.awaited
                        .extend(signals.map(|(event, number)| event.reached(number)));
                }
            }
            match looked {
                Ok(None) => {}
                Ok(Some(item)) => {
                    self.disarm();
                    return Poll::Ready(Ok(item));
                }
                Err(error) => {
                    self.disarm();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.pending = None;
        let core = self.shared.core();
        // Items of this consumer may live longer, but producers no longer wait for it.
        if !core.is_inherited() {
            core.words().retire_consumer(self.shared.member.key);
            core.wake_armed(ChannelRole::Producer);
        }
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("key", &self.state.key())
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

/// A future that receives an item, returned by [`Consumer::receiving`]. Dropping it loses no item.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Receiving<'a>(&'a mut Consumer);

impl Future for Receiving<'_> {
    type Output = Result<Item>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Result<Item>> {
        self.0.poll_item(task)
    }
}

impl Stream for Consumer {
    type Item = Result<Item>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Result<Item>>> {
        self.poll_item(task).map(|result| match result {
            Err(Error::Channel(ChannelFault::Closed)) => None,
            result => Some(result),
        })
    }
}
