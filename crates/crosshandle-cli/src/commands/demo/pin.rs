//! Two processors for two processes: how long a round trip takes depends on where they run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Two processors that this process may run on, if there are as many.
pub(super) fn two_cpus() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    // Far apart, since neighbours may be two halves of one core.
    let first = cpus.next()?;
    Some([first, cpus.next_back()?])
}

/// Keeps the calling thread on one processor until it is dropped.
pub(super) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// `None` if the system does not let it.
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
        // It was allowed before; if it no longer is, the thread just stays where it is.
        let _ = sched_setaffinity(None, &self.before);
    }
}
