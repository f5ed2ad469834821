//! Sleeps on any number of words at once.

use super::doorbell::View;
use super::ring::Ring;
use super::sleep_at;
use crate::os::tuning::POLL_INTERVAL;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The token of the word that belongs to the thread.
const OWN: u64 = u64::MAX - 2;

/// The sleeps of one thread, which made it. A sleep has a token, which is reported when it has ended:
/// when the upper half of its word is not as expected, or the word is woken. Others see no difference
/// to a sleep on the word alone.
///
/// Tokens below 2⁶⁴ − 16 are the caller's.
pub(crate) struct SleepSet {
    /// A word that wakes the thread.
    own: &'static AtomicU64,
    kind: Kind,
}

enum Kind {
    /// The kernel watches all words.
    Ring {
        ring: Box<Ring>,
        /// Whether it watches the thread's own word.
        is_armed: bool,
    },
    /// The kernel watches the doorbells of their memory.
    Doorbells(Doorbells),
}

impl SleepSet {
    /// Makes a set for the calling thread, by the best means that the system permits. `own` is a word
    /// that ends its sleeps.
    pub(crate) fn new(own: &'static AtomicU64) -> Self {
        let kind = match Ring::new() {
            Some(ring) => Kind::Ring {
                ring: Box::new(ring),
                is_armed: false,
            },
            None => Kind::Doorbells(Doorbells::default()),
        };
        Self { own, kind }
    }

    /// Makes a set without io_uring.
    #[cfg(test)]
    fn of_doorbells(own: &'static AtomicU64) -> Self {
        let kind = Kind::Doorbells(Doorbells::default());
        Self { own, kind }
    }

    /// Adds a sleep on a word, which is of memory with a doorbell. The memory is mapped until the token has
    /// been reported or the sleep been [ended](Self::end).
    pub(crate) fn begin(&mut self, token: u64, word: &AtomicU64, expected: u32) {
        match &mut self.kind {
            Kind::Ring { ring, .. } => ring.begin(token, word, expected),
            Kind::Doorbells(doorbells) => doorbells.begin(token, word, expected),
        }
    }

    /// Takes a sleep back. It may be reported all the same.
    pub(crate) fn end(&mut self, token: u64) {
        match &mut self.kind {
            Kind::Ring { ring, .. } => ring.end(token),
            Kind::Doorbells(doorbells) => doorbells.end(token),
        }
    }

    /// Sleeps until a sleep ends, or the upper half of the thread's own word is not `expected` and the
    /// word is woken, at most for `limit`. Adds the tokens of the sleeps that have ended.
    pub(crate) fn sleep(&mut self, expected: u32, limit: Duration, woken: &mut Vec<u64>) {
        match &mut self.kind {
            Kind::Ring { ring, is_armed } => {
                // A sleep that expects an earlier value has ended, or ends when the word is woken next.
                if !*is_armed {
                    ring.begin(OWN, self.own, expected);
                    *is_armed = true;
                }
                if let Err(error) = ring.sleep(limit, woken) {
                    tracing::error!(%error, "cannot sleep on awaited events");
                    std::thread::sleep(limit.min(POLL_INTERVAL));
                }
                let before = woken.len();
                woken.retain(|token| *token != OWN);
                *is_armed = woken.len() == before;
            }
            Kind::Doorbells(doorbells) => doorbells.sleep((self.own, expected), limit, woken),
        }
    }
}

/// Sleeps on the doorbells of words.
#[derive(Default)]
struct Doorbells {
    /// The memory that each sleep's word lies in, by token.
    memory_of: BTreeMap<u64, usize>,
    /// What this thread listens to, by the address of the memory.
    listened: BTreeMap<usize, Listened>,
    /// Sleeps that have ended.
    woken: Vec<u64>,
}

/// Memory to whose doorbell a thread listens.
#[derive(Default)]
struct Listened {
    /// The doorbell's address and its upper half since when the thread listens.
    doorbell: Option<(usize, u32)>,
    /// The sleeps on words of this memory, by token: a word's address and its expected upper half.
    sleeps: BTreeMap<u64, (usize, u32)>,
}

impl Doorbells {
    fn begin(&mut self, token: u64, word: &AtomicU64, expected: u32) {
        let address = ptr::from_ref(word).addr();
        let began = View::of(address, |view| {
            let listened = self.listened.entry(view.start()).or_default();
            // First: a completion that this look misses rings.
            listened.doorbell.get_or_insert_with(|| view.listen());
            if view.upper(address) != Some(expected) {
                return false;
            }
            listened.sleeps.insert(token, (address, expected));
            self.memory_of.insert(token, view.start());
            true
        });
        if began != Some(true) {
            self.woken.push(token);
            // Memory without sleeps may be unmapped.
            self.listened
                .retain(|_, listened| !listened.sleeps.is_empty());
        }
    }

    fn end(&mut self, token: u64) {
        let Some(memory) = self.memory_of.remove(&token) else {
            return;
        };
        if let Some(listened) = self.listened.get_mut(&memory) {
            listened.sleeps.remove(&token);
            if listened.sleeps.is_empty() {
                // The doorbell counts this thread until it is rung for somebody else.
                self.listened.remove(&memory);
            }
        }
    }

    fn sleep(
        &mut self,
        (own, expected): (&'static AtomicU64, u32),
        limit: Duration,
        woken: &mut Vec<u64>,
    ) {
        if self.woken.is_empty() {
            let doorbells = self
                .listened
                .values()
                .filter_map(|listened| listened.doorbell);
            let doorbells = Vec::from_iter(doorbells);
            sleep_at((own, expected), &doorbells, limit);
        }
        for (memory, listened) in &mut self.listened {
            let changed = View::of(*memory, |view| listened.changed(&view));
            // Memory without a doorbell is gone, against the promise: nothing else ends these sleeps.
            let changed = changed.unwrap_or_else(|| listened.sleeps.keys().copied().collect());
            self.woken.extend(changed);
        }
        for token in std::mem::take(&mut self.woken) {
            self.end(token);
            woken.push(token);
        }
    }
}

impl Listened {
    /// Returns the sleeps whose words have changed, if the doorbell was rung since the thread listens.
    fn changed(&mut self, view: &View<'_>) -> Vec<u64> {
        if self
            .doorbell
            .is_some_and(|(_, rings)| rings == view.rings())
        {
            return Vec::new();
        }
        // First, as in `begin`.
        self.doorbell = Some(view.listen());
        let changed = self
            .sleeps
            .iter()
            .filter(|(_, (address, expected))| view.upper(*address) != Some(*expected));
        changed.map(|(token, _)| *token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DOORBELL_BYTES, Doorbell, wake_all};
    use super::*;
    use std::ptr::NonNull;
    use std::sync::atomic::Ordering;
    use std::thread;
    use std::time::Instant;

    const DEADLINE: Duration = Duration::from_secs(20);
    const WORDS: usize = 1000;

    /// Memory of words, with a doorbell.
    struct Words {
        _doorbell: Doorbell,
        words: Box<[AtomicU64]>,
    }

    impl Words {
        fn new() -> Self {
            let all = WORDS + DOORBELL_BYTES / size_of::<AtomicU64>();
            let words: Box<[_]> = std::iter::repeat_with(AtomicU64::default)
                .take(all)
                .collect();
            let start = NonNull::from(&*words).cast();
            // SAFETY: the doorbell is dropped before the words, which are atomic.
            let doorbell = unsafe { Doorbell::new(start, WORDS * size_of::<AtomicU64>()) };
            Self {
                _doorbell: doorbell,
                words,
            }
        }

        fn signal(&self, index: usize) {
            self.words[index].fetch_add(1 << 32, Ordering::SeqCst);
            wake_all(&self.words[index]);
        }
    }

    fn kinds(own: &'static AtomicU64) -> Vec<SleepSet> {
        let best = SleepSet::new(own);
        match &best.kind {
            Kind::Ring { .. } => vec![best, SleepSet::of_doorbells(own)],
            Kind::Doorbells(_) => vec![best],
        }
    }

    #[test]
    fn each_sleep_ends_with_its_word_and_no_other() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        for mut set in kinds(&OWN) {
            let memory = [Words::new(), Words::new()];
            for (index, word) in memory
                .iter()
                .flat_map(|words| &words.words[..WORDS])
                .enumerate()
            {
                set.begin(index as u64, word, 0);
            }
            // Changed without a wake, before the thread sleeps.
            set.begin(5000, &memory[0].words[0], 7);
            let mut order = Vec::from_iter(0..2 * WORDS);
            order.sort_by_key(|index| (index * 7919) % 2003);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for index in &order {
                        memory[index / WORDS].signal(index % WORDS);
                    }
                });
                let mut woken = Vec::new();
                let began = Instant::now();
                while woken.len() < 2 * WORDS + 1 {
                    set.sleep(0, DEADLINE, &mut woken);
                    assert!(began.elapsed() < DEADLINE, "{} have ended", woken.len());
                }
                woken.sort_unstable();
                woken.dedup();
                assert_eq!(woken.len(), 2 * WORDS + 1);
            });
        }
    }

    #[test]
    fn a_sleep_that_is_taken_back_does_not_end_the_thread_s() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        for mut set in kinds(&OWN) {
            let memory = Words::new();
            set.begin(1, &memory.words[0], 0);
            set.begin(2, &memory.words[1], 0);
            let mut woken = Vec::new();
            set.sleep(0, Duration::from_millis(1), &mut woken);
            assert!(woken.is_empty(), "{woken:?}");
            set.end(1);
            memory.signal(0);
            memory.signal(1);
            let began = Instant::now();
            while !woken.contains(&2) {
                set.sleep(0, DEADLINE, &mut woken);
            }
            assert!(began.elapsed() < DEADLINE);
        }
    }

    /// A thread that listened to memory which may be unmapped would look at all its words in turn.
    #[test]
    fn sleeps_that_end_at_once_leave_no_doorbell() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        let memory = [Words::new(), Words::new()];
        let mut doorbells = Doorbells::default();
        doorbells.begin(1, &memory[0].words[0], 7);
        doorbells.begin(2, &memory[1].words[0], 0);
        doorbells.begin(3, &memory[1].words[1], 7);
        assert_eq!(doorbells.listened.len(), 1, "only the second sleep goes on");
        let mut woken = Vec::new();
        doorbells.sleep((&OWN, 0), DEADLINE, &mut woken);
        woken.sort_unstable();
        assert_eq!(woken, [1, 3]);
        doorbells.end(2);
        assert!(doorbells.listened.is_empty());
    }

    #[test]
    fn a_limit_and_the_thread_s_own_word_end_its_sleep() {
        static OWN: AtomicU64 = AtomicU64::new(0);
        for mut set in kinds(&OWN) {
            let mut woken = Vec::new();
            let began = Instant::now();
            let limit = Duration::from_millis(50);
            let expected = (OWN.load(Ordering::SeqCst) >> 32) as u32;
            set.sleep(expected, limit, &mut woken);
            assert!(began.elapsed() >= limit);
            thread::scope(|scope| {
                scope.spawn(|| {
                    OWN.fetch_add(1 << 32, Ordering::SeqCst);
                    wake_all(&OWN);
                });
                set.sleep(expected, DEADLINE, &mut woken);
            });
            assert!(began.elapsed() < DEADLINE);
            // The value that it has now is expected.
            set.sleep(expected.wrapping_add(1), limit, &mut woken);
            assert!(woken.is_empty(), "{woken:?}");
        }
    }
}
