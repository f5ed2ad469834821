//! The exchange thread, which waits on an epoll instance. A process has one.
//!
//! It calls [`Source::ready`] when a peer has sent a message or hung up. It never blocks and never
//! calls a driver. Work that might do either is handed to the background service.

mod timers;

use super::ThreadKind;
use super::background::contain;
use super::driver_jobs;
use super::round_robin::{Party, RoundRobin};
use super::tuning::{EPOLL_EVENTS, MAX_TURNS, SOURCE_REST};
use crate::fork::{Birth, KeptFromChildren, PerProcess};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::{HashMap, Mutex};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::mem::{self, MaybeUninit};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use timers::Timers;

/// Time after which the exchange thread asks the kernel again which sources are ready.
const TURNS_TIME: Duration = Duration::from_micros(250);

/// A descriptor that the exchange thread watches.
pub trait Source: Send + Sync {
    /// Returns the descriptor to watch. It must not change during the source's life.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns whether the thread watches for messages, or only for the hang-up.
    fn wants_messages(&self) -> bool;

    /// Returns the process whose messages the source receives, if there is one alone. If many
    /// sources are ready at the same time, users take turns, and so do the processes of a user and
    /// the sources of a process.
    fn peer(&self) -> Option<Party> {
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
    /// noticed. Only [`Source::ready`] may call it.
    pub fn pause(self) -> Paused {
        if let Some(exchange) = EXCHANGE.get() {
            let mut sources = exchange.sources.lock();
            // The source is armed at the end of its turn.
            if let Some(watched) = sources.get_mut(&self.0) {
                watched.is_paused = true;
            }
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
            exchange.arm(self.0, |watched| watched.is_paused = false);
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

/// A watched source.
struct Watched {
    source: Arc<dyn Source>,
    party: Party,
    is_paused: bool,
    /// Whether the kernel reports what the peer reads, instead of messages.
    awaits_reading: bool,
    /// Whether the source is in the queue of the exchange thread.
    is_queued: bool,
    /// Whether the kernel has reported a hang-up since the source's last turn.
    has_hung_up: bool,
}

impl Watched {
    /// Returns the epoll events to watch for, in addition to errors.
    fn flags(&self) -> EventFlags {
        match () {
            // Reported once after each message that the peer reads.
            () if self.awaits_reading => EventFlags::RDHUP | EventFlags::OUT | EventFlags::ET,
            () if self.is_paused || !self.source.wants_messages() => {
                EventFlags::RDHUP | EventFlags::ONESHOT
            }
            () => EventFlags::RDHUP | EventFlags::IN | EventFlags::ONESHOT,
        }
    }
}

/// A source that is called now.
struct Turn {
    number: u64,
    source: Arc<dyn Source>,
    awaits_reading: bool,
    has_hung_up: bool,
}

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
        let watched = Watched {
            party: source.peer().unwrap_or_else(|| Party::own(number)),
            source,
            is_paused: false,
            awaits_reading: false,
            is_queued: false,
            has_hung_up: false,
        };
        // Adds the descriptor under the lock, so that the thread finds the source even if an epoll
        // event arrives at once.
        let mut sources = self.sources.lock();
        let (data, flags) = (EventData::new_u64(number), watched.flags());
        epoll::add(&self.epoll, watched.source.descriptor(), data, flags)
            .map_err(Error::os("watching a connection"))?;
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

    /// Changes a source, and makes the kernel report the source's next event.
    fn arm(&self, number: u64, change: impl FnOnce(&mut Watched)) {
        if let Some(watched) = self.sources.lock().get_mut(&number) {
            change(watched);
            let (data, flags) = (EventData::new_u64(number), watched.flags());
            // Fails only if the program has closed the descriptor.
            let _ = epoll::modify(&self.epoll, watched.source.descriptor(), data, flags);
        }
    }

    fn run(&self) {
        let mut timers = Timers::default();
        let mut queue = RoundRobin::default();
        loop {
            let now = Instant::now();
            while let Some(number) = timers.take_late(now) {
                // A source may drop the last reference to a driver's object, as below.
                let _announced = driver_jobs::announce();
                self.call_late(number, &mut timers);
            }
            // Ends the rest of sources, also if others are ready.
            let next = timers.next(now);
            self.collect(next, &mut queue);
            if queue.is_empty() {
                continue;
            }
            // A source may drop the last reference to a driver's object, and hand this drop to a
            // background thread.
            let _announced = driver_jobs::announce();
            let began = Instant::now();
            for _ in 0..MAX_TURNS {
                let Some(turn) = self.next_turn(&mut queue) else {
                    break;
                };
                self.attend(turn, &mut timers);
                if began.elapsed() > TURNS_TIME {
                    break;
                }
            }
        }
    }

    /// Adds all sources that are ready to the queue. Waits for one if the queue is empty, until the
    /// time `next` has passed.
    fn collect(&self, next: Option<Timespec>, queue: &mut RoundRobin) {
        let mut events = [const { MaybeUninit::uninit() }; EPOLL_EVENTS];
        let mut timeout = match queue.is_empty() {
            true => next,
            false => Some(Timespec::default()),
        };
        // The kernel reports a source once until it is armed again, so this ends. A user with many
        // connections would come before others if some ready sources were left out.
        loop {
            let events = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => return,
                // The program has closed the epoll instance.
                Err(error) => {
                    static FIRST: Once = Once::new();
                    FIRST.call_once(|| tracing::error!(%error, "the exchange thread cannot wait"));
                    return thread::sleep(SOURCE_REST);
                }
            };
            let mut sources = self.sources.lock();
            for event in &*events {
                let (number, flags) = (event.data.u64(), event.flags);
                let Some(watched) = sources.get_mut(&number) else {
                    continue;
                };
                let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
                watched.has_hung_up |= flags.intersects(ends);
                if !mem::replace(&mut watched.is_queued, true) {
                    queue.push(watched.party, number);
                }
            }
            if events.len() < EPOLL_EVENTS {
                return;
            }
            timeout = Some(Timespec::default());
        }
    }

    /// Takes the next source out of the queue. Skips numbers of sources that were forgotten.
    fn next_turn(&self, queue: &mut RoundRobin) -> Option<Turn> {
        let mut sources = self.sources.lock();
        while let Some(number) = queue.pop() {
            if let Some(watched) = sources.get_mut(&number) {
                watched.is_queued = false;
                return Some(Turn {
                    number,
                    source: Arc::clone(&watched.source),
                    awaits_reading: watched.awaits_reading,
                    has_hung_up: mem::take(&mut watched.has_hung_up),
                });
            }
        }
        None
    }

    fn attend(&self, turn: Turn, timers: &mut Timers) {
        let Turn {
            number,
            source,
            awaits_reading,
            has_hung_up,
        } = turn;
        if !has_hung_up && source.must_read_first() {
            // If the source is armed for readings, it stays armed.
            if !awaits_reading {
                self.arm(number, |watched| watched.awaits_reading = true);
            }
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
        self.arm(number, |watched| watched.awaits_reading = false);
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

#[cfg(test)]
mod tests;
