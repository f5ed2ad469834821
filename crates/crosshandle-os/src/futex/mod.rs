//! Waiting and waking between processes by futex(2), on the upper half of a 64-bit word.
//!
//! The words are in shared memory, so the process-private flag is never set.

mod doorbell;
mod ring;
mod sleep_set;

pub use doorbell::{Doorbell, doorbell_bytes};
pub use sleep_set::SleepSet;

use super::tuning::POLL_INTERVAL;
use crate::fork::PerProcess;
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::iter;
use std::num::NonZeroU32;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Maximum number of words that one futex_waitv(2) call watches.
const WAITV_MAX: usize = 128;
/// Index of the upper half of a word.
const UPPER: usize = if cfg!(target_endian = "little") { 1 } else { 0 };

/// Returns the upper half of `word`, which holds the sequence.
fn upper(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: both halves of a u64 are inside it and aligned for u32, and any bits are a valid
    // AtomicU32. The result borrows from `word`. It only names the half to the kernel. No code here
    // loads or stores through it, which would mix access sizes.
    unsafe { &*ptr::from_ref(word).cast::<AtomicU32>().add(UPPER) }
}

/// Sleeps while the word's upper half is `expected`, until a thread of any process wakes the word,
/// for at most `limit`. May return early for no reason.
///
/// Any process that has the word can suppress wakes. It can move the sleeper to another futex
/// (`FUTEX_REQUEUE`). It can also wait there for a lock with priority inheritance, and then the
/// kernel refuses to wake the word (`EINVAL`). The timeout still applies.
pub fn sleep(word: &AtomicU64, expected: u32, limit: Duration) {
    // After every outcome (woken, changed, timed out, interrupted) the caller looks again.
    let _ = futex::wait_bitset(
        upper(word),
        futex::Flags::empty(),
        expected,
        Some(&from_now(limit)),
        process_bits(),
    );
}

/// Wakes the sleepers of this process on the word at an address, and few sleepers of other
/// processes. The memory may have been unmapped, and then nothing happens. If other memory is
/// mapped there now, its sleepers wake up spuriously, which is always allowed.
pub(super) fn wake_own_at(word: usize) {
    // SAFETY: the kernel uses the address only as the name of a futex. It neither reads nor writes
    // the memory there, and checks itself whether it is mapped.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word + UPPER * size_of::<AtomicU32>(),
            libc::FUTEX_WAKE_BITSET,
            ALL_SLEEPERS,
            ptr::null::<libc::timespec>(),
            ptr::null::<u32>(),
            process_bits().get(),
        )
    };
}

/// Returns a bit mask that distinguishes sleepers of this process from most others on a shared
/// word.
fn process_bits() -> NonZeroU32 {
    static BITS: PerProcess<NonZeroU32> = PerProcess::new(|| {
        let bit = 1_u32.rotate_left(std::process::id());
        NonZeroU32::new(bit).expect("one bit is set")
    });
    *BITS
}

/// Sleeps on several words at once, each with its expected upper half, like [`sleep`].
pub fn sleep_any(words: &[(&AtomicU64, u32)], limit: Duration) {
    match words.split_first() {
        Some((first, others)) => {
            let address =
                |(word, expected): &(&AtomicU64, u32)| (ptr::from_ref(*word).addr(), *expected);
            sleep_at(*first, &Vec::from_iter(others.iter().map(address)), limit);
        }
        None => std::thread::sleep(limit.min(POLL_INTERVAL)),
    }
}

/// Sleeps on several words, each with its expected upper half, like [`sleep`]. `others` contains
/// the addresses of all words but the first. If one of these words is no longer mapped, the
/// function returns after a while.
fn sleep_at(first: (&AtomicU64, u32), others: &[(usize, u32)], limit: Duration) {
    if others.len() < WAITV_MAX {
        let first = (ptr::from_ref(first.0).addr(), first.1);
        let waits = Vec::from_iter(iter::once(&first).chain(others).map(|(word, expected)| {
            let mut wait = futex::Wait::new();
            let upper = word + UPPER * size_of::<AtomicU32>();
            wait.val = u64::from(*expected);
            wait.uaddr = futex::WaitPtr::new(ptr::without_provenance_mut(upper));
            wait.flags = futex::WaitFlags::SIZE_U32;
            wait
        }));
        let result = futex::waitv(
            &waits,
            futex::WaitvFlags::empty(),
            Some(&from_now(limit)),
            ClockId::Monotonic,
        );
        // Some sandboxes return EPERM for unknown system calls.
        if matches!(
            result,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT)
        ) {
            return;
        }
    }
    // The kernel is older than 5.16, or there are more words than it can watch at once.
    let (word, expected) = first;
    sleep(word, expected, limit.min(POLL_INTERVAL));
}

/// Returns the time at which `limit` has passed, on the clock that these system calls use.
fn from_now(limit: Duration) -> Timespec {
    let now = clock_gettime(ClockId::Monotonic);
    let end = Duration::new(now.tv_sec as u64, now.tv_nsec as u32).saturating_add(limit);
    Timespec {
        tv_sec: end.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: end.subsec_nanos().into(),
    }
}

const ALL_SLEEPERS: u32 = i32::MAX as u32;

/// Wakes all sleepers of the word in every process, unless a process suppresses wakes (see
/// [`sleep`]). Rings the doorbell of the memory that contains the word, if it has one.
pub fn wake_all(word: &AtomicU64) {
    wake_word(word);
    doorbell::ring_for(word);
}

/// Wakes all sleepers of the word, without ringing a doorbell.
fn wake_word(word: &AtomicU64) {
    let _ = futex::wake(upper(word), futex::Flags::empty(), ALL_SLEEPERS);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    const DEADLINE: Duration = Duration::from_secs(20);
    const LIMIT: Duration = Duration::from_millis(500);

    type Words = [AtomicU64; 2];

    fn one(words: &Words) {
        sleep(&words[0], 0, LIMIT);
    }

    fn both(words: &Words) {
        sleep_any(&[(&words[1], 0), (&words[0], 0)], LIMIT);
    }

    /// Moves a sleeper to another futex, and expects that it still wakes up after [`LIMIT`].
    fn check_requeued(asleep: fn(&Words)) {
        let nowhere = AtomicU32::new(0);
        for _ in 0..10 {
            let words = Words::default();
            let is_moved = thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    let began = Instant::now();
                    asleep(&words);
                    began.elapsed()
                });
                let (flags, word) = (futex::Flags::empty(), upper(&words[0]));
                let mut moved = Ok(0);
                while moved == Ok(0) && !sleeper.is_finished() {
                    moved = futex::cmp_requeue(word, flags, 0, ALL_SLEEPERS, &nowhere, 0);
                }
                wake_all(&words[0]);
                let taken = sleeper.join().unwrap();
                assert!(taken < DEADLINE);
                let is_moved = moved == Ok(1);
                assert!(!is_moved || taken >= LIMIT, "it was woken after {taken:?}");
                is_moved
            });
            if is_moved {
                return;
            }
        }
        panic!("no sleeper was moved");
    }

    #[test]
    fn a_requeued_sleeper_keeps_its_timeout() {
        check_requeued(one);
    }

    #[test]
    fn a_requeued_sleeper_on_several_words_keeps_its_timeout() {
        check_requeued(both);
    }

    /// Makes another thread wait on the sleepers' word for a lock with priority inheritance.
    #[test]
    fn sleepers_beside_a_lock_keep_their_timeouts() {
        for asleep in [one, both] {
            let words = Words::default();
            let word = upper(&words[0]);
            thread::scope(|scope| {
                let (tell, told) = channel();
                let (end, ended) = channel::<()>();
                scope.spawn(move || {
                    futex::lock_pi(word, futex::Flags::empty(), None).unwrap();
                    tell.send(()).unwrap();
                    // Waits until the sender is dropped, even by a panic.
                    let _ = ended.recv();
                    let _ = futex::unlock_pi(word, futex::Flags::empty());
                });
                told.recv().unwrap();
                let holder = word.load(Ordering::SeqCst);
                // This thread waits until the owner of the lock unlocks it or ends.
                scope.spawn(move || futex::lock_pi(word, futex::Flags::empty(), None));
                while word.load(Ordering::SeqCst) == holder {
                    thread::yield_now();
                }
                let locked = word.swap(0, Ordering::SeqCst);
                let began = Instant::now();
                let sleeper = scope.spawn(|| asleep(&words));
                let refused = || futex::wake(word, futex::Flags::empty(), ALL_SLEEPERS);
                assert_eq!(refused(), Err(Errno::INVAL));
                sleeper.join().unwrap();
                assert!(began.elapsed() >= LIMIT && began.elapsed() < DEADLINE);
                assert_eq!(refused(), Err(Errno::INVAL));
                word.store(locked, Ordering::SeqCst);
                drop(end);
            });
        }
    }
}
