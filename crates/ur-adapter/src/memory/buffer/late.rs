//! Late write-backs: the contents of a buffer over the user's memory are written back after its
//! release, if commands still used it.
//!
//! The contents are written back when the last command is done and drops the memory. Queues of
//! NVIDIA GPUs drop memory when they are called or queried, and otherwise 20 times a second. So
//! each queue whose commands use the buffer gets a marker after them, and is queried when the
//! marker's signal completes.
//!
//! If a queue gets no marker, the write-back happens when the queue itself notices the completion.
//! A queue gets no marker if its device has failed, the program is capturing its stream, or the
//! system is short of events or threads. A query may also be too early for a queue with later
//! commands, because a queue may notice only the completion of a whole batch.

use crate::queue::end::{ENDED, QueueEnd, Users};
use crosshandle::{Context, Result, adapter_support};

/// Calls a function in the background when the current commands of each queue are done. The
/// function is called once for each queue.
pub(super) fn call_at_ends(
    users: &Users,
    context: &Context,
    function: impl Fn() + Clone + Send + 'static,
) {
    for end in users.ends() {
        if let Err(error) = call_at_end(&end, context, function.clone()) {
            tracing::debug!(%error, "a buffer's contents may go back some milliseconds later");
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
    // A write-back takes time, so it must not run on the thread that runs the program's callbacks.
    let job = move |_| adapter_support::run_blocking(function);
    event.on_signal(ENDED, job)?.detach();
    Ok(())
}
