//! Awaited signals: what futures, callbacks and notifiers wait for without a thread each.
//!
//! One thread of the process, `xh-await`, sleeps on all of them at once (`thread.rs`). Others leave
//! it messages. It alone has the set of awaited signals (`event_protocol/await_set.rs`), so that
//! registering and cancelling take no lock but the inbox's.

mod thread;

use super::EventCore;
use crate::error::Result;
use crate::event_protocol::{AwaitKey, Subject, Target};
use crate::os::fork::{Birth, PerProcess};
use crate::os::sleepers;
use crate::sync::Mutex;
use crate::threads::ThreadKind;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Who is told that an awaited signal has finished.
pub(crate) trait Waiter: Send + Sync {
    /// Takes note of the result of the signal. Called once at most, by the thread that serves all
    /// waiters, without a lock: it must not block.
    fn tell(&self, result: Result<()>);
}

/// An awaited signal. Dropping this cancels it: a waiter that is not being told already is never told.
#[derive(Debug)]
pub(crate) struct Await {
    key: AwaitKey,
    /// Whether the waiter was told or the signal was cancelled, whichever comes first.
    is_over: Arc<AtomicBool>,
    birth: Birth,
}

/// A waiter in the set.
struct Entry {
    waiter: Arc<dyn Waiter>,
    is_over: Arc<AtomicBool>,
}

/// What others tell the thread.
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

impl Subject for Arc<EventCore> {
    fn target(&self, number: u64) -> Target<'_> {
        EventCore::target(self, number)
    }
}

impl Await {
    /// Has a waiter told when a signal of an event, submitted or not, has finished or never will. Until
    /// then the event stays open. `number` should be pending: this does not look.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if the system starts no thread; [`Error::Unsupported`] for an event that a forked child has inherited.
    pub(crate) fn begin(
        core: &Arc<EventCore>,
        number: u64,
        waiter: Arc<dyn Waiter>,
    ) -> Result<Self> {
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

    /// Lets the signal be awaited without anybody keeping this.
    pub(crate) fn detach(mut self) {
        // Nobody looks at the new one.
        self.is_over = Arc::new(AtomicBool::new(true));
    }
}

impl Drop for Await {
    fn drop(&mut self) {
        if !self.is_over.swap(true, Ordering::SeqCst) && !self.birth.is_inherited() {
            // So that the event is closed now. The thread runs as long as anything is awaited.
            let _ = send(Message::Remove(self.key));
        }
    }
}

/// Leaves a message, and starts the thread if it does not run.
fn send(message: Message) -> Result<()> {
    let mut inbox = INBOX.lock();
    if !inbox.is_served {
        // Under the lock, so that it is started once; it waits for the lock.
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

/// Takes what others have left. With `or_end`, an empty inbox ends the thread: `None`.
fn receive(or_end: bool) -> Option<Vec<Message>> {
    let mut inbox = INBOX.lock();
    if or_end && inbox.messages.is_empty() {
        inbox.is_served = false;
        return None;
    }
    Some(mem::take(&mut inbox.messages))
}
