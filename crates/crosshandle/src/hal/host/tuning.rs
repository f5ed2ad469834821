//! Constants of the host backend.

/// Commands of up to this many bytes may run on the thread that submits them, whose call then takes up
/// to 2 µs longer. At half of it, more short copies pay for waking the queue's thread, which takes
/// longer than the copy; at twice, submitting blocks for longer than that takes.
pub(super) const INLINE_COMMAND_BYTES: usize = 64 << 10;
