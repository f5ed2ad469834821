//! The words of a channel in shared memory, and the processes that use them.
//!
//! All words are in one file, which every process of the channel has for reading and writing. A
//! process takes a number in the channel, its *owner number*, by a liveness lock on a byte of the
//! file. The lock shows that the process is alive, so a channel needs no other process to detect
//! deaths, and outlives its creator.
//!
//! Each member has a *card* in the file. It contains the process id, by which other processes watch
//! the member's process, and bytes that the layer above defines.

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

/// The byte of the first liveness lock, far beyond the end of the file.
const LOCKS_AT: u64 = 1 << 40;
/// Maximum number of openings of a channel at the same time.
const MAX_OWNERS: u16 = 1024;
/// Number of 64-bit words that a card has for the layer above.
pub const CARD_WORDS: usize = 32;

/// The two roles of members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ChannelRole {
    Producer,
    Consumer,
}

/// What other processes need to know about a member.
#[repr(C, align(64))]
struct Card {
    /// Generation of the member that wrote the card, with [`COMPLETE`], or 0 while it is written
    /// for the first time.
    stamp: AtomicU64,
    pid: AtomicU64,
    /// The PID namespace of `pid`, as an inode number.
    namespace: AtomicU64,
    words: [AtomicU64; CARD_WORDS],
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
    owner: u16,
    namespace: u64,
    /// Whether a process is treated as dead only after the kernel has released its resources, such
    /// as its access to a device.
    awaits_exit: bool,
    watches: Mutex<BTreeMap<(ChannelRole, u8), PeerWatch>>,
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
        let (head, armed, ring, slots, producers, consumers, producer_cards, consumer_cards) = unsafe {
            (
                mapping.start().cast::<Head<Os>>().as_ref(),
                part::<Armed>(&mapping, layout.armed, 1).first(),
                part::<AtomicU64>(&mapping, layout.ring, shape.depth() as usize),
                part::<AtomicU64>(&mapping, layout.slots, shape.slots().into()),
                part::<Member<Os>>(&mapping, layout.producers, shape.producers().into()),
                part::<Member<Os>>(&mapping, layout.consumers, shape.consumers().into()),
                part::<Card>(&mapping, layout.producer_cards, shape.producers().into()),
                part::<Card>(&mapping, layout.consumer_cards, shape.consumers().into()),
            )
        };
        let words = Channel::new(shape, head, ring, slots, producers, consumers)
            .expect("the parts match the shape");
        if is_new {
            words.initialise();
        }
        let locks = LivenessLocks::get()?;
        let sole = match locks.are_separate() {
            true => None,
            false => Some(SoleOpening::begin(&file)?),
        };
        let (owner, lock) = take_number(locks, file.as_fd())?;
        let control = Self {
            words,
            armed: armed.expect("one element"),
            producer_cards,
            consumer_cards,
            owner,
            namespace: pid_namespace(),
            awaits_exit,
            watches: Mutex::default(),
            departed: OnceLock::new(),
            name: OnceLock::new(),
            _lock: lock,
            _sole: sole,
            file,
            _mapping: mapping,
        };
        // The previous process with this number is dead, because its lock was free.
        control.words.remove_dead(&Former(owner));
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
        !self.awaits_exit || !self.is_exiting(owner)
    }

    /// Returns whether a process that has lost its lock still exists, so that the kernel may not
    /// have released its access to a device yet.
    fn is_exiting(&self, owner: u16) -> bool {
        let members = [
            (ChannelRole::Producer, self.producer_cards.len()),
            (ChannelRole::Consumer, self.consumer_cards.len()),
        ];
        let mut keys = members.into_iter().flat_map(|(role, _)| {
            let keys = self.living(role);
            keys.map(move |key| (role, key))
        });
        keys.any(|(role, key)| {
            key.owner == owner
                && self.pidfd_of(role, key).is_some_and(|pidfd| {
                    let mut descriptors = [PollFd::new(&pidfd, PollFlags::IN)];
                    let now = Timespec {
                        tv_sec: 0,
                        tv_nsec: 0,
                    };
                    poll(&mut descriptors, Some(&now)) == Ok(0)
                })
        })
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
        card.pid.store(process::pid().into(), Ordering::Relaxed);
        card.namespace.store(self.namespace, Ordering::Relaxed);
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

    fn pidfd_of(&self, role: ChannelRole, key: MemberKey) -> Option<OwnedFd> {
        let card = self.card(role, key.index)?;
        let stamp = u64::from(key.generation) | COMPLETE;
        // A process id of another namespace stands for another process here.
        let is_known = card.stamp.load(Ordering::SeqCst) == stamp
            && card.namespace.load(Ordering::SeqCst) == self.namespace;
        let pid = i32::try_from(card.pid.load(Ordering::SeqCst)).ok()?;
        let pid = Pid::from_raw(pid).filter(|_| is_known)?;
        pidfd_open(pid, PidfdFlags::empty()).ok()
    }

    /// Watches the processes of all other members, so that their deaths are noticed at once. Cheap
    /// if they are watched already. Returns `false` if some were not, because their processes may
    /// have ended before this call.
    pub fn watch_peers(self: &Arc<Self>) -> bool {
        let mut were_watched = true;
        let mut watches = self.watches.lock();
        for role in [ChannelRole::Producer, ChannelRole::Consumer] {
            for key in self.living(role) {
                let place = (role, key.index);
                let is_watched = watches
                    .get(&place)
                    .is_some_and(|watch| watch.generation == key.generation);
                if key.owner == self.owner || is_watched {
                    continue;
                }
                were_watched = false;
                let Some(pidfd) = self.pidfd_of(role, key) else {
                    continue;
                };
                let peer = WatchedPeer {
                    pidfd,
                    control: Arc::downgrade(self),
                };
                match exchange::watch(Arc::new(peer)) {
                    Ok(watch) => {
                        let watch = PeerWatch {
                            generation: key.generation,
                            _watch: watch,
                        };
                        watches.insert(place, watch);
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

/// Takes the first free number of a channel.
fn take_number(locks: &'static LivenessLocks, file: BorrowedFd<'_>) -> Result<(u16, LivenessLock)> {
    for owner in 1..=MAX_OWNERS {
        match locks.hold(file, lock_of(owner), LockKind::Exclusive) {
            Ok(held) => return Ok((owner, held)),
            Err(Errno::EXIST | Errno::AGAIN | Errno::ACCESS) => {}
            Err(errno) => return Err(Error::os("locking a place in a channel")(errno)),
        }
    }
    Err(Error::LimitReached {
        what: format!("the channel is open {MAX_OWNERS} times"),
        remedy: "close some of the openings".into(),
    })
}

/// Returns the byte that the process with this number locks.
fn lock_of(owner: u16) -> u64 {
    LOCKS_AT + u64::from(owner)
}

/// Returns the identity of this process's PID namespace, or 0 if it is not known.
fn pid_namespace() -> u64 {
    stat("/proc/self/ns/pid").map_or(0, |status| status.st_ino)
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
    generation: u32,
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

    struct Alone;

    impl Peers for Alone {
        fn is_dead(&self, _: u16) -> bool {
            false
        }
    }

    /// The words of the ring have only 23 bits of a number.
    #[test]
    fn a_consumer_that_is_far_behind_receives_the_oldest_item() {
        const DEPTH: u32 = 4;
        const ITEMS: u64 = (1 << 22) + 100;
        let (delivery, when_full) = (Delivery::Broadcast, WhenFull::DropOldest);
        let shape = Shape::new(delivery, when_full, DEPTH, (1, 1), (1, 1)).expect("valid");
        let words = |number: usize| Vec::from_iter((0..number).map(|_| AtomicU64::new(0)));
        let (ring, slots) = (words(DEPTH as usize), words(shape.slots().into()));
        let (head, producers, consumers) =
            (Head::default(), [Member::default()], [Member::default()]);
        let channel = Channel::<Os>::new(shape, &head, &ring, &slots, &producers, &consumers);
        let channel = channel.expect("the parts match the shape");
        channel.initialise();
        let mut producer = channel.join_producer(1, &Alone).expect("a place");
        let mut consumer = channel.join_consumer(2, &Alone).expect("a place");
        for _ in 0..ITEMS {
            let slot = channel.reserve(&mut producer, &Alone).expect("a slot");
            let published = channel.publish(&mut producer, slot, &Alone, None);
            published.expect("never full");
        }
        let item = channel.receive(&mut consumer, &Alone, None);
        assert_eq!(item.expect("an item").number(), ITEMS - u64::from(DEPTH));
        assert_eq!(consumer.lost(), ITEMS - u64::from(DEPTH));
    }
}
