//! Awaited signals: futures, callbacks and notifiers wait for them without a thread each.
//!
//! One thread of the process, `xh-await`, sleeps on all of them at once (`thread.rs`). Other
//! threads send it messages through an inbox. Only this thread uses the set of awaited signals
//! (`crates/crosshandle-events/src/protocol/await_set.rs`), so registering and cancelling take no
//! lock except the inbox's.

mod thread;

use super::EventCore;
use crate::platform::{Os, Target};
use crosshandle_events::{AwaitKey, Subject};
use crosshandle_os::fork::{Birth, PerProcess};
use crosshandle_os::sleepers;
use crosshandle_os::threads::ThreadKind;
use crosshandle_types::error::Result;
use crosshandle_types::sync::Mutex;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// An object that is notified when an awaited signal has finished.
pub trait Waiter: Send + Sync {
    /// Receives the result of the signal. The thread that serves all waiters calls it at most once
    /// and without a lock. It must not block.
    fn tell(&self, result: Result<()>);
}

/// An awaited signal. Dropping this value cancels the wait. If the notification of the waiter has
/// not begun by then, the waiter is never notified.
#[derive(Debug)]
pub struct Await {
    key: AwaitKey,
    /// Whether the waiter was notified or the signal was cancelled, whichever came first.
    is_over: Arc<AtomicBool>,
    birth: Birth,
}

/// A waiter in the set.
struct Entry {
    waiter: Arc<dyn Waiter>,
    is_over: Arc<AtomicBool>,
}

/// A message from another thread to the thread of awaited signals.
enum Message {
    Add {
        key: AwaitKey,
        core: Arc<EventCore>,
        entry: Entry,
    },
    Remove(AwaitKey),
}

struct Inbox {
    messages: Vec<Message>,
    /// Whether the thread runs.
    is_served: bool,
}

static INBOX: PerProcess<Mutex<Inbox>> = PerProcess::new(|| {
    Mutex::new(Inbox {
        messages: Vec::new(),
        is_served: false,
    })
});

impl Subject for EventCore {
    type Platform = Os;

    fn target(&self, number: u64) -> Target<'_> {
        EventCore::target(self, number)
    }
}

impl Await {
    /// Arranges that `waiter` is notified when a signal of an event has finished or never will. The
    /// signal may not be submitted yet. Until then the event stays open. The caller should have
    /// checked that `number` is pending.
    ///
    /// # Errors
    /// Returns `Error::LimitReached` if the system cannot start a thread, and
    /// `Error::Unsupported` for an event that a forked child has inherited.
    pub fn begin(core: &Arc<EventCore>, number: u64, waiter: Arc<dyn Waiter>) -> Result<Self> {
        static IDS: AtomicU64 = AtomicU64::new(0);
        core.check_birth()?;
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let key = AwaitKey::new(&core.target(number), id);
        let is_over = Arc::new(AtomicBool::new(false));
        send(Message::Add {
            key,
            core: Arc::clone(core),
            entry: Entry {
                waiter,
                is_over: Arc::clone(&is_over),
            },
        })?;
        Ok(Self {
            key,
            is_over,
            birth: Birth::here(),
        })
    }

    /// Keeps the signal awaited after this value is dropped.
    pub fn detach(mut self) {
        // The new flag is used by no other code.
        self.is_over = Arc::new(AtomicBool::new(true));
    }
}

impl Drop for Await {
    fn drop(&mut self) {
        if !self.is_over.swap(true, Ordering::SeqCst) && !self.birth.is_inherited() {
            // The message lets the event close now. The thread runs while any signal is awaited.
            let _ = send(Message::Remove(self.key));
        }
    }
}

/// Leaves a message, and starts the thread if it does not run.
fn send(message: Message) -> Result<()> {
    let mut inbox = INBOX.lock();
    if !inbox.is_served {
        // The lock ensures that the thread is started once. The new thread waits for the lock.
        ThreadKind::Await.start(thread::run)?;
        inbox.is_served = true;
    }
    let is_first = inbox.messages.is_empty();
    inbox.messages.push(message);
    drop(inbox);
    if is_first && !thread::is_own() {
        sleepers::wake_server();
    }
    Ok(())
}

/// Takes all messages from the inbox. With `or_end`, returns `None` if the inbox is empty, and then
/// the thread must end.
fn receive(or_end: bool) -> Option<Vec<Message>> {
    let mut inbox = INBOX.lock();
    if or_end && inbox.messages.is_empty() {
        inbox.is_served = false;
        return None;
    }
    Some(mem::take(&mut inbox.messages))
}
