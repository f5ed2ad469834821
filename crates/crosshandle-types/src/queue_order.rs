//! The order in which a queue runs its commands.

/// The order in which a queue runs its commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QueueOrder {
    /// Runs the commands one after another, in the order of their submission.
    #[default]
    InOrder,
    /// Runs each command as soon as its waits are over. Only barriers and events establish an
    /// order.
    OutOfOrder,
}
