//! The order in which a queue runs its commands.

/// In which order a queue runs its commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum QueueOrder {
    /// One after the other, as submitted.
    #[default]
    InOrder,
    /// As soon as what they wait for is there; barriers order.
    OutOfOrder,
}
