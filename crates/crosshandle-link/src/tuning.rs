//! Time limits and size limits that several files use.

use std::time::Duration;

/// Default keep-alive, the time of silence of the peer after which a link ends. With a shorter
/// time, links would end while switches find new routes. With a longer time, a dead host is noticed
/// later.
pub(crate) const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Minimum keep-alive. With a shorter time, a busy machine would be treated as dead.
pub(crate) const MIN_KEEP_ALIVE: Duration = Duration::from_millis(200);
/// Maximum keep-alive.
pub(crate) const MAX_KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// Number of confirmations that an idle side sends per keep-alive. With fewer, two lost messages
/// would look like a lost connection.
pub(crate) const ACKS_PER_KEEP_ALIVE: u32 = 5;
/// Number of attempts to reconnect for which a keep-alive has time: the dialling side reconnects
/// after one third of the keep-alive without a message. The value is smaller than
/// [`ACKS_PER_KEEP_ALIVE`], so that at least one confirmation is missing by then.
pub(crate) const REDIALS_PER_KEEP_ALIVE: u32 = 3;
/// Maximum time for the handshake of a new connection. With half of this time, hosts with a round
/// trip of 800 ms could not link. A silent unknown host occupies a handshake for this time.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum timeout of the first attempt to reconnect: about three round trips on a busy machine.
/// See [`REDIAL_HANDSHAKES`].
pub(crate) const REDIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout of the first attempt to reconnect, as a multiple of the time that the link's first
/// connection took. With 1, half of the attempts on a slow network would fail.
pub(crate) const REDIAL_HANDSHAKES: u32 = 3;
/// Pause between two attempts to reconnect.
pub(crate) const REDIAL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum pause before a handshake is repeated that the listener has cut off. The pauses start at
/// [`REDIAL_INTERVAL`] and double, so there are five attempts.
pub(crate) const MAX_GREET_PAUSE: Duration = Duration::from_millis(320);
/// Maximum time that a request waits to be sent, and that it waits for its reply, while the link is
/// alive. An open at the peer may have to wait for another process in this time.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a thread that moves memory polls for completion. After that it sleeps and leaves
/// the polling to the link's thread. A shorter time makes more transfers wake two threads. A longer
/// time uses more CPU time.
pub(crate) const SPIN: Duration = Duration::from_micros(100);
/// Maximum sleep of a thread that waits for its transfer, in case a wake-up is lost. Normally, the
/// thread is woken earlier.
pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Time without progress after which the endpoint of a UCX transfer is replaced. It is shorter if
/// the keep-alive is shorter. With a shorter time, pauses for retransmissions would make transfers
/// start again. With a longer time, a stuck network card is noticed later.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(45);
/// Minimum time that a new endpoint has to show that it works, even on a busy machine.
pub(crate) const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum pause before an endpoint that keeps failing is replaced again. The pauses start at
/// [`REDIAL_INTERVAL`] and double.
pub(crate) const MAX_REPLACE_PAUSE: Duration = Duration::from_millis(500);

/// Minimum time between two endpoints that this side makes because the peer has replaced its own.
/// This limits the CPU time that a misbehaving peer can cost.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Number of failed endpoints after which a transfer fails although each endpoint had reached the
/// peer. With the pauses between them, this takes about 6 s. With fewer, transfers fail in networks
/// that keep breaking connections. With more, a network card that cannot access the memory is
/// noticed later.
pub(crate) const MAX_PROVEN_FAILURES: u32 = 16;
/// Maximum number of addresses of new endpoints that the peer has not confirmed. If there are more,
/// the link ends. An honest peer confirms at least every [`ACK_EVERY`] messages, so it never gets
/// near this limit.
pub(crate) const MAX_ADDRESSES: usize = 256;

/// Maximum number of simultaneous handshakes. Another connection ends an older handshake. Each
/// handshake has a thread and uses about 40 KiB.
pub(crate) const MAX_HANDSHAKES: usize = 32;
/// Maximum number of simultaneous handshakes from one IPv4 address, or from one IPv6 network of 64
/// bits. Another connection from there ends its oldest handshake.
pub(crate) const MAX_HANDSHAKES_EACH: usize = 8;
/// Maximum number of remembered addresses of hosts that have linked. Unknown hosts cannot displace
/// these addresses.
pub(crate) const MAX_KNOWN: usize = 1024;
/// Maximum number of links that wait to be accepted.
pub(crate) const MAX_UNACCEPTED: usize = 16;
/// Maximum number of handles and names that wait to be opened for the peer.
pub(crate) const MAX_OPENING: usize = 1024;
/// Maximum number of objects that are open for the peer.
pub(crate) const MAX_SERVED: usize = 1 << 16;
/// Maximum number of bytes of replies that the peer has not confirmed. If there are more, the link
/// ends. Sixteen calls with [`PIECES_UNDER_WAY`] pieces each need a quarter of this limit.
pub(crate) const MAX_OWED: usize = 256 << 20;
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
/// Number of received messages after which a confirmation is sent at once. With fewer messages,
/// more confirmations are sent. With more, the peer keeps more messages.
pub(crate) const ACK_EVERY: u64 = 64;
/// Maximum number of pieces of memory that one call has in flight over TLS.
pub(crate) const PIECES_UNDER_WAY: usize = 16;
/// Number of most recent unreported signals that the link checks for failures one by one. The check
/// takes some milliseconds. Earlier unreported signals are reported as failed if the first and the
/// last of them failed, and otherwise as signalled.
pub(crate) const MAX_LOOKED_AT: u64 = 1 << 16;
/// Maximum number of bytes that travel in the same message as the signal that follows them.
pub(crate) const MAX_WITH_SIGNAL: usize = 16 << 10;

/// Size in bytes of a part of a staging buffer, which is the unit of copying and moving. With
/// smaller parts, each part's round trip costs relatively more. With larger parts, copying and
/// moving overlap less.
pub(crate) const STAGING_PART: usize = 4 << 20;
/// Number of parts of a staging buffer. While one part is copied, another is moved.
pub(crate) const STAGING_PARTS: usize = 4;
/// Maximum size in bytes of an access to staged memory whose bytes travel in messages although UCX
/// is available. A message takes one round trip instead of two, but its bytes are encrypted.
pub(crate) const STAGED_IN_MESSAGES: usize = 64 << 10;
/// Maximum time for a queue to copy one part. With a shorter time, copies fail on devices that
/// other programs keep busy.
pub(crate) const STAGING_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of accesses that wait for the staging thread. Each has up to 256 KiB. If the peer
/// requests more, the link ends.
pub(crate) const MAX_STAGING: usize = 512;

/// Maximum number of neighbours that use a shared link at once. Each has a thread.
pub(crate) const MAX_NEIGHBOURS: usize = 64;
/// Maximum number of connections of one process to a shared link.
pub(crate) const MAX_NEIGHBOURS_EACH: usize = 16;
/// Maximum number of objects that a neighbour has open.
pub(crate) const MAX_NEIGHBOUR_OBJECTS: usize = 4096;
/// Number of a neighbour's own allocations that stay open for its next copy. With more, memory that
/// the neighbour has freed is kept longer.
pub(crate) const MAX_KEPT_LOCALS: usize = 8;
/// Maximum time until a neighbour's first request. With a shorter time, processes that were stopped
/// for a while must connect again. With a longer time, silent processes block a connection longer.
pub(crate) const FIRST_QUESTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until the process that shares a link replies. It is longer than the
/// [timeout](REPLY_TIMEOUT) of a request over the link. With a shorter time, requests fail to
/// which the link would still have got a reply. With a longer time, a stopped process is noticed
/// later.
pub(crate) const NEIGHBOUR_ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum number of bytes that one request copies. With fewer, large copies take more requests.
/// With more, a copy over a slow network takes longer than the timeout of a request.
pub(crate) const NEIGHBOUR_PART: usize = 16 << 20;
/// Size in bytes of the shared memory through which a neighbour's ordinary bytes are copied.
pub(crate) const NEIGHBOUR_BUFFER: usize = 1 << 20;
