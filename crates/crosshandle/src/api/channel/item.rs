//! Items that consumers receive.

use super::core::ChannelCore;
use super::events::MemberEvent;
use super::layout::{ArrayLayout, ItemHead, USER_BYTES};
use super::member::Member;
use crate::api::event::Event;
use crate::api::memory::MemoryRange;
use crate::api::queue::Queue;
use crosshandle_events::channel::{self, MAX_HELD, MemberKey};
use crosshandle_ipc::channel::ChannelRole;
use crosshandle_os::fence::AsymmetricFence;
use crosshandle_types::SharedBytes;
use crosshandle_types::error::{ChannelFault, Error, Result};
use crosshandle_types::sync::Deadline;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The parts of a consumer that its items use.
pub(super) struct ConsumerShared {
    pub(super) member: Member,
    /// For each place of the consumer's list: whether its slot was freed. A place has a flag of its
    /// own, because plain stores are faster than changes of common bits.
    pub(super) freed: [AtomicBool; MAX_HELD as usize],
    /// Places whose slots are freed by signals.
    pub(super) deferred: AtomicU32,
    /// Whether the consumer waits until one of its places is free.
    pub(super) awaits_place: AtomicBool,
    pub(super) fence: AsymmetricFence,
}

/// A received item, which can be read until it is dropped. Its slot is then free for other items.
///
/// An item may be read and dropped on any thread. It keeps the channel open.
pub struct Item {
    shared: Arc<ConsumerShared>,
    /// `None` only while the item is being dropped.
    item: Option<channel::Item>,
    head: ItemHead,
    completion: Completion,
}

/// What an item waits for.
pub(super) enum Completion {
    /// Nothing: the item is complete.
    Complete,
    /// The producer's signal. This process has not opened the producer's event yet.
    Unopened,
    /// The producer's signal of this event.
    Opened(Event),
}

impl ConsumerShared {
    pub(super) fn core(&self) -> &ChannelCore {
        &self.member.core
    }

    fn free(&self, item: channel::Item) {
        let place = self.core().words().free(self.member.key, item);
        self.freed[place.trailing_zeros() as usize].store(true, Ordering::Release);
        self.wake_waiting();
    }

    /// Wakes the consumer if it waits for a place. The caller has changed a place before.
    #[inline]
    fn wake_waiting(&self) {
        self.fence.light();
        if self.awaits_place.load(Ordering::Relaxed) {
            self.member.wake();
        }
    }
}

/// This consumer's own view of its signals.
impl channel::Peers for ConsumerShared {
    fn is_dead(&self, _: u16) -> bool {
        false
    }

    fn is_complete(&self, _: MemberKey, number: u64) -> bool {
        self.member.has_ended(number)
    }
}

/// Items that are not complete.
impl Item {
    /// Wraps a received item, and checks its header.
    ///
    /// # Errors
    /// [`ChannelFault::Corrupt`], after which the slot is free.
    #[inline]
    pub(super) fn wrap(shared: &Arc<ConsumerShared>, item: channel::Item) -> Result<Self> {
        let core = shared.core();
        let (plan, slot) = (&core.plan, item.slot());
        let head = match plan.layout.load_head(core.items(), slot, plan) {
            Ok(head) => head,
            Err(error) => {
                shared.free(item);
                return Err(error);
            }
        };
        Ok(Self {
            shared: Arc::clone(shared),
            item: Some(item),
            completion: match head.signal {
                0 => Completion::Complete,
                _ => Completion::Unopened,
            },
            head,
        })
    }

    #[inline]
    pub(super) fn is_complete(&self) -> bool {
        matches!(self.completion, Completion::Complete)
    }

    /// Returns the signal after which the item is complete, if this process has opened its event.
    pub(super) fn signal(&self) -> Option<(&Event, u64)> {
        match &self.completion {
            Completion::Opened(event) => Some((event, self.head.signal)),
            _ => None,
        }
    }

    /// Records that the item is complete, or that a queue waits for it.
    pub(super) fn set_complete(&mut self) {
        self.completion = Completion::Complete;
    }

    fn producer(&self) -> MemberKey {
        let (index, generation) = self.head.producer;
        MemberKey {
            index,
            generation,
            owner: 0,
        }
    }

    /// Returns whether the item is complete now.
    ///
    /// # Errors
    /// The error of the commands that produce the item.
    pub(super) fn try_complete(&mut self) -> Result<bool> {
        if matches!(self.completion, Completion::Unopened) {
            let events = &self.core().events;
            let opened = events.get(ChannelRole::Producer, self.producer(), MemberEvent::Work);
            match opened {
                Ok(Some(event)) => self.completion = Completion::Opened(event),
                // The producer may have left, and its process may not answer.
                Ok(None) => return self.is_settled(),
                Err(error) => self.complete_without_event(error)?,
            }
        }
        if let Some((event, number)) = self.signal()
            && !event.try_wait_value(number)?
        {
            return Ok(false);
        }
        self.set_complete();
        Ok(true)
    }

    /// Opens the producer's event, if the item is not complete.
    ///
    /// # Errors
    /// As [`try_complete`](Self::try_complete). Also [`Error::TimedOut`] and
    /// [`Error::Interrupted`].
    pub(super) fn open_event(&mut self, deadline: Deadline) -> Result<()> {
        if !matches!(self.completion, Completion::Unopened) {
            return Ok(());
        }
        let (role, key) = (ChannelRole::Producer, self.producer());
        let events = &self.core().events;
        match events.get_by(role, key, MemberEvent::Work, deadline) {
            Ok(event) => {
                self.completion = Completion::Opened(event);
                Ok(())
            }
            Err(error) => self.complete_without_event(error),
        }
    }

    /// Completes an item whose producer has left after its commands had ended. `error` is the
    /// reason why the producer's event cannot be opened.
    #[cold]
    fn complete_without_event(&mut self, error: Error) -> Result<()> {
        if self.is_settled()? {
            return Ok(());
        }
        if may_succeed_later(&error) {
            return Err(error);
        }
        // The producer died before this process opened its event.
        if !(self.core()).is_present(ChannelRole::Producer, self.producer()) {
            return Err(Error::Channel(ChannelFault::ProducerDied));
        }
        Err(match error {
            Error::ExporterGone { .. } | Error::Stale => Error::Channel(ChannelFault::ProducerDied),
            Error::Handle(_) => super::layout::CORRUPT,
            error => error,
        })
    }

    /// Returns whether the producer has left and has recorded that the item is complete.
    ///
    /// # Errors
    /// [`Error::CommandFailed`] if the producer has recorded that the commands failed.
    #[cold]
    fn is_settled(&mut self) -> Result<bool> {
        match self.core().control.settled(self.slot(), self.number()) {
            None => Ok(false),
            Some(false) => {
                self.set_complete();
                Ok(true)
            }
            Some(true) => Err(Error::CommandFailed(
                "the process that ran it knows why".into(),
            )),
        }
    }
}

/// Returns whether the reason why an item is not complete may disappear. Then the item is kept.
pub(super) fn may_succeed_later(error: &Error) -> bool {
    error.is_timeout()
        || matches!(
            error,
            Error::Interrupted | Error::LimitReached { .. } | Error::OutOfMemory { .. }
        )
}

/// Reading and releasing.
impl Item {
    fn core(&self) -> &ChannelCore {
        self.shared.core()
    }

    #[inline]
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
            .load_user(core.items(), self.slot(), into)?;
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
    #[inline]
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
        let number = shared.member.signal_on(queue)?;
        if let Some(item) = self.item.take() {
            let words = shared.core().words();
            let place = words.free_after(shared.member.key, item, number);
            shared.deferred.fetch_or(place, Ordering::Release);
            shared.wake_waiting();
        }
        Ok(())
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        if let Some(item) = self.item.take()
            && !self.shared.core().is_inherited()
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
