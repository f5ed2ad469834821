//! Consumers and the items that they receive.

use super::core::{ChannelCore, MemberEvent};
use super::layout::{ArrayLayout, CORRUPT, ItemHead, USER_BYTES};
use crate::api::command::Command;
use crate::api::event::{Event, Notifier, Reached};
use crate::api::memory::MemoryRange;
use crate::api::queue::Queue;
use crosshandle_events::channel::{self, ChannelError, MemberKey, Presence, Received};
use crosshandle_ipc::channel::ChannelRole;
use crosshandle_os::process;
use crosshandle_types::SharedBytes;
use crosshandle_types::error::{ChannelFault, Error, Result};
use crosshandle_types::sync::Deadline;
use futures_core::Stream;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
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
    /// An item whose commands were not complete at the deadline of an earlier call.
    pending: Option<Item>,
    /// Signalled by producers when there may be an item.
    wake: Option<Arc<Event>>,
    notifier: Option<Notifier>,
    awaited: Option<Reached>,
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

/// The parts of a consumer that its items use.
struct ConsumerShared {
    core: Arc<ChannelCore>,
    key: MemberKey,
    /// Places of the consumer's list whose slots were freed, one bit for each.
    freed: AtomicU32,
    /// Places whose slots are freed by signals.
    deferred: AtomicU32,
    /// Signalled by queues when slots are free.
    work: std::sync::OnceLock<Event>,
    wake: std::sync::OnceLock<Arc<Event>>,
    writing: crosshandle_types::sync::Mutex<()>,
}

impl ConsumerShared {
    fn write_card(&self) -> Result<()> {
        let _writing = self.writing.lock();
        let (work, wake) = (self.work.get(), self.wake.get());
        let wake = wake.map(|wake| &**wake);
        self.core
            .write_card(ChannelRole::Consumer, self.key, work, wake)
    }
}

impl Drop for ConsumerShared {
    fn drop(&mut self) {
        if self.core.is_inherited() {
            return;
        }
        let (control, words) = (&self.core.control, self.core.words());
        control.disarm(ChannelRole::Consumer, self.key.index);
        words.remove_consumer(self.key);
        self.core.wake_armed(ChannelRole::Producer);
    }
}

/// A received item, which can be read until it is dropped. Its slot is then free for other items.
///
/// An item may be read and dropped on any thread. It keeps the channel open.
pub struct Item {
    shared: Arc<ConsumerShared>,
    /// `None` only while the item is being dropped.
    item: Option<channel::Item>,
    head: ItemHead,
    /// The producer's signal after which the item is complete.
    ready: Option<(Event, u64)>,
}

/// Tokens of the signals that make the descriptor readable: of a producer, and of the commands that
/// produce a pending item.
const WAKE: u64 = 0;
const COMPLETION: u64 = 1;
const RECEIVING: &str = "waiting for an item of a channel";

impl Consumer {
    pub(super) fn join(core: &Arc<ChannelCore>) -> Result<Self> {
        core.check_birth()?;
        let joined = core.words().join_consumer(core.control.owner(), &**core);
        let state = joined.map_err(|error| ChannelCore::error(error, RECEIVING))?;
        let shared = Arc::new(ConsumerShared {
            core: Arc::clone(core),
            key: state.key(),
            freed: AtomicU32::new(0),
            deferred: AtomicU32::new(0),
            work: Default::default(),
            wake: Default::default(),
            writing: Default::default(),
        });
        core.begin_unarmed(ChannelRole::Consumer, shared.key);
        shared.write_card()?;
        Ok(Self {
            state,
            shared,
            pending: None,
            wake: None,
            notifier: None,
            awaited: None,
            polling: Polling::default(),
        })
    }

    /// Receives the next item, and waits for it.
    ///
    /// # Errors
    /// - [`ChannelFault::Closed`] if all producers have left and no item is left. If one of them
    ///   died, [`ChannelFault::ProducerDied`]. A channel that awaits producers returns neither.
    /// - [`ChannelFault::TooManyHeld`] if the consumer has its maximum number of items.
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

    /// Receives the next item, or returns `None` if none is waiting.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
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
    /// # Errors
    /// As [`receive_timeout`](Self::receive_timeout).
    pub fn receive_latest(&mut self, timeout: Duration) -> Result<Item> {
        let deadline = Deadline::after(timeout);
        let mut latest = self.receive_by(deadline)?;
        loop {
            match self.try_receive() {
                Ok(Some(newer)) => latest = newer,
                // A consumer that can hold no other item drops this one first.
                Err(Error::Channel(ChannelFault::TooManyHeld))
                    if self.shared.core.words().has_item(&self.state) =>
                {
                    drop(latest);
                    latest = self.receive_by(deadline)?;
                }
                Ok(None) | Err(Error::Channel(_)) => return Ok(latest),
                Err(error) => return Err(error),
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
        let mut item = match self.pending.take() {
            Some(item) => item,
            None => self.published_by(Deadline::after(timeout))?,
        };
        if let Some((event, number)) = item.ready.take() {
            queue.submit(Command::barrier().after_value(&event, number))?;
        }
        Ok(item)
    }

    #[inline]
    fn receive_by(&mut self, deadline: Deadline) -> Result<Item> {
        let item = match self.pending.take() {
            Some(item) => item,
            None => self.published_by(deadline)?,
        };
        match item.ready {
            None => Ok(item),
            Some(_) => self.complete(item, deadline),
        }
    }

    /// Waits until an item is complete. At the deadline the item becomes pending.
    fn complete(&mut self, mut item: Item, deadline: Deadline) -> Result<Item> {
        let waited = match &item.ready {
            None => Ok(()),
            Some((event, number)) => event.wait_value_timeout(*number, deadline.timeout()),
        };
        match waited {
            Ok(()) => {
                item.ready = None;
                Ok(item)
            }
            Err(error) => {
                if error.is_timeout() {
                    self.pending = Some(item);
                }
                Err(error)
            }
        }
    }

    /// Receives the next published item, whose commands may not be complete.
    #[inline]
    fn published_by(&mut self, deadline: Deadline) -> Result<Item> {
        self.shared.core.check_birth()?;
        self.reuse_places();
        let core = &*self.shared.core;
        let received = core
            .words()
            .receive(&mut self.state, core, deadline.instant());
        let item = received.map_err(|error| {
            if error == ChannelError::TimedOut {
                core.look_for_deaths();
            }
            ChannelCore::error(error, RECEIVING)
        })?;
        core.wake_armed(ChannelRole::Producer);
        self.wrap(item)
    }

    /// Receives the next complete item if there is one.
    fn look(&mut self) -> Result<Option<Item>> {
        let item = match self.pending.take() {
            Some(item) => item,
            None => {
                self.shared.core.check_birth()?;
                self.reuse_places();
                let core = &*self.shared.core;
                let received = core.words().try_receive(&mut self.state);
                match received.map_err(|error| ChannelCore::error(error, RECEIVING))? {
                    Received::Item(item) => {
                        core.wake_armed(ChannelRole::Producer);
                        self.wrap(item)?
                    }
                    Received::Empty => {
                        if self.polling.is_due() {
                            core.look_for_deaths();
                        }
                        return self.end_or_last();
                    }
                }
            }
        };
        self.complete_or_keep(item)
    }

    /// Returns an item that is complete. Otherwise the item becomes pending.
    #[inline]
    fn complete_or_keep(&mut self, mut item: Item) -> Result<Option<Item>> {
        if let Some((event, number)) = &item.ready {
            if !event.try_wait_value(*number)? {
                self.pending = Some(item);
                return Ok(None);
            }
            item.ready = None;
        }
        Ok(Some(item))
    }

    /// Returns whether more items can come, after no item was found.
    fn end_or_last(&mut self) -> Result<Option<Item>> {
        let core = &*self.shared.core;
        let Presence::Gone { died } = core.words().producers() else {
            return Ok(None);
        };
        if core.plan.shape.does_await_producers() {
            return Ok(None);
        }
        // A producer may have published an item before it left.
        let received = core.words().try_receive(&mut self.state);
        match received.map_err(|error| ChannelCore::error(error, RECEIVING))? {
            Received::Item(item) => self.wrap_complete(item),
            Received::Empty => Err(Error::Channel(match died {
                true => ChannelFault::ProducerDied,
                false => ChannelFault::Closed,
            })),
        }
    }

    /// Wraps an item if it is complete. Otherwise the item becomes pending.
    fn wrap_complete(&mut self, item: channel::Item) -> Result<Option<Item>> {
        let item = self.wrap(item)?;
        self.complete_or_keep(item)
    }

    /// Makes places available again whose items were dropped or whose signals are complete.
    #[inline]
    fn reuse_places(&mut self) {
        let shared = &self.shared;
        if shared.freed.load(Ordering::Relaxed) != 0 {
            self.state.reuse(shared.freed.swap(0, Ordering::Acquire));
        }
        if shared.deferred.load(Ordering::Relaxed) != 0 {
            self.state.defer(shared.deferred.swap(0, Ordering::Acquire));
        }
        if self.state.has_deferred() {
            let own = OwnSignals(shared);
            shared.core.words().release_complete(&mut self.state, &own);
        }
    }

    #[inline]
    fn wrap(&self, item: channel::Item) -> Result<Item> {
        let core = &*self.shared.core;
        let (plan, slot) = (&core.plan, item.slot());
        let head = core
            .items()
            .and_then(|items| plan.layout.load_head(items, slot, plan));
        let head = match head {
            Ok(head) => head,
            Err(error) => {
                self.shared.free(item);
                return Err(error);
            }
        };
        let mut item = Item {
            shared: Arc::clone(&self.shared),
            item: Some(item),
            head,
            ready: None,
        };
        if head.signal != 0 {
            item.ready = Some((self.producer_event(&head)?, head.signal));
        }
        Ok(item)
    }

    #[cold]
    fn producer_event(&self, head: &ItemHead) -> Result<Event> {
        let (index, generation) = head.producer;
        let key = MemberKey {
            index,
            generation,
            owner: 0,
        };
        let core = &self.shared.core;
        core.event_of(ChannelRole::Producer, key, MemberEvent::Work)
            .map_err(|error| match error {
                // The producer died before this process opened its event.
                Error::ExporterGone { .. } | Error::Stale => {
                    Error::Channel(ChannelFault::ProducerDied)
                }
                Error::Handle(_) => CORRUPT,
                error => error,
            })
    }

    /// Returns the number of items of a broadcast that were replaced before this consumer received
    /// them.
    pub fn lost(&self) -> u64 {
        self.state.lost()
    }

    /// Returns how many producers and consumers are alive.
    pub fn members(&self) -> (usize, usize) {
        super::members(&self.shared.core)
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
            let (event, next) = self.arm()?;
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
        notifier.remove(COMPLETION);
        notifier.add(event, next, WAKE)
    }

    /// Asks producers to make the descriptor readable, and looks again.
    fn look_and_arm(&mut self) -> Result<Option<Item>> {
        let (event, next) = self.arm()?;
        self.notify(&event, next)?;
        let looked = self.look();
        if let Some(pending) = &self.pending
            && let Some((event, number)) = &pending.ready
        {
            let notifier = self.notifier.as_ref().expect("the caller has checked");
            notifier.add(event, *number, COMPLETION)?;
        }
        if !matches!(looked, Ok(None)) {
            // The loop continues until there is no item, so the descriptor stays readable.
            let _ = event.signal();
        }
        looked
    }

    /// Asks producers to signal this consumer, and returns the number of the next signal.
    fn arm(&mut self) -> Result<(Arc<Event>, u64)> {
        let core = &self.shared.core;
        let event = match &self.wake {
            Some(event) => Arc::clone(event),
            None => {
                let event = Arc::new(core.create_event()?);
                core.note_wake(&event);
                let _ = self.shared.wake.set(Arc::clone(&event));
                self.shared.write_card()?;
                self.wake = Some(Arc::clone(&event));
                event
            }
        };
        if !core.control.watch_peers() {
            core.control.remove_dead();
        }
        let next = event.submitted() + 1;
        core.control.arm(ChannelRole::Consumer, self.shared.key);
        Ok((event, next))
    }

    fn disarm(&self) {
        let shared = &self.shared;
        // After a fork the request belongs to the parent.
        if self.notifier.is_none() && !shared.core.is_inherited() {
            let control = &shared.core.control;
            control.disarm(ChannelRole::Consumer, shared.key.index);
        }
    }

    fn poll_item(&mut self, task: &mut Context<'_>) -> Poll<Result<Item>> {
        loop {
            if let Some(reached) = &mut self.awaited {
                let Poll::Ready(_) = Pin::new(reached).poll(task) else {
                    return Poll::Pending;
                };
                self.awaited = None;
            }
            let mut looked = self.look();
            if matches!(looked, Ok(None)) {
                if let Some(pending) = &self.pending {
                    let (event, number) = pending.ready.as_ref().expect("it is incomplete");
                    self.awaited = Some(event.reached(*number));
                    continue;
                }
                let (event, next) = self.arm()?;
                // A producer may have published an item before it could see the request.
                looked = self.look();
                if matches!(looked, Ok(None)) && self.pending.is_none() {
                    self.awaited = Some(event.reached(next));
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
        let core = &self.shared.core;
        // Items of this consumer may live longer, but producers no longer wait for it.
        if !core.is_inherited() {
            core.words().retire_consumer(self.shared.key);
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

/// This consumer's own view of its signals.
struct OwnSignals<'a>(&'a ConsumerShared);

impl channel::Peers for OwnSignals<'_> {
    fn is_dead(&self, _: u16) -> bool {
        false
    }

    fn is_complete(&self, _: MemberKey, number: u64) -> bool {
        let work = self.0.work.get();
        work.is_none_or(|event| !matches!(event.try_wait_value(number), Ok(false)))
    }
}

impl ConsumerShared {
    fn free(&self, item: channel::Item) {
        let place = self.core.words().free(self.key, item);
        self.freed.fetch_or(place, Ordering::Release);
    }

    fn work(&self) -> Result<&Event> {
        if let Some(event) = self.work.get() {
            return Ok(event);
        }
        let event = self.core.create_event()?;
        let event = self.work.get_or_init(|| event);
        self.write_card()?;
        Ok(event)
    }
}

impl Item {
    fn core(&self) -> &ChannelCore {
        &self.shared.core
    }

    fn slot(&self) -> u16 {
        self.item.as_ref().map_or(0, channel::Item::slot)
    }

    /// Returns the item's number. The first item of a channel has the number 0.
    pub fn number(&self) -> u64 {
        self.item.as_ref().map_or(0, channel::Item::number)
    }

    /// Returns the time at which the item was published, in nanoseconds of the system's monotonic
    /// clock.
    pub fn time(&self) -> u64 {
        self.head.time
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.head.len
    }

    /// Returns whether the item has no bytes.
    pub fn is_empty(&self) -> bool {
        self.head.len == 0
    }

    /// Returns the type and the shape, if the item is an array.
    pub fn array(&self) -> Option<&ArrayLayout> {
        self.head.array.as_ref()
    }

    /// Returns the bytes that the producer has added with
    /// [`Slot::set_user`](super::Slot::set_user).
    ///
    /// # Errors
    /// None in practice.
    pub fn user(&self) -> Result<UserBytes> {
        let mut user = UserBytes {
            bytes: [0; USER_BYTES],
            len: self.head.user,
        };
        let into = &mut user.bytes[..usize::from(self.head.user)];
        let core = self.core();
        core.plan
            .layout
            .load_user(core.items()?, self.slot(), into)?;
        Ok(user)
    }

    /// Returns the contents for access by the host.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for contents that the host cannot access.
    #[inline]
    pub fn bytes(&self) -> Result<SharedBytes<'_>> {
        self.core().content_bytes(self.slot(), self.head.len)
    }

    /// Copies a part of the contents. If the host cannot access them, a queue of the device copies
    /// them, and the call waits for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the part is not inside the item.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        if offset
            .checked_add(into.len())
            .is_none_or(|end| end > self.head.len)
        {
            return Err(Error::invalid(format!(
                "{} bytes at {offset} are not inside an item of {} bytes",
                into.len(),
                self.head.len
            )));
        }
        self.core().read_content(self.slot(), offset, into)
    }

    /// Returns a copy of the contents.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut contents = vec![0; self.head.len];
        self.read(0, &mut contents)?;
        Ok(contents)
    }

    /// Returns the memory of the contents for commands.
    ///
    /// # Errors
    /// None in practice.
    pub fn range(&self) -> Result<MemoryRange> {
        self.core().content_range(self.slot(), self.head.len)
    }

    /// Returns the address of the contents, as [`Memory::as_ptr`](crate::Memory::as_ptr) does.
    pub fn as_ptr(&self) -> *mut u8 {
        self.core().content_pointer(self.slot())
    }

    /// Drops the item, and frees its slot when all commands are complete that were submitted to the
    /// queue before. Until then the slot is one of those that the consumer has.
    ///
    /// # Errors
    /// The errors of [`Queue::signal`]. The item is then dropped at once.
    pub fn release_on(mut self, queue: &Queue) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let number = queue.signal_numbered(shared.work()?)?;
        if let Some(item) = self.item.take() {
            let place = shared.core.words().free_after(shared.key, item, number);
            shared.deferred.fetch_or(place, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        if let Some(item) = self.item.take()
            && !self.shared.core.is_inherited()
        {
            self.shared.free(item);
        }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("number", &self.number())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// The bytes that a producer has added to an item.
#[derive(Clone, Copy, Debug)]
pub struct UserBytes {
    bytes: [u8; USER_BYTES],
    len: u8,
}

impl std::ops::Deref for UserBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}
