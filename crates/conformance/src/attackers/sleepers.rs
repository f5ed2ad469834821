//! Holders of event handles that meddle with those who sleep on the events' words.
//!
//! They know nothing of the words. They find them by asking the kernel for each word of the shared pages
//! how many threads sleep on it.

use super::{Attacker, Report, Stop, Victim};
use crate::failure::Failure;
use rustix::thread::futex::{Flags, WAITERS, cmp_requeue, lock_pi};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bit of an entry of `/proc/PID/pagemap`: the page is in memory.
const PRESENT: u64 = 1 << 63;
/// Words that are held by locks at a time, each with a thread.
const LOCKED: usize = 64;
/// Time between two rounds.
const PAUSE: Duration = Duration::from_micros(200);
/// Rounds between two looks for pages.
const ROUNDS: usize = 1_000;
/// Time after which a lock that nobody was seen to wait for is given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// Moves sleepers to a word that nobody wakes.
pub(super) struct Requeue;

impl Attacker for Requeue {
    fn name(&self) -> &'static str {
        "requeue"
    }

    fn needs_handles(&self) -> bool {
        true
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
        static NOWHERE: AtomicU32 = AtomicU32::new(0);
        meddle(victim, stop, |word| move_sleepers(word, &NOWHERE) > 0)
    }
}

/// Makes the first sleeper of each word one that waits for a lock with priority inheritance: the
/// kernel then refuses to wake the others.
pub(super) struct PriorityLocks;

impl Attacker for PriorityLocks {
    fn name(&self) -> &'static str {
        "priority-locks"
    }

    fn needs_handles(&self) -> bool {
        true
    }

    fn run(&self, victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            loop {
                std::thread::park();
            }
        });
        let holder = told.recv()?;
        let mut locked = Vec::new();
        meddle(victim, stop, |word| {
            let address = ptr::from_ref(word).addr();
            // Nobody is moved: from the word to itself.
            if locked.len() == LOCKED || locked.contains(&address) || move_sleepers(word, word) == 0
            {
                return false;
            }
            locked.push(address);
            let before = word.swap(holder, Ordering::SeqCst);
            std::thread::spawn(move || lock_pi(word, Flags::empty(), None));
            // The kernel's mark, which it sets under the lock that wakes take.
            let end = Instant::now() + PATIENCE;
            while word.load(Ordering::SeqCst) & WAITERS == 0 && Instant::now() < end {
                std::thread::yield_now();
            }
            word.store(before, Ordering::SeqCst);
            true
        })
    }
}

/// Strikes at every word of the shared pages, again and again. `strike` returns whether it landed.
fn meddle(
    victim: &Victim,
    stop: &Stop,
    mut strike: impl FnMut(&'static AtomicU32) -> bool,
) -> Result<Report, Failure> {
    let opened = victim.open()?;
    // The pages of an event are in memory once it was looked at.
    opened.events.iter().for_each(|event| drop(event.status()));
    let mut report = Report::default();
    while !stop.is_stopped() {
        let words = shared_words()?;
        if words.is_empty() {
            return Err(Failure::new("no page is shared and writable"));
        }
        for _ in 0..ROUNDS {
            for word in &words {
                report.attempts += 1;
                report.landed += u64::from(strike(word));
            }
            stop.begun();
            if stop.pause(PAUSE) {
                break;
            }
        }
    }
    // Other threads may still wait for the words.
    std::mem::forget(opened);
    Ok(report)
}

/// Moves all sleepers of a word to another one, and returns how many there were.
fn move_sleepers(from: &AtomicU32, to: &AtomicU32) -> usize {
    let all = i32::MAX as u32;
    let expected = from.load(Ordering::Relaxed);
    cmp_requeue(from, Flags::empty(), 0, all, to, expected).unwrap_or(0)
}

/// Returns the words of the pages that this process shares with others and may write, as far as it has
/// used them.
fn shared_words() -> io::Result<Vec<&'static AtomicU32>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut words = Vec::new();
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((start, end)) = shared_range(line) else {
            continue;
        };
        let mut entries = vec![0; (end - start) / PAGE * 8];
        pagemap.read_exact_at(&mut entries, (start / PAGE * 8) as u64)?;
        for (index, entry) in entries.chunks(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
            if entry & PRESENT == 0 {
                continue;
            }
            let page = start + index * PAGE;
            words.extend((page..page + PAGE).step_by(4).map(|address| {
                let place = ptr::with_exposed_provenance_mut::<u32>(address);
                // SAFETY: a writable page of this process that stays mapped until the process ends,
                // since what it belongs to is never closed. The address is a multiple of four.
                // Other processes access these words with atomic operations, or as this one does.
                unsafe { AtomicU32::from_ptr(place) }
            }));
        }
    }
    Ok(words)
}

/// Returns the addresses in a line of `/proc/PID/maps`, if it is shared memory of the library that may
/// be written.
fn shared_range(line: &str) -> Option<(usize, usize)> {
    let mut parts = line.split_whitespace();
    let (start, end) = parts.next()?.split_once('-')?;
    if parts.next() != Some("rw-s") || !line.contains("memfd:crosshandle") {
        return None;
    }
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}
