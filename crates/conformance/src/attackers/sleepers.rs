//! Processes with event handles that interfere with threads that sleep on the events' words.
//!
//! The attackers do not know which words these are. They ask the kernel, for each word of the
//! shared pages, how many threads sleep on it.

use super::{Report, Stop, Victim};
use crate::failure::Failure;
use rustix::thread::futex::{Flags, WAITERS, cmp_requeue, lock_pi};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Size of a page in bytes.
const PAGE: usize = 4096;
/// Bit of an entry of `/proc/PID/pagemap` that shows that the page is in memory.
const PRESENT: u64 = 1 << 63;
/// Maximum number of words that are locked at a time. Each lock has its own thread.
const LOCKED: usize = 64;
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_micros(200);
/// Number of rounds after which the attackers look for new pages.
const ROUNDS: usize = 1_000;
/// Time after which a lock is abandoned if no thread was seen to wait for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Moves sleepers to a word on which no process wakes them.
pub(super) fn requeue(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
    static NOWHERE: AtomicU32 = AtomicU32::new(0);
    meddle(victim, stop, |word| move_sleepers(word, &NOWHERE) > 0)
}

/// Makes the first sleeper of each word wait for a lock with priority inheritance. The kernel then
/// refuses to wake the other sleepers.
pub(super) fn priority_locks(victim: &Victim, stop: &Stop) -> Result<Report, Failure> {
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
        // This call moves no thread, because source and target are the same word. It only
        // counts the sleepers.
        if locked.len() == LOCKED || locked.contains(&address) || move_sleepers(word, word) == 0 {
            return false;
        }
        locked.push(address);
        let before = word.swap(holder, Ordering::SeqCst);
        std::thread::spawn(move || lock_pi(word, Flags::empty(), None));
        // The kernel sets this mark under the lock that wakes also take.
        let end = Instant::now() + PATIENCE;
        while word.load(Ordering::SeqCst) & WAITERS == 0 && Instant::now() < end {
            std::thread::yield_now();
        }
        word.store(before, Ordering::SeqCst);
        true
    })
}

/// Repeatedly attacks every word of the shared pages. `strike` returns whether the attack
/// succeeded.
fn meddle(
    victim: &Victim,
    stop: &Stop,
    mut strike: impl FnMut(&'static AtomicU32) -> bool,
) -> Result<Report, Failure> {
    let opened = victim.open()?;
    // The pages of an event are in memory after its status has been read.
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
    // Other threads may still wait on the words.
    std::mem::forget(opened);
    Ok(report)
}

/// Moves all sleepers of a word to another word, and returns their number.
fn move_sleepers(from: &AtomicU32, to: &AtomicU32) -> usize {
    let all = i32::MAX as u32;
    let expected = from.load(Ordering::Relaxed);
    cmp_requeue(from, Flags::empty(), 0, all, to, expected).unwrap_or(0)
}

/// Returns the words of the writable pages that this process shares with others and has already
/// used.
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
                // SAFETY: the page is writable and stays mapped until the process ends, because the
                // object that it belongs to is never closed. The address is a multiple of four.
                // Other processes access these words with atomic operations, or as this one does.
                unsafe { AtomicU32::from_ptr(place) }
            }));
        }
    }
    Ok(words)
}

/// Returns the start and end address in a line of `/proc/PID/maps` if it is writable shared memory
/// of the library.
fn shared_range(line: &str) -> Option<(usize, usize)> {
    let mut parts = line.split_whitespace();
    let (start, end) = parts.next()?.split_once('-')?;
    if parts.next() != Some("rw-s") || !line.contains("memfd:crosshandle") {
        return None;
    }
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some((number(start)?, number(end)?))
}
