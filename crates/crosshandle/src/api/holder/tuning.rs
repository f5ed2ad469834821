//! Limits and times of holders.

use std::time::Duration;

/// Maximum size of a message between a program and a holder, or between a holder and its successor,
/// in bytes. With a larger value, two messages could exceed the usual limit of a socket's queue.
pub(super) const MAX_MESSAGE_BYTES: usize = 60 << 10;

/// Size of the names in one reply to a list request, in bytes. With the last entry, the reply must
/// stay below [`MAX_MESSAGE_BYTES`].
pub(super) const LIST_BYTES: usize = 30 << 10;

/// Maximum number of objects under one name. Their handles must fit into one message.
pub(super) const MAX_PARTS: usize = 32;

/// Maximum length of a label, in bytes.
pub(super) const MAX_LABEL_BYTES: usize = 4096;

/// Maximum number of connections of programs to a holder, including those that wait for a version.
/// Each takes a descriptor, and the usual limit of a process is 1,024.
pub(super) const MAX_PROGRAMS: usize = 256;

/// Maximum number of programs that wait for a version of a name. It is a part of [`MAX_PROGRAMS`],
/// so that connections for other requests remain.
pub(super) const MAX_WAITING: usize = MAX_PROGRAMS / 2;

/// Maximum number of connections of one process that wait for a version. This limit keeps a few
/// processes from taking all of [`MAX_WAITING`].
pub(super) const WAITING_OF_PROCESS: usize = MAX_WAITING / 4;

/// Maximum number of programs with a job that runs or is queued. It is a part of [`MAX_PROGRAMS`],
/// so that connections for other requests remain.
pub(super) const MAX_WORKING: usize = MAX_PROGRAMS / 2;

/// Maximum number of connections of one process with a job that runs or is queued. This limit keeps
/// a few processes from taking all of [`MAX_WORKING`].
pub(super) const WORKING_OF_PROCESS: usize = MAX_WORKING / 8;

/// Maximum number of jobs that run at a time: hand-overs that fetch memory, and claims that are
/// being checked. Each takes a thread. An exporter that never replies blocks its thread for
/// [`FETCH_TIMEOUT`].
pub(super) const MAX_JOBS: usize = 24;

/// Maximum number of jobs that run at a time for one process. With a larger value, fewer
/// unresponsive processes could hold up the user's other programs for [`FETCH_TIMEOUT`].
pub(super) const JOBS_OF_PROCESS: usize = 4;

/// Maximum number of requests that the holder answers before it polls again for new ones. A larger
/// value saves system calls under load, but new requests wait for longer.
pub(super) const MAX_QUESTIONS_AT_ONCE: usize = 16;

/// Time after which the holder stops answering and polls for new requests, since some requests ask
/// for long lists or contain long garbage. A longer time makes new requests wait. A shorter time
/// costs more system calls under load.
pub(super) const QUESTIONS_TIME_AT_ONCE: Duration = Duration::from_millis(1);

/// Maximum number of connections that the holder accepts before it answers requests. It exceeds the
/// length of the socket's queue, so that a new connection behind a flood waits for only one round
/// of replies.
pub(super) const MAX_ACCEPTED_AT_ONCE: usize = 256;

/// Maximum number of scans of all processes for one claim. A scan is repeated whenever a process
/// has ended during it. With a smaller value, claims fail more often on a machine that starts many
/// processes.
pub(super) const MAX_PROCESS_SCANS: u32 = 16;

/// Maximum number of earlier writers that are kept for a name. They may still write: they opened a
/// driver's memory for writing before the first claim, or another process claimed the name by
/// force. If there are more, the name can only be claimed by force. A larger value makes the
/// messages to the successor longer.
pub(super) const MAX_EARLIER_WRITERS: usize = 64;

/// Maximum size of one earlier writer in a message to the successor, in bytes.
pub(super) const EARLIER_WRITER_BYTES: usize = 256;

/// Interval at which a program repeats its claim of a name that has another writer. Each attempt
/// scans all processes.
pub(super) const CLAIM_INTERVAL: Duration = Duration::from_millis(5);

/// Number of descriptors that a holder needs in addition to those of held memory: for connections
/// of programs, for importers, and for itself.
pub(super) const OTHER_DESCRIPTORS: usize = MAX_PROGRAMS + 128;

/// Maximum number of descriptors for one record: its own, and a read-only one.
pub(super) const RECORD_DESCRIPTORS: usize = 2;

/// Maximum number of descriptors for the tables of one exporting context.
pub(super) const CONTEXT_DESCRIPTORS: usize = 8;

/// Maximum number of names. The label and handles of a name take up to 20 KB of the holder's
/// memory.
pub(super) const MAX_NAMES: usize = 4096;

/// Maximum number of names that one process may hand over. This limit keeps one process from taking
/// all of [`MAX_NAMES`].
pub(super) const NAMES_OF_PROCESS: usize = MAX_NAMES / 2;

/// Maximum size of a journal that is read, in bytes. It has room for [`MAX_NAMES`] names with long
/// labels and many parts. A file that is not a journal takes that much memory for a moment.
pub(super) const MAX_JOURNAL_BYTES: u64 = 128 << 20;

/// Maximum number of attempts to reach a new holder with a backup's offer, while no holder answers.
pub(super) const MAX_OFFERS: u32 = 100;

/// Shortest interval between two offers.
pub(super) const OFFER_INTERVAL: Duration = Duration::from_millis(20);

/// Interval at which a process polls for a new holder if the system has no inotify watch left.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of replaced importer sockets on which the holder still listens. Other processes
/// had removed these sockets from the directory. With a smaller value, repeated removals break
/// connections sooner.
pub(super) const MAX_OLD_LISTENERS: usize = 4;

/// Maximum number of exporting contexts whose memory is held. Each needs descriptors for its
/// tables.
pub(super) const MAX_HELD_CONTEXTS: usize = 1024;

/// Maximum number of contexts whose memory one process may hand over. This limit keeps a few
/// processes from taking all of [`MAX_HELD_CONTEXTS`].
pub(super) const CONTEXTS_OF_PROCESS: usize = 64;

/// Maximum size of the holder's own memory for labels, handles and the tables of exporters'
/// records, in bytes. This limit bounds what hostile programs can take.
pub(super) const MAX_BYTES: usize = 512 << 20;

/// Maximum size of the holder's own memory for the names of one process, in bytes. This limit keeps
/// a few processes from taking all of [`MAX_BYTES`].
pub(super) const BYTES_OF_PROCESS: usize = MAX_BYTES / 4;

/// Size of an entry in the table of an exporter's records, in bytes. It includes everything else
/// that is kept for the record.
pub(super) const TABLE_PLACE_BYTES: usize = 96;
/// Size of everything that is kept for a part of a name, in bytes: its handles, its record and its
/// line in the journal.
pub(super) const PART_BYTES: usize = 2048;

/// Upper bound of the record numbers that may be held. The table of an exporter has an entry for
/// each number, so a hostile exporter's table takes up to 5 MB.
pub(super) const MAX_HELD_INDEX: u32 = 1 << 16;

/// Time that a program has to send a request after it connected. After that the holder closes the
/// connection.
pub(super) const QUESTION_TIME: Duration = Duration::from_secs(2);

/// Time that a holder allows an exporter to send the memory that is handed over. A shorter time
/// fails hand-overs of busy processes. A longer time delays the notice of a process that hangs.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time that a reply waits until the successor has the change. After that time the reply to
/// a hand-over says that only the holder has the memory.
pub(super) const SUCCESSOR_TIME: Duration = Duration::from_secs(3);

/// Time that a new holder waits for the lock of a killed holder, until the system has ended all
/// threads of that process.
pub(super) const LOCK_TIME: Duration = Duration::from_secs(3);

/// Time in which the process that owns the lock must reply to be taken for a running holder.
pub(super) const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// Delay before a holder starts another successor in the place of one that ended or did not start.
pub(super) const RESTART_INTERVAL: Duration = Duration::from_millis(100);

/// Time of silence after which the holder pings its successor. A shorter time wakes both idle
/// processes more often. A longer time delays the replacement of a stopped successor.
pub(super) const PING_INTERVAL: Duration = Duration::from_millis(500);

/// Time after which a successor that confirms nothing is replaced. A shorter time replaces
/// successors in vain on a busy machine. A longer time delays changes if the successor is stopped.
pub(super) const UNRESPONSIVE_TIME: Duration = Duration::from_millis(1000);

/// Longest delay before a holder starts another successor, if the previous ones never became
/// complete.
pub(super) const MAX_RESTART_INTERVAL: Duration = Duration::from_secs(2);

/// Interval at which the holder tries to write the journal again after a failure. Held memory is
/// reported as unsafe until an attempt succeeds.
pub(super) const JOURNAL_RETRY: Duration = Duration::from_secs(1);

/// Time that a holder continues without its socket directory. It ends if the directory has not been
/// restored by then.
pub(super) const DIRECTORY_GONE_TIME: Duration = Duration::from_secs(3);

/// Delay from a change in the directory until the holder inspects it, and interval of inspections
/// while the directory is missing. A shorter time interferes with programs that are still removing
/// the directory.
pub(super) const DIRECTORY_LOOK: Duration = Duration::from_millis(50);

/// Interval of inspections of a directory that the kernel does not watch, or that could not be
/// restored.
pub(super) const UNWATCHED_LOOK: Duration = Duration::from_secs(1);

/// Minimum size of a journal file before the next one is begun, in bytes. A larger value makes a
/// new holder read more.
pub(super) const JOURNAL_FILE_BYTES: u64 = 1 << 20;

/// Number of bytes of journal lines that are moved at a time out of the files of a previous holder.
/// Requests wait meanwhile.
pub(super) const JOURNAL_MOVED_BYTES: u64 = 64 << 10;

/// Maximum number of unconfirmed messages to a successor. A successor with more is replaced. With a
/// smaller value, many names that are handed over at once make a successor look stuck.
pub(super) const MAX_UNCONFIRMED: usize = 1 << 16;

/// Default time that a program waits for a holder's reply. A hand-over of many parts must fit into
/// it.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Shortest pause before a program reconnects to a holder that has hung up. A successor replies
/// within milliseconds.
pub(super) const RECONNECT_INTERVAL: Duration = Duration::from_millis(1);

/// Longest pause before a program repeats a request that a busy holder has put off. A smaller value
/// costs the holder more time if many programs wait.
pub(super) const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of reconnections to a holder that hangs up each time.
pub(super) const MAX_RECONNECTS: u32 = 64;
