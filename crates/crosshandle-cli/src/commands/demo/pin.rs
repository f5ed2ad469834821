//! Pins the two processes to two processors, because the round-trip time depends on the choice of
//! processors.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns two processors that this process may use, or `None` if there is only one.
pub(super) fn two_cpus() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    // Choose the first and the last processor, because neighbouring processors may be two hardware
    // threads on one core.
    let first = cpus.next()?;
    Some([first, cpus.next_back()?])
}

/// A thread that is pinned to one processor. Dropping this value restores the processors that the
/// thread could use before.
pub(super) struct Pinned {
    previous: CpuSet,
}

impl Pinned {
    /// Pins the calling thread to processor `cpu`. Returns `None` if the system does not permit it.
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
        // If this call fails, the thread stays pinned.
        let _ = sched_setaffinity(None, &self.previous);
    }
}
