//! Late write-backs. A buffer over the user's memory writes its contents back when it is released.
//! If commands still use the buffer then, the write-back happens later.
//!
//! The contents are written back when the last command is complete and its queue drops the memory.
//! Queues of NVIDIA GPUs drop memory when they are called or queried, and otherwise 20 times a
//! second. So each queue whose commands use the buffer receives a marker after these commands. The
//! queue is queried when the marker's signal completes.
//!
//! A queue receives no marker in three cases: its device has failed, the program is capturing its
//! stream, or the system is short of events or threads. The write-back then happens when the queue
//! itself notices that its commands are complete. A query may also be too early for a queue with
//! later commands, because a queue may notice only the completion of a whole batch.

use crate::queue::end::{ENDED, QueueEnd, Users};
use crosshandle::{Context, Result, adapter_support};

/// For each queue, calls a function in the background when the queue's current commands are
/// complete.
pub(super) fn call_at_ends(
    users: &Users,
    context: &Context,
    function: impl Fn() + Clone + Send + 'static,
) {
    for end in users.ends() {
        if let Err(error) = call_at_end(&end, context, function.clone()) {
            tracing::debug!(%error, "the contents of a buffer may be written back some milliseconds later");
        }
    }
}

fn call_at_end(
    end: &QueueEnd,
    context: &Context,
    function: impl FnOnce() + Send + 'static,
) -> Result<()> {
    let Some(event) = end.event(context)? else {
        return Ok(());
    };
    // A write-back takes time, so it must not run on the thread that calls the program's callbacks.
    let job = move |_| adapter_support::run_blocking(function);
    event.on_signal(ENDED, job)?.detach();
    Ok(())
}
