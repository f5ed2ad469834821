//! Write-backs of buffers of the user's memory that were released while commands used them.
//!
//! Their contents go back when the last command is done. Queues find that out when they are called,
//! or 20 times a second; a job of the library's background service asks them more often while there
//! are such buffers, the more rarely the longer that takes.

use crate::abi::lock::Lock;
use crate::tuning::{WRITE_BACK_POLL_DIVISOR, WRITE_BACK_POLL_LONGEST, WRITE_BACK_POLL_SHORTEST};
use crosshandle::adapter_support;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

/// Has a buffer's contents go back if they can, and returns whether they are still to go back.
type IsPending = Box<dyn Fn() -> bool + Send>;

/// Tells the job of another buffer; none while no job runs.
static JOB: Lock<Option<Sender<IsPending>>> = Lock::new(None);

/// Calls a function from time to time until it returns false.
pub(super) fn watch(is_pending: impl Fn() -> bool + Send + 'static) {
    let mut job = JOB.lock();
    let mut first: IsPending = Box::new(is_pending);
    if let Some(sender) = &*job {
        match sender.send(first) {
            Ok(()) => return,
            // The job has panicked.
            Err(returned) => first = returned.0,
        }
    }
    let (sender, added) = channel();
    *job = Some(sender);
    drop(job);
    adapter_support::run_blocking(move || look_after(vec![first], &added));
}

/// Looks after buffers, first of all those given, until none is pending.
fn look_after(mut pending: Vec<IsPending>, added: &Receiver<IsPending>) {
    let mut changed = Instant::now();
    let mut known = 0;
    loop {
        let began = Instant::now();
        pending.retain(|is_pending| is_pending());
        pending.extend(added.try_iter());
        if pending.is_empty() {
            let mut job = JOB.lock();
            // None is added while the lock is held.
            pending.extend(added.try_iter());
            if pending.is_empty() {
                *job = None;
                return;
            }
        }
        if pending.len() != known {
            known = pending.len();
            changed = Instant::now();
        }
        // Questions that take long are asked the more rarely.
        let delay = (changed.elapsed() / WRITE_BACK_POLL_DIVISOR)
            .clamp(WRITE_BACK_POLL_SHORTEST, WRITE_BACK_POLL_LONGEST)
            .max(began.elapsed());
        pending.extend(added.recv_timeout(delay));
    }
}
