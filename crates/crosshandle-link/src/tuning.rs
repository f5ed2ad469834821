//! Constants of time, and limits.

use std::time::Duration;

/// How long a link survives silence unless the program says otherwise.
pub(crate) const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The shortest and the longest keep-alive.
pub(crate) const MIN_KEEP_ALIVE: Duration = Duration::from_millis(200);
/// See [`MIN_KEEP_ALIVE`].
pub(crate) const MAX_KEEP_ALIVE: Duration = Duration::from_secs(3600);
/// In how many parts of the keep-alive a side that has nothing to say says so.
pub(crate) const ACKS_PER_KEEP_ALIVE: u32 = 5;
/// After which part of the keep-alive in silence the side that dialled dials again.
pub(crate) const REDIALS_PER_KEEP_ALIVE: u32 = 3;
/// How long a connection may take to show who it is and to greet.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one attempt to connect again may take.
pub(crate) const REDIAL_TIMEOUT: Duration = Duration::from_millis(500);
/// The time between two attempts to connect again.
pub(crate) const REDIAL_INTERVAL: Duration = Duration::from_millis(20);
/// How long a question may wait for its answer while the link lives.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a thread that moves memory looks for the end itself, before it leaves that to the link's
/// thread and sleeps.
pub(crate) const SPIN: Duration = Duration::from_micros(100);
/// The longest sleep of a thread whose memory is moving, in case a wake is lost.
pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Connections that are shaking hands at once. One more ends the oldest.
pub(crate) const MAX_HANDSHAKES: usize = 32;
/// Links that wait to be accepted.
pub(crate) const MAX_UNACCEPTED: usize = 16;
/// Handles that wait to be opened for the other side.
pub(crate) const MAX_OPENING: usize = 1024;
/// Objects that are open for the other side.
pub(crate) const MAX_SERVED: usize = 1 << 16;
/// Bytes of answers that the other side has not confirmed; a link that has more ends.
pub(crate) const MAX_OWED: usize = 256 << 20;
/// Messages after whose receipt it is confirmed at once.
pub(crate) const ACK_EVERY: u64 = 64;
/// Pieces of memory that are under way over TLS at once, for one call.
pub(crate) const PIECES_UNDER_WAY: usize = 16;
/// How many failed signals before the latest are told one by one.
pub(crate) const MAX_FAILURES_TOLD: u64 = 64;
/// Bytes that are sent in one message with the signal that follows them.
pub(crate) const MAX_WITH_SIGNAL: usize = 16 << 10;
