//! Notification through one shared word that counts signals.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::thread::futex;

/// A counting word for which waiters spin and never sleep.
pub(crate) struct SpinCounter<'a>(pub(crate) &'a AtomicU64);

impl SpinCounter<'_> {
    #[inline]
    pub(crate) fn signal(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    #[inline]
    pub(crate) fn wait(&self, value: u64) {
        while self.0.load(Ordering::Acquire) < value {
            std::hint::spin_loop();
        }
    }
}

/// A counting word for which waiters sleep and never spin.
/// A counting word for which waiters sleep and never spin.
///
/// The high half of the word counts signals, and the low half counts sleepers. Therefore one
/// operation both signals and tells the signaller whether it must wake a waiter.
pub(crate) struct FutexCounter<'a>(pub(crate) &'a AtomicU64);

/// One signal in the word's high half.
const ONE_SIGNAL: u64 = 1 << 32;

impl FutexCounter<'_> {
    /// Counts one signal and wakes all sleepers.
    #[inline]
    pub(crate) fn signal(&self) -> Result<()> {
        let before = self.0.fetch_add(ONE_SIGNAL, Ordering::AcqRel);
        if before as u32 == 0 {
            return Ok(());
        }
        futex::wake(self.sequence(), futex::Flags::empty(), i32::MAX as u32)
            .map(drop)
            .context("cannot wake the sleepers of a futex")
    }

    /// Waits until `count` signals were counted.
    #[inline]
    pub(crate) fn wait(&self, count: u32) -> Result<()> {
        if reached(self.0.load(Ordering::Acquire), count) {
            return Ok(());
        }
        self.sleep(count)
    }

    fn sleep(&self, count: u32) -> Result<()> {
        let mut seen = self.0.fetch_add(1, Ordering::AcqRel) + 1;
        let slept = loop {
            if reached(seen, count) {
                break Ok(());
            }
            let expected = (seen >> 32) as u32;
            match futex::wait(self.sequence(), futex::Flags::empty(), expected, None) {
                // The thread was woken or interrupted, or the signal came before it slept. The loop
                // checks again.
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => break Err(error).context("cannot sleep on a futex"),
            }
            seen = self.0.load(Ordering::Acquire);
        };
        self.0.fetch_sub(1, Ordering::AcqRel);
        slept
    }

    /// Returns the half of the word that the kernel compares.
    fn sequence(&self) -> &AtomicU32 {
        let high = if cfg!(target_endian = "little") { 1 } else { 0 };
        // SAFETY: the half is inside the borrowed word, which aligns it. Only the kernel accesses
        // the half through this reference, so this process does not mix access sizes.
        unsafe { &*ptr::from_ref(self.0).cast::<AtomicU32>().add(high) }
    }
}

/// Returns whether the sequence in `word` has reached `count`. The comparison is cyclic, because
/// the sequence wraps.
fn reached(word: u64, count: u32) -> bool {
    ((word >> 32) as u32).wrapping_sub(count) as i32 >= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_wraps() {
        assert!(reached(5 << 32, 5) && !reached(5 << 32, 6));
        assert!(reached(1 << 32, u32::MAX) && !reached(u64::from(u32::MAX) << 32, 1));
    }

    #[test]
    fn wakes_a_sleeper() {
        let word = AtomicU64::new(0);
        let counter = FutexCounter(&word);
        std::thread::scope(|scope| {
            scope.spawn(|| counter.wait(1).unwrap());
            while word.load(Ordering::Acquire) as u32 == 0 {
                std::hint::spin_loop();
            }
            counter.signal().unwrap();
        });
        assert_eq!(word.load(Ordering::Acquire), ONE_SIGNAL);
    }
}
