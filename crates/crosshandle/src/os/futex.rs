//! futex(2) between processes, on the upper half of a 64-bit word.
//!
//! The words lie in shared memory, so the process-private flag is never set.

use super::tuning::POLL_INTERVAL;
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::num::NonZeroU32;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// The most words that one futex_waitv(2) call watches.
const WAITV_MAX: usize = 128;
/// Returns the half of `word` that holds the sequence.
fn upper(word: &AtomicU64) -> &AtomicU32 {
    const INDEX: usize = if cfg!(target_endian = "little") { 1 } else { 0 };
    // SAFETY: both halves of a u64 are inside it and aligned for u32, AtomicU32 may hold any bits, and
    // the result borrows from `word`. It only names the half to the kernel: no code here loads or
    // stores through it, which would mix sizes.
    unsafe { &*ptr::from_ref(word).cast::<AtomicU32>().add(INDEX) }
}

/// Sleeps while the word's upper half is `expected`, until a thread of any process wakes the word
/// or `limit` is over, if there is one. May return early for no reason.
pub(crate) fn sleep(word: &AtomicU64, expected: u32, limit: Option<Duration>) {
    let end = limit.and_then(from_now);
    // Every outcome (woken, changed, late, interrupted) means the same to the caller: look again.
    let _ = futex::wait_bitset(
        upper(word),
        futex::Flags::empty(),
        expected,
        end.as_ref(),
        process_bits(),
    );
}

/// Wakes the sleepers of the word that belong to this process, and few others.
pub(super) fn wake_own(word: &AtomicU64) {
    let _ = futex::wake_bitset(
        upper(word),
        futex::Flags::empty(),
        ALL_SLEEPERS,
        process_bits(),
    );
}

/// Returns the bits that tell sleepers of this process from those of most others on a shared word.
fn process_bits() -> NonZeroU32 {
    static BITS: OnceLock<NonZeroU32> = OnceLock::new();
    *BITS.get_or_init(|| {
        let bit = 1_u32.rotate_left(std::process::id());
        NonZeroU32::new(bit).expect("one bit is set")
    })
}

/// Sleeps like [`sleep`], on several words at once, each with its expected upper half.
pub(crate) fn sleep_any(words: &[(&AtomicU64, u32)], limit: Duration) {
    if words.len() <= WAITV_MAX {
        let waits: Vec<_> = words
            .iter()
            .map(|(word, expected)| {
                let mut wait = futex::Wait::new();
                wait.val = u64::from(*expected);
                wait.uaddr = futex::WaitPtr::new(ptr::from_ref(upper(word)).cast_mut().cast());
                wait.flags = futex::WaitFlags::SIZE_U32;
                wait
            })
            .collect();
        let end = from_now(limit);
        let result = futex::waitv(
            &waits,
            futex::WaitvFlags::empty(),
            end.as_ref(),
            ClockId::Monotonic,
        );
        // Some sandboxes answer EPERM to calls that they don't know.
        if matches!(
            result,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT)
        ) {
            return;
        }
    }
    // A kernel before 5.16, or more words than it watches at once.
    match words.first() {
        Some((word, expected)) => sleep(word, *expected, Some(limit.min(POLL_INTERVAL))),
        None => std::thread::sleep(limit.min(POLL_INTERVAL)),
    }
}

/// Returns the time at which `limit` is over, on the clock that these calls measure by.
fn from_now(limit: Duration) -> Option<Timespec> {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(now.tv_sec as u64, now.tv_nsec as u32);
    now.saturating_add(limit).try_into().ok()
}

const ALL_SLEEPERS: u32 = i32::MAX as u32;

/// Wakes all sleepers of the word, in every process.
pub(crate) fn wake_all(word: &AtomicU64) {
    let _ = futex::wake(upper(word), futex::Flags::empty(), ALL_SLEEPERS);
}
