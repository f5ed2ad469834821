//! Time and count constants of the exchange between processes.

use std::time::Duration;

/// Share of a process's descriptor limit that may be in transit to importers, in replies with many
/// descriptors, as a divisor. The rest stays available to other processes of the user.
pub(super) const MAX_UNDER_WAY_PART: usize = 2;

/// Maximum size of the replies that an importer has not read yet, in bytes of the exporter's kernel
/// memory. Its further requests wait until it reads. A reply takes about one kilobyte. The value is
/// below a quarter of the usual send buffer.
pub(super) const MAX_UNREAD_BYTES: usize = 32 << 10;

/// Interval at which an exporter checks which replies were read, while importers of another user
/// have no room for more. Each check costs a system call for each importer with unread replies.
pub(super) const UNDER_WAY_LOOK: Duration = Duration::from_millis(10);

/// Share of a process's descriptor limit that its opens of memory in pieces may use at a time, as a
/// divisor. The rest stays available to other calls.
pub(super) const MAX_TAKEN_PART: usize = 4;

/// Maximum number of requests for memory that an importer sends before it has their replies, when
/// it opens many objects at a time. Each reply brings a descriptor. With fewer, the exporter's
/// driver and the importer's driver may wait for each other. With more, other threads wait longer
/// for their turn.
pub(super) const MAX_QUESTIONS_AHEAD: usize = 16;

/// Interval at which an importer repeats a request for pieces for which the exporter had no free
/// descriptors.
pub(super) const PIECES_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Maximum time that an importer waits until a reply for which it has no free descriptors has been
/// discarded. After it, the importer gives up the connection.
pub(super) const DISCARD_WAIT: Duration = Duration::from_secs(10);

/// Size in bytes of the first part of an arena's slots that is pinned for a device, and the minimum
/// size of a pinned part. A larger part delays the first event that a device needs, because
/// untouched pages are allocated first.
pub(super) const MIN_PIN_BYTES: usize = 64 << 10;

/// Maximum number of bytes of an arena's slots that are pinned at a time. A larger part delays an
/// event that needs it, because untouched pages are allocated first.
pub(super) const MAX_PIN_BYTES: usize = 2 << 20;

/// Number of retired records that are checked when another record is retired or needed. It is more
/// than one, so that records are reclaimed faster than they are retired. A larger number makes each
/// drop of exported memory slower while importers hold other memory.
pub(super) const RECLAIM_LOOKS: usize = 32;

/// Maximum number of replacements of a ledger chunk that an importer can get. An importer needs one
/// if its request timed out, or if it had no memory to map the chunk. The limit bounds the
/// exporter's addresses that a hostile importer can occupy, at most 3 MiB per chunk.
pub(super) const MAX_LEDGER_REPEATS: usize = 16;

/// Maximum number of late signals of one event in one process. Further signals are refused. That
/// many take about 400 KiB.
pub(super) const MAX_LATE_SIGNALS: usize = 4096;

/// Maximum number of late signals of one word that are completed before the lock is released, which
/// takes some microseconds.
pub(super) const LATE_BATCH: usize = 64;

/// Interval at which the late-completion job checks whether the awaited processes are alive. It
/// limits how late an unreported death is noticed.
pub(super) const LATE_COMPLETION_INTERVAL: Duration = Duration::from_millis(40);

/// Maximum number of words of all events that the late-completion job waits for at a time. If there
/// are more, it waits for them in rotation. The kernel can watch 128 words at once.
pub(super) const MAX_LATE_WORDS: usize = 120;

/// Maximum time that a thread which ends a context waits until the late-completion job releases the
/// context. It is exceeded only if a system call hangs.
pub(super) const LATE_ROUND_WAIT: Duration = Duration::from_millis(100);

/// Maximum number of processes that an importer watches per attached context because it waits for
/// them. Each needs a descriptor. If the exporter is stopped, the importer notices the deaths of
/// further processes only by its own liveness checks.
pub(super) const MAX_WATCHED_PEERS: usize = 16;

/// Maximum number of directory entries that a new exporter checks for sockets of killed processes,
/// which takes about 2 ms. The limit bounds the delay of the first handle.
pub(super) const MAX_SWEEP_LOOKS: usize = 4096;

/// Maximum number of apparently dead sockets that a new exporter probes by connecting to them. It
/// removes those that refuse.
pub(super) const MAX_SWEEP_PROBES: usize = 64;

/// Age from which an unnamed socket is treated as left over by a killed process. A process that was
/// stopped for this long while it began to listen, without a liveness lock, must start again.
pub(super) const MIN_UNNAMED_AGE: Duration = Duration::from_secs(60);

/// Maximum number of connections to an exporter that are not attached to any context. More
/// connections allow strangers to take more descriptors. With fewer, a flood of connections
/// displaces importers earlier, which must then reconnect.
pub(super) const MAX_UNATTACHED: usize = 64;

/// Maximum number of [`MAX_UNATTACHED`] connections that belong to one user other than the
/// exporter's own.
pub(super) const MAX_UNATTACHED_OF_STRANGER: usize = 16;

/// Maximum number of requests on an unattached connection. An importer attaches with its first
/// request, and `crosshandle ps` sends one request. The limit bounds the exporter's time for peers
/// without a handle.
pub(super) const MAX_UNATTACHED_REQUESTS: u32 = 8;

/// Maximum time until a connection sends its first request, and between further requests until it
/// is attached. If an importer is stopped or swapped out for longer, it must reconnect.
pub(super) const UNATTACHED_TIME: Duration = Duration::from_secs(2);

/// Share of the exporter's descriptor limit that attached connections may use, as a divisor. It
/// includes the descriptors that the exporter keeps for each of them.
pub(super) const MAX_ATTACHED_PART: usize = 2;

/// Share of the exporter's descriptor limit that attached connections of one other user may use, as
/// a divisor.
pub(super) const MAX_ATTACHED_PART_OF_STRANGER: usize = 4;

/// Maximum number of descriptors that are reserved for the exporter's own calls, and at most a
/// share of [`MAX_RESERVED_PART`] of the limit. Some calls, such as an open that attaches, need
/// several descriptors at once.
pub(super) const MAX_RESERVED_DESCRIPTORS: usize = 32;

/// Divisor of the descriptor limit that bounds the reserve, for small limits (see
/// [`MAX_RESERVED_DESCRIPTORS`]).
pub(super) const MAX_RESERVED_PART: usize = 8;

/// Maximum number of connections that the exchange thread accepts from a socket before it serves
/// other sources, about 100 µs. More would delay attached importers during a flood of connections,
/// and fewer would delay new importers.
pub(super) const MAX_ACCEPTS: usize = 16;

/// Interval at which an importer reconnects to an exporter that hung up without a reply.
pub(super) const RECONNECT_INTERVAL: Duration = Duration::from_millis(1);

/// Time for which an importer polls for a reply before it sleeps, if other CPUs are available. An
/// exporter's sleeping thread needs about this long to wake up. Requests to a busy exporter waste
/// this much processor time.
pub(super) const ANSWER_SPIN: Duration = Duration::from_micros(60);

/// Interval at which an importer that waits for a reply checks whether the exporter is dead,
/// although its socket is still open. Another process may have a copy of the socket. Each check
/// takes three system calls.
pub(super) const EXPORTER_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Number of records that a report reads under the lock on the records, which takes some
/// microseconds.
pub(super) const DESCRIBED_AT_ONCE: u32 = 1024;

/// Maximum number of objects of a kind, of importers, and of waiters of one context that a report
/// lists. Totals cover the rest.
pub(super) const MAX_LISTED: usize = 1000;

/// Maximum number of objects of all contexts that a report lists. With many contexts, each lists
/// fewer. It bounds the longest report to about 10 MiB.
pub(super) const MAX_LISTED_OF_ALL: usize = 8192;

/// Maximum number of contexts that a report describes.
pub(super) const MAX_DESCRIBED_CONTEXTS: usize = 256;

/// Maximum number of unfinished signals of one event that a report lists.
pub(super) const MAX_LISTED_SIGNALS: usize = 8;

/// Maximum number of importers of one object that a report lists.
pub(super) const MAX_LISTED_OPENERS: usize = 16;

/// Maximum number of open counts that are read for a report, which takes 20 ms. Beyond it, the
/// totals of importers are too low.
pub(super) const MAX_COUNT_LOOKS: usize = 1 << 22;

/// Maximum size of a report in bytes. The receiver rejects a report that is four times as long.
pub(super) const MAX_REPORT_BYTES: usize = 16 << 20;

/// Interval at which the liveness thread and its callers retry after the system was out of memory.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Time after which the thread of awaited signals ends if it has none. Starting it again takes
/// about 100 µs.
pub(super) const AWAIT_IDLE: Duration = Duration::from_secs(2);

/// Delay after which an exporter listens again if its socket was removed. A shorter delay may
/// recreate the directory while a program is still removing it. During the delay, importers are
/// refused.
pub(super) const RESTORE_DELAY: Duration = Duration::from_millis(100);
