//! Fences for two threads of one process. One thread passes its fence often, and the other rarely.
//!
//! Each thread stores to one place and then loads from the other's place. At least one of them must
//! see the store of the other, so both need a fence in between. With [`heavy`](AsymmetricFence),
//! the kernel executes a fence on all CPUs that run this process. The frequent thread then needs no
//! instruction.

use rustix::io::Errno;
use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};

/// The two fences. All users of a pair of places use the same value, or copies of it.
#[derive(Clone, Copy, Debug)]
pub struct AsymmetricFence {
    /// Whether the kernel executes fences on other CPUs. Otherwise both fences are ordinary ones.
    is_asymmetric: bool,
}

impl AsymmetricFence {
    /// Returns the fences of this system.
    pub fn get() -> Self {
        static IS_ASYMMETRIC: OnceLock<bool> = OnceLock::new();
        let query = || {
            let supported = membarrier_query();
            [
                MembarrierCommand::PrivateExpedited,
                MembarrierCommand::RegisterPrivateExpedited,
            ]
            .into_iter()
            .all(|command| supported.contains_command(command))
        };
        Self {
            is_asymmetric: *IS_ASYMMETRIC.get_or_init(query),
        }
    }

    /// Passes the fence of the frequent thread.
    #[inline]
    pub fn light(self) {
        match self.is_asymmetric {
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
    }

    /// Passes the fence of the rare thread, which takes some microseconds.
    ///
    /// # Errors
    /// The error of the system call, if the process may no longer use it.
    pub fn heavy(self) -> Result<(), Errno> {
        fence(Ordering::SeqCst);
        if self.is_asymmetric {
            let passed = membarrier(MembarrierCommand::PrivateExpedited);
            // The first call of a process registers it.
            if passed == Err(Errno::PERM) {
                membarrier(MembarrierCommand::RegisterPrivateExpedited)?;
                membarrier(MembarrierCommand::PrivateExpedited)?;
            } else {
                passed?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::thread;

    /// Without the fences, both threads miss the other's store in some rounds.
    #[test]
    fn one_of_two_threads_sees_the_store_of_the_other() {
        const ROUNDS: u32 = 3_000;
        let fences = AsymmetricFence::get();
        let (often, rarely) = (AtomicU32::new(0), AtomicU32::new(0));
        let (seen_often, seen_rarely) = (AtomicU32::new(0), AtomicU32::new(0));
        let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while begun.load(Ordering::Acquire) != round {
                        std::hint::spin_loop();
                    }
                    often.store(round, Ordering::Relaxed);
                    fences.light();
                    seen_often.store(rarely.load(Ordering::Relaxed), Ordering::Relaxed);
                    ended.store(round, Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                begun.store(round, Ordering::Release);
                rarely.store(round, Ordering::Relaxed);
                fences.heavy().expect("a fence");
                seen_rarely.store(often.load(Ordering::Relaxed), Ordering::Relaxed);
                while ended.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                let seen = [&seen_often, &seen_rarely].map(|seen| seen.load(Ordering::Relaxed));
                assert!(seen.contains(&round), "round {round}: {seen:?}");
            }
        });
    }
}
