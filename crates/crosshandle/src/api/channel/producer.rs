//! Producers and the slots that they write.

#![allow(
    clippy::result_large_err,
    reason = "a failed publication returns the slot, and boxing it would allocate"
)]

use super::core::{ChannelCore, WRITING};
use super::events::check_interrupt;
use super::layout::{ArrayLayout, ItemHead, USER_BYTES};
use super::member::Member;
use crate::api::command::Command;
use crate::api::event::{EventSet, Reached};
use crate::api::memory::MemoryRange;
use crate::api::queue::Queue;
use crosshandle_events::channel::{self, ChannelError, LIVENESS_INTERVAL};
use crosshandle_ipc::channel::ChannelRole;
use crosshandle_os::process;
use crosshandle_types::SharedBytes;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{Deadline, Mutex};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// A producer of a channel. It reserves slots, and publishes the items that the program has written
/// into them.
///
/// Dropping a producer makes it leave the channel, as soon as its slots are dropped too.
pub struct Producer {
    state: channel::Producer,
    shared: Arc<ProducerShared>,
}

/// The parts of a producer that its slots use.
struct ProducerShared {
    member: Member,
    /// Slots that were dropped without being published, and the numbers of the signals after which
    /// queues have written them, or 0.
    returned: Mutex<Vec<(u16, u64)>>,
    has_returned: AtomicBool,
}

impl ProducerShared {
    fn core(&self) -> &ChannelCore {
        &self.member.core
    }
}

/// A reserved slot of a channel, which the program may write until it is published. Dropping it
/// returns the slot without an item.
#[must_use = "a slot that is dropped is not published"]
pub struct Slot {
    shared: Arc<ProducerShared>,
    slot: u16,
    is_published: bool,
    /// Number of the signal after which a queue has written the slot, or 0.
    signal: u64,
    len: usize,
    user: u8,
    array: Option<ArrayLayout>,
}

/// A slot that could not be published, and the reason. It converts to the reason.
#[derive(Debug)]
pub struct Unpublished {
    /// The reason.
    pub error: Error,
    /// The slot, which is still reserved and contains what was written.
    pub slot: Slot,
}

impl From<Unpublished> for Error {
    fn from(unpublished: Unpublished) -> Self {
        unpublished.error
    }
}

impl fmt::Display for Unpublished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Unpublished {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

const PUBLISHING: &str = "waiting for room in a channel";
/// Size of a slot in bytes from which a producer reserves the slot that has become free most
/// recently. Copying so many bytes from memory to caches takes longer than looking for that slot.
const LARGE_SLOT: usize = 2 << 20;

impl Producer {
    pub(super) fn join(core: &Arc<ChannelCore>) -> Result<Self> {
        core.check_birth()?;
        core.check_writable()?;
        let words = core.words();
        let joined = words.join_producer(core.control.owner(), &**core);
        let mut state = joined.map_err(|error| ChannelCore::error(error, PUBLISHING))?;
        state.prefer_recent(core.plan.is_on_host && core.plan.slot_size >= LARGE_SLOT);
        let shared = Arc::new(ProducerShared {
            member: Member::new(core, ChannelRole::Producer, state.key())?,
            returned: Mutex::default(),
            has_returned: AtomicBool::new(false),
        });
        // Consumers that already wait have to watch this process.
        core.wake_armed(ChannelRole::Consumer);
        Ok(Self { state, shared })
    }

    /// Reserves a slot for an item. A channel has enough slots for all its members, so the call
    /// waits only for queues that still write slots: those of items that were replaced or dropped
    /// before they were complete, and those of slots that were dropped.
    ///
    /// # Errors
    /// [`ChannelFault::TooManyHeld`](super::ChannelFault::TooManyHeld) if the producer has its
    /// maximum number of reserved slots.
    #[inline]
    pub fn reserve(&mut self) -> Result<Slot> {
        self.reserve_by(Deadline::NEVER)
    }

    /// Reserves a slot for an item, and waits for queues for at most `timeout`.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve). Also [`Error::TimedOut`].
    pub fn reserve_timeout(&mut self, timeout: Duration) -> Result<Slot> {
        self.reserve_by(Deadline::after(timeout))
    }

    /// Reserves a slot for an item without waiting.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve). Also [`Error::TimedOut`] if queues still write all free
    /// slots.
    pub fn try_reserve(&mut self) -> Result<Slot> {
        self.reserve_by(Deadline::expired())
    }

    #[inline]
    fn reserve_by(&mut self, deadline: Deadline) -> Result<Slot> {
        loop {
            self.shared.core().check_birth()?;
            if self.shared.has_returned.load(Ordering::Relaxed) {
                self.take_back();
            }
            let core = self.shared.core();
            match core.words().reserve(&mut self.state, core) {
                Ok(slot) => return Ok(self.reserved(slot)),
                Err(ChannelError::Unfinished { slot }) => core.await_written(slot, deadline)?,
                Err(ChannelError::TooManyHeld)
                    if self.shared.has_returned.load(Ordering::Relaxed) =>
                {
                    self.await_returned(deadline)?;
                }
                Err(error) => return Err(ChannelCore::error(error, PUBLISHING)),
            }
        }
    }

    #[inline]
    fn reserved(&self, slot: u16) -> Slot {
        let plan = &self.shared.core().plan;
        Slot {
            slot,
            is_published: false,
            signal: 0,
            len: plan.array.map_or(plan.slot_size, |array| array.len()),
            user: 0,
            array: plan.array,
            shared: Arc::clone(&self.shared),
        }
    }

    /// Takes dropped slots back, except those that queues still write.
    #[cold]
    fn take_back(&mut self) {
        let shared = &self.shared;
        let mut returned = shared.returned.lock();
        returned.retain(|(slot, signal)| {
            let is_written = *signal == 0 || shared.member.has_ended(*signal);
            if is_written {
                shared.core().words().cancel(&mut self.state, *slot);
            }
            !is_written
        });
        (shared.has_returned).store(!returned.is_empty(), Ordering::Relaxed);
    }

    /// Waits a short time for a queue that writes a dropped slot.
    #[cold]
    fn await_returned(&self, deadline: Deadline) -> Result<()> {
        if deadline.is_over() {
            return Err(Error::TimedOut(WRITING));
        }
        check_interrupt()?;
        if let Some(work) = self.shared.member.work() {
            let returned = self.shared.returned.lock();
            let signals = returned.iter().map(|(_, signal)| (work, *signal));
            let signals = EventSet::values(signals);
            drop(returned);
            // The result of the commands does not matter. The caller looks again.
            let _ = signals.wait_any_timeout(deadline.remaining_within(LIVENESS_INTERVAL));
        }
        Ok(())
    }

    /// Publishes the item in a slot, and returns the item's number. The first item of a channel has
    /// the number 0. Waits while the channel is full, if the channel was created so.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a slot of another producer.
    pub fn publish(&mut self, slot: Slot) -> Result<u64, Unpublished> {
        self.publish_by(slot, Deadline::NEVER, 0)
    }

    /// Publishes the item in a slot, and waits for room for at most `timeout`.
    ///
    /// # Errors
    /// As [`publish`](Self::publish). Also [`Error::TimedOut`].
    pub fn publish_timeout(&mut self, slot: Slot, timeout: Duration) -> Result<u64, Unpublished> {
        self.publish_by(slot, Deadline::after(timeout), 0)
    }

    /// Publishes the item in a slot if the channel has room.
    ///
    /// # Errors
    /// As [`publish`](Self::publish). Also [`Error::TimedOut`] if the channel is full.
    pub fn try_publish(&mut self, slot: Slot) -> Result<u64, Unpublished> {
        self.publish_by(slot, Deadline::expired(), 0)
    }

    /// Publishes the item in a slot. The item is complete when all commands are complete that were
    /// submitted to the queue before. This call does not wait for them. Consumers on the host
    /// receive the item then, and consumers with a queue make their queue wait.
    ///
    /// # Errors
    /// As [`publish_timeout`](Self::publish_timeout), and the errors of [`Queue::signal`].
    pub fn publish_on(
        &mut self,
        queue: &Queue,
        slot: Slot,
        timeout: Duration,
    ) -> Result<u64, Unpublished> {
        let member = &self.shared.member;
        // Another queue may still write a slot that could not be published before.
        let earlier = match (slot.signal, member.work()) {
            (1.., Some(work)) => queue.submit(Command::barrier().after_value(work, slot.signal)),
            _ => Ok(()),
        };
        match earlier.and_then(|()| member.signal_on(queue)) {
            Ok(signal) => self.publish_by(slot, Deadline::after(timeout), signal),
            Err(error) => Err(Unpublished { error, slot }),
        }
    }

    #[inline]
    fn publish_by(
        &mut self,
        mut slot: Slot,
        deadline: Deadline,
        signal: u64,
    ) -> Result<u64, Unpublished> {
        match self.try_publish_by(&mut slot, deadline, signal) {
            Ok(number) => Ok(number),
            Err(error) => Err(Unpublished { error, slot }),
        }
    }

    /// Publishes a slot that is written after the producer's signal `signal`, if that is not 0.
    #[inline]
    fn try_publish_by(&mut self, slot: &mut Slot, deadline: Deadline, signal: u64) -> Result<u64> {
        let core = self.shared.core();
        core.check_birth()?;
        if !Arc::ptr_eq(&slot.shared, &self.shared) {
            return Err(Error::invalid("this slot belongs to another producer"));
        }
        // A queue may still write a slot that could not be published before.
        slot.signal = slot.signal.max(signal);
        let (key, signal) = (self.shared.member.key, slot.signal);
        let head = ItemHead {
            time: process::monotonic_nanoseconds(),
            len: slot.len,
            signal,
            producer: (key.index, key.generation),
            array: slot.array,
            user: slot.user,
        };
        core.plan
            .layout
            .store_head(core.items(), slot.slot, &head)?;
        let (words, state, deadline) = (core.words(), &mut self.state, deadline.instant());
        let published = words.publish_as(state, slot.slot, signal != 0, core, deadline);
        let number = published.map_err(|error| {
            if error == ChannelError::TimedOut {
                core.look_for_deaths();
            }
            ChannelCore::error(error, PUBLISHING)
        })?;
        slot.is_published = true;
        core.wake_armed(ChannelRole::Consumer);
        Ok(number)
    }

    /// Copies bytes into a slot and publishes it, as [`publish`](Self::publish) does.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve) and [`publish`](Self::publish). Also
    /// [`Error::InvalidArgument`] for more bytes than a slot has, or than the channel's arrays
    /// have.
    pub fn send(&mut self, bytes: &[u8]) -> Result<u64> {
        self.send_by(bytes, Deadline::NEVER)
    }

    /// Copies bytes into a slot and publishes it, as
    /// [`publish_timeout`](Self::publish_timeout) does.
    ///
    /// # Errors
    /// As [`send`](Self::send). Also [`Error::TimedOut`].
    pub fn send_timeout(&mut self, bytes: &[u8], timeout: Duration) -> Result<u64> {
        self.send_by(bytes, Deadline::after(timeout))
    }

    /// Copies bytes into a slot and publishes it if the channel has room.
    ///
    /// # Errors
    /// As [`send`](Self::send). Also [`Error::TimedOut`] if the channel is full.
    pub fn try_send(&mut self, bytes: &[u8]) -> Result<u64> {
        self.send_by(bytes, Deadline::expired())
    }

    #[inline]
    fn send_by(&mut self, bytes: &[u8], deadline: Deadline) -> Result<u64> {
        let mut slot = self.reserve_by(deadline)?;
        slot.set_len(bytes.len())?;
        slot.write(0, bytes)?;
        self.try_publish_by(&mut slot, deadline, 0)
    }

    /// Returns a future that publishes a slot when the channel has room.
    pub fn publishing(&mut self, slot: Slot) -> Publishing<'_> {
        Publishing {
            producer: self,
            slot: Some(slot),
            awaited: None,
            is_armed: false,
        }
    }

    /// Returns how many producers and consumers are alive.
    pub fn members(&self) -> (usize, usize) {
        super::members(self.shared.core())
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("key", &self.state.key())
            .finish_non_exhaustive()
    }
}

/// A future that publishes a slot, returned by [`Producer::publishing`]. Dropping it drops the slot
/// unpublished.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Publishing<'a> {
    producer: &'a mut Producer,
    slot: Option<Slot>,
    awaited: Option<Reached>,
    /// Whether consumers signal the producer.
    is_armed: bool,
}

impl Publishing<'_> {
    fn disarm(&mut self) {
        // After a fork the request belongs to the parent.
        if std::mem::take(&mut self.is_armed) && !self.producer.shared.core().is_inherited() {
            self.producer.shared.member.disarm();
        }
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl Future for Publishing<'_> {
    type Output = Result<u64, Unpublished>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            if let Some(reached) = &mut this.awaited {
                let Poll::Ready(_) = Pin::new(reached).poll(task) else {
                    return Poll::Pending;
                };
                this.awaited = None;
            }
            let slot = this.slot.take().expect("polled after completion");
            let slot = match this.producer.try_publish(slot) {
                Err(Unpublished {
                    error: Error::TimedOut(_),
                    slot,
                }) => slot,
                result => {
                    this.disarm();
                    return Poll::Ready(result);
                }
            };
            let armed = this.producer.shared.member.arm();
            let (event, next) = match armed {
                Ok(armed) => armed,
                Err(error) => {
                    this.disarm();
                    return Poll::Ready(Err(Unpublished { error, slot }));
                }
            };
            this.is_armed = true;
            // A consumer may have made room before it could see the request.
            match this.producer.try_publish(slot) {
                Err(Unpublished {
                    error: Error::TimedOut(_),
                    slot,
                }) => this.slot = Some(slot),
                result => {
                    this.disarm();
                    return Poll::Ready(result);
                }
            }
            this.awaited = Some(event.reached(next));
        }
    }
}

impl Slot {
    fn core(&self) -> &ChannelCore {
        self.shared.core()
    }

    /// Returns the size of the slot in bytes.
    pub fn size(&self) -> usize {
        self.core().plan.slot_size
    }

    /// Returns the length of the item in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the item has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the length of the item in bytes (default: the whole slot, or the channel's array).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more bytes than the slot has, or for another length than that
    /// of the item's array.
    #[inline]
    pub fn set_len(&mut self, len: usize) -> Result<()> {
        if let Some(array) = &self.array
            && array.len() != len
        {
            return Err(Error::invalid(format!(
                "the item is an array of {} bytes, and cannot have {len}",
                array.len()
            )));
        }
        self.core().part_of_slot(len)?;
        self.len = len;
        Ok(())
    }

    /// Makes the item an array, and sets its length.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an array that does not fit into the slot, and for another
    /// array than the one that the channel was created for.
    pub fn set_array(&mut self, array: ArrayLayout) -> Result<()> {
        if let Some(expected) = &self.core().plan.array
            && *expected != array
        {
            return Err(Error::invalid(format!(
                "the channel is for arrays of shape {:?} with {} bits of type {}, not of shape {:?} \
                 with {} bits of type {}",
                expected.shape(),
                expected.bits(),
                expected.code(),
                array.shape(),
                array.bits(),
                array.code(),
            )));
        }
        self.core().part_of_slot(array.len())?;
        self.array = Some(array);
        self.len = array.len();
        Ok(())
    }

    /// Sets bytes that the item carries in addition to its contents, at most [`USER_BYTES`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more bytes.
    pub fn set_user(&mut self, user: &[u8]) -> Result<()> {
        if user.len() > USER_BYTES {
            return Err(Error::invalid(format!(
                "an item carries {USER_BYTES} bytes of the program's, and not {}",
                user.len()
            )));
        }
        let core = self.core();
        core.plan.layout.store_user(core.items(), self.slot, user)?;
        self.user = user.len() as u8;
        Ok(())
    }

    /// Returns the bytes of the whole slot for access by the host.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a slot that the host cannot access.
    #[inline]
    pub fn bytes(&self) -> Result<SharedBytes<'_>> {
        self.core().content_bytes(self.slot, self.size())
    }

    /// Copies bytes into the slot. If the host cannot access the slot, a queue of the device copies
    /// them, and the call waits for it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the bytes are not all inside the slot.
    #[inline]
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        self.core().write_content(self.slot, offset, from)
    }

    /// Returns the memory of the whole slot for commands.
    ///
    /// # Errors
    /// None in practice.
    pub fn range(&self) -> Result<MemoryRange> {
        self.core().content_range(self.slot, self.size())
    }

    /// Returns the address of the slot, as [`Memory::as_ptr`](crate::Memory::as_ptr) does.
    pub fn as_ptr(&self) -> *mut u8 {
        self.core().content_pointer(self.slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_published {
            let returned = &self.shared.returned;
            returned.lock().push((self.slot, self.signal));
            self.shared.has_returned.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
