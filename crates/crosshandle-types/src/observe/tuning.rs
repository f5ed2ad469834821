//! Limits of log messages.

/// Maximum number of messages of one kind per second. Further messages are only counted. Larger
/// values name more of many peers that die at once. Smaller values shorten a flood of refusals.
pub(super) const MESSAGES_A_SECOND: u32 = 16;
