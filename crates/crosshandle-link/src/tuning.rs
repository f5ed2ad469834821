//! Time limits and size limits that several files use.

use std::time::Duration;

/// Default keep-alive: if no message arrives from the peer for this time, the link ends. With a
/// shorter time, links would end while switches find new routes. With a longer time, dead hosts are
/// detected later.
pub(crate) const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Minimum keep-alive. With a shorter time, the peer would treat a busy machine as dead.
pub(crate) const MIN_KEEP_ALIVE: Duration = Duration::from_millis(200);
/// Maximum keep-alive.
pub(crate) const MAX_KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// Number of confirmations that an idle side sends per keep-alive. With fewer, two lost messages
/// would look like a lost connection.
pub(crate) const ACKS_PER_KEEP_ALIVE: u32 = 5;
/// Divisor of the keep-alive for reconnects: after this fraction of the keep-alive without a
/// message, the dialling side reconnects. The value is smaller than [`ACKS_PER_KEEP_ALIVE`], so at
/// least one confirmation is missing by then.
pub(crate) const REDIALS_PER_KEEP_ALIVE: u32 = 3;
/// Maximum time for the handshake of a new connection. With half of this time, hosts with a
/// round-trip time of 800 ms could not link. An unknown host that sends nothing occupies a
/// handshake for this time.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum timeout for the first attempt to reconnect. It is about three round trips on a busy
/// machine. See [`REDIAL_HANDSHAKES`].
pub(crate) const REDIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// Timeout for the first attempt to reconnect, as a multiple of the time that the link's first
/// handshake took. With 1, half of the attempts on a slow network would fail.
pub(crate) const REDIAL_HANDSHAKES: u32 = 3;
/// Pause between two attempts to reconnect.
pub(crate) const REDIAL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum pause before the dialling side retries a handshake that the listener has cut off. The
/// pauses start at [`REDIAL_INTERVAL`] and double, so there are five attempts.
pub(crate) const MAX_GREET_PAUSE: Duration = Duration::from_millis(320);
/// Maximum time that a request waits to be sent, and maximum time that it waits for its reply.
/// During this time, the peer may have to wait for another process, for example to open a handle.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a thread that moves memory polls for completion. After this time, the thread
/// sleeps, and the link's thread polls. With a shorter time, more transfers have to wake two
/// threads. With a longer time, polling uses more CPU time.
pub(crate) const SPIN: Duration = Duration::from_micros(100);
/// Maximum time that a thread sleeps while it waits for its transfer. Normally, a notification
/// wakes the thread earlier. The limit matters only if a notification is lost.
pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Time without progress after which a UCX transfer replaces its endpoint. If the keep-alive is
/// shorter, a shorter time applies. With a shorter time, pauses for retransmissions would restart
/// transfers. With a longer time, a stuck network card is detected later.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(45);
/// Minimum time that a new endpoint gets to show that it works. It must suffice on a busy machine.
pub(crate) const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum pause before a repeatedly failing endpoint is replaced again. The pauses start at
/// [`REDIAL_INTERVAL`] and double.
pub(crate) const MAX_REPLACE_PAUSE: Duration = Duration::from_millis(500);

/// Minimum time between two endpoints that this side creates because the peer has replaced its own
/// endpoint. This limits the CPU time that a misbehaving peer can use.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Number of failed endpoints after which a transfer fails, even if each endpoint had reached the
/// peer. With the pauses between them, this takes about 6 s. With a smaller number, transfers fail
/// in networks that often break connections. With a larger number, a network card that cannot
/// access the memory is detected later.
pub(crate) const MAX_PROVEN_FAILURES: u32 = 16;
/// Maximum number of sent endpoint addresses that the peer has not confirmed. If there are more,
/// the link ends. An honest peer confirms at least every [`ACK_EVERY`] messages, so it stays far
/// below this limit.
pub(crate) const MAX_ADDRESSES: usize = 256;

/// Maximum number of simultaneous handshakes. A connection beyond this limit ends an older
/// handshake. Each handshake has a thread and uses about 40 KiB of memory.
pub(crate) const MAX_HANDSHAKES: usize = 32;
/// Maximum number of simultaneous handshakes from one IPv4 address or one IPv6 /64 network. A
/// connection beyond this limit ends the oldest handshake from there.
pub(crate) const MAX_HANDSHAKES_EACH: usize = 8;
/// Maximum number of remembered addresses from which hosts have linked. Unknown hosts cannot
/// displace these addresses.
pub(crate) const MAX_KNOWN: usize = 1024;
/// Maximum number of established links that wait for [`Listener::accept`](crate::Listener::accept).
pub(crate) const MAX_UNACCEPTED: usize = 16;
/// Maximum number of the peer's requests to open a handle or a name that wait to be processed.
pub(crate) const MAX_OPENING: usize = 1024;
/// Maximum number of objects that one peer may have open.
pub(crate) const MAX_SERVED: usize = 1 << 16;
/// Maximum size in bytes of all replies that the peer has not confirmed. If there are more, the
/// link ends. Sixteen calls with [`PIECES_UNDER_WAY`] pieces each need a quarter of this limit.
pub(crate) const MAX_OWED: usize = 256 << 20;
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
/// Number of received messages after which a confirmation is sent at once. With a smaller number,
/// more confirmations are sent. With a larger number, the peer has to store more messages.
pub(crate) const ACK_EVERY: u64 = 64;
/// Maximum number of pieces that one read or write has in flight over TLS.
pub(crate) const PIECES_UNDER_WAY: usize = 16;
/// Number of the most recent unreported signals that the link checks for failures one by one. The
/// check takes a few milliseconds. Earlier unreported signals are reported as failed if both the
/// first and the last of them failed. Otherwise, they are reported as completed.
pub(crate) const MAX_LOOKED_AT: u64 = 1 << 16;
/// Maximum number of bytes that `write_and_signal` sends in the same message as the signal.
pub(crate) const MAX_WITH_SIGNAL: usize = 16 << 10;

/// Size in bytes of one part of a staging buffer. A queue copies, and the link transfers, one part
/// at a time. With smaller parts, the round trip for each part costs relatively more. With larger
/// parts, copies and transfers overlap less.
pub(crate) const STAGING_PART: usize = 4 << 20;
/// Number of parts in a staging buffer. While a queue copies one part, the link transfers another.
pub(crate) const STAGING_PARTS: usize = 4;
/// Maximum size in bytes of an access to staged memory that uses messages even if UCX is available.
/// A message takes one round trip instead of two, but it has to be encrypted.
pub(crate) const STAGED_IN_MESSAGES: usize = 64 << 10;
/// Maximum time for a queue to copy one part. With a shorter time, copies would fail on devices
/// that other programs keep busy.
pub(crate) const STAGING_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of accesses that wait for the staging thread. Each access has up to 256 KiB. If
/// the peer requests more, the link ends.
pub(crate) const MAX_STAGING: usize = 512;

/// Maximum number of neighbours (other local processes) that use a shared link at the same time.
/// Each has a thread.
pub(crate) const MAX_NEIGHBOURS: usize = 64;
/// Maximum number of connections of one process to a shared link.
pub(crate) const MAX_NEIGHBOURS_EACH: usize = 16;
/// Maximum number of objects that one neighbour may have open.
pub(crate) const MAX_NEIGHBOUR_OBJECTS: usize = 4096;
/// Maximum number of a neighbour's own allocations that stay open for its next copies. With a
/// larger number, memory that the neighbour has freed is kept longer.
pub(crate) const MAX_KEPT_LOCALS: usize = 8;
/// Maximum time until a neighbour sends its first request. With a shorter time, a process that was
/// stopped for a while would have to connect again. With a longer time, a process that sends
/// nothing occupies a connection longer.
pub(crate) const FIRST_QUESTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a neighbour waits for a reply from the process that shares the link. It is
/// longer than the [timeout](ANSWER_TIMEOUT) for a request over the link, so that a request does
/// not fail while the link still waits for its reply. With a longer time, a stopped process is
/// detected later.
pub(crate) const NEIGHBOUR_ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum number of bytes that one request of a neighbour copies. With a smaller limit, large
/// copies take more requests. With a larger limit, a copy over a slow network could exceed the
/// timeout for requests.
pub(crate) const NEIGHBOUR_PART: usize = 16 << 20;
/// Size in bytes of the shared memory through which a neighbour's private bytes are copied.
pub(crate) const NEIGHBOUR_BUFFER: usize = 1 << 20;
