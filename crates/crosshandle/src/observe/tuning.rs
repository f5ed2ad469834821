//! Constants of time and count of what is logged.

/// Messages of one kind in one second, after which others of this kind are only counted. Halved: of
/// many peers that die at once fewer are named. Doubled: a flood of refusals writes twice as much.
pub(super) const MESSAGES_A_SECOND: u32 = 16;
