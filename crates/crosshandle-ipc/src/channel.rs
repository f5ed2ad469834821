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
//! is treated as alive for [`UNSEEN_EXIT`] after its lock was found free.

use crate::liveness::{LivenessLock, LivenessLocks};
use crate::platform::{AtomicU64, Ordering, Os};
use crosshandle_events::channel::{Channel, Head, Member, MemberKey, Peers, Shape};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::lock::{self, LockKind};
use crosshandle_os::mapping::{Mapping, page_size};
use crosshandle_os::memfd;
use crosshandle_os::process;
use crosshandle_os::threads::exchange::{self, Next, Registration, Source, Watch};
use crosshandle_types::Access;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::report::ChannelReport;
use crosshandle_types::sync::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fstat, stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The byte of the first liveness lock, far beyond the end of the file.
const LOCKS_AT: u64 = 1 << 40;
/// Maximum number of openings of a channel at the same time.
const MAX_OWNERS: u16 = 1024;
/// Time in which a process that has lost its lock ends completely, if its end cannot be watched. On
/// an H200 it took up to 80 ms.
const UNSEEN_EXIT: Duration = Duration::from_secs(2);
/// Number of 64-bit words that a card has for the layer above.
pub const CARD_WORDS: usize = 32;

/// The two roles of members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ChannelRole {
    Producer,
    Consumer,
}

/// The words of a member for the layer above.
#[repr(C, align(64))]
struct Card {
    /// Generation of the member that wrote the card, with [`COMPLETE`], or 0 while it is written
    /// for the first time.
    stamp: AtomicU64,
    words: [AtomicU64; CARD_WORDS],
}

/// The process that took an owner number last.
#[repr(C)]
struct OwnerProcess {
    /// The process id in the lower half, and its PID namespace in the upper half. 0 while the other
    /// word changes.
    id: AtomicU64,
    /// The time at which the process started, in clock ticks since boot, or 0 if it is not known.
    started: AtomicU64,
}

/// A copy of an [`OwnerProcess`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct OwnerIdentity {
    pid: u32,
    namespace: u32,
    started: u64,
}

/// Bit of a stamp that says that the whole card is valid.
const COMPLETE: u64 = 1 << 32;

/// Bit sets of the members that want to be signalled when they may continue, one bit for each.
#[repr(C, align(64))]
struct Armed {
    producers: AtomicU64,
    consumers: AtomicU64,
}

/// The offsets of the parts of the file, in bytes.
struct Layout {
    armed: usize,
    ring: usize,
    slots: usize,
    producers: usize,
    consumers: usize,
    producer_cards: usize,
    consumer_cards: usize,
    settled: usize,
    owners: usize,
    len: usize,
}

impl Layout {
    fn of(shape: &Shape) -> Self {
        let mut end = size_of::<Head<Os>>();
        let mut place = |bytes: usize| {
            let start = end.next_multiple_of(64);
            end = start + bytes;
            start
        };
        let (producers, consumers) = (shape.producers().into(), usize::from(shape.consumers()));
        let producers: usize = producers;
        Self {
            armed: place(size_of::<Armed>()),
            ring: place(shape.depth() as usize * size_of::<AtomicU64>()),
            slots: place(usize::from(shape.slots()) * size_of::<AtomicU64>()),
            producers: place(producers * size_of::<Member<Os>>()),
            consumers: place(consumers * size_of::<Member<Os>>()),
            producer_cards: place(producers * size_of::<Card>()),
            consumer_cards: place(consumers * size_of::<Card>()),
            settled: place(usize::from(shape.slots()) * size_of::<AtomicU64>()),
            owners: place(usize::from(MAX_OWNERS) * size_of::<OwnerProcess>()),
            len: end.next_multiple_of(page_size()),
        }
    }
}

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

    /// Sets the function that is called when another process has died, on the exchange thread. Only
    /// the first call has an effect.
    pub fn on_departure(&self, departed: Box<Departure>) {
        let _ = self.departed.set(departed);
    }

    /// Returns whether the process with this number has ended. Makes system calls.
    pub fn is_dead(&self, owner: u16) -> bool {
        if owner == self.owner {
            return false;
        }
        // If the kernel cannot tell, the process is treated as alive.
        if lock::is_held(self.file.as_fd(), lock_of(owner)).unwrap_or(true) {
            return false;
        }
        !self.awaits_exit || self.has_ended(owner)
    }

    /// Returns whether the kernel has released all resources of a process that has lost its lock,
    /// such as its access to a device.
    fn has_ended(&self, owner: u16) -> bool {
        let Some(identity) = self.process_of(owner) else {
            return true;
        };
        if let Some(has_ended) = identity.has_ended(self.namespace) {
            return has_ended;
        }
        let mut unseen = self.unseen.lock();
        let now = Instant::now();
        let (noticed, since) = unseen.entry(owner).or_insert((identity, now));
        if *noticed != identity {
            (*noticed, *since) = (identity, now);
        }
        now.duration_since(*since) >= UNSEEN_EXIT
    }

    fn process_of(&self, owner: u16) -> Option<OwnerIdentity> {
        self.owners.get(usize::from(owner.checked_sub(1)?))?.load()
    }

    fn living(&self, role: ChannelRole) -> Box<dyn Iterator<Item = MemberKey> + '_> {
        match role {
            ChannelRole::Producer => Box::new(self.words.living_producers()),
            ChannelRole::Consumer => Box::new(self.words.living_consumers()),
        }
    }

    fn card(&self, role: ChannelRole, index: u8) -> Option<&Card> {
        let cards = match role {
            ChannelRole::Producer => self.producer_cards,
            ChannelRole::Consumer => self.consumer_cards,
        };
        cards.get(usize::from(index))
    }

    /// Writes the card of a member of this process. The member may write it again to add words that
    /// were 0. Other processes can read the other words meanwhile.
    pub fn write_card(&self, role: ChannelRole, key: MemberKey, words: &[u64; CARD_WORDS]) {
        let Some(card) = self.card(role, key.index) else {
            return;
        };
        let stamp = u64::from(key.generation) | COMPLETE;
        if card.stamp.load(Ordering::SeqCst) != stamp {
            card.stamp.store(0, Ordering::SeqCst);
        }
        for (place, word) in card.words.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
        card.stamp.store(stamp, Ordering::SeqCst);
    }

    /// Returns the words of a member's card, or `None` if the member has not written them yet.
    pub fn read_card(&self, role: ChannelRole, key: MemberKey) -> Option<[u64; CARD_WORDS]> {
        let card = self.card(role, key.index)?;
        let stamp = u64::from(key.generation) | COMPLETE;
        if card.stamp.load(Ordering::SeqCst) != stamp {
            return None;
        }
        let words = std::array::from_fn(|index| card.words[index].load(Ordering::SeqCst));
        (card.stamp.load(Ordering::SeqCst) == stamp).then_some(words)
    }

    fn armed(&self, role: ChannelRole) -> &AtomicU64 {
        match role {
            ChannelRole::Producer => &self.armed.producers,
            ChannelRole::Consumer => &self.armed.consumers,
        }
    }

    /// Asks to be signalled when a member of this process may continue. The caller checks the
    /// channel afterwards, and sleeps only if nothing has changed.
    pub fn arm(&self, role: ChannelRole, key: MemberKey) {
        self.armed(role).fetch_or(1 << key.index, Ordering::SeqCst);
    }

    /// Reverts [`arm`](Self::arm).
    pub fn disarm(&self, role: ChannelRole, index: u8) {
        self.armed(role)
            .fetch_and(!(1_u64 << (index % 64)), Ordering::SeqCst);
    }

    /// Returns the members of a role that want to be signalled, one bit for each.
    #[inline]
    pub fn armed_members(&self, role: ChannelRole) -> u64 {
        self.armed(role).load(Ordering::SeqCst)
    }

    /// Returns the living member at this index.
    pub fn member(&self, role: ChannelRole, index: u8) -> Option<MemberKey> {
        self.living(role).find(|key| key.index == index)
    }

    /// Records that the commands of the latest item in a slot have ended, although its producer
    /// leaves. `number` is the item's number.
    pub fn settle(&self, slot: u16, number: u64, has_failed: bool) {
        let Some(settled) = self.settled.get(usize::from(slot)) else {
            return;
        };
        let before = settled.load(Ordering::SeqCst);
        // The slot keeps this item as long as a consumer may ask for it. If it already has another
        // item, a later producer may have settled that one, and the exchange fails.
        if self.words.latest_in(slot) == Some(number) {
            let after = settled_word(number, has_failed);
            let _ = settled.compare_exchange(before, after, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// Returns whether the commands of item `number` in a slot have failed, or `None` if its
    /// producer has not [settled](Self::settle) it.
    pub fn settled(&self, slot: u16, number: u64) -> Option<bool> {
        let settled = self.settled.get(usize::from(slot))?.load(Ordering::SeqCst);
        let mut outcomes = [false, true].into_iter();
        outcomes.find(|has_failed| settled == settled_word(number, *has_failed))
    }

    /// Watches the processes of all other members, so that their deaths are noticed at once. Cheap
    /// if they are watched already. Returns `false` if some were not, because their processes may
    /// have ended before this call.
    pub fn watch_peers(self: &Arc<Self>) -> bool {
        let mut were_watched = true;
        let mut watches = self.watches.lock();
        for role in [ChannelRole::Producer, ChannelRole::Consumer] {
            for key in self.living(role) {
                if key.owner == self.owner {
                    continue;
                }
                let identity = self.process_of(key.owner);
                let is_watched = watches
                    .get(&key.owner)
                    .is_some_and(|watch| Some(watch.identity) == identity);
                if is_watched {
                    continue;
                }
                were_watched = false;
                let Some(identity) = identity else { continue };
                let Ok(pidfd) = identity.pidfd(self.namespace) else {
                    continue;
                };
                let peer = WatchedPeer {
                    pidfd,
                    control: Arc::downgrade(self),
                };
                match exchange::watch(Arc::new(peer)) {
                    Ok(watch) => {
                        let watch = PeerWatch {
                            identity,
                            _watch: watch,
                        };
                        watches.insert(key.owner, watch);
                    }
                    Err(error) => tracing::debug!(%error, "a channel's member cannot be watched"),
                }
            }
        }
        were_watched
    }
}

/// Returns `len` elements of a part of the mapping.
///
/// # Safety
/// The elements must lie in the mapping, aligned, for as long as the result is used, and any bytes
/// must be valid values that other processes may change.
unsafe fn part<T>(mapping: &Mapping, offset: usize, len: usize) -> &'static [T] {
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts(mapping.start().add(offset).cast::<T>().as_ptr(), len) }
}

/// The view of a process that takes a number of a channel.
struct View {
    words: Channel<'static, Os>,
    owners: &'static [OwnerProcess],
    namespace: u32,
    awaits_exit: bool,
}

impl View {
    /// Takes the first free number, and ends the memberships of the process that had it.
    fn take_number(
        &self,
        locks: &'static LivenessLocks,
        file: BorrowedFd<'_>,
    ) -> Result<(u16, LivenessLock)> {
        for (owner, process) in (1_u16..).zip(self.owners) {
            let held = match locks.hold(file, lock_of(owner), LockKind::Exclusive) {
                Ok(held) => held,
                Err(Errno::EXIST | Errno::AGAIN | Errno::ACCESS) => continue,
                Err(errno) => return Err(Error::os("locking a place in a channel")(errno)),
            };
            // The previous process with this number is dead, because its lock was free. A device
            // may still use its slots until it has ended completely.
            if self.awaits_exit && self.has_members(owner) && !process.has_ended(self.namespace) {
                continue;
            }
            self.words.remove_dead(&Former(owner));
            process.store(&OwnerIdentity::own(self.namespace));
            return Ok((owner, held));
        }
        Err(Error::LimitReached {
            what: format!("the channel is open {MAX_OWNERS} times"),
            remedy: "close some of the openings".into(),
        })
    }

    fn has_members(&self, owner: u16) -> bool {
        let mut members = (self.words.living_producers()).chain(self.words.living_consumers());
        members.any(|key| key.owner == owner)
    }
}

impl OwnerProcess {
    fn load(&self) -> Option<OwnerIdentity> {
        let id = self.id.load(Ordering::SeqCst);
        let started = self.started.load(Ordering::SeqCst);
        (id != 0 && self.id.load(Ordering::SeqCst) == id).then_some(OwnerIdentity {
            pid: id as u32,
            namespace: (id >> 32) as u32,
            started,
        })
    }

    /// Stores the identity of this process, which has the number.
    fn store(&self, identity: &OwnerIdentity) {
        self.id.store(0, Ordering::SeqCst);
        self.started.store(identity.started, Ordering::SeqCst);
        let id = u64::from(identity.namespace) << 32 | u64::from(identity.pid);
        self.id.store(id, Ordering::SeqCst);
    }

    /// Returns whether the process has ended, as far as this process can see.
    fn has_ended(&self, namespace: u32) -> bool {
        self.load()
            .is_none_or(|identity| identity.has_ended(namespace) == Some(true))
    }
}

impl OwnerIdentity {
    /// Returns the identity of this process.
    fn own(namespace: u32) -> Self {
        let pid = process::pid();
        Self {
            pid,
            namespace,
            started: process::start_time(pid).unwrap_or(0),
        }
    }

    /// Opens the process. Fails with [`Errno::SRCH`] if it no longer exists, and with other errors
    /// if it may exist but cannot be opened.
    fn pidfd(&self, namespace: u32) -> Result<OwnedFd, Errno> {
        // A process id of another namespace stands for another process here.
        if self.namespace != namespace || namespace == 0 {
            return Err(Errno::XDEV);
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pidfd = pidfd_open(pid.ok_or(Errno::INVAL)?, PidfdFlags::empty())?;
        // The descriptor is opened first, so it is of this process or of a later one with its id.
        match process::start_time(self.pid) {
            Some(started) if self.started != 0 && started != self.started => Err(Errno::SRCH),
            _ => Ok(pidfd),
        }
    }

    /// Returns whether the process has ended completely, or `None` if this process cannot see that.
    fn has_ended(&self, namespace: u32) -> Option<bool> {
        match self.pidfd(namespace) {
            Ok(pidfd) => {
                let mut descriptors = [PollFd::new(&pidfd, PollFlags::IN)];
                Some(poll(&mut descriptors, Some(&Timespec::default())) != Ok(0))
            }
            Err(Errno::SRCH) => Some(true),
            Err(_) => None,
        }
    }
}

/// Returns the value of a settled word for an item. Not 0, which stands for no item.
fn settled_word(number: u64, has_failed: bool) -> u64 {
    const NUMBER_BITS: u32 = 48;
    ((number & ((1 << NUMBER_BITS) - 1)) + 1) << 1 | u64::from(has_failed)
}

/// Returns the byte that the process with this number locks.
fn lock_of(owner: u16) -> u64 {
    LOCKS_AT + u64::from(owner)
}

/// Returns the identity of this process's PID namespace, or 0 if it is not known.
fn pid_namespace() -> u32 {
    stat("/proc/self/ns/pid").map_or(0, |status| status.st_ino as u32)
}

/// The view of a process that has just taken a number: members with this number are dead.
struct Former(u16);

impl Peers for Former {
    fn is_dead(&self, owner: u16) -> bool {
        owner == self.0
    }
}

/// The only opening of a channel in a process whose liveness locks belong to the process as a
/// whole. Closing a second one would drop the locks of the first.
struct SoleOpening((u64, u64));

static OPENINGS: PerProcess<Mutex<BTreeSet<(u64, u64)>>> = PerProcess::new(Mutex::default);

impl SoleOpening {
    fn begin(file: &OwnedFd) -> Result<Self> {
        let status = fstat(file).map_err(Error::os("looking at a channel"))?;
        let id = (status.st_dev, status.st_ino);
        match OPENINGS.lock().insert(id) {
            true => Ok(Self(id)),
            false => Err(Error::Unsupported(
                "this process already has the channel open, and the system lacks close_range, \
                 without which a process can open a channel only once"
                    .into(),
            )),
        }
    }
}

impl Drop for SoleOpening {
    fn drop(&mut self) {
        OPENINGS.lock().remove(&self.0);
    }
}

struct PeerWatch {
    identity: OwnerIdentity,
    _watch: Watch,
}

/// The process of a member. Only the exchange thread keeps it.
struct WatchedPeer {
    pidfd: OwnedFd,
    control: Weak<ChannelControl>,
}

impl Source for WatchedPeer {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The end of the process arrives as a message.
    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, _: Registration) -> Next {
        if let Some(control) = self.control.upgrade() {
            control.words.remove_dead(&Living(&control));
            // Another survivor may have ended the dead process's memberships before.
            control.report_departure();
        }
        Next::Forget
    }
}

/// The view of a process that looks which members are alive.
struct Living<'a>(&'a ChannelControl);

impl Peers for Living<'_> {
    fn is_dead(&self, owner: u16) -> bool {
        self.0.is_dead(owner)
    }
}

impl ChannelControl {
    /// Ends the memberships of dead processes, and reports them.
    pub fn remove_dead(&self) {
        if self.words.remove_dead(&Living(self)) {
            self.report_departure();
        }
    }

    fn report_departure(&self) {
        if let Some(departed) = self.departed.get() {
            departed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_events::channel::{Delivery, WhenFull};
    use std::fs::File;
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, ChildStdout, Command, Stdio};
    use std::sync::mpsc;

    struct Alone;

    impl Peers for Alone {
        fn is_dead(&self, _: u16) -> bool {
            false
        }
    }

    /// The words of the ring have only 23 bits of a number.
    #[test]
    fn consumers_that_are_far_behind_receive_the_oldest_item() {
        const DEPTH: u32 = 4;
        // After the last of these items, the next word of the second consumer looks as if no item
        // had been published since it joined.
        const STEPS: [u64; 2] = [(1 << 22) + 100, 1 << 23];
        let (delivery, when_full) = (Delivery::Broadcast, WhenFull::DropOldest);
        let shape = Shape::new(delivery, when_full, DEPTH, (1, 1), (2, 1)).expect("valid");
        let words = |number: usize| Vec::from_iter((0..number).map(|_| AtomicU64::new(0)));
        let (ring, slots) = (words(DEPTH as usize), words(shape.slots().into()));
        let (head, producers, consumers) = (
            Head::default(),
            [Member::default()],
            [Member::default(), Member::default()],
        );
        let channel = Channel::<Os>::new(shape, &head, &ring, &slots, &producers, &consumers);
        let channel = channel.expect("the parts match the shape");
        channel.initialise();
        let mut producer = channel.join_producer(1, &Alone).expect("a place");
        let consumers = [(); 2].map(|()| channel.join_consumer(2, &Alone).expect("a place"));
        let mut published = 0;
        for (items, mut consumer) in STEPS.into_iter().zip(consumers) {
            while published < items {
                let slot = channel.reserve(&mut producer, &Alone).expect("a slot");
                let number = channel.publish(&mut producer, slot, &Alone, None);
                published = number.expect("never full") + 1;
            }
            let item = channel.receive(&mut consumer, &Alone, None);
            assert_eq!(item.expect("an item").number(), items - u64::from(DEPTH));
            assert_eq!(consumer.lost(), items - u64::from(DEPTH));
        }
    }

    /// The variable with the path of the file for a second process of a test.
    const FILE: &str = "CROSSHANDLE_TEST_CHANNEL";

    fn small() -> Shape {
        let (delivery, when_full) = (Delivery::Queue, WhenFull::Wait);
        Shape::new(delivery, when_full, 1, (1, 1), (1, 1)).expect("valid")
    }

    /// A second process that has joined a channel as a producer.
    struct Second {
        child: Child,
        output: BufReader<ChildStdout>,
    }

    impl Second {
        /// Runs the test again. In the second process this function does not return: the process
        /// joins, and replaces itself by `cat`, which keeps its process id but not its lock.
        fn start(test: &str, file: &OwnedFd) -> Self {
            let path = format!("/proc/{}/fd/{}", process::pid(), file.as_raw_fd());
            let mut child = Command::new(std::env::current_exe().expect("a path"))
                .args(["--exact", "--nocapture", &format!("channel::tests::{test}")])
                .env(FILE, path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a second process");
            let output = BufReader::new(child.stdout.take().expect("piped"));
            Self { child, output }
        }

        fn run_if_second() {
            let Some(path) = std::env::var_os(FILE) else {
                return;
            };
            let file = File::options().read(true).write(true).open(path);
            let file = Arc::new(OwnedFd::from(file.expect("a file")));
            let control = ChannelControl::open(file, small(), true).expect("opened");
            // It is killed before it writes its card.
            let joined = control.words().join_producer(control.owner(), &Alone);
            drop(joined.expect("a place"));
            println!("owner={}", control.owner());
            let error = Command::new("cat").exec();
            panic!("{error}");
        }

        /// Returns the owner number, after the process has lost its lock.
        fn owner(&mut self) -> u16 {
            let mut line = String::new();
            let owner = loop {
                line.clear();
                assert!(self.output.read_line(&mut line).expect("a line") > 0);
                if let Some((_, owner)) = line.trim().rsplit_once("owner=") {
                    break owner.parse().expect("a number");
                }
            };
            // The answer shows that the process has replaced itself.
            let input = self.child.stdin.as_mut().expect("piped");
            input.write_all(b"ping\n").expect("written");
            line.clear();
            self.output.read_line(&mut line).expect("a line");
            assert_eq!(line, "ping\n");
            owner
        }
    }

    impl Drop for Second {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn file() -> Arc<OwnedFd> {
        let len = ChannelControl::len_of(&small()) as u64;
        Arc::new(memfd::create("test", len).expect("a file"))
    }

    /// A process loses its lock before the kernel has released its device.
    #[test]
    fn an_opening_takes_no_number_of_a_process_that_still_exists() {
        Second::run_if_second();
        let file = file();
        let first = ChannelControl::create(Arc::clone(&file), small(), true).expect("created");
        let test = "an_opening_takes_no_number_of_a_process_that_still_exists";
        let mut second = Second::start(test, &file);
        let owner = second.owner();
        assert!(!lock::is_held(file.as_fd(), lock_of(owner)).expect("an answer"));
        let open = || ChannelControl::open(Arc::clone(&file), small(), true).expect("opened");
        assert_ne!(open().owner(), owner);
        assert!(!first.is_dead(owner));
        let members = || first.words().living_producers().count();
        assert_eq!(members(), 1);
        // It is treated as dead after some time if its end cannot be watched.
        let process = &first.owners[usize::from(owner) - 1];
        let identity = process.load().expect("an identity");
        process.store(&OwnerIdentity {
            namespace: identity.namespace ^ 1,
            ..identity
        });
        assert_ne!(open().owner(), owner);
        assert!(!first.is_dead(owner));
        let noticed = Instant::now();
        while !first.is_dead(owner) {
            assert!(noticed.elapsed() < 10 * UNSEEN_EXIT, "it lives for ever");
            std::thread::yield_now();
        }
        process.store(&identity);
        assert!(!first.is_dead(owner));
        drop(second);
        assert!(first.is_dead(owner));
        let next = open();
        assert_eq!((next.owner(), members()), (owner, 0));
    }

    #[test]
    fn the_death_of_a_member_without_a_card_is_noticed() {
        Second::run_if_second();
        let file = file();
        let first = ChannelControl::create(Arc::clone(&file), small(), false).expect("created");
        let mut second = Second::start("the_death_of_a_member_without_a_card_is_noticed", &file);
        second.owner();
        let (departed, has_departed) = mpsc::channel();
        first.on_departure(Box::new(move || {
            let _ = departed.send(());
        }));
        first.watch_peers();
        assert!(first.watch_peers(), "the member is not watched");
        drop(second);
        let limit = Duration::from_secs(30);
        has_departed
            .recv_timeout(limit)
            .expect("the end is noticed");
        assert_eq!(first.words().living_producers().count(), 0);
    }

    /// The results of commands are known only for the latest item in a slot.
    #[test]
    fn a_late_result_is_not_that_of_a_later_item() {
        let control = ChannelControl::create(file(), small(), false).expect("created");
        let words = control.words();
        let mut producer = words
            .join_producer(control.owner(), &Alone)
            .expect("a place");
        let mut consumer = words
            .join_consumer(control.owner(), &Alone)
            .expect("a place");
        let mut latest = [None; 8];
        for _ in 0..8 {
            let slot = words.reserve(&mut producer, &Alone).expect("a slot");
            let number = words
                .publish(&mut producer, slot, &Alone, None)
                .expect("room");
            let received = words.receive(&mut consumer, &Alone, None).expect("an item");
            words.release(&mut consumer, received);
            let place = &mut latest[usize::from(slot)];
            assert_eq!(control.settled(slot, number), None);
            if let Some(earlier) = place.replace(number) {
                control.settle(slot, earlier, true);
                assert_eq!(control.settled(slot, number), None);
            }
            control.settle(slot, number, number.is_multiple_of(2));
            assert_eq!(
                control.settled(slot, number),
                Some(number.is_multiple_of(2))
            );
        }
    }
}
