//! Attacks on threads that sleep on shared words, as any process that has mapped the memory can
//! make them.
//!
//! The attacker knows nothing about the words. For each word of its shared, writable pages, it asks
//! the kernel how many threads sleep there.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, Result, ensure};
use rustix::thread::futex::{Flags, WAITERS, cmp_requeue, lock_pi};
use rustix::thread::gettid;

const PAGE_BYTES: usize = 4096;
/// Bit of an entry of `/proc/PID/pagemap` that says that the page is in memory.
const PRESENT: u64 = 1 << 63;
/// Distance in `AtomicU32`s from the half of a word that threads sleep on to the half that counts
/// sleepers.
const COUNT_BELOW: usize = 1;
/// Maximum number of words that are locked at a time, each with a thread.
const MAX_LOCKS: usize = 64;

/// A kind of attack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attack {
    /// Moves sleepers to a word that no thread wakes.
    Requeue,
    /// Makes the first sleeper of a word wait for a lock with priority inheritance. The kernel then
    /// refuses to wake the others.
    LockWithPriority,
    /// Tells signallers that no thread sleeps.
    ZeroCounts,
}

impl Attack {
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        [Self::Requeue, Self::LockWithPriority, Self::ZeroCounts]
            .into_iter()
            .find(|attack| *attack as u64 == number)
    }
}

/// The number of sleepers that an attacker has met.
#[derive(Clone, Default)]
pub(crate) struct Met(Arc<AtomicU64>);

impl Met {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) struct Attacker {
    attack: Attack,
    words: Vec<&'static AtomicU32>,
    /// The number of the thread that holds the locks, as a lock's word contains it.
    holder: u32,
    locked: Vec<usize>,
    met: Met,
}

impl Attacker {
    /// Creates an attacker of the words that are in this process's memory now. The words must stay
    /// mapped until the process ends, so the process must not close shared memory from now on.
    pub(crate) fn start(attack: Attack) -> Result<Self> {
        let words = shared_words().context("cannot find the shared pages")?;
        ensure!(!words.is_empty(), "no page is shared and writable");
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let _ = tell.send(gettid().as_raw_nonzero().get() as u32);
            loop {
                thread::park();
            }
        });
        Ok(Self {
            attack,
            words,
            holder: told.recv().context("the holder of locks has ended")?,
            locked: Vec::new(),
            met: Met::default(),
        })
    }

    pub(crate) fn met(&self) -> Met {
        self.met.clone()
    }

    /// Attacks each word once.
    pub(crate) fn strike(&mut self) {
        static NOWHERE: AtomicU32 = AtomicU32::new(0);
        for index in COUNT_BELOW..self.words.len() {
            let word = self.words[index];
            let met = match self.attack {
                Attack::Requeue => moved(word, &NOWHERE),
                // Moving from a word to itself moves no sleeper but counts all of them.
                Attack::LockWithPriority => match self.locked.contains(&ptr::from_ref(word).addr())
                {
                    false => moved(word, word),
                    true => 0,
                },
                Attack::ZeroCounts => moved(word, word),
            };
            if met == 0 {
                continue;
            }
            self.met.0.fetch_add(met as u64, Ordering::Relaxed);
            match self.attack {
                Attack::Requeue => {}
                Attack::LockWithPriority => self.lock(word),
                Attack::ZeroCounts => {
                    self.words[index - COUNT_BELOW].store(0, Ordering::SeqCst);
                }
            }
        }
    }

    /// Starts a thread that waits for a word as for a lock that another thread holds.
    fn lock(&mut self, word: &'static AtomicU32) {
        if self.locked.len() == MAX_LOCKS {
            return;
        }
        self.locked.push(ptr::from_ref(word).addr());
        let before = word.swap(self.holder, Ordering::SeqCst);
        thread::spawn(move || lock_pi(word, Flags::empty(), None));
        // The kernel sets this mark while it holds the lock that wake-ups take.
        while word.load(Ordering::SeqCst) & WAITERS == 0 {
            thread::yield_now();
        }
        word.store(before, Ordering::SeqCst);
    }
}

/// Moves all sleepers of a word to another word, and returns their number.
fn moved(from: &AtomicU32, to: &AtomicU32) -> usize {
    let all = i32::MAX as u32;
    let expected = from.load(Ordering::Relaxed);
    cmp_requeue(from, Flags::empty(), 0, all, to, expected).unwrap_or(0)
}

/// Returns the words of the event pages that this process shares and may write, in the order of
/// their addresses. Only pages that the process has used are included.
fn shared_words() -> io::Result<Vec<&'static AtomicU32>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut words = Vec::new();
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((start, end)) = shared_range(line) else {
            continue;
        };
        let mut entries = vec![0; (end - start) / PAGE_BYTES * 8];
        pagemap.read_exact_at(&mut entries, (start / PAGE_BYTES * 8) as u64)?;
        for (index, entry) in entries.chunks(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
            if entry & PRESENT == 0 {
                continue;
            }
            let page = start + index * PAGE_BYTES;
            words.extend((page..page + PAGE_BYTES).step_by(4).map(|address| {
                let place = ptr::with_exposed_provenance_mut::<u32>(address);
                // SAFETY: the page is writable and stays mapped until the process ends, as
                // `Attacker::start` requires. The address is a multiple of four. Other processes
                // access these words with atomic operations or in the same way as this one.
                unsafe { AtomicU32::from_ptr(place) }
            }));
        }
    }
    Ok(words)
}

/// Returns the address range in a line of `/proc/PID/maps`, if it is an arena of events.
fn shared_range(line: &str) -> Option<(usize, usize)> {
    let mut parts = line.split_whitespace();
    let (start, end) = parts.next()?.split_once('-')?;
    if parts.next() != Some("rw-s") || !line.contains("memfd:crosshandle-events") {
        return None;
    }
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}
