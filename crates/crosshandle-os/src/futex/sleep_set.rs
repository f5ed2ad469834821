//! Sets of sleeps on any number of words.

use super::doorbell::{View, Woken};
use super::ring::Ring;
use super::{WAITV_MAX, sleep_at};
use crate::tuning::POLL_INTERVAL;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The sleeps of one thread on words of memory with doorbells, at most one sleep per word.
///
/// Each sleep has a token, which is reported when the sleep has ended. A sleep ends when the upper
/// half of its word is not as expected, or when the word is woken. A thread that wakes the word
/// notices no difference from a sleep on the word alone.
pub struct SleepSet {
    /// A word that wakes the thread.
    own: &'static AtomicU64,
    /// Address of each sleep's word, by token.
    words: BTreeMap<u64, usize>,
    /// Memory to whose doorbells the thread listens, by address.
    listened: BTreeMap<usize, Listened>,
    /// Sleeps that have ended.
    woken: Vec<u64>,
    /// Watches the doorbells if there are more than one system call can watch.
    ring: Option<WatchedByRing>,
    may_use_ring: bool,
}

/// Memory to whose doorbell a thread listens.
struct Listened {
    /// The word to sleep on and its upper half when the thread began to listen, or `None` after a
    /// ring.
    bell: Option<(usize, u32)>,
    /// Number of entries of the log that the thread has read.
    read: u64,
    /// The sleeps on words of this memory: token and expected upper half, by the word's address.
    sleeps: BTreeMap<usize, (u64, u32)>,
}

/// The words that io_uring watches.
struct WatchedByRing {
    ring: Ring,
    /// Addresses and expected upper halves of the words with active sleeps.
    armed: BTreeMap<usize, u32>,
}

impl SleepSet {
    /// Makes a set for the calling thread. A change of the word `own` ends the thread's sleep.
    pub fn new(own: &'static AtomicU64) -> Self {
        Self {
            own,
            words: BTreeMap::new(),
            listened: BTreeMap::new(),
            woken: Vec::new(),
            ring: None,
            may_use_ring: true,
        }
    }

    /// Adds a sleep on a word. No other sleep may have the same token.
    pub fn begin(&mut self, token: u64, word: &AtomicU64, expected: u32) {
        let address = ptr::from_ref(word).addr();
        let began = View::of(address, |view| {
            let new = || Listened {
                bell: None,
                read: view.written(),
                sleeps: BTreeMap::new(),
            };
            let listened = self.listened.entry(view.start()).or_insert_with(new);
            // Listening comes first, so that the log reports a change that the following look
            // misses.
            listened.bell.get_or_insert_with(|| view.listen());
            if view.upper(address) != Some(expected) {
                return false;
            }
            listened.sleeps.insert(address, (token, expected));
            self.words.insert(token, address);
            true
        });
        if began != Some(true) {
            self.woken.push(token);
            // Memory without sleeps may be unmapped.
            self.listened
                .retain(|_, listened| !listened.sleeps.is_empty());
        }
    }

    /// Cancels a sleep.
    pub fn end(&mut self, token: u64) {
        let Some(address) = self.words.remove(&token) else {
            self.woken.retain(|woken| *woken != token);
            return;
        };
        let mut before = self.listened.range_mut(..=address);
        let Some((memory, listened)) = before.next_back() else {
            return;
        };
        listened.sleeps.remove(&address);
        if listened.sleeps.is_empty() {
            // The doorbell counts this thread until the next ring.
            let memory = *memory;
            self.listened.remove(&memory);
        }
    }

    /// Blocks until a sleep ends, for at most `limit`. Also returns when the thread's own word is
    /// woken and its upper half is no longer `expected`. Appends the tokens of ended sleeps to
    /// `woken`.
    pub fn sleep(&mut self, expected: u32, limit: Duration, woken: &mut Vec<u64>) {
        // The logs show words that were woken since the last call.
        self.collect();
        if self.woken.is_empty() {
            self.sleep_on_doorbells(expected, limit);
            self.collect();
        }
        self.report(woken);
    }

    /// Appends the tokens of ended sleeps to `woken`, without blocking.
    pub fn poll(&mut self, woken: &mut Vec<u64>) {
        self.collect();
        self.report(woken);
    }

    fn report(&mut self, woken: &mut Vec<u64>) {
        // A word may have been woken twice.
        self.woken.sort_unstable();
        self.woken.dedup();
        for token in std::mem::take(&mut self.woken) {
            self.end(token);
            woken.push(token);
        }
    }

    /// Finds the sleeps that have ended, and listens to every doorbell from then on.
    fn collect(&mut self) {
        for (memory, listened) in &mut self.listened {
            let ended = View::of(*memory, |view| listened.ended(&view));
            // The memory has lost its doorbell, against the contract, so nothing else ends these
            // sleeps.
            let all = || listened.sleeps.values().map(|(token, _)| *token).collect();
            self.woken.extend(ended.unwrap_or_else(all));
        }
    }

    fn sleep_on_doorbells(&mut self, expected: u32, limit: Duration) {
        let bells = self.listened.values().filter_map(|listened| listened.bell);
        let bells = Vec::from_iter(bells);
        if bells.len() < WAITV_MAX {
            self.ring = None;
        } else if self.ring.is_none() && self.may_use_ring {
            let ring = Ring::new();
            self.may_use_ring = ring.is_some();
            self.ring = ring.map(|ring| WatchedByRing {
                ring,
                armed: BTreeMap::new(),
            });
        }
        match &mut self.ring {
            Some(watched) => watched.sleep((self.own, expected), &bells, limit),
            None => sleep_at((self.own, expected), &bells, limit),
        }
    }
}

impl Listened {
    /// Returns the sleeps that have ended, and starts to listen to the doorbell again if it has
    /// rung.
    fn ended(&mut self, view: &View<'_>) -> Vec<u64> {
        if self.bell.is_none_or(|(_, rings)| view.is_rung(rings)) {
            // Listening comes first, as in `begin`.
            self.bell = Some(view.listen());
        }
        let sleeps = &self.sleeps;
        match view.read(&mut self.read) {
            Woken::These(words) => {
                let sleeps = words.iter().filter_map(|address| sleeps.get(address));
                sleeps.map(|(token, _)| *token).collect()
            }
            Woken::Unknown => {
                let changed = sleeps
                    .iter()
                    .filter(|(address, (_, expected))| view.upper(**address) != Some(*expected));
                changed.map(|(_, (token, _))| *token).collect()
            }
        }
    }
}

impl WatchedByRing {
    /// Sleeps on several words at once, which are given by address and expected upper half.
    fn sleep(&mut self, own: (&AtomicU64, u32), others: &[(usize, u32)], limit: Duration) {
        let own = (ptr::from_ref(own.0).addr(), own.1);
        let wanted = BTreeMap::from_iter(others.iter().copied().chain([own]));
        for (address, _) in self.armed.extract_if(.., |address, expected| {
            wanted.get(address) != Some(expected)
        }) {
            self.ring.end(address as u64);
        }
        for (address, expected) in wanted {
            if self.armed.insert(address, expected).is_none() {
                self.ring.begin(address as u64, address, expected);
            }
        }
        let mut ended = Vec::new();
        if let Err(error) = self.ring.sleep(limit, &mut ended) {
            tracing::error!(%error, "cannot sleep on doorbells");
            std::thread::sleep(limit.min(POLL_INTERVAL));
        }
        for address in ended {
            // The completion may belong to an earlier sleep on this address. The word is then armed
            // twice for a while.
            self.armed.remove(&(address as usize));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::doorbell::WRITTEN;
    use super::super::{Doorbell, doorbell_bytes, wake_all};
    use super::*;
    use std::ptr::NonNull;
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Instant;

    const DEADLINE: Duration = Duration::from_secs(20);

    /// Words with a doorbell.
    struct Words {
        _doorbell: Doorbell,
        words: Box<[AtomicU64]>,
        count: usize,
    }

    impl Words {
        /// Makes `count` words with a doorbell for `sleeps` sleeps.
        fn new(count: usize, sleeps: usize) -> Self {
            let all = count + doorbell_bytes(sleeps) / size_of::<AtomicU64>();
            let new = std::iter::repeat_with(AtomicU64::default);
            let words: Box<[_]> = new.take(all).collect();
            let (start, len) = (
                NonNull::from(&*words).cast(),
                count * size_of::<AtomicU64>(),
            );
            // SAFETY: the doorbell is dropped before the words. The words are atomic, and the
            // doorbell's words follow them.
            let doorbell = unsafe { Doorbell::new(start, len, sleeps) };
            Self {
                _doorbell: doorbell,
                words,
                count,
            }
        }

        fn signal(&self, index: usize) {
            self.words[index].fetch_add(1 << 32, Ordering::SeqCst);
            wake_all(&self.words[index]);
        }
    }

    /// Sleeps on all words of `memory`, while another thread signals them in a mixed order.
    fn check_all_end(own: &'static AtomicU64, memory: &[Words], may_use_ring: bool) {
        let mut set = SleepSet::new(own);
        set.may_use_ring = may_use_ring;
        let all = memory.iter().flat_map(|words| &words.words[..words.count]);
        let count = all
            .enumerate()
            .map(|(index, word)| set.begin(index as u64, word, 0))
            .count();
        let places = memory
            .iter()
            .flat_map(|words| (0..words.count).map(move |index| (words, index)));
        let mut places = Vec::from_iter(places.enumerate());
        places.sort_by_key(|(place, _)| (place * 7919) % 10_007);
        thread::scope(|scope| {
            scope.spawn(|| {
                for (_, (words, index)) in places {
                    words.signal(index);
                }
            });
            let mut woken = Vec::new();
            let began = Instant::now();
            while woken.len() < count {
                set.sleep(0, DEADLINE, &mut woken);
                assert!(began.elapsed() < DEADLINE, "{} of {count}", woken.len());
            }
            woken.sort_unstable();
            woken.dedup();
            assert_eq!(woken.len(), count);
        });
        let nothing_left = &mut Vec::new();
        set.sleep(0, Duration::from_millis(1), nothing_left);
        assert!(nothing_left.is_empty());
        assert!(set.words.is_empty() && set.listened.is_empty());
        assert!(set.ring.is_none());
    }

    #[test]
    fn each_sleep_ends_with_its_word_and_no_other() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        check_all_end(
            &OWN,
            &[Words::new(1000, 1000), Words::new(1000, 1000)],
            true,
        );
    }

    #[test]
    fn a_log_that_turns_around_hides_nothing() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        check_all_end(&OWN, &[Words::new(5000, 1)], true);
    }

    #[test]
    fn more_doorbells_than_one_call_watches() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        for may_use_ring in [true, false] {
            let memory = Vec::from_iter((0..300).map(|_| Words::new(3, 3)));
            check_all_end(&OWN, &memory, may_use_ring);
        }
    }

    #[test]
    fn a_word_that_has_changed_ends_its_sleep_at_once() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        let memory = Words::new(2, 2);
        let mut set = SleepSet::new(&OWN);
        let mut woken = Vec::new();
        set.begin(1, &memory.words[0], 7);
        set.begin(2, &memory.words[1], 0);
        set.sleep(0, DEADLINE, &mut woken);
        assert_eq!(woken, [1]);
        // The word is woken twice without a change, and is reported once.
        wake_all(&memory.words[1]);
        wake_all(&memory.words[1]);
        set.poll(&mut woken);
        assert_eq!(woken, [1, 2]);
        set.poll(&mut woken);
        assert_eq!(woken, [1, 2]);
    }

    #[test]
    fn a_sleep_that_is_taken_back_is_not_reported() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        let memory = Words::new(3, 3);
        let mut set = SleepSet::new(&OWN);
        let mut woken = Vec::new();
        set.begin(1, &memory.words[0], 0);
        set.begin(2, &memory.words[1], 0);
        set.begin(3, &memory.words[2], 9);
        set.end(1);
        set.end(3);
        memory.signal(0);
        memory.signal(1);
        set.sleep(0, DEADLINE, &mut woken);
        assert_eq!(woken, [2]);
    }

    /// Sleeps end with their words, whatever a hostile process writes behind the memory.
    #[test]
    fn a_log_of_nonsense_is_survived() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        let memory = Words::new(100, 100);
        for value in [u64::MAX, 1 << 63, 0x5555_5555_5555_5555, 12345] {
            let mut set = SleepSet::new(&OWN);
            let mut woken = Vec::new();
            for (index, word) in memory.words[..memory.count].iter().enumerate() {
                let expected = (word.load(Ordering::SeqCst) >> 32) as u32;
                set.begin(index as u64, word, expected);
            }
            for word in &memory.words[memory.count..] {
                word.store(value, Ordering::SeqCst);
            }
            set.sleep(0, Duration::from_millis(1), &mut woken);
            let began = Instant::now();
            for index in 0..memory.count {
                memory.signal(index);
            }
            while woken.len() < memory.count {
                set.sleep(0, Duration::from_millis(1), &mut woken);
                assert!(began.elapsed() < DEADLINE, "{} have ended", woken.len());
            }
        }
    }

    /// A process that has taken the number of the log's first entry may be slow or killed.
    #[test]
    fn an_entry_that_is_not_written_hides_nothing() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        let memory = Words::new(2, 2);
        let mut set = SleepSet::new(&OWN);
        set.begin(1, &memory.words[0], 0);
        set.begin(2, &memory.words[1], 0);
        memory.words[1].fetch_add(1 << 32, Ordering::SeqCst);
        let written = &memory.words[memory.count + WRITTEN];
        written.fetch_add(1, Ordering::SeqCst);
        let mut woken = Vec::new();
        set.sleep(0, DEADLINE, &mut woken);
        assert_eq!(woken, [2]);
    }

    /// Memory without sleeps may be unmapped. A thread that still listened to it would have to look
    /// at all words.
    #[test]
    fn sleeps_that_end_at_once_leave_no_doorbell() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        let memory = [Words::new(2, 2), Words::new(2, 2)];
        let mut set = SleepSet::new(&OWN);
        set.begin(1, &memory[0].words[0], 7);
        set.begin(2, &memory[1].words[0], 0);
        set.begin(3, &memory[1].words[1], 7);
        assert_eq!(set.listened.len(), 1, "only the second sleep goes on");
        let mut woken = Vec::new();
        set.sleep(0, DEADLINE, &mut woken);
        assert_eq!(woken, [1, 3]);
        set.end(2);
        assert!(set.listened.is_empty());
    }

    #[test]
    fn a_limit_and_the_thread_s_own_word_end_its_sleep() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        let mut set = SleepSet::new(&OWN);
        let mut woken = Vec::new();
        let began = Instant::now();
        let limit = Duration::from_millis(50);
        set.sleep(0, limit, &mut woken);
        assert!(began.elapsed() >= limit);
        thread::scope(|scope| {
            scope.spawn(|| {
                OWN.fetch_add(1 << 32, Ordering::SeqCst);
                wake_all(&OWN);
            });
            set.sleep(0, DEADLINE, &mut woken);
        });
        assert!(began.elapsed() < DEADLINE);
        // The word's present value is now the expected value.
        set.sleep(1, limit, &mut woken);
        assert!(woken.is_empty());
    }
}
