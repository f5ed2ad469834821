//! Pins the two processes to two processors, because the round-trip time depends on them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns two processors that this process may use, or `None` if there is only one.
pub(super) fn two_cpus() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    // The first and the last processor are chosen, because neighbours may be two hardware threads
    // of one core.
    let first = cpus.next()?;
    Some([first, cpus.next_back()?])
}

/// Keeps a thread on one processor. Dropping the value restores the thread's previous processors.
pub(super) struct Pinned {
    previous: CpuSet,
}

impl Pinned {
    /// Pins the calling thread. Returns `None` if the system refuses.
    pub(super) fn to(cpu: usize) -> Option<Self> {
        let previous = sched_getaffinity(None).ok()?;
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).ok()?;
        Some(Self { previous })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // If the system refuses this call, the thread stays on its processor.
        let _ = sched_setaffinity(None, &self.previous);
    }
}
