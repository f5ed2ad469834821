//! Queues of commands.

use crate::{NativeQueue, Submission};
use crosshandle_types::error::Result;
use crosshandle_types::sync::Deadline;

/// A queue of commands. Commands that were submitted still run after the queue is dropped.
pub trait BackendQueue: Send + Sync {
    /// Submits a command. It may return before or after the command has finished.
    ///
    /// The submission is passed by reference, because it is large. The backend takes the parts that
    /// it needs. The caller drops the rest outside the queue's locks, because the drop may run the
    /// program's code.
    fn submit(&self, submission: &mut Submission) -> Result<()>;

    /// Ensures that all submitted commands will run without further calls.
    fn flush(&self) -> Result<()>;

    /// Waits until all submitted commands have finished. Returns the first error of a command that
    /// signals no event, and returns it only once.
    fn finish(&self, deadline: Deadline) -> Result<()>;

    /// Returns whether all submitted commands have finished.
    fn is_idle(&self) -> bool;

    /// Returns the native view of the queue, if programs may call the driver too.
    fn native(&self) -> Option<&dyn NativeQueue> {
        None
    }
}
