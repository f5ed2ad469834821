//! The shared core of a channel's objects in this process.

use super::events::{MemberEvent, MemberEvents, check_interrupt, is_same};
use super::layout::Plan;
use crate::api::command::Command;
use crate::api::context::Context;
use crate::api::event::Event;
use crate::api::memory::{Memory, MemoryRange};
use crate::api::queue::Queue;
use crosshandle_events::channel::{Channel, ChannelError, LIVENESS_INTERVAL, MemberKey, Peers};
use crosshandle_ipc::channel::{ChannelControl, ChannelRole};
use crosshandle_ipc::platform::Os;
use crosshandle_os::fork::Birth;
use crosshandle_os::process;
use crosshandle_os::socket::interrupt;
use crosshandle_types::error::{ChannelFault, Error, Result};
use crosshandle_types::sync::{Deadline, Mutex};
use crosshandle_types::{Access, AllocationOptions, MemoryKind, SharedBytes};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time after which a producer looks again at a slot that a dying process may still write.
const RETRY: Duration = Duration::from_millis(1);
pub(super) const WRITING: &str = "waiting for queues that still write all free slots of a channel";

pub(super) struct ChannelCore {
    pub(super) context: Context,
    pub(super) plan: Plan,
    pub(super) control: Arc<ChannelControl>,
    /// The headers, and the contents if they are on the host.
    pub(super) items: Arc<Memory>,
    /// The bytes of `items`. No copy of them leaves this structure with a longer lifetime than that
    /// of a reference to the structure.
    item_bytes: SharedBytes<'static>,
    /// The bytes of the contents, if the host can access them.
    content_bytes: Option<SharedBytes<'static>>,
    /// The contents if they are in the memory of a device.
    pub(super) slots: Option<Arc<Memory>>,
    /// Keeps the words exported or open.
    pub(super) words_memory: Memory,
    /// Keeps the memory of a new channel exported.
    pub(super) _companion: Context,
    pub(super) events: Arc<MemberEvents>,
    transfer: Mutex<Option<Transfer>>,
    /// When a call that did not sleep looked for deaths, by the system's monotonic clock.
    looked_for_deaths: AtomicU64,
    birth: Birth,
}

/// A queue and host memory, by which the host copies contents of a device.
struct Transfer {
    queue: Queue,
    staging: Memory,
}

impl ChannelCore {
    pub(super) fn new(
        context: &Context,
        companion: Context,
        plan: Plan,
        control: Arc<ChannelControl>,
        items: Memory,
        slots: Option<Memory>,
        words_memory: Memory,
    ) -> Result<Arc<Self>> {
        let (items, slots) = (Arc::new(items), slots.map(Arc::new));
        let item_bytes = as_static(items.bytes()?);
        let content_bytes = match &slots {
            None => Some(item_bytes),
            Some(slots) => slots.bytes().ok().map(as_static),
        };
        let events = MemberEvents::new(context, &control);
        let weak = Arc::downgrade(&events);
        control.on_departure(Box::new(move || {
            if let Some(events) = weak.upgrade() {
                events.wake_own();
            }
        }));
        Ok(Arc::new(Self {
            context: context.clone(),
            plan,
            control,
            items,
            item_bytes,
            content_bytes,
            slots,
            words_memory,
            _companion: companion,
            events,
            transfer: Mutex::default(),
            looked_for_deaths: AtomicU64::new(0),
            birth: Birth::here(),
        }))
    }

    pub(super) fn words(&self) -> Channel<'_, Os> {
        self.control.words()
    }

    pub(super) fn check_birth(&self) -> Result<()> {
        match self.birth.is_inherited() {
            true => Err(Error::forked()),
            false => Ok(()),
        }
    }

    /// Returns whether the channel was opened before this process was forked.
    pub(super) fn is_inherited(&self) -> bool {
        self.birth.is_inherited()
    }

    /// Returns the bytes of the items, which the host can always access.
    #[inline]
    pub(super) fn items(&self) -> SharedBytes<'_> {
        self.item_bytes
    }

    /// Returns the memory that contains the contents of the slots.
    pub(super) fn contents(&self) -> &Arc<Memory> {
        self.slots.as_ref().unwrap_or(&self.items)
    }

    /// Returns the contents of a slot.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for contents that the host cannot access.
    #[inline]
    pub(super) fn content_bytes(&self, slot: u16, len: usize) -> Result<SharedBytes<'_>> {
        let bytes = match self.content_bytes {
            Some(bytes) => bytes,
            None => self.contents().bytes()?,
        };
        let start = self.plan.layout.content(slot);
        bytes.slice(start..start + len)
    }

    pub(super) fn content_range(&self, slot: u16, len: usize) -> Result<MemoryRange> {
        let start = self.plan.layout.content(slot);
        self.contents().range(start..start + len)
    }

    pub(super) fn content_pointer(&self, slot: u16) -> *mut u8 {
        let start = self.plan.layout.content(slot);
        self.contents().as_ptr().wrapping_add(start)
    }

    /// Copies bytes into a slot, by a queue if the host cannot access the slot.
    pub(super) fn write_content(&self, slot: u16, offset: usize, from: &[u8]) -> Result<()> {
        let len = self.part(offset, from.len())?;
        match self.content_bytes(slot, len) {
            Err(Error::Unsupported(_)) if !from.is_empty() => {}
            Err(Error::Unsupported(_)) => return Ok(()),
            bytes => return bytes?.write(offset, from),
        }
        let content = self.content_range(slot, len)?.range(offset..)?;
        self.transfer(|queue, staging| {
            staging.write(0, from)?;
            queue.submit(Command::copy(staging.range(..from.len())?, content)?)?;
            queue.finish()
        })
    }

    /// Copies bytes out of a slot, by a queue if the host cannot access the slot.
    pub(super) fn read_content(&self, slot: u16, offset: usize, into: &mut [u8]) -> Result<()> {
        let len = self.part(offset, into.len())?;
        match self.content_bytes(slot, len) {
            Err(Error::Unsupported(_)) if !into.is_empty() => {}
            Err(Error::Unsupported(_)) => return Ok(()),
            bytes => return bytes?.read(offset, into),
        }
        let content = self.content_range(slot, len)?.range(offset..)?;
        self.transfer(|queue, staging| {
            queue.submit(Command::copy(content, staging.range(..into.len())?)?)?;
            queue.finish()?;
            staging.read(0, into)
        })
    }

    /// Checks that a slot has `len` bytes.
    pub(super) fn part_of_slot(&self, len: usize) -> Result<()> {
        self.part(0, len).map(drop)
    }

    /// Returns the end of a part of a slot.
    fn part(&self, offset: usize, len: usize) -> Result<usize> {
        let end = offset.checked_add(len);
        end.filter(|end| *end <= self.plan.slot_size)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "{len} bytes at {offset} do not fit into a slot of {} bytes",
                    self.plan.slot_size
                ))
            })
    }

    fn transfer(&self, copy: impl FnOnce(&Queue, &Memory) -> Result<()>) -> Result<()> {
        let mut transfer = self.transfer.lock();
        let transfer = match &mut *transfer {
            Some(transfer) => transfer,
            empty => {
                let options = AllocationOptions::new(self.plan.slot_size).kind(MemoryKind::Host);
                empty.insert(Transfer {
                    queue: self.context.create_queue()?,
                    staging: self.context.allocate_with(options)?,
                })
            }
        };
        copy(&transfer.queue, &transfer.staging)
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        match self.items.access() {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Error::ReadOnly),
        }
    }

    /// Clears the request of a former member in the place of a new one.
    pub(super) fn begin_unarmed(&self, role: ChannelRole, key: MemberKey) {
        if self.control.armed_members(role) & (1 << key.index) != 0 {
            self.control.disarm(role, key.index);
        }
    }

    /// Signals the members of a role that wait for a wake, if there are any. The caller has changed
    /// the words before.
    #[inline]
    pub(super) fn wake_armed(&self, role: ChannelRole) {
        let armed = self.control.armed_members(role);
        if armed != 0 {
            self.events.wake_each(role, armed);
        }
    }

    /// Ends the memberships of dead processes from time to time, for programs whose calls never
    /// sleep. A sleep does so by itself. Returns whether it was time.
    pub(super) fn look_for_deaths(&self) -> bool {
        let now = process::monotonic_nanoseconds();
        let looked = self.looked_for_deaths.load(Ordering::Relaxed);
        if u128::from(now.saturating_sub(looked)) >= LIVENESS_INTERVAL.as_nanos() {
            self.looked_for_deaths.store(now, Ordering::Relaxed);
            self.control.remove_dead();
            return true;
        }
        false
    }

    /// Ends a membership. The commands that use the member's slots have ended. `work` is the event
    /// that queues have signalled for the member.
    pub(super) fn end(&self, role: ChannelRole, key: MemberKey, work: Option<&Event>) {
        let words = self.words();
        match role {
            ChannelRole::Producer => {
                if let Some(work) = work {
                    self.settle_items(key, work);
                }
                words.remove_producer(key);
            }
            ChannelRole::Consumer => words.remove_consumer(key),
        }
        self.events.forget(role, key);
        self.wake_armed(match role {
            ChannelRole::Producer => ChannelRole::Consumer,
            ChannelRole::Consumer => ChannelRole::Producer,
        });
    }

    /// Records the results of the commands that have produced a leaving producer's items, because
    /// the producer's event can no longer be opened afterwards.
    fn settle_items(&self, key: MemberKey, work: &Event) {
        let words = self.words();
        for slot in 0..self.plan.shape.slots() {
            let number = words.latest_in(slot);
            let Some((producer, signal)) = self.signal_of(slot) else {
                continue;
            };
            let Some(number) = number else { continue };
            let is_own = producer.index == key.index && producer.generation == key.generation;
            if is_own && words.latest_in(slot) == Some(number) {
                let has_failed = match work.try_wait_value(signal) {
                    Ok(true) => false,
                    // Only a hostile member writes the number of a signal that has not ended.
                    Ok(false) => continue,
                    Err(_) => true,
                };
                self.control.settle(slot, number, has_failed);
            }
        }
    }

    /// Returns the producer of the latest item in a slot, and the number of its signal after which
    /// the item is complete. Returns `None` if no queue writes the item.
    fn signal_of(&self, slot: u16) -> Option<(MemberKey, u64)> {
        let (signal, (index, generation)) =
            self.plan.layout.load_signal(self.items(), slot).ok()?;
        let key = MemberKey {
            index,
            generation,
            owner: 0,
        };
        (signal != 0).then_some((key, signal))
    }

    /// Returns whether a member is alive and has not left.
    pub(super) fn is_present(&self, role: ChannelRole, key: MemberKey) -> bool {
        is_same(self.control.member(role, key.index), key)
    }

    /// Returns whether the commands before a member's signal have ended. If the member's process
    /// dies, they may continue until its membership ends.
    fn has_ended(&self, role: ChannelRole, key: MemberKey, number: u64) -> bool {
        match self.events.get(role, key, MemberEvent::Work) {
            Ok(Some(event)) => match event.try_wait_value(number) {
                Ok(is_complete) => is_complete,
                Err(error) => !error.is_peer_dead(),
            },
            // The slot stays in use until the member answers or leaves.
            Ok(None) | Err(_) => false,
        }
    }

    /// Waits a short time for the commands that write the latest item in a slot.
    pub(super) fn await_written(&self, slot: u16, deadline: Deadline) -> Result<()> {
        if deadline.is_over() {
            return Err(Error::TimedOut(WRITING));
        }
        check_interrupt()?;
        self.look_for_deaths();
        let Some((key, signal)) = self.signal_of(slot) else {
            return Ok(());
        };
        if !self.is_present(ChannelRole::Producer, key) {
            return Ok(());
        }
        let deadline = deadline.min(Deadline::after(LIVENESS_INTERVAL));
        let events = &self.events;
        let waited = events
            .get_by(ChannelRole::Producer, key, MemberEvent::Work, deadline)
            .and_then(|event| event.wait_value_timeout(signal, deadline.timeout()));
        match waited {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            // A dying process writes until it has ended.
            Err(error) if !error.is_timeout() => {
                deadline.sleep(RETRY);
            }
            _ => {}
        }
        Ok(())
    }

    /// Converts an error of the state machine.
    pub(super) fn error(error: ChannelError, doing: &'static str) -> Error {
        let fault = match error {
            ChannelError::TimedOut => return Error::TimedOut(doing),
            ChannelError::Interrupted => return Error::Interrupted,
            ChannelError::NoPlace => ChannelFault::NoPlace,
            ChannelError::TooManyHeld => ChannelFault::TooManyHeld,
            ChannelError::NoProducer { died: true } => ChannelFault::ProducerDied,
            ChannelError::NoProducer { died: false } => ChannelFault::Closed,
            // The caller has waited for the queue.
            ChannelError::Unfinished { .. } => return Error::TimedOut(WRITING),
            ChannelError::Corrupt => ChannelFault::Corrupt,
        };
        Error::Channel(fault)
    }
}

/// Extends the lifetime of the bytes of a memory that a [`ChannelCore`] keeps.
#[allow(unsafe_code)] // Otherwise each item would look up the address several times.
fn as_static(bytes: SharedBytes<'_>) -> SharedBytes<'static> {
    let start = NonNull::new(bytes.as_ptr()).expect("never null");
    let writable = bytes.is_writable();
    // SAFETY: memory stays mapped at the same address until it is dropped, and the structure keeps
    // it. The structure returns these bytes only with the lifetime of a reference to itself. All
    // other accesses treat the memory as shared, as they must for `bytes`.
    unsafe { SharedBytes::new(start, bytes.len(), writable) }
}

impl Peers for ChannelCore {
    fn is_dead(&self, owner: u16) -> bool {
        self.control.is_dead(owner)
    }

    fn is_complete(&self, consumer: MemberKey, number: u64) -> bool {
        self.has_ended(ChannelRole::Consumer, consumer, number)
    }

    fn is_written(&self, slot: u16) -> bool {
        let Some((key, signal)) = self.signal_of(slot) else {
            return true;
        };
        // A producer that leaves has waited for its queues, and a dead one has ended completely.
        !self.is_present(ChannelRole::Producer, key)
            || self.has_ended(ChannelRole::Producer, key, signal)
    }

    fn before_sleep(&self) {
        self.control.watch_peers();
    }

    fn is_interrupted(&self) -> bool {
        interrupt::check().is_err()
    }
}
