//! Awaited signals for event loops.

use super::Event;
use crate::error::{Error, Result};
use crate::ipc::awaiting::{Await, Waiter};
use crate::observe::waited;
use crate::os::descriptor::Flag;
use crate::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Awaits any number of signals for an event loop: its descriptor can be read from when one of them has
/// completed or failed.
///
/// Works with `poll`, `epoll` (level- and edge-triggered), `select`, io_uring, mio, tokio's `AsyncFd` and
/// asyncio's `add_reader`. The loop waits for the descriptor, reads nothing from it, and calls
/// [`next`](Self::next) until that returns `None`. A notifier costs one descriptor, however many
/// signals it awaits. Any thread may use it. Dropping it cancels what is awaited.
#[derive(Debug)]
pub struct Notifier {
    ready: Arc<Ready>,
    awaited: Mutex<Awaited>,
}

/// What a notifier awaits.
#[derive(Debug, Default)]
struct Awaited {
    /// By token, each with a number that no other one has had.
    signals: BTreeMap<u64, (u64, Await)>,
    next_number: u64,
}

/// A signal that has completed or failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Notification {
    /// The number that the program gave to [`Notifier::add`].
    pub token: u64,
    /// What a [wait](Event::wait_value) for the signal would return.
    pub result: Result<()>,
}

/// What has come, and the flag that says so.
#[derive(Debug)]
struct Ready {
    flag: Flag,
    /// With the numbers that they are awaited by.
    notifications: Mutex<VecDeque<(u64, Notification)>>,
}

impl Ready {
    fn push(&self, number: u64, notification: Notification) {
        let mut notifications = self.notifications.lock();
        notifications.push_back((number, notification));
        if notifications.len() == 1 {
            self.flag.raise();
        }
    }
}

/// One awaited signal of a notifier.
struct Signal {
    number: u64,
    token: u64,
    ready: Arc<Ready>,
}

impl Waiter for Signal {
    fn tell(&self, result: Result<()>) {
        let token = self.token;
        self.ready.push(self.number, Notification { token, result });
    }
}

impl Notifier {
    /// Makes a notifier that awaits nothing.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if the process has no descriptor left.
    pub fn new() -> Result<Self> {
        let flag = Flag::new().map_err(Error::os("making a notifier's descriptor"))?;
        Ok(Self {
            ready: Arc::new(Ready {
                flag,
                notifications: Mutex::default(),
            }),
            awaited: Mutex::default(),
        })
    }

    /// Awaits a signal, submitted or not. `token` is what [`next`](Self::next) returns for it. The event
    /// stays open until then.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the token is in use, [`Error::LimitReached`] if the system starts no
    /// thread.
    pub fn add(&self, event: &Event, value: u64, token: u64) -> Result<()> {
        // Until the end, so that its notification is not taken before it is in the map.
        let mut awaited = self.awaited.lock();
        if awaited.signals.contains_key(&token) {
            return Err(Error::invalid(format!(
                "the token {token} is in use: take its notification or remove it first"
            )));
        }
        let number = awaited.next_number;
        awaited.next_number += 1;
        let ready = Arc::clone(&self.ready);
        let signal = Signal {
            number,
            token,
            ready,
        };
        let begun = Await::begin(&event.core, value, Arc::new(signal))?;
        awaited.signals.insert(token, (number, begun));
        Ok(())
    }

    /// Cancels what is awaited with a token, also if its notification has come and was not taken. Returns
    /// whether anything was.
    pub fn remove(&self, token: u64) -> bool {
        let removed = self.awaited.lock().signals.remove(&token);
        removed.is_some()
    }

    /// Takes the next notification; `None` if there is none, and then the descriptor cannot be read from.
    pub fn next(&self) -> Option<Notification> {
        loop {
            let (number, notification) = self.take()?;
            let Notification { token, result } = notification;
            let mut awaited = self.awaited.lock();
            let signal = awaited.signals.get(&token);
            // One that was removed meanwhile is nobody's.
            if signal.is_some_and(|(own, _)| *own == number) {
                let taken = awaited.signals.remove(&token);
                drop(awaited);
                drop(taken);
                let result = waited(result);
                return Some(Notification { token, result });
            }
        }
    }

    fn take(&self) -> Option<(u64, Notification)> {
        let mut notifications = self.ready.notifications.lock();
        let taken = notifications.pop_front();
        if notifications.is_empty() {
            self.ready.flag.lower();
        }
        taken
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.flag.as_fd()
    }
}

impl AsRawFd for Notifier {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
