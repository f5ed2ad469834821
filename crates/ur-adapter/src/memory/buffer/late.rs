//! Write-backs of buffers of the user's memory that were released while commands used them.
//!
//! Their contents go back when the last command is done, by the drop of what it used. Queues of NVIDIA
//! GPUs drop that when they are called or asked, else 20 times a second. So each queue whose
//! commands use the buffer gets a marker behind them, and is asked when the marker's signal has come.
//!
//! Where no signal can tell, queues find out by themselves: if a queue takes no marker, because its
//! device has failed or the program captures its stream, and if the system is short of events or
//! threads. A queue that has later commands in flight may also be asked in vain: it may know the end of a
//! whole batch only.

use crate::queue::end::{ENDED, QueueEnd, Users};
use crosshandle::{Context, Result, adapter_support};

/// Has a function called in the background when the commands that a queue has now are done, once for
/// each queue.
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
    // Writing back takes its time: not in the turn of the program's callbacks.
    let job = move |_| adapter_support::run_blocking(function);
    event.on_signal(ENDED, job)?.detach();
    Ok(())
}
