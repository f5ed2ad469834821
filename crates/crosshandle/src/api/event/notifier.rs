//! Awaited signals for event loops.

use super::Event;
use crosshandle_ipc::awaiting::{Await, Waiter};
use crosshandle_os::descriptor::Flag;
use crosshandle_types::error::{Error, Result};
use crosshandle_types::observe::waited;
use crosshandle_types::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Awaits any number of signals for an event loop. Its descriptor becomes readable when one of them
/// has completed or failed.
///
/// The descriptor works with `poll`, `epoll` (level- and edge-triggered), `select`, io_uring, mio,
/// tokio's `AsyncFd` and asyncio's `add_reader`. The event loop waits for the descriptor, reads
/// nothing from it, and calls [`next`](Self::next) until that returns `None`.
///
/// A notifier uses one descriptor, however many signals it awaits. Any thread may use it. Dropping
/// the notifier cancels all that it awaits.
#[derive(Debug)]
pub struct Notifier {
    ready: Arc<Ready>,
    awaited: Mutex<Awaited>,
}

/// The signals that a notifier awaits.
#[derive(Debug, Default)]
struct Awaited {
    /// Keyed by token. Each signal has a number that is never reused.
    signals: BTreeMap<u64, (u64, Await)>,
    next_number: u64,
}

/// A signal that has completed or failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Notification {
    /// The number that the program gave to [`Notifier::add`].
    pub token: u64,
    /// The result that a [wait](Event::wait_value) for the signal would return.
    pub result: Result<()>,
}

/// Notifications that have arrived, and the flag that makes the descriptor readable.
#[derive(Debug)]
struct Ready {
    flag: Flag,
    /// The notifications that have arrived, each with the number of its awaited signal.
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
    /// Creates a notifier that awaits nothing yet.
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

    /// Awaits a signal, which may not have been submitted yet. [`next`](Self::next) returns `token`
    /// when the signal has completed or failed. The event stays open until then.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`] if the token is in use.
    /// - [`Error::LimitReached`] if the system cannot start a thread.
    pub fn add(&self, event: &Event, value: u64, token: u64) -> Result<()> {
        // The map is locked until the end of this function, so that no thread takes the
        // notification before the signal is in the map.
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

    /// Cancels the signal with this token, even if its notification has arrived but was not taken.
    /// Returns whether the token was in use.
    pub fn remove(&self, token: u64) -> bool {
        let removed = self.awaited.lock().signals.remove(&token);
        removed.is_some()
    }

    /// Takes the next notification. Returns `None` if there is none. The descriptor is then not
    /// readable.
    pub fn next(&self) -> Option<Notification> {
        loop {
            let (number, notification) = self.take()?;
            let Notification { token, result } = notification;
            let mut awaited = self.awaited.lock();
            let signal = awaited.signals.get(&token);
            // A notification whose signal was removed in the meantime is dropped.
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
