//! Constants of time and count of the exchange between processes.

use std::time::Duration;

/// The part of the descriptors that a process may have which are under way to importers with answers
/// that bring many: one in this many. Halved: an exporter that many ask for pieces leaves the user's other
/// processes none. Doubled: importers of pieces ask again sooner, when several do at a time.
pub(super) const MAX_UNDER_WAY_PART: usize = 2;

/// Time between looks at which answers were taken, while importers of another user have no room for more. A
/// shorter time costs more system calls during such an attack, a longer one delays that user's importers.
pub(super) const UNDER_WAY_LOOK: Duration = Duration::from_millis(10);

/// The part of the descriptors that a process may have which its openings of memory of pieces take at a time:
/// one in this many. Halved: all of them, and other calls have none meanwhile. Doubled: several openings at a time
/// ask for fewer pieces each.
pub(super) const MAX_TAKEN_PART: usize = 4;

/// Questions for memory that an importer asks before their answers are there, when it opens many at a time: each answer
/// brings a descriptor. Halved: where answers take the exporter's driver as long as the mapping takes this one's,
/// each may wait for the other. Doubled: other threads wait twice as long for their turn.
pub(super) const MAX_QUESTIONS_AHEAD: usize = 16;

/// Time after which an importer asks again for pieces for which the exporter had no room. Halved: twice the
/// questions. Doubled: that much later.
pub(super) const PIECES_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The longest time that an importer waits until an answer is dropped for which it has no descriptors, before
/// it gives its connection up. Halved: fewer such connections live through a stop of the process. Doubled: an
/// opening in a process that cannot start a thread fails that much later.
pub(super) const DISCARD_WAIT: Duration = Duration::from_secs(10);

/// Bytes of the first part of an arena's slots that is pinned for a device, and the least that is
/// pinned at a time. Halved: contexts of a few hundred events pin twice. Doubled: the first event of
/// a context that a device needs takes longer, since pages that were never touched are made first.
pub(super) const MIN_PIN_BYTES: usize = 64 << 10;

/// The most bytes of an arena's slots that are pinned at a time. Halved: contexts with many events
/// pin more often. Doubled: one event may wait for twice as many pages to be made.
pub(super) const MAX_PIN_BYTES: usize = 2 << 20;

/// Retired records that are looked at when one more is retired or needed: several, so that they are
/// reclaimed faster than they are added. Halved: memory that importers have closed comes back
/// later. Doubled: each drop of exported memory costs up to twice as much while importers hold
/// others.
pub(super) const RECLAIM_LOOKS: usize = 32;

/// Times that an importer is sent one more chunk of its ledger in place of one that it did not get:
/// its question had timed out, or it had no memory to map the answer. Halved: an importer of an
/// exporter that is stopped often sooner cannot open more objects. Doubled: a hostile importer has
/// twice the exporter's addresses for it, 3 MiB each at most.
pub(super) const MAX_LEDGER_REPEATS: usize = 16;

/// Late signals of one event that one process may have; more signals are refused meanwhile. Halved:
/// programs that signal far ahead of their peers are refused sooner. Doubled: an event whose peer
/// never completes costs each signaller 400 KiB more.
pub(super) const MAX_LATE_SIGNALS: usize = 4096;

/// Late signals of one word that are completed before others get the lock on all of them: some
/// microseconds. Halved or doubled: other threads that have late signals wait for less or longer.
pub(super) const LATE_BATCH: usize = 64;

/// Time after which the job of late completions looks whether the processes that it waits for still
/// live. Halved: twice the system calls. Doubled: a death that nothing else reports is noticed 40 ms
/// later.
pub(super) const LATE_COMPLETION_INTERVAL: Duration = Duration::from_millis(40);

/// Words that the job of late completions waits for at a time, of all events; with more, it waits for
/// some after the others. The system watches 128 at once. Halved: a process with late signals of more
/// than 8 events completes them up to 40 ms late. Doubled: the system cannot wait for so many, and the
/// job polls.
pub(super) const MAX_LATE_WORDS: usize = 120;

/// The longest time that a thread which ends a context waits for the job of late completions to let
/// go of it. Halved: a process may end beside a slow call of the system. Doubled: nothing, as long as
/// the system answers.
pub(super) const LATE_ROUND_WAIT: Duration = Duration::from_millis(100);

/// Processes that an importer watches because it waits for them, for each context that it has attached
/// to: a descriptor each. Halved: with more signallers of which it waits for each, an importer learns of
/// some deaths by its own looks, if the exporter is stopped. Doubled: twice the descriptors.
pub(super) const MAX_WATCHED_PEERS: usize = 16;

/// Entries of a socket directory that a new exporter looks at for sockets of processes that were
/// killed: about 2 ms. Halved: in larger directories some of them stay. Doubled: the first handle
/// may take that much longer.
pub(super) const MAX_SWEEP_LOOKS: usize = 4096;

/// Sockets that a new exporter tries to connect to, because they look dead, and removes if they are.
/// Halved or doubled: many killed processes' sockets are gone after more or fewer new exporters.
pub(super) const MAX_SWEEP_PROBES: usize = 64;

/// The age from which on a socket that never got its name is left over from a process that was killed.
/// Halved: a process that was stopped for so long while it began to listen, and has no liveness lock, must
/// begin again. Doubled: such sockets stay a little longer.
pub(super) const MIN_UNNAMED_AGE: Duration = Duration::from_secs(60);

/// Connections to an exporter that are attached to none of its contexts, at a time. Halved: a flood
/// of connections sooner displaces an importer that has not sent its request yet, which must connect
/// again. Doubled: strangers take as many more of the exporter's descriptors.
pub(super) const MAX_UNATTACHED: usize = 64;

/// Those among [`MAX_UNATTACHED`] of one user other than the exporter's own. Halved or doubled: as
/// there, for one other user.
pub(super) const MAX_UNATTACHED_OF_STRANGER: usize = 16;

/// Requests that a connection may send before it is attached. An importer's first one attaches it, and
/// questions of `crosshandle ps` are one. Halved: nothing. Doubled: who asks without a handle takes
/// twice the exporter's time before it must connect again.
pub(super) const MAX_UNATTACHED_REQUESTS: u32 = 8;

/// Time that a connection has to send its first request, and after each one until it is attached.
/// Halved: an importer that is stopped or swapped out just then must connect again. Doubled: idle
/// connections keep their descriptors for longer, when nobody else needs them.
pub(super) const UNATTACHED_TIME: Duration = Duration::from_secs(2);

/// The part of the exporter's descriptors that attached connections may take, with what the exporter
/// keeps beside each: one in this many.
/// Halved: all of them, and the exporter has none for itself. Doubled: fewer importers.
pub(super) const MAX_ATTACHED_PART: usize = 2;

/// The part of the exporter's descriptors that attached connections of one other user may take: one
/// in this many. Halved: as many as all users together. Doubled: fewer importers of that user.
pub(super) const MAX_ATTACHED_PART_OF_STRANGER: usize = 4;

/// Descriptors that no connection gets, so that the exporter's own calls have some, and at most one
/// in [`MAX_RESERVED_PART`]. Halved: calls that need several at once (a new context, an open that
/// attaches) fail sooner in a process that is at its limit. Doubled: fewer importers there.
pub(super) const MAX_RESERVED_DESCRIPTORS: usize = 32;

/// See [`MAX_RESERVED_DESCRIPTORS`]. Halved or doubled: the same, for small limits.
pub(super) const MAX_RESERVED_PART: usize = 8;

/// Connections that the exchange thread takes from a socket before others get their turn: some 100 µs at
/// most. Halved: it asks the system for events more often beside a flood of connections, and a newcomer
/// in the queue waits for longer. Doubled: importers that are attached wait for longer there.
pub(super) const MAX_ACCEPTS: usize = 16;

/// Time after which an importer connects again to an exporter that has hung up instead of answering.
/// Halved: twice the connections to one that is flooded already. Doubled: that much later in turn.
pub(super) const RECONNECT_INTERVAL: Duration = Duration::from_millis(1);

/// Time for which an importer looks for an answer before it sleeps, where it has other CPUs. Halved: an exporter whose thread
/// slept takes that long to be awake, and the importer sleeps just before the answer. Doubled: questions to an exporter
/// that is busy cost that much processor time.
pub(super) const ANSWER_SPIN: Duration = Duration::from_micros(60);

/// Time after which an importer that waits for an exporter looks whether that one is dead, though its
/// socket is not. Halved: twice the looks, at three system calls. Doubled: the death of an exporter
/// whose socket somebody else has is noticed that much later.
pub(super) const EXPORTER_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Records that are looked at for a report while the records are locked: some microseconds. Halved or
/// doubled: threads that export or free something meanwhile wait for less or longer.
pub(super) const DESCRIBED_AT_ONCE: u32 = 1024;

/// Objects of a kind, importers and waiters of one context that a report lists, at most. Halved: the
/// rest of fewer objects can be seen as totals only. Doubled: a report takes twice as long to write and
/// to read, some milliseconds.
pub(super) const MAX_LISTED: usize = 1000;

/// Objects that all contexts of a report list, at most; with many contexts, each lists fewer. Halved: as
/// [`MAX_LISTED`], for processes with many contexts. Doubled: the longest report has twice the bytes,
/// some ten mebibytes.
pub(super) const MAX_LISTED_OF_ALL: usize = 8192;

/// Contexts that a report describes, at most. Halved or doubled: as [`MAX_LISTED_OF_ALL`].
pub(super) const MAX_DESCRIBED_CONTEXTS: usize = 256;

/// Unfinished signals of one event that a report lists, at most. Halved: less is seen of queues that are
/// far ahead. Doubled: a hostile peer makes reports longer.
pub(super) const MAX_LISTED_SIGNALS: usize = 8;

/// Importers that a report lists for one object, at most. Halved: less is seen of objects that many have
/// open. Doubled: as for [`MAX_LISTED_SIGNALS`].
pub(super) const MAX_LISTED_OPENERS: usize = 16;

/// Open counts that are looked at for a report, at most: 20 ms. Halved: importers' totals are too low
/// from half as many objects on. Doubled: reports of contexts with so many take longer.
pub(super) const MAX_COUNT_LOOKS: usize = 1 << 22;

/// Bytes of the longest report that is sent. Askers refuse one that is four times as long. Halved or
/// doubled: no change, since what is listed has fewer.
pub(super) const MAX_REPORT_BYTES: usize = 16 << 20;

/// Time until the liveness thread and those who ask it try again what the system had no memory for.
/// Halved: twice the tries while it is short of memory. Doubled: locks are taken that much later then.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Time that the thread of awaited signals stays without any. Halved or doubled: a program that awaits
/// something every few seconds starts the thread more or less often, at about 100 µs.
pub(super) const AWAIT_IDLE: Duration = Duration::from_secs(2);

/// Time after which an exporter listens again whose socket was removed. At half of it, it is found sooner, but makes
/// its directory again beneath a program that is still removing that; at twice, importers are refused that much longer.
pub(super) const RESTORE_DELAY: Duration = Duration::from_millis(100);
