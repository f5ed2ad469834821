//! Write-backs of buffers of the user's memory that were released while commands used them.
//!
//! Their contents go back when the last command is done. Queues find that out when they are called,
//! or 20 times a second; a job of the library's background service asks them more often while there
//! are such buffers, the more rarely the longer that takes.

use super::storage::Storage;
use crate::abi::lock::Lock;
use crate::tuning::{WRITE_BACK_POLL_DIVISOR, WRITE_BACK_POLL_LONGEST, WRITE_BACK_POLL_SHORTEST};
use crosshandle::adapter_support;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Tells the job of another storage; none while no job runs.
static JOB: Lock<Option<Sender<Weak<Storage>>>> = Lock::new(None);

/// Has a storage looked after until it is gone.
pub(super) fn watch(storage: &Arc<Storage>) {
    let mut job = JOB.lock();
    let storage = Arc::downgrade(storage);
    if let Some(sender) = &*job
        && sender.send(storage.clone()).is_ok()
    {
        return;
    }
    let (sender, added) = channel();
    *job = Some(sender);
    drop(job);
    adapter_support::run_blocking(move || look_after(vec![storage], &added));
}

/// Asks about storages, first of all those given, until all are gone.
fn look_after(mut storages: Vec<Weak<Storage>>, added: &Receiver<Weak<Storage>>) {
    let mut changed = Instant::now();
    let mut known = 0;
    loop {
        storages.extend(added.try_iter());
        storages.retain(|storage| storage.strong_count() > 0);
        if storages.is_empty() {
            let mut job = JOB.lock();
            // None is added any more when the lock is held.
            storages.extend(added.try_iter());
            if storages.is_empty() {
                *job = None;
                return;
            }
        }
        if storages.len() != known {
            known = storages.len();
            changed = Instant::now();
        }
        let began = Instant::now();
        for storage in storages.iter().filter_map(Weak::upgrade) {
            storage.is_in_use();
        }
        // Questions that take long are asked the more rarely.
        let delay = (changed.elapsed() / WRITE_BACK_POLL_DIVISOR)
            .clamp(WRITE_BACK_POLL_SHORTEST, WRITE_BACK_POLL_LONGEST)
            .max(began.elapsed());
        storages.extend(added.recv_timeout(delay));
    }
}
