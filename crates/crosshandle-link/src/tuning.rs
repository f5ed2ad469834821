//! Time limits and size limits that several files use.

use std::time::Duration;

/// Minimum keep-alive. With a shorter time, the peer would treat a busy machine as dead.
pub(crate) const MIN_KEEP_ALIVE: Duration = Duration::from_millis(200);

/// Divisor of the keep-alive for reconnects: after this fraction of the keep-alive without a
/// message, the dialling side reconnects. The value is smaller than [`ACKS_PER_KEEP_ALIVE`], so at
/// least one confirmation is missing by then.
pub(crate) const REDIALS_PER_KEEP_ALIVE: u32 = 3;
/// Maximum time for the handshake of a new connection. With half of this time, hosts with a
/// round-trip time of 800 ms could not link. An unknown host that sends nothing occupies a
/// handshake for this time.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between two attempts to reconnect.
pub(crate) const REDIAL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time that a request waits to be sent, and maximum time that it waits for its reply.
/// During this time, the peer may have to wait for another process, for example to open a handle.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Minimum time between two endpoints that this side creates because the peer has replaced its own
/// endpoint. This limits the CPU time that a misbehaving peer can use.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of the peer's requests to open a handle or a name that wait to be processed.
pub(crate) const MAX_OPENING: usize = 1024;

/// Maximum number of unconfirmed messages that report signals. Reports of later signals are
/// combined, and sent after the peer has confirmed earlier reports. A host that never confirms
/// makes this side use about 200 KiB, or 4 MiB if signals fail with long texts.
pub(crate) const MAX_TOLD: usize = 4096;
/// Maximum number of bytes that this side has requested to read but has not confirmed yet. Further
/// reads wait. The value is well below [`MAX_OWED`], at which the peer would end the link, because
/// more bytes can arrive between two confirmations.
pub(crate) const MAX_READING: usize = 128 << 20;
/// Maximum size in bytes of all requests that the peer has not confirmed. Further requests wait. A
/// smaller limit would not fully use fast networks with a long delay.
pub(crate) const MAX_ASKED: usize = 64 << 20;

/// Number of the most recent unreported signals that the link checks for failures one by one. The
/// check takes a few milliseconds. Earlier unreported signals are reported as failed if both the
/// first and the last of them failed. Otherwise, they are reported as completed.
pub(crate) const MAX_LOOKED_AT: u64 = 1 << 16;

/// Size in bytes of one part of a staging buffer. A queue copies, and the link transfers, one part
/// at a time. With smaller parts, the round trip for each part costs relatively more. With larger
/// parts, copies and transfers overlap less.
pub(crate) const STAGING_PART: usize = 4 << 20;
/// Number of parts in a staging buffer. While a queue copies one part, the link transfers another.
pub(crate) const STAGING_PARTS: usize = 4;

/// Maximum time for a queue to copy one part. With a shorter time, copies would fail on devices
/// that other programs keep busy.
pub(crate) const STAGING_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time until a neighbour sends its first request. With a shorter time, a process that was
/// stopped for a while would have to connect again. With a longer time, a process that sends
/// nothing occupies a connection longer.
pub(crate) const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of bytes that one request of a neighbour copies. With a smaller limit, large
/// copies take more requests. With a larger limit, a copy over a slow network could exceed the
/// timeout for requests.
pub(crate) const NEIGHBOUR_PART: usize = 16 << 20;
