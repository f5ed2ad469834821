//! Constants of time, and limits.

use std::time::Duration;

/// Default keep-alive: how long a link survives silence of the peer. A shorter time ends links in
/// outages in which switches find new routes. A longer time delays the notice of a dead host.
pub(crate) const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Minimum keep-alive. With less, a busy machine would be taken for a dead one.
pub(crate) const MIN_KEEP_ALIVE: Duration = Duration::from_millis(200);
/// Maximum keep-alive.
pub(crate) const MAX_KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// Number of times per keep-alive that an idle side sends a confirmation. With few, two lost
/// messages look like a lost connection.
pub(crate) const ACKS_PER_KEEP_ALIVE: u32 = 5;
/// The side that dialled dials again after this fraction of the keep-alive in silence (1/3). It is
/// smaller than [`ACKS_PER_KEEP_ALIVE`], so that at least one confirmation is missing by then. With
/// 1 there would be no time left to dial.
pub(crate) const REDIALS_PER_KEEP_ALIVE: u32 = 3;
/// Maximum time for a new connection to authenticate and to greet. With half of it, hosts at a
/// distance of 800 ms could not link. Silent strangers keep their places for this long.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum timeout of the first attempt to reconnect: about three round trips on a busy machine.
/// See [`REDIAL_HANDSHAKES`].
pub(crate) const REDIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout of the first attempt to reconnect, as a multiple of the time that the link's first
/// connection took. With 1, half of the attempts on a slow network would fail.
pub(crate) const REDIAL_HANDSHAKES: u32 = 3;
/// Pause between two attempts to reconnect.
pub(crate) const REDIAL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum pause before a handshake that the listener cut off is repeated. The pauses start at
/// [`REDIAL_INTERVAL`] and double, which makes five attempts.
pub(crate) const MAX_GREET_PAUSE: Duration = Duration::from_millis(320);
/// Maximum time that a request waits for its reply, or for room to be sent, while the link is
/// alive. It must be long enough for opens that wait for a third process.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a thread that moves memory polls for completion. After that it sleeps and leaves
/// the polling to the link's thread. A shorter time makes more transfers wake two threads. A longer
/// time uses more CPU time.
pub(crate) const SPIN: Duration = Duration::from_micros(100);
/// Maximum sleep of a thread whose memory is moving, in case a wake-up is lost. Normally the thread
/// is woken earlier.
pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Maximum time that a UCX transfer may make no progress before its endpoint is replaced. It is
/// less if the keep-alive is shorter. With less, networks that pause for retransmissions would move
/// memory twice. With more, a stuck network card is noticed later.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(45);
/// Minimum time that a new endpoint has to show that it works. A busy machine needs some of it.
pub(crate) const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum pause before an endpoint that keeps failing is replaced again. The pauses start at
/// [`REDIAL_INTERVAL`] and double.
pub(crate) const MAX_REPLACE_PAUSE: Duration = Duration::from_millis(500);

/// Minimum time between two endpoints that this side makes because the peer has replaced its own.
/// It limits the CPU time that a misbehaving other side can cost.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Number of endpoints that reach the peer but fail the same transfer, after which the transfer
/// fails. With the pauses between them this takes about 6 s. With fewer, networks that keep
/// breaking connections fail transfers. With more, a network card that cannot access the memory is
/// noticed later.
pub(crate) const MAX_PROVEN_FAILURES: u32 = 16;
/// Maximum number of new endpoints that the peer has not confirmed. A link with more ends. An
/// honest side confirms at least every [`ACK_EVERY`] messages, so it is never near this limit.
pub(crate) const MAX_ADDRESSES: usize = 256;

/// Maximum number of connections that are in their handshake at once. One more ends an old one.
/// Each has a thread and uses about 40 KiB.
pub(crate) const MAX_HANDSHAKES: usize = 32;
/// Maximum number of connections from one address that are in their handshake at once. For IPv6 an
/// address is a network of 64 bits. One more ends the oldest connection of that address.
pub(crate) const MAX_HANDSHAKES_EACH: usize = 8;
/// Maximum number of remembered addresses of hosts that have linked. Strangers cannot crowd these
/// out.
pub(crate) const MAX_KNOWN: usize = 1024;
/// Maximum number of links that wait to be accepted.
pub(crate) const MAX_UNACCEPTED: usize = 16;
/// Maximum number of handles and names that wait to be opened for the peer.
pub(crate) const MAX_OPENING: usize = 1024;
/// Maximum number of objects that are open for the peer.
pub(crate) const MAX_SERVED: usize = 1 << 16;
/// Maximum number of bytes of replies that the peer has not confirmed. A link with more ends. It is
/// four times what the [`PIECES_UNDER_WAY`] of 16 calls have.
pub(crate) const MAX_OWED: usize = 256 << 20;
/// Maximum number of messages about signals that the peer has not confirmed. Later signals are
/// combined into one message, which is sent when there is room. A host that never confirms costs
/// about 200 KiB, or 4 MiB if signals fail with long texts.
pub(crate) const MAX_TOLD: usize = 4096;
/// Maximum number of bytes that this side has asked to read and whose receipt it has not confirmed.
/// Further reads wait. The value is well below [`MAX_OWED`], at which the peer would end the link,
/// because more bytes can arrive between two confirmations.
pub(crate) const MAX_READING: usize = 128 << 20;
/// Maximum number of bytes of requests that the peer has not confirmed. Further requests wait. With
/// fewer, fast networks with a long delay are not used fully.
pub(crate) const MAX_ASKED: usize = 64 << 20;
/// Number of received messages after which a confirmation is sent at once. With fewer messages,
/// more confirmations are sent. With more, the peer keeps more messages.
pub(crate) const ACK_EVERY: u64 = 64;
/// Number of pieces of memory that one call has in flight over TLS.
pub(crate) const PIECES_UNDER_WAY: usize = 16;
/// Number of most recent unreported signals that the link checks for failures one by one. The check
/// takes some milliseconds. Earlier unreported signals are reported as failed if the first and the
/// last of them failed, and otherwise as signalled.
pub(crate) const MAX_LOOKED_AT: u64 = 1 << 16;
/// Maximum number of bytes that one message carries together with the signal that follows them.
pub(crate) const MAX_WITH_SIGNAL: usize = 16 << 10;

/// Size in bytes of a part that is copied to a staging buffer and moved from there. With smaller
/// parts, each part's round trip costs relatively more. With larger parts, copying and moving
/// overlap less.
pub(crate) const STAGING_PART: usize = 4 << 20;
/// Number of parts of a staging buffer. While one part is copied, another is moved.
pub(crate) const STAGING_PARTS: usize = 4;
/// Maximum size in bytes of an access to staged memory that goes in messages although UCX is
/// available. It takes one round trip instead of two, but the bytes are encrypted.
pub(crate) const STAGED_IN_MESSAGES: usize = 64 << 10;
/// Maximum time for a queue to copy one part. With less, copies fail on queues that other programs
/// keep busy.
pub(crate) const STAGING_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of accesses that wait for the thread that stages memory which the host cannot
/// access. Each has up to 256 KiB. A link that asks for more ends.
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
/// Maximum time until a neighbour's first request. With less, processes that are stopped for a
/// while must connect again. With more, silent processes keep their places longer.
pub(crate) const FIRST_QUESTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until the process that shares a link replies. It is longer than the
/// [timeout](ANSWER_TIMEOUT) of a request over the link. With less, requests fail that the link
/// would have answered. With more, a stopped process is noticed later.
pub(crate) const NEIGHBOUR_ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum number of bytes that one request copies. With less, large copies take more requests.
/// With more, a copy over a slow network takes longer than a reply may.
pub(crate) const NEIGHBOUR_PART: usize = 16 << 20;
/// Size in bytes of the shared memory through which a neighbour's ordinary bytes are copied.
pub(crate) const NEIGHBOUR_BUFFER: usize = 1 << 20;
