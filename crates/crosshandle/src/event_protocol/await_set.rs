//! Signals that one thread awaits for many.
//!
//! The thread sleeps on all their words at once, however many they are, and each word is slept on
//! once, until its first awaited signal finishes. A sleep on a word is what it is for every waiter:
//! the thread is counted among the word's sleepers, and whoever completes a signal takes it out and
//! wakes it. So signallers do nothing for awaited events that they don't do for blocked threads.
//!
//! How the thread sleeps is behind [`Sleeps`]: the model checkers bring their own.

use super::tuning::{
    LONGEST_STEP, MAX_TOLD, ORPHAN_INTERVAL, SETTLE_ATTEMPTS, SHORTEST_STEP, STEP_TIME_PER_WORD,
    STEPS, SWEEP_CHECKS, SWEEP_INTERVAL, SWEEP_LOOKS,
};
use super::wait::{Target, WaitError};
use crate::platform::{AtomicU64, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

/// An event of which signals are awaited. Keeps the event's slot.
pub(crate) trait Subject {
    /// Returns a signal of the event.
    fn target(&self, number: u64) -> Target<'_>;
}

/// The thread's sleeps.
pub(crate) trait Sleeps {
    /// Adds a sleep, which ends when the word's upper half is not `expected` or the word is woken. Then
    /// its token is to be reported to [`AwaitSet::woken`], once.
    fn begin(&mut self, token: u64, word: &AtomicU64, expected: u32);

    /// Takes a sleep back. Its token may still be reported.
    fn end(&mut self, token: u64);
}

/// A place in an [`AwaitSet`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct AwaitKey {
    /// Address of the word that the signal finishes on.
    word: usize,
    number: u64,
    /// Tells those apart that await the same signal.
    id: u64,
}

impl AwaitKey {
    /// Returns the key of a signal. No two entries of a set have the same `id`.
    pub(crate) fn new(target: &Target<'_>, id: u64) -> Self {
        let (word, number) = (target.word_address(), target.number);
        Self { word, number, id }
    }
}

/// An entry whose signal has finished, or never will.
pub(crate) struct Settled<S, W> {
    pub(crate) subject: S,
    pub(crate) number: u64,
    pub(crate) waiter: W,
    pub(crate) result: Result<(), WaitError>,
}

/// The awaited signals, each with a waiter: whatever the caller wants back.
pub(crate) struct AwaitSet<S, W> {
    /// The words by address.
    words: BTreeMap<usize, Word<S, W>>,
    /// The addresses of the words that sleeps are on, by token.
    sleeping: BTreeMap<u64, usize>,
    /// Words that are not slept on, because they changed again and again: a hostile process can bring
    /// that about.
    restless: BTreeSet<usize>,
    /// Words of events that devices signal.
    of_devices: BTreeSet<usize>,
    /// When the newest entry of `of_devices` came.
    newest_of_devices: Option<Instant>,
    stepped_at: Option<Instant>,
    swept_at: Option<Instant>,
    /// The addresses after which the next sweep begins to look and to check.
    looked_to: usize,
    checked_to: usize,
    /// Words that sweeps have looked at since they met an event whose exporter has ended; `None` if there
    /// is no such event.
    since_orphan: Option<usize>,
    /// Sleeps of which others are told.
    told: usize,
    next_token: u64,
    settled: Vec<Settled<S, W>>,
}

/// A word with what is awaited on it.
struct Word<S, W> {
    /// Never empty between two calls of the set.
    awaited: OfWord<S, W>,
    sleep: Option<Sleep>,
}

struct Awaited<S, W> {
    subject: S,
    waiter: W,
}

/// A sleep on a word.
struct Sleep {
    token: u64,
    /// The word's upper half when it began.
    before: u32,
    /// The number whose submitter is watched; `None` while nobody has taken the first one.
    watched: Option<u64>,
    /// Where others are told of it.
    told: Option<usize>,
}

impl Sleep {
    /// Has the process watched that took the number, if that is not done.
    fn watch_owner(&mut self, first: &Target<'_>) {
        if self.watched != Some(first.number) && first.is_taken() {
            first.watch_owner();
            self.watched = Some(first.number);
        }
    }

    /// Takes the thread out of the word's sleepers, and returns of how many sleeps others are told no
    /// more. `target` is any signal on the word.
    fn deregister(self, target: &Target<'_>) -> usize {
        target.deregister(self.before);
        self.told.map_or(0, |place| {
            target.liveness.end_sleep(place);
            1
        })
    }
}

/// What is awaited on a word, by number and id.
type OfWord<S, W> = BTreeMap<(u64, u64), Awaited<S, W>>;

/// Returns the first signal that is awaited on a word.
fn first_of<S: Subject, W>(awaited: &OfWord<S, W>) -> Option<Target<'_>> {
    let (&(number, _), first) = awaited.first_key_value()?;
    Some(first.subject.target(number))
}

impl<S: Subject, W> Word<S, W> {
    /// Returns the first signal that is awaited.
    fn first(&self) -> Option<Target<'_>> {
        first_of(&self.awaited)
    }

    /// Takes out what is finished or never comes, and adds it to `settled`. With `is_check_due`, first
    /// fails what a dead process left on the word.
    fn take_over(&mut self, is_check_due: bool, settled: &mut Vec<Settled<S, W>>) {
        // Signals of one word finish in order.
        while self.settle_from((0, 0), is_check_due, settled) {}
        let Some(first) = self.first() else {
            return;
        };
        if first.is_taken() && (is_check_due || first.liveness.is_known_abandoned()) {
            // Those that nobody has taken may never come, however long the first one takes.
            let untaken = (first.slot.issued() + 1, 0);
            while self.settle_from(untaken, is_check_due, settled) {}
        }
    }

    /// Takes out the first signal at or after `from` if it is finished or never comes. Returns whether it
    /// is.
    fn settle_from(
        &mut self,
        from: (u64, u64),
        is_check_due: bool,
        settled: &mut Vec<Settled<S, W>>,
    ) -> bool {
        let Some((&key, first)) = self.awaited.range(from..).next() else {
            return false;
        };
        let (number, _) = key;
        let Some(result) = first.subject.target(number).look(is_check_due) else {
            return false;
        };
        let Some(Awaited { subject, waiter }) = self.awaited.remove(&key) else {
            return false;
        };
        settled.push(Settled {
            subject,
            number,
            waiter,
            result,
        });
        true
    }
}

impl<S: Subject, W> AwaitSet<S, W> {
    pub(crate) fn new() -> Self {
        Self {
            words: BTreeMap::new(),
            sleeping: BTreeMap::new(),
            restless: BTreeSet::new(),
            of_devices: BTreeSet::new(),
            newest_of_devices: None,
            stepped_at: None,
            swept_at: None,
            looked_to: 0,
            checked_to: 0,
            since_orphan: None,
            told: 0,
            next_token: 0,
            settled: Vec::new(),
        }
    }

    /// Returns whether nothing is awaited.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Takes out the entries that have been settled since the last call.
    pub(crate) fn take_settled(&mut self) -> Vec<Settled<S, W>> {
        std::mem::take(&mut self.settled)
    }

    /// Awaits a signal, submitted or not.
    pub(crate) fn add(&mut self, key: AwaitKey, subject: S, waiter: W, sleeps: &mut impl Sleeps) {
        let word = self.words.entry(key.word).or_insert_with(|| Word {
            awaited: BTreeMap::new(),
            sleep: None,
        });
        let awaited = Awaited { subject, waiter };
        word.awaited.insert((key.number, key.id), awaited);
        self.attend(key.word, false, sleeps);
    }

    /// Takes an entry out; `None` if it has been settled.
    pub(crate) fn remove(&mut self, key: AwaitKey, sleeps: &mut impl Sleeps) -> Option<(S, W)> {
        let word = self.words.get_mut(&key.word)?;
        let place = (key.number, key.id);
        // The last one keeps the slot until the sleep has ended.
        if word.awaited.len() == 1 && word.awaited.contains_key(&place) {
            self.end_sleep(key.word, false, sleeps);
        }
        let word = self.words.get_mut(&key.word)?;
        let Awaited { subject, waiter } = word.awaited.remove(&place)?;
        if word.awaited.is_empty() {
            self.forget(key.word);
        }
        Some((subject, waiter))
    }

    /// Takes note that a sleep has ended.
    pub(crate) fn woken(&mut self, token: u64, sleeps: &mut impl Sleeps) {
        let Some(&address) = self.sleeping.get(&token) else {
            return;
        };
        self.end_sleep(address, true, sleeps);
        self.attend(address, false, sleeps);
    }

    /// Looks at every word: something has happened that no word tells.
    pub(crate) fn look_at_all(&mut self, sleeps: &mut impl Sleeps) {
        for address in Vec::from_iter(self.words.keys().copied()) {
            self.attend(address, false, sleeps);
            if self.is_orphan(address) {
                self.since_orphan = Some(0);
            }
        }
    }

    /// Returns the longest time to sleep before the next [`look`](Self::look).
    pub(crate) fn time_until_look(&self, now: Instant) -> Duration {
        let left = |interval: Duration, last: Option<Instant>| {
            let since = last.map(|last| now.saturating_duration_since(last));
            interval.saturating_sub(since.unwrap_or_default())
        };
        let sweep = left(self.sweep_interval(), self.swept_at);
        match self.step(now) {
            Some(step) => sweep.min(left(step, self.stepped_at)),
            None => sweep,
        }
    }

    /// Makes the looks that are due: at words that devices write, which wake nobody, and at all words in
    /// turn, because peers cannot be trusted to wake anybody or to be told of.
    pub(crate) fn look(&mut self, now: Instant, sleeps: &mut impl Sleeps) {
        let is_due = |interval: Duration, last: &mut Option<Instant>| {
            let last = last.get_or_insert(now);
            let is_due = now.saturating_duration_since(*last) >= interval;
            if is_due {
                *last = now;
            }
            is_due
        };
        if let Some(step) = self.step(now)
            && is_due(step, &mut self.stepped_at)
        {
            let devices = self.of_devices.iter().chain(&self.restless);
            for address in Vec::from_iter(devices.copied()) {
                self.attend(address, false, sleeps);
            }
        }
        if is_due(self.sweep_interval(), &mut self.swept_at) {
            self.sweep(sleeps);
        }
    }

    /// Returns the time between two looks at words that nobody wakes; `None` if there are none.
    fn step(&self, now: Instant) -> Option<Duration> {
        let step = match self.newest_of_devices {
            Some(since) if !self.of_devices.is_empty() => {
                let waited = now.saturating_duration_since(since);
                (waited / STEPS).clamp(SHORTEST_STEP, LONGEST_STEP)
            }
            _ if self.restless.is_empty() => return None,
            _ => LONGEST_STEP,
        };
        let words = self.of_devices.len() + self.restless.len();
        let least = STEP_TIME_PER_WORD.saturating_mul(words.try_into().unwrap_or(u32::MAX));
        Some(step.max(least))
    }

    fn sweep_interval(&self) -> Duration {
        match self.since_orphan {
            Some(_) => ORPHAN_INTERVAL,
            None => SWEEP_INTERVAL,
        }
    }

    /// Returns whether the exporter of a word's event is known to have ended: nobody tells of deaths then.
    fn is_orphan(&self, address: usize) -> bool {
        let first = self.words.get(&address).and_then(Word::first);
        first.is_some_and(|first| first.liveness.is_known_orphan())
    }

    /// Looks at the next words, so many that a sweep costs little however many there are, and at a
    /// few of them whether the process still lives that they wait for.
    fn sweep(&mut self, sleeps: &mut impl Sleeps) {
        for address in next_after(&mut self.looked_to, &self.words, SWEEP_LOOKS) {
            self.attend(address, false, sleeps);
            self.since_orphan = match self.is_orphan(address) {
                true => Some(0),
                false => self.since_orphan.map(|words| words + 1),
            };
        }
        let words = self.words.len();
        self.since_orphan = self.since_orphan.filter(|looked_at| *looked_at < words);
        for address in next_after(&mut self.checked_to, &self.words, SWEEP_CHECKS) {
            self.attend(address, true, sleeps);
        }
    }

    /// Settles what it can of a word, and sleeps on it for the rest.
    fn attend(&mut self, address: usize, is_check_due: bool, sleeps: &mut impl Sleeps) {
        for _ in 0..SETTLE_ATTEMPTS {
            let Some(word) = self.words.get_mut(&address) else {
                return;
            };
            word.take_over(is_check_due, &mut self.settled);
            let Some(first) = first_of(&word.awaited) else {
                self.end_last_sleep(address, sleeps);
                return;
            };
            if let Some(sleep) = &mut word.sleep
                && first.is_registered(sleep.before)
            {
                sleep.watch_owner(&first);
                // The wake that comes with the mark may have come too early for the sleep.
                if first.slot.is_device_signalled() {
                    self.add_of_device(address);
                }
                return;
            }
            if word.sleep.is_some() {
                self.end_sleep(address, false, sleeps);
            }
            if self.begin_sleep(address, sleeps) {
                self.restless.remove(&address);
                return;
            }
        }
        self.restless.insert(address);
    }

    /// Sleeps on a word that is not slept on. `false`: it has changed, look again.
    fn begin_sleep(&mut self, address: usize, sleeps: &mut impl Sleeps) -> bool {
        let Some(word) = self.words.get_mut(&address) else {
            return true;
        };
        let Some(first) = word.first() else {
            return true;
        };
        let is_taken = first.is_taken();
        first.watch_owner();
        let Some(before) = first.register() else {
            return false;
        };
        if first.never_comes() {
            first.deregister(before);
            return false;
        }
        let told = match self.told < MAX_TOLD {
            true => first.liveness.begin_sleep(first.number),
            false => None,
        };
        self.told += usize::from(told.is_some());
        let number = first.number;
        let token = self.next_token;
        sleeps.begin(token, first.word(), before);
        // A mark that comes later ends the sleep.
        let is_device_signalled = first.slot.is_device_signalled();
        word.sleep = Some(Sleep {
            token,
            before,
            watched: is_taken.then_some(number),
            told,
        });
        self.next_token += 1;
        self.sleeping.insert(token, address);
        if is_device_signalled {
            self.add_of_device(address);
        }
        true
    }

    /// Takes note that devices signal the event of a word.
    fn add_of_device(&mut self, address: usize) {
        if self.of_devices.insert(address) {
            self.newest_of_devices = Some(Instant::now());
        }
    }

    /// Ends the sleep on a word, if there is one.
    fn end_sleep(&mut self, address: usize, is_over: bool, sleeps: &mut impl Sleeps) {
        let Some(word) = self.words.get_mut(&address) else {
            return;
        };
        let Some(sleep) = word.sleep.take() else {
            return;
        };
        self.sleeping.remove(&sleep.token);
        if !is_over {
            sleeps.end(sleep.token);
        }
        if let Some(first) = word.first() {
            self.told -= sleep.deregister(&first);
        }
    }

    /// Ends the sleep on a word of which the last signal has just been settled, and forgets the word.
    fn end_last_sleep(&mut self, address: usize, sleeps: &mut impl Sleeps) {
        let sleep = self
            .words
            .get_mut(&address)
            .and_then(|word| word.sleep.take());
        if let Some(sleep) = sleep
            && let Some(last) = self.settled.last()
        {
            self.sleeping.remove(&sleep.token);
            sleeps.end(sleep.token);
            // What is settled keeps the slot.
            self.told -= sleep.deregister(&last.subject.target(last.number));
        }
        self.forget(address);
    }

    fn forget(&mut self, address: usize) {
        self.words.remove(&address);
        self.of_devices.remove(&address);
        self.restless.remove(&address);
    }
}

/// Returns the addresses that follow `from`, at most `most`, and moves `from` to the last of them.
fn next_after<T>(from: &mut usize, words: &BTreeMap<usize, T>, most: usize) -> Vec<usize> {
    let after = words.range((Bound::Excluded(*from), Bound::Unbounded));
    let next = after.chain(words.range(..=*from)).take(most);
    let next = Vec::from_iter(next.map(|(address, _)| *address));
    *from = next.last().copied().unwrap_or(*from);
    next
}
