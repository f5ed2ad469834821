//! Pinning of the two processes, because the time of a round trip depends on their processors.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns two processors on which this process may run, if there are two.
pub(super) fn two_cpus() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    // Far apart, since neighbours may be two threads of one core.
    let first = cpus.next()?;
    Some([first, cpus.next_back()?])
}

/// A guard that keeps the calling thread on one processor until it is dropped.
pub(super) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the calling thread. `None`: the system does not permit it.
    pub(super) fn to(cpu: usize) -> Option<Self> {
        let before = sched_getaffinity(None).ok()?;
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).ok()?;
        Some(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The former affinity was permitted. If it no longer is, the thread stays where it is.
        let _ = sched_setaffinity(None, &self.before);
    }
}
