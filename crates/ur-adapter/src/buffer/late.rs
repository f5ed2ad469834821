//! Buffers of the user's memory that were released while commands used them.
//!
//! Their contents go back when the last command is done. Queues find that out when they are called,
//! or 20 times a second; a thread asks them more often, as long as there are such buffers.

use super::storage::Storage;
use std::sync::{Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// How late it is at most.
const NAP: Duration = Duration::from_millis(1);

struct Late {
    storages: Vec<Weak<Storage>>,
    has_thread: bool,
}

static LATE: Mutex<Late> = Mutex::new(Late {
    storages: Vec::new(),
    has_thread: false,
});

/// Has a storage looked after until it is gone.
pub(super) fn watch(storage: Weak<Storage>) {
    let mut late = LATE.lock().unwrap_or_else(PoisonError::into_inner);
    late.storages.push(storage);
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
    loop {
        let storages = {
            let mut late = LATE.lock().unwrap_or_else(PoisonError::into_inner);
            late.storages.retain(|storage| storage.strong_count() > 0);
            if late.storages.is_empty() {
                late.has_thread = false;
                return;
            }
            late.storages.clone()
        };
        let began = Instant::now();
        for storage in storages.iter().filter_map(Weak::upgrade) {
            storage.is_in_use();
        }
        // What took long is not asked all the time.
        thread::sleep(NAP.max(began.elapsed()));
    }
}
