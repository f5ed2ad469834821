//! The constants of time and count of this crate.

use std::time::Duration;

/// Bytes that a thread has the system read at a time, before it takes their hash: they are in its processor's second
/// cache still. Half: more calls for the same bytes. Double: they fall out of caches of 1 MiB.
pub(crate) const PART_BYTES: usize = 512 << 10;

/// Bytes that are taken out of shared memory at a time to take their hash: many of the hash's blocks, side by side, in
/// the first cache. Half: a call for half as many. Double: they fall out of it.
pub(crate) const HASH_BYTES: usize = 32 << 10;

/// Pieces that a load which can be resumed has copied before it waits for the device and notes them. Half: the device
/// waits for the thread twice as often. Double: twice as much is read again after a kill.
pub(crate) const NOTED_PIECES: usize = 8;

/// Threads that are started at most, unless the program asks for more. Half: hashing takes longer than copying
/// to a fast GPU. Double: memory is not faster for it.
pub(crate) const MAX_THREADS: usize = 16;

/// Bytes of each of a thread's two staging buffers. Half: a copy's start begins to count. Double: making the
/// buffers, which a driver does one by one, takes a part of the load.
pub(crate) const STAGE_BYTES: usize = 4 << 20;

/// Bytes of the shortest and of the longest part and staging buffer that a program can ask for. Halved or doubled: it can
/// ask for what is slower than anything between.
pub(crate) const MIN_STEP_BYTES: usize = 4 << 10;
pub(crate) const MAX_STEP_BYTES: usize = 1 << 30;

/// How long a loader waits for another one of the same name to end: longer than [`CLAIM_PATIENCE`], so that one that died
/// in its claim is found out. Half: it is not. Double: a second loader is told that much later that there is one.
pub(crate) const LOADER_PATIENCE: Duration = Duration::from_millis(600);

/// How long a process that opens or reads a model waits for an update to end, unless it says otherwise. Half:
/// large updates make it fail. Double: a stopped writer holds it up longer.
pub(crate) const UPDATE_PATIENCE: Duration = Duration::from_secs(30);

/// Time from a writer's claim to its announcement, which are microseconds apart, after which it counts as dead.
/// Half: a writer that was not scheduled for that long has to begin again. Double: the next one waits longer, and
/// who opens a model by waits of half a second, as the Python module does, never finds out.
pub(crate) const CLAIM_PATIENCE: Duration = Duration::from_millis(250);

/// Time between two looks at an update whose writer says nothing. Half: twice the work of a process that
/// waits. Double: it learns of the end that much later.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Time between two looks for the next update when no writer is there who would tell. As above.
pub(crate) const IDLE_INTERVAL: Duration = Duration::from_millis(20);

/// The longest wait for a writer's event before its process is looked for again. Half: twice the looks. Double:
/// a reader whom a wrong signal number keeps waiting waits that much longer.
pub(crate) const WRITER_INTERVAL: Duration = Duration::from_millis(200);

/// Times that a name is looked up again because its version ended between that and the open. Half: a name that is
/// replaced all the time may not be opened. Double: nothing.
pub(crate) const MAX_LOOKS: u32 = 8;
