//! Channels: rings of slots in shared memory, through which processes send items.
//!
//! A [`Channel`] has a fixed number of slots in host or device memory. A [`Producer`] *reserves* a
//! slot, writes an item into it in place, and *publishes* it. A [`Consumer`] *receives* the item
//! and reads it in place until it drops it. Any number of processes can open a channel. If both
//! sides are awake, an item takes no system call, no lock and no allocation.
//!
//! ```
//! use crosshandle::channel::{Channel, ChannelOptions};
//! use crosshandle::{Context, Device};
//!
//! # fn main() -> crosshandle::Result<()> {
//! let context = Context::new(&Device::find("host")?)?;
//! let channel = Channel::create(&context, ChannelOptions::new(4096))?;
//! // Another process opens the handle with `Channel::open`.
//! println!("{}", channel.handle()?);
//! let mut producer = channel.producer()?;
//! let mut consumer = channel.consumer()?;
//!
//! // In place.
//! let mut slot = producer.reserve()?;
//! slot.write(0, b"hello")?;
//! slot.set_len(5)?;
//! producer.publish(slot)?;
//! // With a copy.
//! producer.send(b"world")?;
//!
//! let first = consumer.receive()?;
//! let second = consumer.receive()?;
//! assert_eq!((first.to_vec()?, second.to_vec()?), (b"hello".to_vec(), b"world".to_vec()));
//! assert_eq!((first.number(), second.number()), (0, 1));
//! # Ok(())
//! # }
//! ```
//!
//! # Modes
//! | [`Delivery`] | an item goes to |
//! |---|---|
//! | `Queue` | one consumer, so consumers share the work |
//! | `Broadcast` | every consumer that had joined before it was published |
//!
//! | [`WhenFull`] | a producer that finds the channel full |
//! |---|---|
//! | `Wait` | waits, at most until a deadline |
//! | `DropOldest` | replaces the oldest item; with a [depth](ChannelOptions::depth) of 1, the channel keeps the latest item |
//!
//! [`Consumer::receive_latest`] skips to the newest item of a channel of any depth.
//!
//! # Waiting
//! Each operation that may wait has three forms: one that waits, one with a timeout, and one that
//! never waits. [`Consumer::receiving`] and [`Producer::publishing`] are futures, a [`Consumer`] is
//! a stream, and [`Consumer::descriptor`] returns a descriptor for event loops.
//!
//! # Metadata
//! Each item has a [number](Item::number), a [time](Item::time), a length, and up to
//! [`USER_BYTES`] bytes of the program's. It may be an [array](ArrayLayout). A channel
//! [of arrays](ChannelOptions::of_arrays) refuses arrays of other types and shapes.
//!
//! # Devices
//! In a channel of a device's context, the slots are in the memory of that device.
//! [`Producer::publish_on`] publishes an item that a queue is still writing,
//! [`Consumer::receive_on`] makes another queue wait for it, and [`Item::release_on`] frees the
//! slot when that queue has read it. No process waits on the host then. A member that is dropped
//! keeps its place until its queues have ended these commands.
//!
//! # Death
//! The slots of a dead process return to the channel, and the survivors continue. A dead producer's
//! reserved slot is not published. An item that a dead consumer had received is not delivered
//! again. When the last producer dies, consumers first receive all published items, and then get
//! [`ChannelFault::ProducerDied`]. With [`ChannelOptions::awaits_producers`] they wait for the next
//! producer instead. A channel that was [handed over](Channel::hand_over) to a holder outlives all
//! its processes.
//!
//! # Trust
//! [`Channel::handle`] grants both roles, and [`Channel::consumer_handle`] grants only the role of
//! consumers, which cannot write items. Members may be hostile: they can stop the channel, and
//! producers can spoil items, but nothing that they write violates memory safety. An invalid item
//! causes [`ChannelFault::Corrupt`].

mod consumer;
mod core;
mod events;
mod item;
mod layout;
mod member;
mod options;
mod producer;

pub use consumer::{Consumer, Receiving};
pub use crosshandle_types::error::ChannelFault;
pub use item::{Item, UserBytes};
pub use layout::{ArrayLayout, MAX_DIMENSIONS, USER_BYTES};
pub use options::{ChannelOptions, Delivery, MAX_HELD, MAX_MEMBERS, WhenFull};
pub use producer::{Producer, Publishing, Slot, Unpublished};

use self::core::ChannelCore;
use self::layout::{Description, ItemsLayout, Plan};
use crate::api::context::Context;
use crate::api::core::Allocation;
use crate::api::holder::{HandedOver, HoldOptions, Holder};
use crate::api::memory::Memory;
use crate::pool::Usage;
use crosshandle_handle::{ChannelHandle, MemoryHandle};
use crosshandle_ipc::channel::ChannelControl;
use crosshandle_ipc::{First, OpenDeadline};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::{Access, AllocationOptions, MemoryKind};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Roles of the parts of a channel that was handed over to a holder.
const ROLES: [&str; 3] = ["channel-items", "channel-words", "channel-slots"];

/// An open channel. Cloning is cheap, and any thread may use it.
///
/// A channel stays open as long as one of its clones, producers, consumers or items exists. Its
/// handle can be opened as long as the channel is open in the process that created it, or if it was
/// [handed over](Self::hand_over).
#[derive(Clone)]
pub struct Channel {
    core: Arc<ChannelCore>,
    /// The handle with which this process opened the channel, or `None` in its creator.
    opened: Option<ChannelHandle>,
}

impl Channel {
    /// Creates a channel whose slots are in the memory of the context's device.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] for options that exceed a limit.
    /// - The errors of [`Context::allocate`].
    pub fn create(context: &Context, options: ChannelOptions) -> Result<Self> {
        context.core().check_birth()?;
        let is_on_host = context.device().info().capabilities.host_memory_only;
        let shape = options.shape(is_on_host)?;
        let slot_size = options.slot_size();
        let layout = ItemsLayout::new(&shape, slot_size, is_on_host)
            .ok_or_else(|| Error::invalid("a channel of this size does not fit into memory"))?;
        let plan = Plan {
            shape,
            slot_size,
            array: options.array(),
            is_on_host,
            layout,
        };
        let companion = context.companion()?;
        let name = options.shown_name();
        let allocate = |context, len, part: &str| {
            let memory = allocate_alone(context, len)?;
            memory.set_name(&format!("{name} ({part})"));
            Ok::<_, Error>(memory)
        };
        let items = allocate(&companion, layout.items_len(), "items")?;
        let words = allocate(&companion, ChannelControl::len_of(&shape), "words")?;
        let slots = match is_on_host {
            true => None,
            false => Some(allocate(context, layout.slots_len(), "slots")?),
        };
        let slots_handle = slots.as_ref().map(Memory::handle).transpose()?;
        let slots_bytes = slots_handle
            .as_ref()
            .map_or(&[][..], |handle| handle.as_bytes());
        let description = Description::new(&plan, words.handle()?.as_bytes(), slots_bytes);
        description.store(items.bytes()?)?;
        let control = ChannelControl::create(words.descriptor()?, shape, !is_on_host)?;
        control.set_name(name);
        Ok(Self {
            core: ChannelCore::new(context, companion, plan, control, items, slots, words)?,
            opened: None,
        })
    }

    /// Opens a channel that another process has created. If the handle grants only the role of
    /// consumers, this process cannot be a producer.
    ///
    /// # Errors
    /// - The errors of [`Context::open_memory`].
    /// - [`Error::Protocol`] if the handle's memory is not a channel.
    pub fn open(context: &Context, handle: &ChannelHandle) -> Result<Self> {
        Self::open_by(context, handle, &context.core().deadline())
    }

    /// Opens a channel as [`open`](Self::open) does, and waits for its creator for at most
    /// `timeout`.
    ///
    /// # Errors
    /// As [`open`](Self::open). Also [`Error::TimedOut`].
    pub fn open_timeout(
        context: &Context,
        handle: &ChannelHandle,
        timeout: Duration,
    ) -> Result<Self> {
        Self::open_by(context, handle, &OpenDeadline::after(timeout))
    }

    /// Opens a channel under the name by which a [holder](crate::holder) keeps it. `access` decides
    /// whether this process can be a producer.
    ///
    /// # Errors
    /// The errors of [`Holder::open`] and of [`open`](Self::open).
    pub fn open_name(
        context: &Context,
        holder: &Holder,
        name: &str,
        access: Access,
    ) -> Result<Self> {
        let held = match access {
            Access::ReadWrite => holder.open_to_write(name)?,
            Access::ReadOnly => holder.open(name)?,
        };
        let part = held.parts.iter().find(|part| part.role == ROLES[0]);
        let part = part.ok_or_else(|| Error::invalid(format!("'{name}' is not a channel")))?;
        let handle = match access {
            Access::ReadWrite => part.handle,
            Access::ReadOnly => part.read_only,
        };
        let handle = handle.ok_or(Error::Protocol("it sent no handle"))?;
        Self::open(context, &ChannelHandle::of_memory(&handle))
    }

    fn open_by(context: &Context, handle: &ChannelHandle, deadline: &OpenDeadline) -> Result<Self> {
        let companion = context.companion()?;
        let access = match handle.is_consumers() {
            true => Access::ReadOnly,
            false => Access::ReadWrite,
        };
        let items = Memory::open(companion.core(), &handle.memory(), access, deadline)?;
        let description = Description::load(items.bytes()?)?;
        let plan = description.plan(items.len())?;
        let words_handle = MemoryHandle::from_bytes(whole(description.words()))?;
        let words = Memory::open(companion.core(), &words_handle, Access::ReadWrite, deadline)?;
        let file = fetch(&companion, &words_handle, deadline)?;
        let slots = match plan.is_on_host {
            true => None,
            false => {
                let handle = MemoryHandle::from_bytes(whole(description.slots()))?;
                let slots = Memory::open(context.core(), &handle, access, deadline)?;
                if slots.len() < plan.layout.slots_len() {
                    return Err(Error::Extent {
                        end: plan.layout.slots_len() as u64,
                        actual: slots.len() as u64,
                    });
                }
                Some(slots)
            }
        };
        let control = ChannelControl::open(file, plan.shape, !plan.is_on_host)?;
        Ok(Self {
            core: ChannelCore::new(context, companion, plan, control, items, slots, words)?,
            opened: Some(*handle),
        })
    }

    /// Returns a handle that grants both roles. A process that opened the channel returns the
    /// handle that it was opened with.
    ///
    /// # Errors
    /// As [`Memory::handle`]. Also [`Error::ReadOnly`] if the channel was opened with a handle that
    /// grants only the role of consumers.
    pub fn handle(&self) -> Result<ChannelHandle> {
        match self.opened {
            None => Ok(ChannelHandle::of_memory(&self.core.items.handle()?)),
            Some(handle) if handle.is_consumers() => Err(Error::ReadOnly),
            Some(handle) => Ok(handle),
        }
    }

    /// Returns a handle that grants only the role of consumers.
    ///
    /// # Errors
    /// As [`Memory::handle_read_only`]. Only the creator can make such a handle from one that
    /// grants both roles.
    pub fn consumer_handle(&self) -> Result<ChannelHandle> {
        match self.opened {
            Some(handle) if handle.is_consumers() => Ok(handle),
            _ => {
                let items = self.core.items.handle_read_only()?;
                Ok(ChannelHandle::of_memory(&items))
            }
        }
    }

    /// Joins the channel as a producer.
    ///
    /// # Errors
    /// - [`ChannelFault::NoPlace`] if the channel has its maximum number of producers.
    /// - [`Error::ReadOnly`] if the handle granted only the role of consumers.
    pub fn producer(&self) -> Result<Producer> {
        Producer::join(&self.core)
    }

    /// Joins the channel as a consumer. A consumer of a broadcast receives items that are published
    /// from now on.
    ///
    /// # Errors
    /// [`ChannelFault::NoPlace`] if the channel has its maximum number of consumers.
    pub fn consumer(&self) -> Result<Consumer> {
        Consumer::join(&self.core)
    }

    /// Hands the channel over to a holder under a name. From then on the channel exists as long as
    /// the name, even if all its processes end.
    ///
    /// # Errors
    /// As [`Holder::hand_over`].
    pub fn hand_over(
        &self,
        holder: &Holder,
        name: &str,
        options: HoldOptions,
    ) -> Result<HandedOver> {
        let core = &*self.core;
        let memories = [
            Some(&*core.items),
            Some(&core.words_memory),
            core.slots.as_deref(),
        ];
        let parts = ROLES.into_iter().zip(memories);
        let parts: Vec<_> = parts
            .filter_map(|(role, memory)| Some((role, memory?)))
            .collect();
        holder.hand_over(name, &parts, options)
    }

    /// Returns the size of a slot in bytes, which is the maximum length of an item.
    pub fn slot_size(&self) -> usize {
        self.core.plan.slot_size
    }

    /// Returns the memory that contains the contents of all slots.
    pub fn contents(&self) -> Arc<Memory> {
        Arc::clone(self.core.contents())
    }

    /// Returns how many items can wait to be received.
    pub fn depth(&self) -> u32 {
        self.core.plan.shape.depth()
    }

    /// Returns which consumers receive an item.
    pub fn delivery(&self) -> Delivery {
        self.core.plan.shape.delivery()
    }

    /// Returns what producers do while the channel is full.
    pub fn when_full(&self) -> WhenFull {
        self.core.plan.shape.when_full()
    }

    /// Returns the type and the shape of all items, if the channel was created for such arrays.
    pub fn array(&self) -> Option<&ArrayLayout> {
        self.core.plan.array.as_ref()
    }

    /// Returns the access that this process has. With [`Access::ReadOnly`] it cannot be a producer.
    pub fn access(&self) -> Access {
        self.core.items.access()
    }

    /// Returns the number of items that were published so far.
    pub fn published(&self) -> u64 {
        self.core.words().published()
    }

    /// Returns how many producers and consumers are alive.
    pub fn members(&self) -> (usize, usize) {
        members(&self.core)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("slot_size", &self.slot_size())
            .field("shape", &self.core.plan.shape)
            .finish_non_exhaustive()
    }
}

/// Returns how many producers and consumers are alive.
fn members(core: &ChannelCore) -> (usize, usize) {
    core.control.remove_dead();
    let words = core.words();
    (
        words.living_producers().count(),
        words.living_consumers().count(),
    )
}

/// Allocates memory with a segment of its own, so that a holder can take it.
fn allocate_alone(context: &Context, len: usize) -> Result<Memory> {
    let core = context.core();
    let mut options = core.pool_options();
    options.sharing = false;
    let usage = Arc::new(Usage::new(usize::MAX, 0));
    let pools = core.new_pools(options, usage);
    let pool = crate::api::core::pool_of(&pools, MemoryKind::Device);
    Allocation::allocate(core, pool, AllocationOptions::new(len)).map(Memory::owned)
}

/// Fetches the descriptor of the words, which carries the liveness locks.
fn fetch(
    companion: &Context,
    handle: &MemoryHandle,
    deadline: &OpenDeadline,
) -> Result<Arc<OwnedFd>> {
    let fields = handle.fields();
    let access = Access::ReadWrite;
    let core = companion.core();
    let (_, fetched) = core.ask_either(&fields, First::Memory(access), deadline, |attachment| {
        attachment.fetch(&fields, access, deadline)
    })?;
    Ok(fetched.file)
}

/// Returns the bytes of a handle at the start of `padded`.
fn whole(padded: &[u8]) -> &[u8] {
    &padded[..size_of::<MemoryHandle>()]
}
