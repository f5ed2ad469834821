//! Constants of time, and limits.

use std::time::Duration;

/// How long a link survives silence unless the program says otherwise. Halved, links end in outages that
/// switches need to find new ways; doubled, waiters learn of a dead host later.
pub(crate) const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The shortest and the longest keep-alive. Below the shortest a busy machine seems dead.
pub(crate) const MIN_KEEP_ALIVE: Duration = Duration::from_millis(200);
/// See [`MIN_KEEP_ALIVE`].
pub(crate) const MAX_KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// In how many parts of the keep-alive a side that has nothing to say says so. Halved, two lost messages
/// look like a lost connection; doubled, idle links send more.
pub(crate) const ACKS_PER_KEEP_ALIVE: u32 = 5;
/// After which part of the keep-alive in silence the side that dialled dials again. Fewer than
/// [`ACKS_PER_KEEP_ALIVE`], so that two confirmations are missing by then; with 1 there is no time left.
pub(crate) const REDIALS_PER_KEEP_ALIVE: u32 = 3;
/// How long a connection may take to show who it is and to greet. Halved, hosts that are 800 ms away are not
/// admitted; doubled, strangers that say nothing keep their places longer.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the first attempt to connect again may take at least. It is some three round trips; see
/// [`REDIAL_HANDSHAKES`]. Halved, a machine that is busy needs several attempts; doubled, an attempt that the
/// network swallowed takes longer to be repeated.
pub(crate) const REDIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the first attempt to connect again may take, in times of what the link's first connection took.
/// With 1, half of the attempts on a slow network fail; doubled, the next attempt comes later.
pub(crate) const REDIAL_HANDSHAKES: u32 = 3;
/// The time between two attempts to connect again. Halved, a host that is restarted is asked more often;
/// doubled, links come back later.
pub(crate) const REDIAL_INTERVAL: Duration = Duration::from_millis(20);
/// The longest pause before a handshake that the listener cut off is tried again, after pauses from
/// [`REDIAL_INTERVAL`] on, each twice as long as the last: five attempts. Halved, four; doubled, strangers that
/// are cut off learn of it half a second later.
pub(crate) const MAX_GREET_PAUSE: Duration = Duration::from_millis(320);
/// How long a question may wait for its answer, and one that is to be asked for room, while the link lives.
/// Halved, opens that wait for a third process fail early; doubled, a host that never answers is noticed
/// later.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a thread that moves memory looks for the end itself, before it leaves that to the link's
/// thread and sleeps. Halved, more transfers wake two threads; doubled, more CPU time is spent.
pub(crate) const SPIN: Duration = Duration::from_micros(100);
/// The longest sleep of a thread whose memory is moving, in case a wake is lost. Nothing waits for it as a
/// rule.
pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(100);
/// How long memory that moves by UCX may make no progress at most before its endpoint is replaced; less if the
/// keep-alive is shorter. Halved, networks that stop for retransmissions move memory twice; doubled, who waits for
/// a stuck network card waits longer.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(45);
/// How long a new endpoint may take at least to show that it works. Halved, a machine that is busy needs several;
/// doubled, one that the network swallowed is replaced later.
pub(crate) const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest pause before an endpoint is replaced that failed as those before it, after pauses from
/// [`REDIAL_INTERVAL`] on, each twice as long as the last. Halved, a network that refuses connections is asked more
/// often; doubled, memory moves again later.
pub(crate) const MAX_REPLACE_PAUSE: Duration = Duration::from_millis(500);

/// The least time between two endpoints with which this side follows the other one, which has replaced its own.
/// Halved, a side that replaces without reason costs twice the CPU time; doubled, memory moves again later.
pub(crate) const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Endpoints that reach the other side and fail one move before that is given up: some 6 s, with the pauses between
/// them. Halved, networks that break connections over and over fail moves; doubled, a network card that may not
/// access the memory is noticed later.
pub(crate) const MAX_PROVEN_FAILURES: u32 = 16;
/// New endpoints that the other side has not confirmed to know; a link that has more ends. Confirmations come for
/// each [`ACK_EVERY`] messages at least, so an honest side is never near it.
pub(crate) const MAX_ADDRESSES: usize = 256;

/// Connections that are shaking hands at once. One more ends an old one. Each has a thread and some 40 KiB.
pub(crate) const MAX_HANDSHAKES: usize = 32;
/// Connections that are shaking hands at once from one address (IPv6: from one network of 64 bits). One more
/// ends that address's oldest.
pub(crate) const MAX_HANDSHAKES_EACH: usize = 8;
/// Addresses of hosts that have linked, which strangers cannot crowd out. Halved, fewer are remembered.
pub(crate) const MAX_KNOWN: usize = 1024;
/// Links that wait to be accepted.
pub(crate) const MAX_UNACCEPTED: usize = 16;
/// Handles and names that wait to be opened for the other side.
pub(crate) const MAX_OPENING: usize = 1024;
/// Objects that are open for the other side.
pub(crate) const MAX_SERVED: usize = 1 << 16;
/// Bytes of answers that the other side has not confirmed; a link that has more ends. Four times what
/// [`PIECES_UNDER_WAY`] of 16 calls are.
pub(crate) const MAX_OWED: usize = 256 << 20;
/// Messages about signals that the other side has not confirmed. Signals that come meanwhile are told of in
/// one message when there is room. Doubled, a host that never confirms costs twice the memory: some 200 KiB, or
/// 4 MiB if signals fail with long texts.
pub(crate) const MAX_TOLD: usize = 4096;
/// Bytes that this side has asked to read and whose receipt it has not confirmed. Who asks more waits. Well below
/// [`MAX_OWED`], at which the other side would end the link: what comes between two confirmations is more.
pub(crate) const MAX_READING: usize = 128 << 20;
/// Bytes of questions that the other side has not confirmed. Who asks more waits. Halved, fewer writes are
/// under way on fast and long networks.
pub(crate) const MAX_ASKED: usize = 64 << 20;
/// Messages after whose receipt it is confirmed at once. Halved, more confirmations are sent; doubled, more
/// is kept.
pub(crate) const ACK_EVERY: u64 = 64;
/// Pieces of memory that are under way over TLS at once, for one call.
pub(crate) const PIECES_UNDER_WAY: usize = 16;
/// How many signals before the latest are looked at for failures: some milliseconds. Those before, of which the
/// other side was not told yet, count as failed there if the first and the last of them have failed, otherwise as
/// signalled. Doubled, a look at so many holds up the link for twice as long.
pub(crate) const MAX_LOOKED_AT: u64 = 1 << 16;
/// Bytes that are sent in one message with the signal that follows them.
pub(crate) const MAX_WITH_SIGNAL: usize = 16 << 10;

/// Bytes of a part of memory that is copied to a staging buffer and moved from there. Halved, the round trip
/// for each part weighs more; doubled, parts overlap less.
pub(crate) const STAGING_PART: usize = 4 << 20;
/// Parts of a staging buffer: while one is copied another is moved.
pub(crate) const STAGING_PARTS: usize = 4;
/// Bytes to and from a staging buffer that go in messages although there is UCX: one round trip instead of two.
/// Doubled, more is encrypted.
pub(crate) const STAGED_IN_MESSAGES: usize = 64 << 10;
/// How long a queue may take for a part. Halved, queues that other programs keep busy fail copies.
pub(crate) const STAGING_TIMEOUT: Duration = Duration::from_secs(30);
/// Accesses to memory that the host cannot access which wait for the thread that stages; a link that asks for
/// more ends. Each has up to 256 KiB.
pub(crate) const MAX_STAGING: usize = 512;

/// Neighbours that use a shared link at once, and connections of one process among them. Each has a thread.
pub(crate) const MAX_NEIGHBOURS: usize = 64;
/// See [`MAX_NEIGHBOURS`].
pub(crate) const MAX_NEIGHBOURS_EACH: usize = 16;
/// Objects that a neighbour has open.
pub(crate) const MAX_NEIGHBOUR_OBJECTS: usize = 4096;
/// Memory of a neighbour that is kept open for its next copy. Doubled, memory that it has freed is kept longer.
pub(crate) const MAX_KEPT_LOCALS: usize = 8;
/// How long a neighbour may take for its first question. Halved, processes that are stopped for a while must connect
/// anew; doubled, those that say nothing keep their places longer.
pub(crate) const FIRST_QUESTION_TIMEOUT: Duration = Duration::from_secs(10);
/// How long who shares a link may take for an answer: longer than a [question](ANSWER_TIMEOUT) over the link takes. Halved,
/// questions fail that the link would have answered; doubled, a process that is stopped is noticed later.
pub(crate) const NEIGHBOUR_ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// Bytes that one question copies at most. Halved, large copies take more questions; doubled, slow networks take longer
/// than an answer may.
pub(crate) const NEIGHBOUR_PART: usize = 16 << 20;
/// Bytes of the memory that a neighbour's plain bytes go through. Halved, they take more questions.
pub(crate) const NEIGHBOUR_BUFFER: usize = 1 << 20;
