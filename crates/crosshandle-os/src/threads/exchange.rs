//! The exchange thread, which waits on an epoll instance. A process has one.
//!
//! It calls [`Source::ready`] when a peer has sent a message or hung up. It never blocks and never
//! calls a driver. Work that might do either is handed to the background service.

use super::ThreadKind;
use super::background::contain;
use super::driver_jobs;
use super::tuning::{EPOLL_EVENTS, SOURCE_REST};
use crate::fork::{Birth, KeptFromChildren, PerProcess};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{HashMap, Mutex};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::collections::VecDeque;
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

    /// Returns whether the source is called before others that are ready at the same time.
    fn is_first(&self) -> bool {
        false
    }

    /// Handles one message or the hang-up. Called on the exchange thread, so it must not block or
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

/// Watches a source that already has a message. Another source calls this function on the exchange
/// thread. After that source's call, the exchange thread calls the new source before all others.
///
/// # Errors
/// See [`watch`].
pub fn watch_first(source: Arc<dyn Source>) -> Result<Watch> {
    let exchange = Exchange::get()?;
    let watch = exchange.add(source)?;
    exchange.due.lock().push_back(watch.0);
    Ok(watch)
}

/// The numbers of sources that are ready at the same time. Stored inline up to [`EPOLL_EVENTS`] of
/// them.
type Numbers = SmallVec<[u64; EPOLL_EVENTS]>;

struct Exchange {
    epoll: KeptFromChildren,
    sources: Mutex<HashMap<u64, Arc<dyn Source>>>,
    /// Sources to call before all others.
    due: Mutex<VecDeque<u64>>,
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
            due: Mutex::default(),
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
        sources.insert(number, source);
        Ok(Watch(number, Birth::here()))
    }

    fn forget(&self, number: u64) {
        let mut sources = self.sources.lock();
        let source = sources.remove(&number);
        if let Some(source) = &source {
            let _ = epoll::delete(&self.epoll, source.descriptor());
        }
        // Drops the source after releasing the lock, because its drop may forget other sources.
        drop(sources);
    }

    fn set_interest(&self, number: u64, messages: bool) {
        let sources = self.sources.lock();
        if let Some(source) = sources.get(&number) {
            let (data, flags) = (EventData::new_u64(number), interest(&**source, messages));
            // Fails only if the program has closed the descriptor.
            let _ = epoll::modify(&self.epoll, source.descriptor(), data, flags);
        }
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(EPOLL_EVENTS);
        let mut timers = Timers::default();
        let mut has_failed = false;
        loop {
            let now = Instant::now();
            while let Some(number) = timers.take_late(now) {
                // A source may drop the last reference to a driver's object, as below.
                let _announced = driver_jobs::announce();
                self.call_late(number, &mut timers);
            }
            let timeout = timers.next(now);
            events.clear();
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
            if !events.is_empty() {
                // A source may drop the last reference to a driver's object, and hand this drop to
                // a background thread.
                let _announced = driver_jobs::announce();
                let (first, others) = self.in_order(&events);
                for number in first.into_iter().chain(others) {
                    self.attend(number, &mut timers);
                    while let Some(number) = self.take_due() {
                        self.attend(number, &mut timers);
                    }
                }
            }
        }
    }

    /// Returns the sources of some epoll events, divided into those to call first and the others.
    fn in_order(&self, events: &[epoll::Event]) -> (Numbers, Numbers) {
        let numbers = events.iter().map(|event| event.data.u64());
        if events.len() == 1 {
            return (numbers.collect(), Numbers::new());
        }
        let sources = self.sources.lock();
        numbers.partition(|number| sources.get(number).is_some_and(|source| source.is_first()))
    }

    fn take_due(&self) -> Option<u64> {
        self.due.lock().pop_front()
    }

    fn attend(&self, number: u64, timers: &mut Timers) {
        let source = self.sources.lock().get(&number).cloned();
        let Some(source) = source else {
            return;
        };
        let registration = Registration(number);
        let attended = Arc::clone(&source);
        // A panic ends only the source that caused it, not the thread that serves all sources.
        match contain(move || source.ready(registration)) {
            Some(Next::Continue) => {}
            Some(Next::Rest) => timers.rest(registration.pause()),
            Some(Next::Forget) | None => {
                timers.set_deadline(number, None);
                return self.forget(number);
            }
        }
        timers.set_deadline(number, attended.deadline());
    }

    /// Calls a source whose deadline has passed.
    fn call_late(&self, number: u64, timers: &mut Timers) {
        let source = self.sources.lock().get(&number).cloned();
        let Some(source) = source else {
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

    /// A source that sends its name when it is called, and then calls the function in `then`, if
    /// any.
    struct Named {
        stream: OwnedFd,
        name: &'static str,
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

        fn is_first(&self) -> bool {
            self.name == "first"
        }

        fn ready(&self, _: Registration) -> Next {
            let _ = rustix::io::read(&self.stream, &mut [0; 16]);
            let _ = self.called.send(self.name);
            if let Some(then) = self.then.lock().take() {
                then();
            }
            Next::Continue
        }
    }

    #[test]
    fn sources_that_go_first_are_called_first_and_new_ones_at_once() {
        let (called, calls) = channel();
        let (release, released) = channel::<()>();
        let mut peers = Vec::new();
        let mut source = |name, then: Option<Box<dyn FnOnce() + Send>>| {
            let (stream, peer) = pair();
            peers.push(peer);
            Arc::new(Named {
                stream,
                name,
                called: called.clone(),
                then: Mutex::new(then),
            })
        };
        // This source blocks the thread until all others have messages.
        let blocks = source(
            "blocks",
            Some(Box::new(move || {
                let _ = released.recv();
            })),
        );
        let newcomer = source("newcomer", None);
        let brings = source(
            "brings",
            Some(Box::new(move || {
                let watch = watch_first(newcomer).expect("watched");
                std::mem::forget(watch);
            })),
        );
        let (last, first) = (source("last", None), source("first", None));
        let _watches = [blocks, brings, last, first].map(|source| watch(source).expect("watched"));
        rustix::io::write(&peers[0], b"blocks").unwrap();
        assert_eq!(calls.recv_timeout(DEADLINE), Ok("blocks"));
        for peer in &peers[1..] {
            rustix::io::write(peer, b"ready").unwrap();
        }
        release.send(()).unwrap();
        let order: Vec<_> = (0..4)
            .map(|_| calls.recv_timeout(DEADLINE).expect("called"))
            .collect();
        assert_eq!(order, ["first", "brings", "newcomer", "last"]);
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
