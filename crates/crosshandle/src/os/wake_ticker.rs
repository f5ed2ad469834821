//! The sleepers of this process, which one thread wakes at intervals.
//!
//! A sleeper must look now and then whether the process that it waits for still lives. A timer of
//! its own costs each sleep about 0.4 µs; so the exchange thread wakes them all every
//! [`WAKE_INTERVAL`](super::tuning::WAKE_INTERVAL),
//! as long as there are any. This module knows the sleepers and not that thread: the caller of
//! [`with_sleeper`] says how the wakes are started, and the thread calls [`wake_all`].

use super::{futex, process};
use crate::sync::Mutex;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// Whether a thread calls [`wake_all`] at intervals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ticking {
    Stopped,
    /// A thread is about to find out whether the wakes can be started. Other sleepers don't rely on
    /// the wakes yet.
    Starting,
    Running,
}

struct Sleepers {
    /// Addresses of the words slept on, once for each sleeper.
    words: Vec<usize>,
    ticking: Ticking,
}

static SLEEPERS: Mutex<Sleepers> = Mutex::new(Sleepers {
    words: Vec::new(),
    ticking: Ticking::Stopped,
});

/// Calls `sleep`, during which the sleepers on `word` are woken at intervals. `start` starts the
/// wakes if they have stopped, and returns whether it could. `sleep` is told whether there are wakes;
/// otherwise it needs a timer of its own.
pub(crate) fn with_sleeper(
    word: &AtomicU64,
    start: impl FnOnce() -> bool,
    sleep: impl FnOnce(bool),
) {
    // Dropped before this function returns, and with it the borrow of `word`.
    let sleeper = Sleeper::register(word, start);
    sleep(sleeper.is_some());
}

/// An entry in [`Sleepers::words`], until this is dropped.
struct Sleeper(usize);

impl Sleeper {
    /// `None`: there are no wakes, and `start` could not start them.
    fn register(word: &AtomicU64, start: impl FnOnce() -> bool) -> Option<Self> {
        // The thread, and whichever thread holds the lock, are the parent's.
        if process::is_forked() {
            return None;
        }
        let mut sleepers = SLEEPERS.lock();
        match sleepers.ticking {
            Ticking::Running => {}
            Ticking::Starting => return None,
            Ticking::Stopped => {
                sleepers.ticking = Ticking::Starting;
                drop(sleepers);
                // Without the lock: it may start a thread.
                let is_started = start();
                sleepers = SLEEPERS.lock();
                if !is_started {
                    sleepers.ticking = Ticking::Stopped;
                    return None;
                }
                sleepers.ticking = Ticking::Running;
            }
        }
        let address = ptr::from_ref(word).expose_provenance();
        sleepers.words.push(address);
        Some(Self(address))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let mut sleepers = SLEEPERS.lock();
        // The latest ones wake first as a rule.
        if let Some(place) = sleepers.words.iter().rposition(|word| *word == self.0) {
            sleepers.words.swap_remove(place);
        }
    }
}

/// Returns whether sleepers rely on wakes at intervals, or are about to.
pub(crate) fn is_ticking() -> bool {
    SLEEPERS.lock().ticking != Ticking::Stopped
}

/// Stops the wakes unless there are sleepers; returns whether they are stopped.
pub(crate) fn stop_if_unused() -> bool {
    let mut sleepers = SLEEPERS.lock();
    if sleepers.words.is_empty() && sleepers.ticking == Ticking::Running {
        sleepers.ticking = Ticking::Stopped;
    }
    sleepers.ticking == Ticking::Stopped
}

/// Wakes all sleepers of this process, and returns their number. Called at intervals, and when
/// something has happened that their words don't tell.
pub(crate) fn wake_all() -> usize {
    let sleepers = SLEEPERS.lock();
    // One system call a word, however many sleep on it.
    let mut words = sleepers.words.clone();
    words.sort_unstable();
    words.dedup();
    for address in &words {
        let word = ptr::with_exposed_provenance::<AtomicU64>(*address);
        // SAFETY: `Sleeper::register` exposed the address of a reference that `with_sleeper` keeps
        // borrowed until the address is taken out, which needs the lock held here.
        futex::wake_own(unsafe { &*word });
    }
    sleepers.words.len()
}
