//! Constants of time and count of holders, and why they have their values.

use std::time::Duration;

/// Bytes of the longest message between a program and a holder, and between a holder and its successor.
/// Halved: fewer parts fit under one name, and lists take more messages. Doubled: more than the usual
/// limit of a socket's queue may be taken by two messages.
pub(super) const MAX_MESSAGE_BYTES: usize = 60 << 10;

/// Bytes of names in one answer to a question for all of them. Halved: twice the questions. Doubled: close
/// to [`MAX_MESSAGE_BYTES`] with the last entry.
pub(super) const LIST_BYTES: usize = 30 << 10;

/// The number of objects that one name may have. Halved: stores with a manifest for each shard need more
/// names. Doubled: their handles may not fit in one message.
pub(super) const MAX_PARTS: usize = 32;

/// Bytes of the longest label. Halved: less room for what a store notes with a name. Doubled: lists take
/// more messages.
pub(super) const MAX_LABEL_BYTES: usize = 4096;

/// Connections of programs to a holder at a time, those included that wait for a version. Halved: fewer
/// readers can wait. Doubled: a flood of them takes twice the descriptors, of 1,024 as a rule.
pub(super) const MAX_PROGRAMS: usize = 256;

/// Programs that wait for a version of a name at a time: part of [`MAX_PROGRAMS`], so that others are
/// answered. Halved: fewer readers can wait. Doubled: all places may be taken by who waits.
pub(super) const MAX_WAITING: usize = MAX_PROGRAMS / 2;

/// Programs of one process that wait for a version at a time. Halved: fewer threads of one program can wait.
/// Doubled: two processes can take all places of [`MAX_WAITING`].
pub(super) const WAITING_OF_PROCESS: usize = MAX_WAITING / 4;

/// Programs for which a job runs, or waits for its turn, at a time: part of [`MAX_PROGRAMS`]. Halved: programs
/// that hand over at the same time are put off sooner. Doubled: all places may be taken.
pub(super) const MAX_WORKING: usize = MAX_PROGRAMS / 2;

/// Programs of one process that wait for a job at a time. Halved: threads of one program are put off sooner.
/// Doubled: fewer processes can take all places of [`MAX_WORKING`].
pub(super) const WORKING_OF_PROCESS: usize = MAX_WORKING / 8;

/// Jobs that run at a time: hand-overs whose memory is fetched, and claims that are looked into. Each takes a thread,
/// and a maker that never answers keeps it for [`FETCH_TIMEOUT`]. Halved: programs that ask at the same time
/// wait for longer. Doubled: twice the threads and descriptors for makers that do not answer.
pub(super) const MAX_JOBS: usize = 24;

/// Jobs that run at a time for one process. Halved: a program that hands over from several threads takes longer.
/// Doubled: two silent ones hold up the user's other programs for [`FETCH_TIMEOUT`].
pub(super) const JOBS_OF_PROCESS: usize = 4;

/// Questions that are answered before the holder looks again who has asked. Halved: twice the system calls under
/// load. Doubled: whoever asks while others ask for long lists waits for longer.
pub(super) const MAX_QUESTIONS_AT_ONCE: usize = 16;

/// Time after which no more questions are answered before the holder looks again who has asked: some ask for long
/// lists, or send long messages without sense. A longer time makes programs that ask meanwhile wait, a shorter one
/// costs more system calls under load.
pub(super) const QUESTIONS_TIME_AT_ONCE: Duration = Duration::from_millis(1);

/// Connections that are accepted before programs are answered: more than wait in the socket's queue, so that a
/// newcomer waits for one round of answers behind a flood.
pub(super) const MAX_ACCEPTED_AT_ONCE: usize = 256;

/// Looks at all processes of the machine for one claim: once more whenever one has ended meanwhile. Halved:
/// claims are refused more often on a machine that starts many. Doubled: they take longer before that.
pub(super) const MAX_PROCESS_SCANS: u32 = 16;

/// Processes that are kept for a name since they may write it still: those that opened a driver's memory for writing
/// before it was first claimed, and writers in whose place others were forced. With more of them the name is
/// claimed by force alone. Halved: that comes sooner. Doubled: a name takes 20 KB of a message to the successor.
pub(super) const MAX_EARLIER_WRITERS: usize = 64;

/// Bytes of one of them in a message to the successor. Halved: the successor may not understand a message. Doubled:
/// it has a greater buffer than it needs.
pub(super) const EARLIER_WRITER_BYTES: usize = 256;

/// Time after which a program claims a name again that has another writer. Halved: twice the looks at all
/// processes. Doubled: the next writer begins that much later.
pub(super) const CLAIM_INTERVAL: Duration = Duration::from_millis(5);

/// Descriptors that a holder needs beside what it holds: connections of programs, importers, and its own.
/// Halved: a full holder cannot answer as many at a time. Doubled: less can be held with the usual limit of
/// 1,024.
pub(super) const OTHER_DESCRIPTORS: usize = MAX_PROGRAMS + 128;

/// Descriptors that a record takes at most: its own, and one for reading only. Halved: the limit may be reached.
/// Doubled: half as much is held.
pub(super) const RECORD_DESCRIPTORS: usize = 2;

/// Descriptors that a maker's context takes at most, for its tables. Halved: the limit may be reached. Doubled:
/// memory of fewer makers is held.
pub(super) const CONTEXT_DESCRIPTORS: usize = 8;

/// Names at a time. Halved: fewer small objects can be held. Doubled: twice the memory that labels and
/// handles may take, some 20 KB each at most.
pub(super) const MAX_NAMES: usize = 4096;

/// Names that one process hands over. Halved: a loader holds fewer objects. Doubled: one process can take all of
/// [`MAX_NAMES`].
pub(super) const NAMES_OF_PROCESS: usize = MAX_NAMES / 2;

/// Bytes of the longest journal that is read: [`MAX_NAMES`] names with long labels and many parts fit. Halved: fewer do.
/// Doubled: a file that is none takes that much memory for a moment.
pub(super) const MAX_JOURNAL_BYTES: u64 = 128 << 20;

/// Attempts to bring a name back to a holder that has just begun and does not answer yet, [`OFFER_INTERVAL`] apart.
/// Halved: a slow start is given up sooner. Doubled: later.
pub(super) const MAX_OFFERS: u32 = 100;

/// Time between two of them. Halved: twice the attempts. Doubled: the name is back that much later.
pub(super) const OFFER_INTERVAL: Duration = Duration::from_millis(20);

/// Time between looks for a new holder by a process for which the system has no watch left. Halved: twice the looks.
/// Doubled: its names are back that much later.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Sockets for importers that others have removed from the directory, and at which the holder answers still.
/// Halved: connections are lost sooner where somebody removes the names again and again. Doubled: more
/// descriptors for that.
pub(super) const MAX_OLD_LISTENERS: usize = 4;

/// Contexts of other processes whose memory is held. Halved: fewer makers can hand over. Doubled: twice
/// the descriptors for their tables.
pub(super) const MAX_HELD_CONTEXTS: usize = 1024;

/// Contexts whose memory one process hands over. Halved: programs with many contexts cannot hand over. Doubled:
/// fewer processes can take all of [`MAX_HELD_CONTEXTS`].
pub(super) const CONTEXTS_OF_PROCESS: usize = 64;

/// Bytes of the holder's own memory for what is held: labels, handles, and the tables of makers' records. Halved:
/// fewer names with long labels can be held. Doubled: hostile programs can take twice the memory.
pub(super) const MAX_BYTES: usize = 512 << 20;

/// Bytes of the holder's own memory for what one process hands over. Halved: less of one loader can be held.
/// Doubled: fewer processes can take all of [`MAX_BYTES`].
pub(super) const BYTES_OF_PROCESS: usize = MAX_BYTES / 4;

/// Bytes of a place in the table of a maker's records, and of what else is kept for a part of a name.
pub(super) const TABLE_PLACE_BYTES: usize = 96;
/// Bytes that are kept for a part of a name: its handles, its record, and its line in the journal.
pub(super) const PART_BYTES: usize = 2048;

/// Numbers of records that may be held are below this: their table has a place for each number. Halved: makers
/// with many objects cannot hand over the later ones. Doubled: a hostile maker's table takes 10 MB, not 5.
pub(super) const MAX_HELD_INDEX: u32 = 1 << 16;

/// Time that a program has to ask after it connected. Halved: one that is stopped just then must connect
/// again. Doubled: idle connections take their places for longer.
pub(super) const QUESTION_TIME: Duration = Duration::from_secs(2);

/// Time that a holder gives a program's process to send the memory that it hands over. Halved: the fetch
/// from a process that is busy fails sooner. Doubled: one that hangs is noticed later.
pub(super) const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which an answer waits until the successor has what was handed over. Halved: beside a slow start
/// of a successor, programs hear sooner that the memory is held, by the holder alone. Doubled: they wait
/// for longer where no successor starts.
pub(super) const SUCCESSOR_TIME: Duration = Duration::from_secs(3);

/// Time that a holder waits for the lock of one that was killed, whose threads the system has not all ended. A
/// longer time delays the error if the lock stays.
pub(super) const LOCK_TIME: Duration = Duration::from_secs(3);

/// Time in which the process that has the lock must answer a question to be taken for a holder.
pub(super) const LOCK_INTERVAL: Duration = Duration::from_millis(200);

/// Time after which a holder starts a successor again that ended or did not start. Halved: twice the starts
/// where none can live. Doubled: the holder is alone for that much longer.
pub(super) const RESTART_INTERVAL: Duration = Duration::from_millis(100);

/// Time after which a successor that was told nothing is asked whether it is there. Halved: both processes wake up
/// twice as often where nothing happens. Doubled: one that is stopped is replaced that much later.
pub(super) const PING_INTERVAL: Duration = Duration::from_millis(500);

/// Time after which a successor that confirms nothing is replaced. Halved: one that a busy machine holds up is
/// replaced in vain. Doubled: changes wait for that much longer where it is stopped.
pub(super) const UNRESPONSIVE_TIME: Duration = Duration::from_millis(1000);

/// Longest time after which a holder starts a successor again, of those that never came to be. Halved: twice the
/// starts where none can live. Doubled: the holder is alone for that much longer.
pub(super) const MAX_RESTART_INTERVAL: Duration = Duration::from_secs(2);

/// Time after which the journal is written again that could not be. Halved: twice the attempts on a full disk.
/// Doubled: what is held is called unsafe for that much longer.
pub(super) const JOURNAL_RETRY: Duration = Duration::from_secs(1);

/// Time that a holder goes on without its socket directory, which may come back. Halved: less time to make it
/// again. Doubled: what nobody can ask for is held for longer.
pub(super) const DIRECTORY_GONE_TIME: Duration = Duration::from_secs(3);

/// Time from a change in the directory until the holder looks at it, and between looks whether it is there again.
/// Halved: programs that remove all of the directory are more often in the holder's way. Doubled: names are back later.
pub(super) const DIRECTORY_LOOK: Duration = Duration::from_millis(50);

/// Time between looks at a directory whose changes the kernel does not tell, or that could not be restored. Halved: twice
/// the looks. Doubled: names that were removed are back later.
pub(super) const UNWATCHED_LOOK: Duration = Duration::from_secs(1);

/// Bytes of a journal's file before the next one is begun, where less is held than that. Halved: twice the files.
/// Doubled: more is read after both holders have died.
pub(super) const JOURNAL_FILE_BYTES: u64 = 1 << 20;

/// Bytes of lines that are moved at a time out of the files that a holder before has left. Halved: those stay for longer.
/// Doubled: a question waits for longer meanwhile.
pub(super) const JOURNAL_MOVED_BYTES: u64 = 64 << 10;

/// Messages to the successor that it has not confirmed, before it counts as stuck and is replaced. Halved:
/// many names handed over at once look like a stuck successor. Doubled: more memory for one that is.
pub(super) const MAX_UNCONFIRMED: usize = 1 << 16;

/// Time that a program waits for a holder's answer. Halved: a hand-over of many parts may be given up
/// while it is going on. Doubled: a holder that is stopped is noticed later.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time after which a program connects again to a holder that has hung up: its successor answers within
/// some milliseconds. Halved: twice the attempts. Doubled: that much later.
pub(super) const RECONNECT_INTERVAL: Duration = Duration::from_millis(1);

/// Greatest pause before a question is asked again that a busy holder has put off. Halved: many programs that wait
/// take twice the holder's time. Doubled: a program's turn comes later than it could.
pub(super) const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Attempts to reach a holder that hangs up each time. Halved or doubled: a holder that ends whenever it is
/// asked is given up sooner or later.
pub(super) const MAX_RECONNECTS: u32 = 64;
