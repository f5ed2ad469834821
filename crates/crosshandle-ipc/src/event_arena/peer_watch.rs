//! Watches on other processes whose signals this process waits for.
//!
//! Usually the exporter reports an importer's death: it fails the unfinished signals, which wakes
//! all waiters. A stopped exporter reports nothing. So before an importer sleeps until another
//! importer has signalled, the exchange thread starts to watch that process. When the process ends,
//! the exchange thread fails its signals itself.
//!
//! The exporter says which process to watch. The process id may be wrong, because of another PID
//! namespace or because the exporter lies. Then another process is watched, or none, and the
//! waiter's own liveness checks find the death.

use super::EventArenas;
use crate::chunks::Catalog;
use crosshandle_events::{Liveness, Owner};
use crosshandle_os::threads::driver_jobs;
use crosshandle_os::threads::exchange::{self, Next, Registration, Source, Watch};
use crosshandle_types::error::{Error, Result};
use crosshandle_types::sync::Mutex;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

/// Maximum number of processes that an importer watches per attached context because it waits for
/// them. Each needs a descriptor. If the exporter is stopped, the importer notices the deaths of
/// further processes only by its own liveness checks.
const MAX_WATCHED_PEERS: usize = 16;

/// The processes that an attachment watches, by their owner numbers.
#[derive(Default)]
pub(crate) struct PeerWatches(Mutex<BTreeMap<u16, PeerWatch>>);

struct PeerWatch {
    pid: u32,
    /// `None` if the process could not be watched.
    watch: Option<(Weak<WatchedPeer>, Watch)>,
}

impl PeerWatch {
    /// Returns whether the watched process has ended.
    fn is_over(&self) -> bool {
        let watch = self.watch.as_ref();
        watch.is_some_and(|(peer, _)| peer.strong_count() == 0)
    }
}

impl PeerWatches {
    /// Starts to watch the process with number `owner`. Cheap if the process is watched already.
    pub(crate) fn watch(&self, owner: Owner, catalog: &Catalog, arenas: &Arc<EventArenas>) {
        let pid = catalog.peer_pid(owner);
        let mut watches = self.0.lock();
        match watches.get(&owner.get()) {
            Some(watch) if watch.pid == pid && !watch.is_over() => return,
            Some(_) => {}
            None if watches.len() == MAX_WATCHED_PEERS => {
                watches.retain(|_, watch| watch.watch.is_some() && !watch.is_over());
                if watches.len() == MAX_WATCHED_PEERS {
                    return;
                }
            }
            None => {}
        }
        let watch = WatchedPeer::watch(owner, pid, arenas);
        if let Err(error) = &watch {
            tracing::debug!(%error, pid, "a process that is waited for cannot be watched");
        }
        let watch = watch.ok();
        watches.insert(owner.get(), PeerWatch { pid, watch });
    }
}

/// A watched process. Only the exchange thread keeps it, until the process has ended.
struct WatchedPeer {
    pidfd: OwnedFd,
    owner: Owner,
    arenas: Weak<EventArenas>,
}

impl WatchedPeer {
    fn watch(owner: Owner, pid: u32, arenas: &Arc<EventArenas>) -> Result<(Weak<Self>, Watch)> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(Error::Protocol("it named no process"))?;
        let pidfd =
            pidfd_open(pid, PidfdFlags::empty()).map_err(Error::os("watching a process"))?;
        let peer = Arc::new(Self {
            pidfd,
            owner,
            arenas: Arc::downgrade(arenas),
        });
        let weak = Arc::downgrade(&peer);
        Ok((weak, exchange::watch(peer)?))
    }
}

impl Source for WatchedPeer {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The end of the process arrives as a message.
    fn wants_messages(&self) -> bool {
        true
    }

    fn ready(&self, _: Registration) -> Next {
        /// The liveness of a single process that has ended.
        struct Ended(Owner);
        impl Liveness for Ended {
            fn is_dead(&self, owner: Owner) -> bool {
                owner == self.0
            }
        }
        let Some(arenas) = self.arenas.upgrade() else {
            return Next::Forget;
        };
        // The process that ended may not be the owner, if the exporter sent a wrong process id. So
        // the owner's lock is checked too.
        if !arenas.is_alive(self.owner) {
            arenas.for_each(|arena| arena.fail_orphans(&Ended(self.owner)));
        }
        if let Some(last) = Arc::into_inner(arenas) {
            driver_jobs::drop_later(last);
        }
        Next::Forget
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crosshandle_events::{FailureReason, Outcome};
    use std::process::{Child, Command};
    use std::thread;
    use std::time::{Duration, Instant};

    const DEADLINE: Duration = Duration::from_secs(20);

    /// An idle process that is killed when this is dropped.
    struct Idle(Child);

    impl Idle {
        fn start() -> Self {
            Self(Command::new("sleep").arg("60").spawn().expect("a process"))
        }
    }

    impl Drop for Idle {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_a_dead_process_left_is_failed_though_nobody_waits_or_tells() {
        let (catalog, arenas) = (Catalog::default(), Arc::new(EventArenas::default()));
        catalog.ensure(0).unwrap();
        let owner = Owner::new(7).unwrap();
        let (arena, index) = arenas.common_or_new(0).unwrap();
        let slot = arena.slot(index);
        slot.reset();
        arena.mark_shared(index);
        let number = slot.issue(owner).unwrap().number;
        let watches = PeerWatches::default();
        let mut descriptors = Vec::new();
        for _ in 0..3 {
            let victim = Idle::start();
            catalog.set_peer(owner, victim.0.id(), "sleep");
            watches.watch(owner, &catalog, &arenas);
            let watched = |watches: &PeerWatches| {
                let watches = watches.0.lock();
                let watch = watches.get(&owner.get()).expect("an entry");
                watch.watch.as_ref().expect("watched").0.clone()
            };
            let peer = watched(&watches);
            // Watching it again has no effect.
            watches.watch(owner, &catalog, &arenas);
            assert!(Weak::ptr_eq(&peer, &watched(&watches)));
            if descriptors.is_empty() {
                assert_eq!(slot.outcome(number), Outcome::Pending);
            }
            drop(victim);
            let began = Instant::now();
            let failed = Outcome::Failed(FailureReason::OwnerDied(Some(owner)));
            while slot.outcome(number) != failed || peer.strong_count() > 0 {
                assert!(began.elapsed() < DEADLINE, "nobody took note of the death");
                thread::yield_now();
            }
            descriptors.push(peer);
        }
        assert_eq!(watches.0.lock().len(), 1);
    }

    #[test]
    fn so_many_are_watched_and_no_more() {
        let (catalog, arenas) = (Catalog::default(), Arc::new(EventArenas::default()));
        catalog.ensure(0).unwrap();
        let idle = Idle::start();
        let watches = PeerWatches::default();
        for number in 2..100 {
            let owner = Owner::new(number).unwrap();
            catalog.set_peer(owner, idle.0.id(), "sleep");
            watches.watch(owner, &catalog, &arenas);
        }
        assert_eq!(watches.0.lock().len(), MAX_WATCHED_PEERS);
    }
}
