//! A set of signals that one thread awaits on behalf of many waiters.
//!
//! The thread sleeps on all words of the set at once, whatever their number. Each word is slept on
//! once, until its first awaited signal finishes. As for every waiter, the thread is counted among
//! the word's sleepers, and the signaller that completes a signal resets the count and wakes the
//! thread. Signallers therefore treat awaited events like events with blocked threads.
//!
//! [`Sleeps`] defines how the thread sleeps. The model checkers have their own implementations.

use super::tuning::{LONGEST_STEP, ORPHAN_INTERVAL, SHORTEST_STEP, STEPS};
use super::wait::{Target, WaitError};
use crate::platform::{Moment, Platform};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

/// Time between two sweeps over an await set. A sweep wakes the thread, which costs about 50 µs, or
/// 0.1 % of a core with this value. The interval limits how late a suppressed wake and an
/// unreported death are noticed.
const SWEEP_INTERVAL: Duration = match cfg!(fault_steps) {
    false => Duration::from_millis(160),
    true => Duration::from_secs(3),
};

/// Number of words of an await set that one sweep polls. Each poll takes about 0.4 µs, because the
/// words are in no cache by then. In larger sets it takes several sweeps to find a signal with a
/// suppressed wake.
const SWEEP_LOOKS: usize = 96;

/// Number of words of an await set for which one sweep checks whether their processes are alive.
/// Each check is a system call. In larger sets it takes several sweeps to find an unreported death.
const SWEEP_CHECKS: usize = 16;

/// Shortest step of an await set per word that it polls in steps. A poll takes about 20 ns, so even
/// many such words take only about 5 % of a core. If there are more than 50 of them, short commands
/// are noticed later.
const STEP_TIME_PER_WORD: Duration = Duration::from_nanos(400);

/// Maximum number of attempts to sleep on a word that keeps changing. Further attempts are left to
/// the next step, so that a hostile process cannot hold up the thread.
const SETTLE_ATTEMPTS: usize = 8;

/// Maximum number of sleeps of an await set that reports include. Every sleep uses room in the
/// process's ledger that other threads could use.
const MAX_TOLD: usize = 16;

/// An event with awaited signals. The value keeps the event's slot valid.
pub trait Subject {
    /// The machine that the event is on.
    type Platform: Platform;

    /// Returns the signal `number` of the event.
    fn target(&self, number: u64) -> Target<'_, Self::Platform>;
}

impl<S: Subject> Subject for std::sync::Arc<S> {
    type Platform = S::Platform;

    fn target(&self, number: u64) -> Target<'_, Self::Platform> {
        S::target(self, number)
    }
}

/// The clock of the events of a set.
type Time<S> = <<S as Subject>::Platform as Platform>::Instant;

/// The sleeps of the thread.
pub trait Sleeps<P: Platform> {
    /// Adds a sleep, which ends when the word's upper half is not `expected` or the word is woken.
    /// The implementation must then report its token to [`AwaitSet::woken`] once.
    fn begin(&mut self, token: u64, word: &P::AtomicU64, expected: u32);

    /// Cancels a sleep. Its token may still be reported.
    fn end(&mut self, token: u64);
}

/// The position of an entry in an [`AwaitSet`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct AwaitKey {
    /// Address of the word that the signal finishes on.
    word: usize,
    number: u64,
    /// Distinguishes entries that await the same signal.
    id: u64,
}

impl AwaitKey {
    /// Returns the key of a signal. No two entries of a set may have the same `id`.
    pub fn new<P: Platform>(target: &Target<'_, P>, id: u64) -> Self {
        let (word, number) = (target.word_address(), target.number);
        Self { word, number, id }
    }
}

/// An entry whose signal has finished or never will.
pub struct Settled<S, W> {
    pub subject: S,
    pub number: u64,
    pub waiter: W,
    pub result: Result<(), WaitError>,
}

/// The awaited signals, each with a waiter that the caller chose and gets back.
pub struct AwaitSet<S: Subject, W> {
    /// The words by address.
    words: BTreeMap<usize, Word<S, W>>,
    /// Addresses of the words that the thread sleeps on, by token.
    sleeping: BTreeMap<u64, usize>,
    /// Words that the thread does not sleep on because they keep changing. A hostile process can
    /// cause that.
    restless: BTreeSet<usize>,
    /// Words of events that devices signal.
    of_devices: BTreeSet<usize>,
    /// Time at which the newest entry of `of_devices` was added.
    newest_of_devices: Option<Time<S>>,
    stepped_at: Option<Time<S>>,
    swept_at: Option<Time<S>>,
    /// Addresses after which the next sweep continues to look and to check.
    looked_to: usize,
    checked_to: usize,
    /// Number of words that sweeps have looked at since they met an event whose exporter has ended.
    /// `None` if there is no such event.
    since_orphan: Option<usize>,
    /// Number of sleeps that reports show.
    told: usize,
    next_token: u64,
    settled: Vec<Settled<S, W>>,
}

/// A word and the signals that are awaited on it.
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
    /// The word's upper half when the sleep began.
    before: u32,
    /// The number whose submitter is watched, or `None` while no submitter has taken the first
    /// number.
    watched: Option<u64>,
    /// Where reports find the sleep.
    told: Option<usize>,
}

impl Sleep {
    /// Requests that the process that took the number is watched, unless it is watched already.
    fn watch_owner<P: Platform>(&mut self, first: &Target<'_, P>) {
        if self.watched != Some(first.number) && first.is_taken() {
            first.watch_owner();
            self.watched = Some(first.number);
        }
    }

    /// Removes the thread from the word's sleepers, and returns how many sleeps reports no longer
    /// show. `target` may be any signal on the word.
    fn deregister<P: Platform>(self, target: &Target<'_, P>) -> usize {
        target.deregister(self.before);
        self.told.map_or(0, |place| {
            target.liveness.end_sleep(place);
            1
        })
    }
}

/// The signals that are awaited on a word, by number and id.
type OfWord<S, W> = BTreeMap<(u64, u64), Awaited<S, W>>;

/// Returns the first signal that is awaited on a word.
fn first_of<S: Subject, W>(awaited: &OfWord<S, W>) -> Option<Target<'_, S::Platform>> {
    let (&(number, _), first) = awaited.first_key_value()?;
    Some(first.subject.target(number))
}

impl<S: Subject, W> Word<S, W> {
    /// Returns the first awaited signal.
    fn first(&self) -> Option<Target<'_, S::Platform>> {
        first_of(&self.awaited)
    }

    /// Moves entries whose signals have finished or never come to `settled`. With `is_check_due`,
    /// first fails the signals that a dead process left on the word.
    fn take_over(&mut self, is_check_due: bool, settled: &mut Vec<Settled<S, W>>) {
        // Signals of one word finish in order.
        while self.settle_from((0, 0), is_check_due, settled) {}
        let Some(first) = self.first() else {
            return;
        };
        if first.is_taken() && (is_check_due || first.liveness.is_known_abandoned()) {
            // Numbers that are not taken may never come, however long the first signal takes.
            let untaken = (first.slot.issued() + 1, 0);
            while self.settle_from(untaken, is_check_due, settled) {}
        }
    }

    /// Removes the first entry at or after `from` if its signal has finished or never comes.
    /// Returns whether an entry was removed.
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
    pub fn new() -> Self {
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

    /// Returns whether the set has no awaited signals.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Removes and returns the entries that were settled since the last call.
    pub fn take_settled(&mut self) -> Vec<Settled<S, W>> {
        std::mem::take(&mut self.settled)
    }

    /// Awaits a signal, which may not be submitted yet.
    pub fn add(
        &mut self,
        key: AwaitKey,
        subject: S,
        waiter: W,
        sleeps: &mut impl Sleeps<S::Platform>,
    ) {
        let word = self.words.entry(key.word).or_insert_with(|| Word {
            awaited: BTreeMap::new(),
            sleep: None,
        });
        let awaited = Awaited { subject, waiter };
        word.awaited.insert((key.number, key.id), awaited);
        self.attend(key.word, false, sleeps);
    }

    /// Removes an entry, or returns `None` if it has been settled.
    pub fn remove(
        &mut self,
        key: AwaitKey,
        sleeps: &mut impl Sleeps<S::Platform>,
    ) -> Option<(S, W)> {
        let word = self.words.get_mut(&key.word)?;
        let place = (key.number, key.id);
        // The last entry keeps the slot valid until the sleep has ended.
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

    /// Processes the report that a sleep has ended.
    pub fn woken(&mut self, token: u64, sleeps: &mut impl Sleeps<S::Platform>) {
        let Some(&address) = self.sleeping.get(&token) else {
            return;
        };
        self.end_sleep(address, true, sleeps);
        self.attend(address, false, sleeps);
    }

    /// Checks every word of the set. The caller uses it after an occurrence that changes no word,
    /// such as the death of a process.
    pub fn look_at_all(&mut self, sleeps: &mut impl Sleeps<S::Platform>) {
        for address in Vec::from_iter(self.words.keys().copied()) {
            self.attend(address, false, sleeps);
            if self.is_orphan(address) {
                self.since_orphan = Some(0);
            }
        }
    }

    /// Returns the maximum time to sleep before the next call of [`look`](Self::look).
    pub fn time_until_look(&self, now: Time<S>) -> Duration {
        let left = |interval: Duration, last: Option<Time<S>>| {
            let since = last.map(|last| now.saturating_duration_since(last));
            interval.saturating_sub(since.unwrap_or_default())
        };
        let sweep = left(self.sweep_interval(), self.swept_at);
        match self.step(now) {
            Some(step) => sweep.min(left(step, self.stepped_at)),
            None => sweep,
        }
    }

    /// Checks the words that are due. Words that devices write are checked because devices wake no
    /// thread. All words are checked in rotation, because a hostile peer may neither wake this
    /// thread nor report its own end.
    pub fn look(&mut self, now: Time<S>, sleeps: &mut impl Sleeps<S::Platform>) {
        let is_due = |interval: Duration, last: &mut Option<Time<S>>| {
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

    /// Returns the time between two looks at words without wakes, or `None` if there are no such
    /// words.
    fn step(&self, now: Time<S>) -> Option<Duration> {
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

    /// Returns whether the exporter of a word's event is known to have ended, so that it reports no
    /// deaths.
    fn is_orphan(&self, address: usize) -> bool {
        let first = self.words.get(&address).and_then(Word::first);
        first.is_some_and(|first| first.liveness.is_known_orphan())
    }

    /// Looks at the next words of the rotation, and checks for a few of them whether their process
    /// is alive. The limits keep a sweep cheap, whatever the number of words.
    fn sweep(&mut self, sleeps: &mut impl Sleeps<S::Platform>) {
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

    /// Settles the entries of a word that can be settled, and sleeps on the word for the others.
    fn attend(
        &mut self,
        address: usize,
        is_check_due: bool,
        sleeps: &mut impl Sleeps<S::Platform>,
    ) {
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
                // The wake by `mark_device_signals` may have come before the sleep began.
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

    /// Begins a sleep on a word without one. Returns `false` if the word has changed, and then the
    /// caller must look again.
    fn begin_sleep(&mut self, address: usize, sleeps: &mut impl Sleeps<S::Platform>) -> bool {
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
        // If devices begin to signal the event later, that ends the sleep.
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

    /// Records that devices signal the event of a word.
    fn add_of_device(&mut self, address: usize) {
        if self.of_devices.insert(address) {
            self.newest_of_devices = Some(Moment::now());
        }
    }

    /// Ends the sleep on a word, if it has one.
    fn end_sleep(&mut self, address: usize, is_over: bool, sleeps: &mut impl Sleeps<S::Platform>) {
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

    /// Ends the sleep on a word whose last entry was just settled, and removes the word.
    fn end_last_sleep(&mut self, address: usize, sleeps: &mut impl Sleeps<S::Platform>) {
        let sleep = self
            .words
            .get_mut(&address)
            .and_then(|word| word.sleep.take());
        if let Some(sleep) = sleep
            && let Some(last) = self.settled.last()
        {
            self.sleeping.remove(&sleep.token);
            sleeps.end(sleep.token);
            // The settled entry keeps the slot valid.
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

/// Returns at most `most` addresses that follow `from`, and sets `from` to the last of them.
fn next_after<T>(from: &mut usize, words: &BTreeMap<usize, T>, most: usize) -> Vec<usize> {
    let after = words.range((Bound::Excluded(*from), Bound::Unbounded));
    let next = after.chain(words.range(..=*from)).take(most);
    let next = Vec::from_iter(next.map(|(address, _)| *address));
    *from = next.last().copied().unwrap_or(*from);
    next
}
