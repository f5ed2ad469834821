//! Commands that attack the sleepers of an event, as a hostile process with a handle to it can do.
//! They do not use the protocol: they find an event's slot in this process's memory.

use crate::request::{CommandError, Reply, Request, done, one};
use crate::state::PeerState;
use crosshandle_conformance::slowdown;
use rustix::thread::futex::{Flags, WAITERS, cmp_requeue, lock_pi};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Size of a page, in bytes.
const PAGE: usize = 4096;
/// Number of completion words of an event. They follow its first word.
const WORDS: usize = 7;
/// Number of bits in an event's first word below the number of its latest signal.
const NUMBER_SHIFT: u32 = 14;
/// Index of the half of a completion word that counts sleepers. Threads sleep on the other half.
const COUNT: usize = if cfg!(target_endian = "little") { 0 } else { 1 };
/// Pause between two rounds of an attack.
const PAUSE: Duration = Duration::from_micros(200);

/// Number of sleepers that this process's attacks have met so far.
static MET: AtomicU64 = AtomicU64::new(0);

pub(crate) fn execute(state: &Arc<PeerState>, request: &Request<'_>) -> Option<Reply> {
    Some(match request.command {
        "divert" => divert(state, request),
        "diverted" => one(MET.load(Ordering::Relaxed)),
        _ => return None,
    })
}

/// `divert NAME requeue|lock-pi|zero-counts`: attacks the sleepers of an event until this process
/// ends. No other event in this process's memory may have the same latest number.
fn divert(state: &PeerState, request: &Request<'_>) -> Reply {
    let number = state.event(request.word(0)?)?.submitted();
    let words = words_of_event_at(number)?;
    let attack = match request.word(1)? {
        "requeue" => requeue,
        "lock-pi" => return hold_by_priority(words),
        "zero-counts" => zero_counts,
        other => return Err(CommandError::usage(format!("no attack {other:?}"))),
    };
    thread::spawn(move || {
        loop {
            words.iter().for_each(attack);
            thread::sleep(PAUSE);
        }
    });
    done()
}

/// The two halves of a completion word.
#[derive(Clone, Copy)]
struct Word {
    count: &'static AtomicU32,
    sequence: &'static AtomicU32,
}

/// Moves the sleepers of a word to a futex that no thread wakes.
fn requeue(word: &Word) {
    static NOWHERE: AtomicU32 = AtomicU32::new(0);
    let expected = word.sequence.load(Ordering::Relaxed);
    let all = i32::MAX as u32;
    let moved = cmp_requeue(word.sequence, Flags::empty(), 0, all, &NOWHERE, expected);
    MET.fetch_add(moved.unwrap_or(0) as u64, Ordering::Relaxed);
}

/// Tells signallers that a word has no sleepers.
fn zero_counts(word: &Word) {
    MET.fetch_add(
        word.count.swap(0, Ordering::Relaxed).into(),
        Ordering::Relaxed,
    );
}

/// Makes the first sleeper of each word wait for a lock with priority inheritance. The kernel then
/// refuses to wake the others (`EINVAL`).
fn hold_by_priority(words: [Word; WORDS]) -> Reply {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let _ = tell.send(crate::process::thread() as u32);
        loop {
            thread::park();
        }
    });
    let lost = |_| CommandError::usage("the holder has ended");
    let holder = told.recv().map_err(lost)?;
    let end = Instant::now() + Duration::from_secs(10) * slowdown();
    for word in words {
        let before = word.sequence.swap(holder, Ordering::SeqCst);
        thread::spawn(move || lock_pi(word.sequence, Flags::empty(), None));
        // The kernel sets this mark while it holds the lock that wake-ups take.
        while word.sequence.load(Ordering::SeqCst) & WAITERS == 0 {
            if Instant::now() >= end {
                return Err(CommandError::usage("a lock is not waited for"));
            }
            thread::yield_now();
        }
        word.sequence.store(before, Ordering::SeqCst);
    }
    done()
}

/// Returns the completion words of the only event in shared memory whose latest completed signal is
/// `number`.
fn words_of_event_at(number: u64) -> Result<[Word; WORDS], CommandError> {
    let is_issued = |bytes: &[u8]| {
        let word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        word >> NUMBER_SHIFT == number
    };
    let memory = File::open("/proc/self/mem")?;
    let mut found = Vec::new();
    let mut bytes = vec![0; PAGE];
    for page in shared_pages()? {
        memory.read_exact_at(&mut bytes, page as u64)?;
        let words = bytes.chunks(8).enumerate();
        found.extend(words.filter_map(|(at, word)| is_issued(word).then_some(page + 8 * at)));
    }
    let [issued] = found.as_slice() else {
        let message = format!("{} events at number {number}", found.len());
        return Err(CommandError::usage(message));
    };
    let half = |address: usize| {
        let place = ptr::with_exposed_provenance_mut::<u32>(address);
        // SAFETY: the page is writable memory of this process. It stays mapped while the event is
        // open, which is until this process ends. The address is a multiple of four, and all
        // processes access events atomically.
        unsafe { AtomicU32::from_ptr(place) }
    };
    Ok(std::array::from_fn(|index| {
        let word = issued + 8 * (1 + index);
        Word {
            count: half(word + 4 * COUNT),
            sequence: half(word + 4 * (1 - COUNT)),
        }
    }))
}

/// Returns the addresses of shared pages that this process may write and has used.
fn shared_pages() -> Result<Vec<usize>, CommandError> {
    const PRESENT: u64 = 1 << 63;
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut pages = Vec::new();
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some("rw-s")) = (words.next(), words.next()) else {
            continue;
        };
        let hexadecimal = |text| usize::from_str_radix(text, 16).ok();
        let ends = range.split_once('-');
        let Some((Some(start), Some(end))) =
            ends.map(|(start, end)| (hexadecimal(start), hexadecimal(end)))
        else {
            continue;
        };
        let mut entries = vec![0; (end - start) / PAGE * 8];
        pagemap.read_exact_at(&mut entries, (start / PAGE * 8) as u64)?;
        for (index, entry) in entries.chunks(8).enumerate() {
            let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
            if entry & PRESENT != 0 {
                pages.push(start + index * PAGE);
            }
        }
    }
    Ok(pages)
}
