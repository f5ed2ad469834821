//! Two correct and two wrong implementations of the sleeps of the thread that serves waiters.

use crate::event_protocol::{RING, Sleeps, Slot};
use crate::platform::{self, AtomicU64, Doorbell, Ordering, Shuttle, one_in};
use std::collections::BTreeMap;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// A range of shared memory that contains events and one doorbell.
pub(super) struct Memory {
    slots: Vec<Arc<Slot>>,
    pub(super) doorbell: Arc<Doorbell>,
}

impl Memory {
    pub(super) fn of(slots: impl IntoIterator<Item = Arc<Slot>>) -> Self {
        let doorbell = Arc::new(Doorbell::new());
        let slots = Vec::from_iter(slots);
        for slot in &slots {
            platform::add_doorbell(&**slot, &doorbell);
        }
        Self { slots, doorbell }
    }

    /// Returns the word at an address.
    fn word(&self, address: usize) -> Option<&AtomicU64> {
        let slots = self.slots.iter();
        let mut words = slots.flat_map(|slot| (0..RING).map(|number| slot.word_of(number)));
        words.find(|word| ptr::from_ref(*word).addr() == address)
    }
}

/// How the thread sleeps on many words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// With one call for all words, which looks at each word again.
    AllAtOnce,
    /// On the doorbells of their memory, as in `crates/crosshandle-os/src/futex/sleep_set.rs`.
    Doorbells,
    /// Wrong: looks at a word before it listens to the doorbell.
    LookingFirst,
    /// Wrong: reads the log before it listens to the doorbell.
    ReadingFirst,
}

impl Kind {
    /// Returns one of the correct kinds.
    pub(super) fn any() -> Self {
        match one_in(3) {
            true => Self::AllAtOnce,
            false => Self::Doorbells,
        }
    }
}

/// Memory to whose doorbell the thread listens.
struct Listened {
    /// Number of rings when the thread began to listen, or `None` if the doorbell was rung since.
    rings: Option<u32>,
    /// Number of entries of the log that the thread has read.
    read: u64,
    /// The sleeps by the word's address: token and expected upper half.
    sleeps: BTreeMap<usize, (u64, u32)>,
}

impl Listened {
    /// Returns the sleeps that have ended, and listens from now on.
    fn ended(&mut self, memory: &Memory, kind: Kind) -> Vec<u64> {
        let doorbell = &memory.doorbell;
        let mut words = None;
        if kind == Kind::ReadingFirst {
            words = Some(doorbell.read(&mut self.read));
        }
        if self.rings.is_none_or(|rings| doorbell.is_rung(rings)) {
            self.rings = Some(doorbell.listen());
        }
        let words = words.unwrap_or_else(|| doorbell.read(&mut self.read));
        let has_ended = |(address, (_, expected)): &(&usize, &(u64, u32))| match &words {
            Some(words) => words.contains(&(**address as u32)),
            None => upper(memory.word(**address).expect("a word of it")) != *expected,
        };
        let ended = self.sleeps.iter().filter(has_ended);
        ended.map(|(_, (token, _))| *token).collect()
    }
}

/// The sleeps of one thread.
pub(super) struct WordSleeps {
    kind: Kind,
    memory: Vec<Memory>,
    /// The address of each sleep's word, and its expected upper half.
    begun: BTreeMap<u64, (usize, u32)>,
    /// The memory whose doorbells the thread listens to, by index in `memory`.
    listened: BTreeMap<usize, Listened>,
    /// Sleeps that have ended.
    ended: Vec<u64>,
}

impl WordSleeps {
    pub(super) fn new(kind: Kind, memory: Vec<Memory>) -> Self {
        Self {
            kind,
            memory,
            begun: BTreeMap::new(),
            listened: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    /// Blocks until a sleep ends or the upper half of `own` is not `expected`, for at most `limit`.
    /// Appends the tokens of ended sleeps to `woken`.
    pub(super) fn sleep(&mut self, own: (&AtomicU64, u32), limit: Duration, woken: &mut Vec<u64>) {
        if self.kind == Kind::AllAtOnce {
            return self.sleep_on_all(own, limit, woken);
        }
        self.collect();
        if self.ended.is_empty() {
            let bells = self.listened.iter().filter_map(|(index, listened)| {
                let bell = self.memory[*index].doorbell.word();
                Some((bell, listened.rings?))
            });
            platform::sleep_any(&Vec::from_iter(bells.chain([own])), limit);
            self.collect();
        }
        self.report(woken);
    }

    fn report(&mut self, woken: &mut Vec<u64>) {
        for token in mem::take(&mut self.ended) {
            self.end(token);
            woken.push(token);
        }
    }

    /// Appends the tokens of ended sleeps to `woken`, without blocking.
    pub(super) fn poll(&mut self, woken: &mut Vec<u64>) {
        if self.kind == Kind::AllAtOnce {
            return self.report_changed(woken);
        }
        self.collect();
        self.report(woken);
    }

    fn sleep_on_all(&mut self, own: (&AtomicU64, u32), limit: Duration, woken: &mut Vec<u64>) {
        let words = self.begun.values();
        let words = words.map(|(address, expected)| (word(&self.memory, *address), *expected));
        platform::sleep_any(&Vec::from_iter(words.chain([own])), limit);
        self.report_changed(woken);
    }

    fn report_changed(&mut self, woken: &mut Vec<u64>) {
        let memory = &self.memory;
        self.begun.retain(|token, (address, expected)| {
            // Sleeps may also end spuriously.
            let has_ended = upper(word(memory, *address)) != *expected || one_in(16);
            if has_ended {
                woken.push(*token);
            }
            !has_ended
        });
    }

    fn collect(&mut self) {
        for (index, listened) in &mut self.listened {
            let ended = listened.ended(&self.memory[*index], self.kind);
            self.ended.extend(ended);
        }
    }

    fn listen_and_look(&mut self, token: u64, word: &AtomicU64, expected: u32) {
        let address = ptr::from_ref(word).addr();
        let is_here = |memory: &Memory| memory.word(address).is_some();
        let place = self.memory.iter().position(is_here);
        let place = place.expect("the memory has a doorbell");
        let doorbell = &self.memory[place].doorbell;
        let looks_first = self.kind == Kind::LookingFirst;
        let has_changed = looks_first && upper(word) != expected;
        let listened = self.listened.entry(place).or_insert_with(|| Listened {
            rings: None,
            read: doorbell.written(),
            sleeps: BTreeMap::new(),
        });
        listened.rings.get_or_insert_with(|| doorbell.listen());
        if has_changed || !looks_first && upper(word) != expected {
            self.ended.push(token);
        } else {
            let former = listened.sleeps.insert(address, (token, expected));
            assert_eq!(former, None, "two sleeps on one word");
            self.begun.insert(token, (address, expected));
        }
        self.forget_idle();
    }

    fn forget_idle(&mut self) {
        self.listened
            .retain(|_, listened| !listened.sleeps.is_empty());
    }
}

impl Sleeps<Shuttle> for WordSleeps {
    fn begin(&mut self, token: u64, word: &AtomicU64, expected: u32) {
        match self.kind {
            Kind::AllAtOnce => {
                let sleep = (ptr::from_ref(word).addr(), expected);
                let former = self.begun.insert(token, sleep);
                assert_eq!(former, None, "two sleeps with one token");
            }
            _ => self.listen_and_look(token, word, expected),
        }
    }

    fn end(&mut self, token: u64) {
        if let Some((address, _)) = self.begun.remove(&token) {
            for listened in self.listened.values_mut() {
                listened.sleeps.remove(&address);
            }
            self.forget_idle();
        }
    }
}

fn word(memory: &[Memory], address: usize) -> &AtomicU64 {
    let word = memory.iter().find_map(|memory| memory.word(address));
    word.expect("a word of the memory")
}

fn upper(word: &AtomicU64) -> u32 {
    (word.load(Ordering::SeqCst) >> 32) as u32
}
