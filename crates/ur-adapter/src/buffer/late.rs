//! Buffers of the user's memory that were released while commands used them.
//!
//! Their contents go back when the last command is done. Queues find that out when they are called,
//! or 20 times a second; a thread asks them more often, as long as there are such buffers, and the
//! more rarely the longer that takes.

use super::storage::Storage;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How late it is: this part of the time since there was a new one, or one went, within bounds.
const STEPS: u32 = 8;
const SHORTEST_NAP: Duration = Duration::from_millis(1);
const LONGEST_NAP: Duration = Duration::from_millis(30);

struct Late {
    storages: Vec<Weak<Storage>>,
    has_thread: bool,
}

static LATE: Mutex<Late> = Mutex::new(Late {
    storages: Vec::new(),
    has_thread: false,
});

/// There is a new one.
static ADDED: Condvar = Condvar::new();

fn late() -> MutexGuard<'static, Late> {
    LATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a storage looked after until it is gone.
pub(super) fn watch(storage: Weak<Storage>) {
    let mut late = late();
    late.storages.push(storage);
    ADDED.notify_one();
    if !late.has_thread {
        let thread = thread::Builder::new().name("crosshandle-late".into());
        match thread.spawn(run) {
            Ok(_) => late.has_thread = true,
            // The queue sees to it, later.
            Err(error) => {
                late.storages.clear();
                tracing::debug!(%error, "a buffer's contents go back late");
            }
        }
    }
}

fn run() {
    let mut changed = Instant::now();
    let mut known = 0;
    let mut late = late();
    loop {
        late.storages.retain(|storage| storage.strong_count() > 0);
        if late.storages.is_empty() {
            late.has_thread = false;
            return;
        }
        if late.storages.len() != known {
            known = late.storages.len();
            changed = Instant::now();
        }
        let storages = late.storages.clone();
        drop(late);
        let began = Instant::now();
        for storage in storages.iter().filter_map(Weak::upgrade) {
            storage.is_in_use();
        }
        // What took long is not asked all the time.
        let nap = (changed.elapsed() / STEPS).clamp(SHORTEST_NAP, LONGEST_NAP);
        let nap = nap.max(began.elapsed());
        let waited = ADDED.wait_timeout(self::late(), nap);
        late = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}
