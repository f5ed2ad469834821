//! The words of a channel in shared memory, and the processes that use them.
//!
//! All words are in one file, which every process of the channel has for reading and writing. A
//! process takes a number in the channel, its *owner number*, by a liveness lock on a byte of the
//! file. The lock shows that the process is alive, so a channel needs no other process to detect
//! deaths, and outlives its creator.
//!
//! For each owner number the file has the identity of the process that took it last. Other
//! processes watch the owner's process by it. Each member has a *card* in the file, with words that
//! the layer above defines.
//!
//! The lock of a process is dropped a moment before the kernel has released all resources of the
//! process. If the channel's items are in the memory of a device, the process is therefore treated
//! as alive until it has ended completely. A process of another PID namespace cannot be watched. It
//! is treated as alive for [`UNSEEN_EXIT`](owners::UNSEEN_EXIT) after its lock was found free.

mod layout;
mod members;
mod owners;
#[cfg(test)]
mod tests;
mod watches;

use crate::liveness::{LivenessLock, LivenessLocks};
use crate::platform::{AtomicU64, Os};
use crosshandle_events::channel::{Channel, Head, Member, Shape};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::mapping::Mapping;
use crosshandle_os::memfd;
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::report::ChannelReport;
use crosshandle_types::sync::Mutex;
use layout::{Armed, Layout, part};
use members::Card;
pub use members::{CARD_WORDS, ChannelRole};
use owners::{MAX_OWNERS, OwnerIdentity, OwnerProcess, SoleOpening, View, pid_namespace};
use rustix::fs::fstat;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use watches::PeerWatch;

/// A function to call when a member of another process has left.
pub type Departure = dyn Fn() + Send + Sync;

/// Maximum number of channels that a report lists.
const MAX_LISTED: usize = 256;

/// The channels that this process has open.
static OPEN: PerProcess<Mutex<Vec<Weak<ChannelControl>>>> = PerProcess::new(Mutex::default);

/// Describes the channels that this process has open.
pub fn reports() -> Vec<ChannelReport> {
    let open: Vec<_> = OPEN.lock().iter().filter_map(Weak::upgrade).collect();
    let reports = open.iter().take(MAX_LISTED);
    reports.filter_map(|control| control.report()).collect()
}

/// The words of a channel, mapped in this process.
pub struct ChannelControl {
    words: Channel<'static, Os>,
    armed: &'static Armed,
    producer_cards: &'static [Card],
    consumer_cards: &'static [Card],
    /// For each slot: the latest item whose commands had ended when its producer left.
    settled: &'static [AtomicU64],
    owners: &'static [OwnerProcess],
    owner: u16,
    namespace: u32,
    /// Whether a process is treated as dead only after the kernel has released its resources, such
    /// as its access to a device.
    awaits_exit: bool,
    watches: Mutex<BTreeMap<u16, PeerWatch>>,
    /// Processes of other PID namespaces that have lost their locks, and when this was noticed.
    unseen: Mutex<BTreeMap<u16, (OwnerIdentity, Instant)>>,
    departed: OnceLock<Box<Departure>>,
    name: OnceLock<String>,
    _lock: LivenessLock,
    /// Only if the process as a whole owns the liveness locks.
    _sole: Option<SoleOpening>,
    file: Arc<OwnedFd>,
    /// The references above point into this mapping, which is dropped last.
    _mapping: Mapping,
}

impl fmt::Debug for ChannelControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelControl")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl ChannelControl {
    /// Returns the size of the file of a channel of this shape, in bytes.
    pub fn len_of(shape: &Shape) -> usize {
        Layout::of(shape).len
    }

    /// Maps the words in a new file of zeros, and writes the initial values.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn create(file: Arc<OwnedFd>, shape: Shape, awaits_exit: bool) -> Result<Arc<Self>> {
        Self::map(file, shape, awaits_exit, true)
    }

    /// Maps the words of a channel that another process created, and takes an owner number.
    ///
    /// # Errors
    /// - [`Error::Protocol`] if the file is not sealed or has another size.
    /// - [`Error::LimitReached`] if the channel has its maximum number of openings.
    pub fn open(file: Arc<OwnedFd>, shape: Shape, awaits_exit: bool) -> Result<Arc<Self>> {
        Self::map(file, shape, awaits_exit, false)
    }

    fn map(file: Arc<OwnedFd>, shape: Shape, awaits_exit: bool, is_new: bool) -> Result<Arc<Self>> {
        let layout = Layout::of(&shape);
        let (len, sealed) = memfd::check(&file).map_err(Error::os("looking at a channel"))?;
        if len != layout.len as u64 || !sealed {
            return Err(Error::Protocol("its channel has another size or no seal"));
        }
        let mapping = Mapping::shared(&file, layout.len, 1, Access::ReadWrite)
            .map_err(Error::memory("mapping a channel", layout.len))?;
        // SAFETY: every part begins inside the mapping at a multiple of 64 bytes, which suffices
        // for its type, and ends inside it, by `Layout::of` and the check of the length. The file
        // is sealed against shrinking. All fields are atomic, so any bytes are valid, and other
        // processes may write them. The mapping is dropped after the references, because it is the
        // last field of the result, and no reference leaves the result with a longer lifetime than
        // that of the result.
        let (words, armed, producer_cards, consumer_cards, settled, owners) = unsafe {
            let (head, ring, slots, producers, consumers) = (
                mapping.start().cast::<Head<Os>>().as_ref(),
                part::<AtomicU64>(&mapping, layout.ring, shape.depth() as usize),
                part::<AtomicU64>(&mapping, layout.slots, shape.slots().into()),
                part::<Member<Os>>(&mapping, layout.producers, shape.producers().into()),
                part::<Member<Os>>(&mapping, layout.consumers, shape.consumers().into()),
            );
            (
                Channel::new(shape, head, ring, slots, producers, consumers)
                    .expect("the parts match the shape"),
                part::<Armed>(&mapping, layout.armed, 1).first(),
                part::<Card>(&mapping, layout.producer_cards, shape.producers().into()),
                part::<Card>(&mapping, layout.consumer_cards, shape.consumers().into()),
                part::<AtomicU64>(&mapping, layout.settled, shape.slots().into()),
                part::<OwnerProcess>(&mapping, layout.owners, MAX_OWNERS.into()),
            )
        };
        if is_new {
            words.initialise();
        }
        let locks = LivenessLocks::get()?;
        let sole = match locks.are_separate() {
            true => None,
            false => Some(SoleOpening::begin(&file)?),
        };
        let namespace = pid_namespace();
        let view = View {
            words,
            owners,
            namespace,
            awaits_exit,
        };
        let (owner, lock) = view.take_number(locks, file.as_fd())?;
        let control = Self {
            words,
            armed: armed.expect("one element"),
            producer_cards,
            consumer_cards,
            settled,
            owners,
            owner,
            namespace,
            awaits_exit,
            watches: Mutex::default(),
            unseen: Mutex::default(),
            departed: OnceLock::new(),
            name: OnceLock::new(),
            _lock: lock,
            _sole: sole,
            file,
            _mapping: mapping,
        };
        let control = Arc::new(control);
        let mut open = OPEN.lock();
        open.retain(|control| control.strong_count() > 0);
        open.push(Arc::downgrade(&control));
        Ok(control)
    }

    /// Returns the state machine on the words.
    #[inline]
    pub fn words(&self) -> Channel<'_, Os> {
        self.words
    }

    /// Returns this opening's number in the channel.
    pub fn owner(&self) -> u16 {
        self.owner
    }

    /// Sets the name that reports show. Only the first call has an effect.
    pub fn set_name(&self, name: &str) {
        let _ = self.name.set(name.to_owned());
    }

    fn report(&self) -> Option<ChannelReport> {
        self.remove_dead();
        let status = fstat(&self.file).ok()?;
        Some(ChannelReport {
            channel: format!("{:016x}", status.st_ino),
            name: self.name.get().cloned(),
            depth: self.words.shape().depth(),
            published: self.words.published(),
            producers: self.words.living_producers().count() as u64,
            consumers: self.words.living_consumers().count() as u64,
        })
    }
}
