//! The sleeping threads of this process, what they wait for, and a way to wake them all at once.
//!
//! No sleeper depends on this module, because each has its own timeout ([`futex`]).
//! However, the end of a process that others wait for may change no word. [`wake_all`] then makes
//! the sleepers look at once.
//!
//! Each thread keeps its entries under its own lock, so sleepers do not contend.

use super::{futex, process};
use crate::fork::{Birth, PerProcess};
use crosshandle_types::sync::Mutex;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A signal that a thread waits for, on a word of an event's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Awaited {
    /// Address of the word.
    pub word: usize,
    /// Address of the slot.
    pub slot: usize,
    /// The signal's number.
    pub number: u64,
}

/// An awaited signal of a sleeping thread of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sleeper {
    /// Id of the thread.
    pub thread: u32,
    pub awaited: Awaited,
    /// Time at which the thread first went to sleep, in nanoseconds of
    /// [`monotonic_nanoseconds`](process::monotonic_nanoseconds).
    pub since: u64,
}

/// The entries of a thread.
struct Entries {
    thread: u32,
    sleepers: Mutex<Vec<Sleeper>>,
}

/// The entries of every thread that has slept and has not ended.
static THREADS: PerProcess<Mutex<Vec<Arc<Entries>>>> = PerProcess::new(Mutex::default);

/// A thread's own entries in [`THREADS`], which are removed when the thread ends.
struct OwnEntries {
    entries: Arc<Entries>,
    birth: Birth,
}

impl OwnEntries {
    fn take() -> Self {
        let entries = Arc::new(Entries {
            thread: rustix::thread::gettid().as_raw_nonzero().get() as u32,
            sleepers: Mutex::default(),
        });
        THREADS.lock().push(Arc::clone(&entries));
        Self {
            entries,
            birth: Birth::here(),
        }
    }

    /// Returns the calling thread's entries, or `None` if the thread is ending. A forked child
    /// makes new entries, because the thread has another id there.
    fn get() -> Option<Arc<Entries>> {
        let get = |own: &RefCell<Self>| {
            let mut own = own.borrow_mut();
            if own.birth.is_inherited() {
                *own = Self::take();
            }
            Arc::clone(&own.entries)
        };
        OWN_ENTRIES.try_with(get).ok()
    }
}

impl Drop for OwnEntries {
    fn drop(&mut self) {
        let is_other = |other: &Arc<Entries>| !Arc::ptr_eq(other, &self.entries);
        THREADS.lock().retain(is_other);
    }
}

thread_local! {
    static OWN_ENTRIES: RefCell<OwnEntries> = RefCell::new(OwnEntries::take());
}

/// The calling thread's entries in the list of sleepers, which are removed when this is dropped.
#[must_use]
pub struct Entry {
    entries: Arc<Entries>,
    /// Number of the thread's entries before these.
    before: usize,
}

/// Adds the calling thread to the sleepers. Afterwards, the caller must check whether it still has
/// a reason to sleep, so that it misses no [`wake_all`]. Returns `None` if the thread is ending,
/// and then it is not woken early.
pub fn enter(awaited: impl IntoIterator<Item = Awaited>) -> Option<Entry> {
    let entries = OwnEntries::get()?;
    let since = process::monotonic_nanoseconds();
    let thread = entries.thread;
    let mut sleepers = entries.sleepers.lock();
    let before = sleepers.len();
    sleepers.extend(awaited.into_iter().map(|awaited| Sleeper {
        thread,
        awaited,
        since,
    }));
    drop(sleepers);
    Some(Entry { entries, before })
}

impl Drop for Entry {
    fn drop(&mut self) {
        // No fork can have happened in between, because a sleeping thread does not fork.
        self.entries.sleepers.lock().truncate(self.before);
    }
}

/// Returns the id of the calling thread without a system call, or `None` if the thread is ending.
pub fn thread() -> Option<u32> {
    Some(OwnEntries::get()?.thread)
}

/// Returns the signals that the sleeping threads of this process wait for.
pub fn list() -> Vec<Sleeper> {
    let threads = THREADS.lock();
    let mut all = Vec::new();
    for entries in threads.iter() {
        all.extend_from_slice(&entries.sleepers.lock());
    }
    all
}

/// The word on which the thread that serves many waiters sleeps. [`wake_server`] raises its upper
/// half. So does [`wake_all`], after it has raised [`alarms`].
pub static SERVER_WORD: AtomicU64 = AtomicU64::new(0);
static ALARMS: AtomicU64 = AtomicU64::new(0);

/// Returns how often all sleepers were woken.
pub fn alarms() -> u64 {
    ALARMS.load(Ordering::SeqCst)
}

/// Wakes the thread that sleeps on [`SERVER_WORD`].
pub fn wake_server() {
    SERVER_WORD.fetch_add(1 << 32, Ordering::SeqCst);
    futex::wake_all(&SERVER_WORD);
}

/// Wakes all sleepers of this process, so that they check whether they still have a reason to
/// sleep. Called when something happened that changes no word of the sleepers, such as a death.
pub fn wake_all() {
    ALARMS.fetch_add(1, Ordering::SeqCst);
    wake_server();
    // One system call wakes all sleepers of a word. No lock is held, because woken threads remove
    // their entries.
    let mut words = Vec::from_iter(list().iter().map(|sleeper| sleeper.awaited.word));
    words.sort_unstable();
    words.dedup();
    words.into_iter().for_each(futex::wake_own_at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;
    use std::thread;
    use std::time::{Duration, Instant};

    const DEADLINE: Duration = Duration::from_secs(20);

    fn awaited(word: &AtomicU64, number: u64) -> Awaited {
        let address = ptr::from_ref(word).addr();
        Awaited {
            word: address,
            slot: address,
            number,
        }
    }

    /// Wakes all sleepers until a thread that sleeps on these words has ended.
    fn check_woken(words: &[AtomicU64]) {
        let has_ended = &AtomicU64::new(0);
        thread::scope(|scope| {
            let sleeper = scope.spawn(move || {
                let _entry = enter(words.iter().map(|word| awaited(word, 9)));
                let began = Instant::now();
                let pairs = Vec::from_iter(words.iter().map(|word| (word, 0)));
                match &pairs[..] {
                    [(word, expected)] => futex::sleep(word, *expected, DEADLINE),
                    several => futex::sleep_any(several, DEADLINE),
                }
                has_ended.store(1, Ordering::Release);
                began.elapsed()
            });
            while has_ended.load(Ordering::Acquire) == 0 {
                wake_all();
                thread::yield_now();
            }
            assert!(sleeper.join().unwrap() < DEADLINE);
        });
    }

    #[test]
    fn a_sleeper_is_woken() {
        check_woken(&[AtomicU64::new(0)]);
    }

    #[test]
    fn a_sleeper_on_several_words_is_woken() {
        check_woken(&[AtomicU64::new(0), AtomicU64::new(0)]);
    }

    #[test]
    fn the_list_says_who_waits_for_what() {
        let word = AtomicU64::new(0);
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let listed = || {
            let mut all = list();
            all.retain(|sleeper| sleeper.thread == own);
            all
        };
        let before = process::monotonic_nanoseconds();
        let outer = enter([awaited(&word, 1), awaited(&word, 2)]);
        let inner = enter([awaited(&word, 3)]);
        let numbers = Vec::from_iter(listed().iter().map(|sleeper| sleeper.awaited.number));
        assert_eq!(numbers, [1, 2, 3]);
        assert!(listed().iter().all(|sleeper| sleeper.since >= before));
        drop(inner);
        assert_eq!(listed().len(), 2);
        drop(outer);
        assert_eq!(listed(), []);
    }

    #[test]
    fn threads_that_have_ended_are_forgotten() {
        let entries = thread::spawn(|| {
            let entry = enter([]).expect("an entry");
            Arc::downgrade(&entry.entries)
        });
        let entries = entries.join().unwrap();
        // The thread-local variables may be dropped after the thread has been joined.
        let began = Instant::now();
        while entries.strong_count() > 0 {
            assert!(began.elapsed() < DEADLINE);
            thread::yield_now();
        }
    }
}
