//! One thread a process that serves importers and notices hang-ups.

use crate::error::{Error, Result};
use crate::os::process;
use rustix::event::epoll;
use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// How long to wait for the exchange thread: it doesn't block, but drivers may.
const SOON: Duration = Duration::from_secs(1);

/// Something with a descriptor to attend to.
pub(crate) trait Source: Send + Sync {
    /// What to watch. The same for the source's whole life.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether messages matter, or the hang-up alone.
    fn wants_messages(&self) -> bool;

    /// Called on the exchange thread when there is something. Must not block.
    fn ready(&self) -> Next;
}

/// What to do with a source after [`Source::ready`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Call again.
    KeepAlive,
    /// Forget it.
    Drop,
}

/// A source being watched; forgets it on drop.
pub(crate) struct Watch(u64);

impl Drop for Watch {
    fn drop(&mut self) {
        // The epoll instance is one and the same in a forked child.
        if process::is_forked() {
            return;
        }
        if let Some(reactor) = REACTOR.get() {
            reactor.forget(self.0);
        }
    }
}

struct Reactor {
    epoll: OwnedFd,
    sources: Mutex<HashMap<u64, Arc<dyn Source>>>,
    next: AtomicU64,
    turns: Mutex<Turns>,
    /// Notified at the end of a turn that somebody waits for.
    turned: Condvar,
}

/// What the thread does at once, after it has slept.
#[derive(Default)]
struct Turns {
    is_under_way: bool,
    count: u64,
    waiters: usize,
}

/// A turn until it is dropped, in whichever way.
struct Turn<'a>(&'a Reactor);

impl<'a> Turn<'a> {
    fn begin(reactor: &'a Reactor) -> Self {
        reactor.turns().is_under_way = true;
        Self(reactor)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.0.turns();
        turns.is_under_way = false;
        turns.count += 1;
        if turns.waiters > 0 {
            self.0.turned.notify_all();
        }
    }
}

thread_local! {
    /// Whether this is the exchange thread: asking for the current one fails late in a thread's life.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

static REACTOR: OnceLock<Reactor> = OnceLock::new();
/// Held while it is started, so that it is started once, and again if that failed.
static STARTING: Mutex<()> = Mutex::new(());

/// Watches a source, starting the thread if this is the first one.
pub(crate) fn watch(source: Arc<dyn Source>) -> Result<Watch> {
    if let Some(reactor) = REACTOR.get() {
        return reactor.add(source);
    }
    let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if REACTOR.get().is_none() {
        Reactor::start()?;
    }
    drop(starting);
    REACTOR.wait().add(source)
}

/// Waits for what the exchange thread is doing right now, a second at most: it may be letting go of
/// the last of something, in the driver, which a process should not end beside.
pub(crate) fn settle() {
    if process::is_forked() {
        return;
    }
    if let Some(reactor) = REACTOR.get() {
        reactor.settle();
    }
}

impl Reactor {
    fn start() -> Result<()> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Error::os("creating the exchange's epoll"))?;
        thread::Builder::new()
            .name("crosshandle".into())
            .spawn(|| REACTOR.wait().run())
            .map_err(|error| Error::LimitReached {
                what: format!("the exchange thread cannot be started: {error}"),
                remedy: "raise RLIMIT_NPROC (ulimit -u)".into(),
            })?;
        let reactor = Self {
            epoll,
            sources: Mutex::default(),
            next: AtomicU64::new(0),
            turns: Mutex::default(),
            turned: Condvar::new(),
        };
        // Nobody else starts one meanwhile.
        let _ = REACTOR.set(reactor);
        Ok(())
    }

    fn add(&self, source: Arc<dyn Source>) -> Result<Watch> {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        let mut flags = epoll::EventFlags::RDHUP;
        if source.wants_messages() {
            flags |= epoll::EventFlags::IN;
        }
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        epoll::add(
            &self.epoll,
            source.descriptor(),
            epoll::EventData::new_u64(token),
            flags,
        )
        .map_err(Error::os("watching a connection"))?;
        sources.insert(token, source);
        Ok(Watch(token))
    }

    fn forget(&self, token: u64) {
        let source = {
            let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
            let source = sources.remove(&token);
            if let Some(source) = &source {
                let _ = epoll::delete(&self.epoll, source.descriptor());
            }
            source
        };
        // Dropped here, without the lock: its drop may forget others.
        drop(source);
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self) {
        if IS_OWN.get() {
            return;
        }
        let mut turns = self.turns();
        let count = turns.count;
        let is_same = |turns: &mut Turns| turns.is_under_way && turns.count == count;
        if is_same(&mut turns) {
            turns.waiters += 1;
            let waited = self.turned.wait_timeout_while(turns, SOON, is_same);
            waited.unwrap_or_else(PoisonError::into_inner).0.waiters -= 1;
        }
    }

    fn run(&self) {
        IS_OWN.set(true);
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "the exchange thread cannot wait");
                    return;
                }
            }
            let turn = Turn::begin(self);
            for event in &events {
                self.attend(event.data.u64());
            }
            drop(turn);
        }
    }

    fn attend(&self, token: u64) {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let source = sources.get(&token).cloned();
        drop(sources);
        if source.is_some_and(|source| source.ready() == Next::Drop) {
            self.forget(token);
        }
    }
}
