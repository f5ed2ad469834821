//! The exchange thread: one for each process, at an epoll instance.
//!
//! It calls [`Source::ready`] when a peer has sent something or hung up. It never blocks and never
//! calls a driver: it hands work that might do either to the background service.

use super::ThreadKind;
use super::background::contain;
use super::driver_jobs;
use super::tuning::{EPOLL_EVENTS, SOURCE_REST};
use crate::error::{Error, Result};
use crate::os::process;
use crate::sync::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

/// A descriptor that the exchange thread attends to.
pub(crate) trait Source: Send + Sync {
    /// Returns the descriptor to watch: one and the same for the source's whole life.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns whether messages matter, or the hang-up alone.
    fn wants_messages(&self) -> bool;

    /// Handles one message or the hang-up. Called on the exchange thread; must not block or call a
    /// driver.
    fn ready(&self, registration: Registration) -> Next;
}

/// The next step of the exchange thread for a source, after [`Source::ready`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Calls the source again when there is more.
    Continue,
    /// Calls the source again for messages after [`SOURCE_REST`]: a trouble that lasts must not
    /// keep the thread busy.
    Rest,
    /// Forgets the source.
    Forget,
}

/// A source's registration with the exchange thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registration(u64);

impl Registration {
    /// Takes no messages of the source until the result is dropped. A hang-up is still noticed.
    pub(crate) fn pause(self) -> Paused {
        if let Some(exchange) = EXCHANGE.get() {
            exchange.set_interest(self.0, false);
        }
        Paused(self.0)
    }
}

/// A source whose messages wait until this is dropped.
pub(crate) struct Paused(u64);

impl Drop for Paused {
    fn drop(&mut self) {
        if let Some(exchange) = EXCHANGE.get() {
            exchange.set_interest(self.0, true);
        }
    }
}

/// A source that is watched until this is dropped.
pub(crate) struct Watch(u64);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(exchange) = EXCHANGE.get() {
            exchange.forget(self.0);
        }
    }
}

/// Watches a source, and starts the thread if it does not run yet.
///
/// # Errors
/// [`Error::LimitReached`] if the system has no thread or descriptor left.
pub(crate) fn watch(source: Arc<dyn Source>) -> Result<Watch> {
    Exchange::get()?.add(source)
}

struct Exchange {
    epoll: OwnedFd,
    sources: Mutex<HashMap<u64, Arc<dyn Source>>>,
    next: AtomicU64,
}

static EXCHANGE: OnceLock<Exchange> = OnceLock::new();
/// Held while the thread is started, so that it is started once, and again if that failed.
static STARTING: Mutex<()> = Mutex::new(());

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
        ThreadKind::Exchange.start(|| EXCHANGE.wait().run())?;
        // The starter's lock keeps other threads from setting it.
        Ok(EXCHANGE.get_or_init(|| Self {
            epoll,
            sources: Mutex::default(),
            next: AtomicU64::new(0),
        }))
    }

    fn add(&self, source: Arc<dyn Source>) -> Result<Watch> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Under the lock, so that the thread finds the source of an event that comes at once.
        let mut sources = self.sources.lock();
        let (data, flags) = (EventData::new_u64(number), interest(&*source, true));
        epoll::add(&self.epoll, source.descriptor(), data, flags)
            .map_err(Error::os("watching a connection"))?;
        sources.insert(number, source);
        Ok(Watch(number))
    }

    fn forget(&self, number: u64) {
        // The epoll instance is one and the same in a forked child.
        if process::is_forked() {
            return;
        }
        let mut sources = self.sources.lock();
        let source = sources.remove(&number);
        if let Some(source) = &source {
            let _ = epoll::delete(&self.epoll, source.descriptor());
        }
        // The source is dropped without the lock: its drop may forget others.
        drop(sources);
    }

    fn set_interest(&self, number: u64, messages: bool) {
        if process::is_forked() {
            return;
        }
        let sources = self.sources.lock();
        if let Some(source) = sources.get(&number) {
            let (data, flags) = (EventData::new_u64(number), interest(&**source, messages));
            // It fails only for a descriptor that the program has closed.
            let _ = epoll::modify(&self.epoll, source.descriptor(), data, flags);
        }
    }

    fn run(&self) {
        let mut events = Vec::with_capacity(EPOLL_EVENTS);
        let mut timers = Timers::default();
        let mut has_failed = false;
        loop {
            let timeout = timers.next(Instant::now());
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
                // A source may drop the last reference to a driver's object: it hands that drop on.
                let _announced = driver_jobs::announce();
                for event in &events {
                    self.attend(event.data.u64(), &mut timers);
                }
            }
        }
    }

    fn attend(&self, number: u64, timers: &mut Timers) {
        let source = self.sources.lock().get(&number).cloned();
        let Some(source) = source else {
            return;
        };
        let registration = Registration(number);
        // A panic costs one source, and not the thread that serves all.
        match contain(move || source.ready(registration)) {
            Some(Next::Continue) => {}
            Some(Next::Rest) => timers.rest(registration.pause()),
            Some(Next::Forget) | None => self.forget(number),
        }
    }
}

/// Returns the events to watch a source for, beside errors.
fn interest(source: &dyn Source, messages: bool) -> EventFlags {
    match messages && source.wants_messages() {
        true => EventFlags::RDHUP | EventFlags::IN,
        false => EventFlags::RDHUP,
    }
}

/// The duties of the exchange thread at certain times.
#[derive(Default)]
struct Timers {
    /// Sources that rest, and until when: the first one the shortest.
    resting: VecDeque<(Instant, Paused)>,
}

impl Timers {
    fn rest(&mut self, source: Paused) {
        self.resting
            .push_back((Instant::now() + SOURCE_REST, source));
    }

    /// Does the duties that are due, and returns the time until the next one.
    fn next(&mut self, now: Instant) -> Option<Timespec> {
        while self.resting.front().is_some_and(|(end, _)| *end <= now) {
            self.resting.pop_front();
        }
        let (next, _) = self.resting.front()?;
        next.saturating_duration_since(now).try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket;
    use std::os::fd::AsFd;
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
}
