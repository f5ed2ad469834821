//! The sleeps of the thread that serves waiters, in three ways.

use crate::event_protocol::{RING, Sleeps, Slot};
use crate::platform::{self, AtomicU64, Ordering, Ring, one_in, pick};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

/// The token of the thread's own word.
const OWN: u64 = u64::MAX;

/// A stretch of shared memory: events with one doorbell.
pub(super) struct Memory {
    slots: Vec<Arc<Slot>>,
    doorbell: Arc<AtomicU64>,
}

impl Memory {
    pub(super) fn of(slots: impl IntoIterator<Item = Arc<Slot>>) -> Self {
        let doorbell = Arc::new(AtomicU64::new(0));
        let slots = Vec::from_iter(slots);
        for slot in &slots {
            platform::add_doorbell(&**slot, &doorbell);
        }
        Self { slots, doorbell }
    }

    pub(super) fn doorbell(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.doorbell)
    }

    /// Returns the word at an address.
    fn word(&self, address: usize) -> Option<&AtomicU64> {
        let mut words = self
            .slots
            .iter()
            .flat_map(|slot| (0..RING).map(|number| slot.word_of(number)));
        words.find(|word| ptr::from_ref(*word).addr() == address)
    }
}

/// How the thread sleeps on many words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// In one call for all of them, which looks at each word anew.
    AllAtOnce,
    /// In the kernel, which keeps every sleep until it ends: `os/futex/ring.rs`.
    Ring,
    /// On the doorbells of their memory: `os/futex/sleep_set.rs`.
    Doorbells,
    /// Wrongly: looks at a word before it listens to the doorbell.
    DoorbellsLookingFirst,
}

impl Kind {
    /// Returns one of those that are right.
    pub(super) fn any() -> Self {
        [Self::AllAtOnce, Self::Ring, Self::Doorbells][pick(3) as usize]
    }
}

/// A sleep on a word.
#[derive(Clone, Copy)]
struct Sleep {
    address: usize,
    expected: u32,
}

/// Memory to whose doorbell the thread listens.
struct Listened {
    /// How often the doorbell was rung when the thread began to listen.
    rings: u32,
    sleeps: BTreeMap<u64, Sleep>,
}

/// The sleeps of one thread.
pub(super) struct WordSleeps {
    kind: Kind,
    memory: Vec<Memory>,
    /// Those of `AllAtOnce`, and those of `Ring` that the kernel does not know yet.
    begun: BTreeMap<u64, Sleep>,
    /// Of `Ring`: sleeps that the kernel is to end.
    cancelled: Vec<u64>,
    ring: Ring,
    is_armed: bool,
    /// Of `Doorbells`, by index in `memory`.
    listened: BTreeMap<usize, Listened>,
    /// Of `Doorbells`: sleeps that have ended.
    ended: Vec<u64>,
}

impl WordSleeps {
    pub(super) fn new(kind: Kind, memory: Vec<Memory>) -> Self {
        Self {
            kind,
            memory,
            begun: BTreeMap::new(),
            cancelled: Vec::new(),
            ring: Ring::new(),
            is_armed: false,
            listened: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    /// Sleeps until a sleep ends or the upper half of `own` is not `expected`, at most for `limit`. Adds
    /// the tokens of the sleeps that have ended.
    pub(super) fn sleep(&mut self, own: (&AtomicU64, u32), limit: Duration, woken: &mut Vec<u64>) {
        match self.kind {
            Kind::AllAtOnce => self.sleep_on_all(own, limit, woken),
            Kind::Ring => self.sleep_in_ring(own, limit, woken),
            Kind::Doorbells | Kind::DoorbellsLookingFirst => {
                self.sleep_on_doorbells(own, limit, woken);
            }
        }
    }

    fn sleep_on_all(&mut self, own: (&AtomicU64, u32), limit: Duration, woken: &mut Vec<u64>) {
        let memory = &self.memory;
        let words = self.begun.values();
        let words = words.map(|sleep| (word(memory, sleep.address), sleep.expected));
        platform::sleep_any(&Vec::from_iter(words.chain([own])), limit);
        self.begun.retain(|token, sleep| {
            // Sleeps end for no reason, too.
            let has_ended = upper(word(memory, sleep.address)) != sleep.expected || one_in(16);
            if has_ended {
                woken.push(*token);
            }
            !has_ended
        });
    }

    fn sleep_in_ring(&mut self, own: (&AtomicU64, u32), limit: Duration, woken: &mut Vec<u64>) {
        if !self.is_armed {
            self.ring.begin(OWN, own.0, own.1);
            self.is_armed = true;
        }
        for (token, sleep) in std::mem::take(&mut self.begun) {
            let word = word(&self.memory, sleep.address);
            self.ring.begin(token, word, sleep.expected);
        }
        for token in self.cancelled.drain(..) {
            self.ring.end(token);
        }
        self.ring.wait(limit, woken);
        let before = woken.len();
        woken.retain(|token| *token != OWN);
        self.is_armed = woken.len() == before;
    }

    fn sleep_on_doorbells(
        &mut self,
        own: (&AtomicU64, u32),
        limit: Duration,
        woken: &mut Vec<u64>,
    ) {
        if self.ended.is_empty() {
            let doorbells = self.listened.iter().map(|(index, listened)| {
                let doorbell = &*self.memory[*index].doorbell;
                (doorbell, listened.rings)
            });
            let words = Vec::from_iter(doorbells.chain([own]));
            platform::sleep_any(&words, limit);
        }
        for (index, listened) in &mut self.listened {
            let memory = &self.memory[*index];
            if platform::rings(&memory.doorbell) == listened.rings {
                continue;
            }
            let is_first = self.kind == Kind::Doorbells;
            if is_first {
                listened.rings = platform::listen(&memory.doorbell);
            }
            for (token, sleep) in &listened.sleeps {
                let word = memory.word(sleep.address).expect("a word of the memory");
                if upper(word) != sleep.expected {
                    self.ended.push(*token);
                }
            }
            if !is_first {
                listened.rings = platform::listen(&memory.doorbell);
            }
        }
        for token in std::mem::take(&mut self.ended) {
            self.end(token);
            woken.push(token);
        }
    }

    fn listen_and_look(&mut self, token: u64, word: &AtomicU64, expected: u32) {
        let address = ptr::from_ref(word).addr();
        let is_here = |memory: &Memory| memory.word(address).is_some();
        let place = self.memory.iter().position(is_here);
        let place = place.expect("the memory has a doorbell");
        let changed_early = self.kind != Kind::Doorbells && upper(word) != expected;
        let listened = self.listened.entry(place).or_insert_with(|| Listened {
            rings: platform::listen(&self.memory[place].doorbell),
            sleeps: BTreeMap::new(),
        });
        let changed = match self.kind {
            Kind::Doorbells => upper(word) != expected,
            _ => changed_early,
        };
        if changed {
            self.ended.push(token);
        } else {
            let sleep = Sleep { address, expected };
            listened.sleeps.insert(token, sleep);
        }
        self.listened
            .retain(|_, listened| !listened.sleeps.is_empty());
    }
}

impl Sleeps for WordSleeps {
    fn begin(&mut self, token: u64, word: &AtomicU64, expected: u32) {
        match self.kind {
            Kind::AllAtOnce | Kind::Ring => {
                let address = ptr::from_ref(word).addr();
                let sleep = Sleep { address, expected };
                let former = self.begun.insert(token, sleep);
                assert!(former.is_none(), "two sleeps with one token");
            }
            Kind::Doorbells | Kind::DoorbellsLookingFirst => {
                self.listen_and_look(token, word, expected);
            }
        }
    }

    fn end(&mut self, token: u64) {
        match self.kind {
            Kind::AllAtOnce => {
                self.begun.remove(&token);
            }
            Kind::Ring => self.cancelled.push(token),
            Kind::Doorbells | Kind::DoorbellsLookingFirst => {
                for listened in self.listened.values_mut() {
                    listened.sleeps.remove(&token);
                }
                self.listened
                    .retain(|_, listened| !listened.sleeps.is_empty());
            }
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
