//! Time limits and size limits that several files use.

use std::time::Duration;

/// Minimum keep-alive. With a shorter time, a busy machine would be treated as dead.
pub(crate) const MIN_KEEP_ALIVE: Duration = Duration::from_millis(200);

/// Number of attempts to reconnect for which a keep-alive has time: the dialling side reconnects
/// after one third of the keep-alive without a message. The value is smaller than
/// [`ACKS_PER_KEEP_ALIVE`], so that at least one confirmation is missing by then.
pub(crate) const REDIALS_PER_KEEP_ALIVE: u32 = 3;
/// Maximum time for the handshake of a new connection. With half of this time, hosts with a round
/// trip of 800 ms could not link. A silent unknown host occupies a handshake for this time.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between two attempts to reconnect.
pub(crate) const REDIAL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time that a request waits to be sent, and that it waits for its reply, while the link is
/// alive. An open at the peer may have to wait for another process in this time.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Minimum time between two endpoints that this side makes because the peer has replaced its own.
/// This limits the CPU time that a misbehaving peer can cost.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of handles and names that wait to be opened for the peer.
pub(crate) const MAX_OPENING: usize = 1024;

/// Maximum number of unconfirmed messages about signals. Reports of later signals are combined, and
/// sent when the peer has confirmed earlier ones. A host that never confirms costs about 200 KiB,
/// or 4 MiB if signals fail with long texts.
pub(crate) const MAX_TOLD: usize = 4096;
/// Maximum number of bytes that this side has requested to read and has not confirmed. Further
/// reads wait. The value is well below [`MAX_OWED`], at which the peer would end the link, because
/// more bytes can arrive between two confirmations.
pub(crate) const MAX_READING: usize = 128 << 20;
/// Maximum number of bytes of requests that the peer has not confirmed. Further requests wait. With
/// fewer, fast networks with a long delay are not used fully.
pub(crate) const MAX_ASKED: usize = 64 << 20;

/// Number of most recent unreported signals that the link checks for failures one by one. The check
/// takes some milliseconds. Earlier unreported signals are reported as failed if the first and the
/// last of them failed, and otherwise as signalled.
pub(crate) const MAX_LOOKED_AT: u64 = 1 << 16;

/// Size in bytes of a part of a staging buffer, which is the unit of copying and moving. With
/// smaller parts, each part's round trip costs relatively more. With larger parts, copying and
/// moving overlap less.
pub(crate) const STAGING_PART: usize = 4 << 20;
/// Number of parts of a staging buffer. While one part is copied, another is moved.
pub(crate) const STAGING_PARTS: usize = 4;

/// Maximum time for a queue to copy one part. With a shorter time, copies fail on devices that
/// other programs keep busy.
pub(crate) const STAGING_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time until a neighbour's first request. With a shorter time, processes that were stopped
/// for a while must connect again. With a longer time, silent processes block a connection longer.
pub(crate) const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of bytes that one request copies. With fewer, large copies take more requests.
/// With more, a copy over a slow network takes longer than the timeout of a request.
pub(crate) const NEIGHBOUR_PART: usize = 16 << 20;
