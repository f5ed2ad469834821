//! The shared core of a channel's objects in this process.

use super::layout::{CORRUPT, Plan};
use crate::api::command::Command;
use crate::api::context::Context;
use crate::api::event::{Event, EventOptions};
use crate::api::memory::{Memory, MemoryRange};
use crate::api::queue::Queue;
use crosshandle_events::channel::{Channel, ChannelError, LIVENESS_INTERVAL, MemberKey, Peers};
use crosshandle_handle::EventHandle;
use crosshandle_ipc::channel::{CARD_WORDS, ChannelControl, ChannelRole};
use crosshandle_ipc::platform::Os;
use crosshandle_os::fork::Birth;
use crosshandle_os::process;
use crosshandle_os::socket::interrupt;
use crosshandle_types::error::{ChannelFault, Error, Result};
use crosshandle_types::sync::{HashMap, Mutex};
use crosshandle_types::{Access, AllocationOptions, MemoryKind, SharedBytes};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The events of a member, as an index of its card's halves.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MemberEvent {
    /// Signalled by queues: an item is complete, or a slot is free.
    Work,
    /// Signalled by other members: this member may continue.
    Wake,
}

/// Number of words of a card that contain the handle of one event.
const EVENT_WORDS: usize = CARD_WORDS / 2;

/// The events of other members that this process has opened, with the members' generations.
type OpenedEvents = HashMap<(bool, u8, MemberEvent), (u32, Event)>;

/// Longest time for which a producer that reserves a slot waits for a consumer's answer.
const RESERVING_LIMIT: Duration = Duration::from_millis(1);
/// Time after a missing answer in which no producer asks the same consumer.
const UNANSWERED_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct ChannelCore {
    pub(super) context: Context,
    pub(super) plan: Plan,
    pub(super) control: Arc<ChannelControl>,
    /// The headers, and the contents if they are on the host.
    pub(super) items: Arc<Memory>,
    /// The contents if they are in the memory of a device.
    pub(super) slots: Option<Arc<Memory>>,
    /// Keeps the words exported or open.
    pub(super) words_memory: Memory,
    /// Keeps the memory of a new channel exported.
    pub(super) _companion: Context,
    opened: Mutex<OpenedEvents>,
    /// Consumers that did not answer a producer in time: their generations, and the end of the
    /// interval.
    unanswered: Mutex<HashMap<u8, (u32, Instant)>>,
    transfer: Mutex<Option<Transfer>>,
    /// The events of this process's members that are signalled when another process dies.
    own_wakes: Mutex<Vec<Weak<Event>>>,
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
    ) -> Arc<Self> {
        let core = Arc::new(Self {
            context: context.clone(),
            plan,
            control,
            items: Arc::new(items),
            slots: slots.map(Arc::new),
            words_memory,
            _companion: companion,
            opened: Mutex::default(),
            unanswered: Mutex::default(),
            transfer: Mutex::default(),
            own_wakes: Mutex::default(),
            looked_for_deaths: AtomicU64::new(0),
            birth: Birth::here(),
        });
        let weak = Arc::downgrade(&core);
        core.control.on_departure(Box::new(move || {
            if let Some(core) = weak.upgrade() {
                core.departed();
            }
        }));
        core
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
    pub(super) fn items(&self) -> Result<SharedBytes<'_>> {
        self.items.bytes()
    }

    /// Returns the memory that contains the contents of the slots.
    #[inline]
    pub(super) fn contents(&self) -> &Arc<Memory> {
        self.slots.as_ref().unwrap_or(&self.items)
    }

    /// Returns the contents of a slot.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for contents that the host cannot access.
    #[inline]
    pub(super) fn content_bytes(&self, slot: u16, len: usize) -> Result<SharedBytes<'_>> {
        let start = self.plan.layout.content(slot);
        self.contents().bytes()?.slice(start..start + len)
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

    /// Creates an event of a member of this process.
    pub(super) fn create_event(&self) -> Result<Event> {
        self.context
            .create_event_with(EventOptions::new().isolated(true))
    }

    /// Writes the handles of a member's events for other processes.
    pub(super) fn write_card(
        &self,
        role: ChannelRole,
        key: MemberKey,
        work: Option<&Event>,
        wake: Option<&Event>,
    ) -> Result<()> {
        let mut words = [0; CARD_WORDS];
        for (words, event) in words.chunks_mut(EVENT_WORDS).zip([work, wake]) {
            let Some(event) = event else { continue };
            let handle = event.handle()?;
            for (word, bytes) in words.iter_mut().zip(handle.as_bytes().chunks(8)) {
                let mut padded = [0; 8];
                padded[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_ne_bytes(padded);
            }
        }
        self.control.write_card(role, key, &words);
        Ok(())
    }

    /// Returns an event of another member, and opens it if this process has not opened it yet.
    ///
    /// # Errors
    /// The errors of [`Context::open_event`]. Also [`ChannelFault::Corrupt`] if the member has no
    /// such event.
    pub(super) fn event_of(
        &self,
        role: ChannelRole,
        key: MemberKey,
        which: MemberEvent,
    ) -> Result<Event> {
        self.event_by(role, key, which, |handle| self.context.open_event(handle))
    }

    /// Returns a consumer's event, without a long wait for the consumer's process.
    fn event_of_releases(&self, key: MemberKey) -> Result<Event> {
        let (role, which) = (ChannelRole::Consumer, MemberEvent::Work);
        self.event_by(role, key, which, |handle| {
            const OPENING: &str = "opening an event of a channel's consumer";
            let unanswered = self.unanswered.lock().get(&key.index).copied();
            if let Some((generation, end)) = unanswered
                && generation == key.generation
                && Instant::now() < end
            {
                return Err(Error::TimedOut(OPENING));
            }
            let opened = self.context.open_event_timeout(handle, RESERVING_LIMIT);
            if opened.is_err() {
                let end = Instant::now() + UNANSWERED_INTERVAL;
                self.unanswered
                    .lock()
                    .insert(key.index, (key.generation, end));
            }
            opened
        })
    }

    fn event_by(
        &self,
        role: ChannelRole,
        key: MemberKey,
        which: MemberEvent,
        open: impl FnOnce(&EventHandle) -> Result<Event>,
    ) -> Result<Event> {
        let place = (role == ChannelRole::Producer, key.index, which);
        if let Some((generation, event)) = self.opened.lock().get(&place)
            && *generation == key.generation
        {
            return Ok(event.clone());
        }
        let card = self.control.read_card(role, key).ok_or(CORRUPT)?;
        let half = match which {
            MemberEvent::Work => &card[..EVENT_WORDS],
            MemberEvent::Wake => &card[EVENT_WORDS..],
        };
        let bytes: Vec<u8> = half.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let handle = EventHandle::from_bytes(&bytes[..size_of::<EventHandle>()])?;
        let event = open(&handle)?;
        let opened = (key.generation, event.clone());
        let former = self.opened.lock().insert(place, opened);
        drop(former);
        Ok(event)
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
            self.wake_each(role, armed);
        }
    }

    #[cold]
    fn wake_each(&self, role: ChannelRole, mut armed: u64) {
        while armed != 0 {
            let index = armed.trailing_zeros() as u8;
            armed &= armed - 1;
            let mut member = self.control.member(role, index);
            if member.is_none() {
                self.control.disarm(role, index);
                // A member that has joined in the meantime may have set the bit.
                member = self.control.member(role, index);
                if let Some(key) = member {
                    self.control.arm(role, key);
                }
            }
            let Some(key) = member else { continue };
            // The bit stays set until the member itself clears it. If this process dies before it
            // signals, the next one that changes the words signals.
            let woken = self
                .event_of(role, key, MemberEvent::Wake)
                .and_then(|event| event.signal());
            if let Err(error) = woken {
                tracing::debug!(%error, "a member of a channel cannot be woken");
            }
        }
    }

    /// Ends the memberships of dead processes from time to time, for programs whose calls never
    /// sleep. A sleep does so by itself.
    pub(super) fn look_for_deaths(&self) {
        let now = process::monotonic_nanoseconds();
        let looked = self.looked_for_deaths.load(Ordering::Relaxed);
        if u128::from(now.saturating_sub(looked)) >= LIVENESS_INTERVAL.as_nanos() {
            self.looked_for_deaths.store(now, Ordering::Relaxed);
            self.control.remove_dead();
        }
    }

    /// Records an event to signal when another process dies.
    pub(super) fn note_wake(&self, event: &Arc<Event>) {
        let mut wakes = self.own_wakes.lock();
        wakes.retain(|wake| wake.strong_count() > 0);
        wakes.push(Arc::downgrade(event));
    }

    /// Wakes this process's members, because another member has died or left.
    fn departed(&self) {
        let wakes: Vec<_> = (self.own_wakes.lock().iter())
            .filter_map(Weak::upgrade)
            .collect();
        for wake in wakes {
            let _ = wake.signal();
        }
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
            ChannelError::Corrupt => ChannelFault::Corrupt,
        };
        Error::Channel(fault)
    }
}

impl Peers for ChannelCore {
    fn is_dead(&self, owner: u16) -> bool {
        self.control.is_dead(owner)
    }

    fn is_complete(&self, consumer: MemberKey, number: u64) -> bool {
        match self.event_of_releases(consumer) {
            // A failed signal also means that the commands have ended.
            Ok(event) => !matches!(event.try_wait_value(number), Ok(false)),
            // The slot stays held until the consumer answers or frees it itself.
            Err(_) => false,
        }
    }

    fn before_sleep(&self) {
        self.control.watch_peers();
    }

    fn is_interrupted(&self) -> bool {
        interrupt::check().is_err()
    }
}
