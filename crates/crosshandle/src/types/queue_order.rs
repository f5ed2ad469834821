//! The order in which a queue runs its commands.

/// The order in which a queue runs its commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum QueueOrder {
    /// Runs them one after the other, as submitted.
    #[default]
    InOrder,
    /// Runs each as soon as its waits are over. Only barriers and events order.
    OutOfOrder,
}
