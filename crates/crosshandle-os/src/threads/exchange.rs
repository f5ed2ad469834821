//! The exchange thread, which waits on an epoll instance. A process has one.
//!
//! It calls [`Source::ready`] when a peer has sent a message or hung up. It never blocks and never
//! calls a driver. Work that might do either is handed to the background service.

use super::ThreadKind;
use super::background::contain;
use super::driver_jobs;
use super::round_robin::RoundRobin;
use super::tuning::{EPOLL_EVENTS, MAX_TURNS, REMEMBERED_PEERS, SOURCE_REST, TURNS_TIME};
use crate::fork::{Birth, KeptFromChildren, PerProcess};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{HashMap, Mutex};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

/// A descriptor that the exchange thread watches.
pub trait Source: Send + Sync {
    /// Returns the descriptor to watch. It must not change during the source's life.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns whether the thread watches for messages, or only for the hang-up.
    fn wants_messages(&self) -> bool;

    /// Returns the process whose messages the source receives, if there is one alone. If many
    /// sources are ready at the same time, users take turns, and so do the processes of a user.
    fn peer(&self) -> Option<Peer> {
        None
    }

    /// Returns whether the peer must first read messages that it was sent, before the source is
    /// called for the peer's next message. A hang-up does not wait for that.
    fn must_read_first(&self) -> bool {
        false
    }

    /// Handles the peer's hang-up. By default, a hang-up is handled like a message.
    fn hung_up(&self, registration: Registration) -> Next {
        self.ready(registration)
    }

    /// Handles one message. Called on the exchange thread, so it must not block or
    /// call a driver.
    fn ready(&self, registration: Registration) -> Next;

    /// Returns the time at which to call [`late`](Self::late), if any. The exchange thread asks for
    /// it after each call of the other two functions, so they can change the time.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Handles the expiry of the source's [`deadline`](Self::deadline). Called on the exchange
    /// thread, even while the source rests, so it must not block or call a driver.
    fn late(&self) {}
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Peer {
    pub uid: u32,
    /// The process id, in this process's PID namespace. 0 if the process has no id there.
    pub pid: u32,
}

/// What the exchange thread does with a source after a call of [`Source::ready`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Calls the source again when there is another message.
    Continue,
    /// Calls the source again for messages after [`SOURCE_REST`], so that a persistent problem does
    /// not keep the thread busy.
    Rest,
    /// Stops watching the source.
    Forget,
}

/// A source's registration with the exchange thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration(u64);

impl Registration {
    /// A registration that belongs to no source.
    pub const NONE: Self = Self(u64::MAX);

    /// Stops reading messages of the source until the result is dropped. A hang-up is still
    /// noticed.
    pub fn pause(self) -> Paused {
        if let Some(exchange) = EXCHANGE.get() {
            exchange.set_interest(self.0, false);
        }
        Paused(self.0, Birth::here())
    }
}

/// A source whose messages are not read until this value is dropped.
pub struct Paused(u64, Birth);

impl Drop for Paused {
    fn drop(&mut self) {
        if !self.1.is_inherited()
            && let Some(exchange) = EXCHANGE.get()
        {
            exchange.set_interest(self.0, true);
        }
    }
}

/// A source that is watched until this value is dropped.
pub struct Watch(u64, Birth);

impl Drop for Watch {
    fn drop(&mut self) {
        // In a forked child, the number may belong to another source.
        if !self.1.is_inherited()
            && let Some(exchange) = EXCHANGE.get()
        {
            exchange.forget(self.0);
        }
    }
}

/// Watches a source, and starts the exchange thread if it does not run yet.
///
/// # Errors
/// [`Error::LimitReached`] if the system has no thread or descriptor left.
pub fn watch(source: Arc<dyn Source>) -> Result<Watch> {
    Exchange::get()?.add(source)
}

/// A source, and the party that takes its turns.
struct Watched {
    source: Arc<dyn Source>,
    party: Party,
    /// Whether the thread waits until the peer has read something, instead of for messages.
    awaits_reading: bool,
}

/// A source that is called when its turn comes.
#[derive(Clone, Copy)]
struct Turn {
    number: u64,
    party: Party,
    has_hung_up: bool,
}

/// A party that takes turns on the exchange thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Party {
    /// A source that belongs to no peer, for example a listener, by its number.
    Own(u64),
    Peer(Peer),
}

impl Party {
    /// Returns the user that shares its turns with the party. All sources without a peer share
    /// theirs.
    fn user(self) -> Option<u32> {
        match self {
            Self::Own(_) => None,
            Self::Peer(Peer { uid, .. }) => Some(uid),
        }
    }
}

/// Sources that are ready but had no turn yet, and whether their peers have hung up.
type Left = BTreeMap<u64, bool>;

/// The order of turns on the exchange thread.
type Order = RoundRobin<Option<u32>, Party>;

struct Exchange {
    epoll: KeptFromChildren,
    sources: Mutex<HashMap<u64, Watched>>,
    next: AtomicU64,
}

static EXCHANGE: PerProcess<OnceLock<Exchange>> = PerProcess::new(OnceLock::new);
/// Held while the thread is started, so that only one thread starts, and a failed start can be
/// retried.
static STARTING: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

impl Exchange {
    fn get() -> Result<&'static Self> {
        if let Some(exchange) = EXCHANGE.get() {
            return Ok(exchange);
        }
        let _starting = STARTING.lock();
        match EXCHANGE.get() {
            Some(exchange) => Ok(exchange),
            None => Self::start(),
        }
    }

    fn start() -> Result<&'static Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Error::os("creating the exchange's epoll"))?;
        let epoll = KeptFromChildren::new(epoll);
        ThreadKind::Exchange.start(|| EXCHANGE.wait().run())?;
        // The `STARTING` lock prevents other threads from setting the value.
        Ok(EXCHANGE.get_or_init(|| Self {
            epoll,
            sources: Mutex::default(),
            next: AtomicU64::new(0),
        }))
    }

    fn add(&self, source: Arc<dyn Source>) -> Result<Watch> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Adds the descriptor under the lock, so that the thread finds the source even if an epoll
        // event arrives at once.
        let mut sources = self.sources.lock();
        let (data, flags) = (EventData::new_u64(number), interest(&*source, true));
        epoll::add(&self.epoll, source.descriptor(), data, flags)
            .map_err(Error::os("watching a connection"))?;
        let party = source.peer().map_or(Party::Own(number), Party::Peer);
        let awaits_reading = false;
        let watched = Watched {
            source,
            party,
            awaits_reading,
        };
        sources.insert(number, watched);
        Ok(Watch(number, Birth::here()))
    }

    fn forget(&self, number: u64) {
        let mut sources = self.sources.lock();
        let source = sources.remove(&number);
        if let Some(Watched { source, .. }) = &source {
            let _ = epoll::delete(&self.epoll, source.descriptor());
        }
        // Drops the source after releasing the lock, because its drop may forget other sources.
        drop(sources);
    }

    fn set_interest(&self, number: u64, messages: bool) {
        let sources = self.sources.lock();
        if let Some(Watched { source, .. }) = sources.get(&number) {
            let (data, flags) = (EventData::new_u64(number), interest(&**source, messages));
            // Fails only if the program has closed the descriptor.
            let _ = epoll::modify(&self.epoll, source.descriptor(), data, flags);
        }
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(EPOLL_EVENTS);
        let mut timers = Timers::default();
        let mut order = Order::new(REMEMBERED_PEERS);
        let mut left = Left::new();
        let mut has_failed = false;
        loop {
            let now = Instant::now();
            while let Some(number) = timers.take_late(now) {
                // A source may drop the last reference to a driver's object, as below.
                let _announced = driver_jobs::announce();
                self.call_late(number, &mut timers);
            }
            // Ends the rest of sources, also if others are ready.
            let next = timers.next(now);
            let timeout = match left.is_empty() {
                true => next,
                false => Some(Timespec::default()),
            };
            events.clear();
            // The kernel must report all sources that are ready, since a peer with many connections
            // would otherwise come before others.
            events.reserve(self.sources.lock().len());
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // The program has closed the epoll instance.
                Err(error) => {
                    if !has_failed {
                        tracing::error!(%error, "the exchange thread cannot wait");
                    }
                    has_failed = true;
                    thread::sleep(SOURCE_REST);
                }
            }
            if !events.is_empty() || !left.is_empty() {
                // A source may drop the last reference to a driver's object, and hand this drop to
                // a background thread.
                let _announced = driver_jobs::announce();
                let began = Instant::now();
                for turn in self.turns(&events, &mut left, &order) {
                    left.remove(&turn.number);
                    order.note(turn.party.user(), turn.party);
                    self.attend(turn, &mut timers);
                    // The kernel reports the other sources again, together with new ones.
                    if began.elapsed() > TURNS_TIME {
                        break;
                    }
                }
            }
        }
    }

    /// Returns the sources to call before the thread waits again, in their order. Adds sources to
    /// `left` that are ready and that the kernel reports only once.
    fn turns(
        &self,
        events: &[epoll::Event],
        left: &mut Left,
        order: &Order,
    ) -> SmallVec<[Turn; MAX_TURNS]> {
        let sources = self.sources.lock();
        let mut ready = left.clone();
        for event in events {
            let (number, flags) = (event.data.u64(), event.flags);
            let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            *ready.entry(number).or_default() |= flags.intersects(ends);
        }
        left.clear();
        let mut requests = SmallVec::<[_; EPOLL_EVENTS]>::new();
        for (number, has_hung_up) in &ready {
            let Some(watched) = sources.get(number) else {
                continue;
            };
            requests.push((watched.party.user(), watched.party, *number));
            if watched.awaits_reading {
                left.insert(*number, *has_hung_up);
            }
        }
        let turn = |number: u64| {
            Some(Turn {
                number,
                party: sources.get(&number)?.party,
                has_hung_up: *ready.get(&number)?,
            })
        };
        let numbers = order.order(requests.into_iter(), MAX_TURNS).into_iter();
        numbers.filter_map(turn).collect()
    }

    fn attend(&self, turn: Turn, timers: &mut Timers) {
        let Turn {
            number,
            has_hung_up,
            ..
        } = turn;
        let Some(source) = self.source(number) else {
            return;
        };
        let must_read = !has_hung_up && source.must_read_first();
        self.await_reading(number, must_read);
        if must_read {
            return;
        }
        let registration = Registration(number);
        let attended = Arc::clone(&source);
        // A panic ends only the source that caused it, not the thread that serves all sources.
        let called = contain(move || match has_hung_up {
            true => source.hung_up(registration),
            false => source.ready(registration),
        });
        match called {
            Some(Next::Continue) => {}
            Some(Next::Rest) => timers.rest(registration.pause()),
            Some(Next::Forget) | None => {
                timers.set_deadline(number, None);
                return self.forget(number);
            }
        }
        timers.set_deadline(number, attended.deadline());
    }

    /// Watches a source for its peer's reading of sent messages, or again for messages.
    fn await_reading(&self, number: u64, awaits: bool) {
        let mut sources = self.sources.lock();
        let Some(watched) = sources.get_mut(&number) else {
            return;
        };
        if watched.awaits_reading == awaits {
            return;
        }
        watched.awaits_reading = awaits;
        let flags = match awaits {
            // Reported once after each message that the peer reads.
            true => EventFlags::RDHUP | EventFlags::OUT | EventFlags::ET,
            false => interest(&*watched.source, true),
        };
        let data = EventData::new_u64(number);
        let _ = epoll::modify(&self.epoll, watched.source.descriptor(), data, flags);
    }

    fn source(&self, number: u64) -> Option<Arc<dyn Source>> {
        let sources = self.sources.lock();
        Some(Arc::clone(&sources.get(&number)?.source))
    }

    /// Calls a source whose deadline has passed.
    fn call_late(&self, number: u64, timers: &mut Timers) {
        let Some(source) = self.source(number) else {
            return;
        };
        let called = Arc::clone(&source);
        match contain(move || called.late()) {
            Some(()) => timers.set_deadline(number, source.deadline()),
            None => self.forget(number),
        }
    }
}

/// Returns the epoll events to watch a source for, in addition to errors.
fn interest(source: &dyn Source, messages: bool) -> EventFlags {
    match messages && source.wants_messages() {
        true => EventFlags::RDHUP | EventFlags::IN,
        false => EventFlags::RDHUP,
    }
}

/// The sources that rest, and the deadlines of sources.
#[derive(Default)]
struct Timers {
    /// Resting sources with the end of their rest, in ascending order of time.
    resting: VecDeque<(Instant, Paused)>,
    /// The deadlines of sources. There are only few at a time.
    deadlines: Vec<(u64, Instant)>,
}

impl Timers {
    fn rest(&mut self, source: Paused) {
        self.resting
            .push_back((Instant::now() + SOURCE_REST, source));
    }

    fn set_deadline(&mut self, source: u64, deadline: Option<Instant>) {
        self.deadlines.retain(|(other, _)| *other != source);
        self.deadlines.extend(deadline.map(|end| (source, end)));
    }

    /// Takes out a source whose deadline has passed.
    fn take_late(&mut self, now: Instant) -> Option<u64> {
        let place = self.deadlines.iter().position(|(_, end)| *end <= now)?;
        Some(self.deadlines.swap_remove(place).0)
    }

    /// Resumes the sources whose rest is over. Returns the time until the next rest or deadline
    /// ends.
    fn next(&mut self, now: Instant) -> Option<Timespec> {
        while self.resting.front().is_some_and(|(end, _)| *end <= now) {
            self.resting.pop_front();
        }
        let resting = self.resting.front().map(|(end, _)| *end);
        let late = self.deadlines.iter().map(|(_, end)| *end).min();
        let next = [resting, late].into_iter().flatten().min()?;
        next.saturating_duration_since(now).try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn pair() -> (OwnedFd, OwnedFd) {
        socket::pair().expect("two descriptors")
    }

    struct Resting(OwnedFd, Sender<Instant>);

    impl Source for Resting {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn wants_messages(&self) -> bool {
            true
        }

        fn ready(&self, _: Registration) -> Next {
            let _ = self.1.send(Instant::now());
            Next::Rest
        }
    }

    #[test]
    fn a_source_that_rests_is_called_again_later() {
        let (ours, theirs) = pair();
        let (called, calls) = channel();
        let _watch = watch(Arc::new(Resting(ours, called))).unwrap();
        rustix::io::write(&theirs, b"never read").unwrap();
        let first = calls.recv_timeout(DEADLINE).expect("it is called");
        let second = calls.recv_timeout(DEADLINE).expect("it is called again");
        assert!(second >= first + SOURCE_REST);
    }

    #[test]
    fn a_source_that_panics_is_forgotten_and_others_are_not() {
        struct Panicking(
            OwnedFd,
            #[expect(dead_code, reason = "its drop tells")] Sender<()>,
        );
        impl Source for Panicking {
            fn descriptor(&self) -> BorrowedFd<'_> {
                self.0.as_fd()
            }

            fn wants_messages(&self) -> bool {
                true
            }

            fn ready(&self, _: Registration) -> Next {
                panic!("on purpose")
            }
        }
        let (panicking, peer) = pair();
        let (kept, is_dropped) = channel();
        let _watch = watch(Arc::new(Panicking(panicking, kept))).unwrap();
        rustix::io::write(&peer, b"never read").unwrap();
        let dropped = is_dropped.recv_timeout(DEADLINE);
        assert_eq!(
            dropped,
            Err(RecvTimeoutError::Disconnected),
            "it is dropped"
        );
        let (other, peer) = pair();
        let (called, calls) = channel();
        let _watch = watch(Arc::new(Resting(other, called))).unwrap();
        rustix::io::write(&peer, b"never read").unwrap();
        calls.recv_timeout(DEADLINE).expect("others are called");
    }

    /// A source of a peer that sends its name when it is called, and then calls the function in
    /// `then`, if any. It leaves its messages unread if it asks again and again.
    struct Named {
        stream: OwnedFd,
        name: &'static str,
        peer: Option<Peer>,
        repeats: bool,
        called: Sender<&'static str>,
        then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl Source for Named {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }

        fn wants_messages(&self) -> bool {
            true
        }

        fn peer(&self) -> Option<Peer> {
            self.peer
        }

        fn ready(&self, _: Registration) -> Next {
            let _ = self.called.send(self.name);
            if let Some(then) = self.then.lock().take() {
                then();
            }
            if !self.repeats {
                let _ = rustix::io::read(&self.stream, &mut [0; 16]);
            }
            Next::Continue
        }
    }

    #[test]
    fn a_peer_with_many_connections_takes_one_turn_of_many() {
        /// More connections than the kernel reports in one call without further care.
        const CONNECTIONS: u32 = 3 * EPOLL_EVENTS as u32;
        let (called, calls) = channel();
        let (release, released) = channel::<()>();
        let mut peers = Vec::new();
        let mut source = |name, peer: Option<(u32, u32)>, repeats, then: Option<_>| {
            let (stream, end) = pair();
            peers.push(end);
            Arc::new(Named {
                stream,
                name,
                peer: peer.map(|(uid, pid)| Peer { uid, pid }),
                repeats,
                called: called.clone(),
                then: Mutex::new(then),
            })
        };
        // This source blocks the thread until all others have messages.
        let blocks: Box<dyn FnOnce() + Send> = Box::new(move || {
            let _ = released.recv();
        });
        let blocks = source("blocks", None, false, Some(blocks));
        // One process has many connections, and two have one connection each, which are always
        // ready.
        let mut all = vec![blocks];
        all.extend((0..CONNECTIONS).map(|_| source("flood", Some((1, 10)), true, None)));
        all.extend((0..2).map(|of| source("repeats", Some((1, 11 + of)), true, None)));
        let watches = all
            .into_iter()
            .map(|source| watch(source).expect("watched"));
        let watches: Vec<_> = watches.collect();
        // These two come last, as newcomers do.
        let late = [
            source("same user", Some((1, 20)), false, None),
            source("other user", Some((2, 30)), false, None),
        ];
        let late = late.map(|source| watch(source).expect("watched"));
        rustix::io::write(&peers[0], b"blocks").unwrap();
        assert_eq!(calls.recv_timeout(DEADLINE), Ok("blocks"));
        for peer in &peers[1..] {
            rustix::io::write(peer, b"ready").unwrap();
        }
        release.send(()).unwrap();
        let order: Vec<_> = (0..3 * MAX_TURNS)
            .map(|_| calls.recv_timeout(DEADLINE).expect("called"))
            .collect();
        drop((watches, late));
        let place = |name| order.iter().position(|of| *of == name);
        // Each user has a turn before any has a second one, and so has each process of a user.
        assert!(place("other user") <= Some(1), "{order:?}");
        assert!(
            place("same user").is_some_and(|place| place <= 8),
            "{order:?}"
        );
        let count = |name| order.iter().filter(|of| **of == name).count();
        // Both processes have a turn each time that the thread asks the kernel.
        assert!(count("repeats") >= 4, "{order:?}");
    }

    /// A source that replies to each message, unless too many replies are unread.
    struct Replying {
        stream: OwnedFd,
        calls: AtomicU64,
        hung_up: Sender<()>,
    }

    impl Replying {
        const REPLY: [u8; 4096] = [1; 4096];
        const MAX_UNREAD: usize = 16 << 10;
    }

    impl Source for Replying {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }

        fn wants_messages(&self) -> bool {
            true
        }

        fn must_read_first(&self) -> bool {
            socket::unread_bytes(&self.stream).expect("a socket") > Self::MAX_UNREAD
        }

        fn ready(&self, _: Registration) -> Next {
            rustix::io::read(&self.stream, &mut [0; 16]).expect("a message");
            self.calls.fetch_add(1, Ordering::Relaxed);
            socket::send(&self.stream, &Self::REPLY, &[]).expect("there is room");
            Next::Continue
        }

        fn hung_up(&self, _: Registration) -> Next {
            let _ = self.hung_up.send(());
            Next::Forget
        }
    }

    #[test]
    fn who_does_not_read_gets_no_turn_until_it_reads() {
        const MESSAGES: u64 = 100;
        let (ours, theirs) = pair();
        let (hung_up, has_hung_up) = channel();
        let source = Arc::new(Replying {
            stream: ours,
            calls: AtomicU64::new(0),
            hung_up,
        });
        let _watch = watch(Arc::<Replying>::clone(&source)).unwrap();
        // Another source shows that the thread has had time for all that is ready.
        let (other, ping) = pair();
        let (called, calls) = channel();
        let _other = watch(Arc::new(Named {
            stream: other,
            name: "other",
            peer: None,
            repeats: false,
            called,
            then: Mutex::default(),
        }));
        let pass_turns = || {
            for _ in 0..MESSAGES {
                rustix::io::write(&ping, b"ping").unwrap();
                calls.recv_timeout(DEADLINE).expect("others are called");
            }
        };
        for _ in 0..MESSAGES {
            rustix::io::write(&theirs, b"a message").unwrap();
        }
        pass_turns();
        let most = Replying::MAX_UNREAD / Replying::REPLY.len();
        let first = source.calls.load(Ordering::Relaxed);
        assert!((1..=most as u64 + 1).contains(&first), "{first} calls");
        // Each reply that is read makes room for another one.
        let mut buffer = [0; Replying::REPLY.len()];
        for _ in 0..MESSAGES {
            let readable = PollFd::new(&theirs, PollFlags::IN);
            let limit = Timespec::try_from(DEADLINE).expect("short");
            assert_eq!(poll(&mut [readable], Some(&limit)), Ok(1), "a reply");
            rustix::io::read(&theirs, &mut buffer).unwrap();
        }
        assert_eq!(source.calls.load(Ordering::Relaxed), MESSAGES);
        // A peer that does not read is still noticed when it ends.
        for _ in 0..MESSAGES {
            rustix::io::write(&theirs, b"a message").unwrap();
        }
        pass_turns();
        drop(theirs);
        assert_eq!(has_hung_up.recv_timeout(DEADLINE), Ok(()));
    }

    #[test]
    fn all_who_do_not_read_are_noticed_when_they_end_at_once() {
        let (hung_up, has_hung_up) = channel();
        let (ours, mut peers): (Vec<_>, Vec<_>) = (0..5 * MAX_TURNS).map(|_| pair()).unzip();
        let watches: Vec<_> = ours
            .into_iter()
            .map(|stream| {
                let calls = AtomicU64::new(0);
                let hung_up = hung_up.clone();
                let source = Arc::new(Replying {
                    stream,
                    calls,
                    hung_up,
                });
                watch(source).unwrap()
            })
            .collect();
        for peer in &peers {
            for _ in 0..10 {
                rustix::io::write(peer, b"a message").unwrap();
            }
        }
        // This source is always ready. Its calls show that the thread has had time to find out who
        // does not read.
        let (stream, peer) = pair();
        let (called, calls) = channel();
        let other = Arc::new(Named {
            stream,
            name: "other",
            peer: None,
            repeats: true,
            called,
            then: Mutex::default(),
        });
        let _other = watch(Arc::<Named>::clone(&other));
        rustix::io::write(&peer, b"ready").unwrap();
        for _ in 0..20 * peers.len() {
            calls.recv_timeout(DEADLINE).expect("it is called");
        }
        // It blocks the thread until all peers have ended.
        let (blocks, is_blocked) = channel();
        let (release, released) = channel::<()>();
        *other.then.lock() = Some(Box::new(move || {
            let _ = blocks.send(());
            let _ = released.recv();
        }));
        is_blocked.recv_timeout(DEADLINE).expect("it is called");
        peers.clear();
        release.send(()).unwrap();
        for _ in &watches {
            assert_eq!(has_hung_up.recv_timeout(DEADLINE), Ok(()));
        }
    }

    /// A source that sets a deadline at each message, and clears it when it is called late.
    struct Timed {
        stream: OwnedFd,
        deadline: Mutex<Option<Instant>>,
        rests: bool,
        called: Sender<Instant>,
        late: Sender<Instant>,
        panics: AtomicBool,
    }

    const LATE_AFTER: Duration = Duration::from_millis(100);

    impl Source for Timed {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }

        fn wants_messages(&self) -> bool {
            true
        }

        fn ready(&self, _: Registration) -> Next {
            if !self.rests {
                let _ = rustix::io::read(&self.stream, &mut [0; 16]);
            }
            let now = Instant::now();
            self.deadline.lock().get_or_insert(now + LATE_AFTER);
            let _ = self.called.send(now);
            match self.rests {
                true => Next::Rest,
                false => Next::Continue,
            }
        }

        fn deadline(&self) -> Option<Instant> {
            *self.deadline.lock()
        }

        fn late(&self) {
            *self.deadline.lock() = None;
            let _ = self.late.send(Instant::now());
            assert!(!self.panics.load(Ordering::Relaxed), "on purpose");
        }
    }

    #[test]
    fn a_source_is_told_of_its_deadline_also_while_it_rests() {
        for rests in [false, true] {
            let (ours, theirs) = pair();
            let (called, calls) = channel();
            let (late, is_late) = channel();
            let source = Arc::new(Timed {
                stream: ours,
                deadline: Mutex::default(),
                rests,
                called,
                late,
                panics: AtomicBool::new(false),
            });
            let _watch = watch(Arc::<Timed>::clone(&source)).unwrap();
            // No deadline is set before the first message.
            assert!(is_late.recv_timeout(2 * LATE_AFTER).is_err());
            rustix::io::write(&theirs, b"a message").unwrap();
            let first = calls.recv_timeout(DEADLINE).expect("it is called");
            let at = is_late.recv_timeout(DEADLINE).expect("it is late");
            assert!(at >= first + LATE_AFTER, "{:?}", at - first);
            if rests {
                continue;
            }
            // The source is called once for each deadline.
            assert!(is_late.recv_timeout(2 * LATE_AFTER).is_err());
            source.panics.store(true, Ordering::Relaxed);
            rustix::io::write(&theirs, b"a message").unwrap();
            is_late.recv_timeout(DEADLINE).expect("it is late again");
            // After the panic, the exchange thread drops the source.
            while Arc::strong_count(&source) > 1 {
                thread::yield_now();
            }
        }
    }
}
