//! Deferred reclaim: freed memory of contexts that have ended.
//!
//! Where the driver would give such memory to others in this process although importers have it
//! open, it is kept until they have closed it. Threads that make or free something look at a few
//! records, in turn. Nothing looks on its own: a thread for that would free the driver's memory while
//! the process ends, which drivers don't survive. So a process that makes and frees nothing any more
//! keeps until its end what importers have closed in the meantime.

use super::arena::Arena;
use super::ledger::Ledger;
use super::open_count;
use super::records::KeepAlive;
use crate::event_protocol::Owner;
use crate::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The open counts of a context's records, as they were found when the context ended.
pub(super) struct Openers {
    pub(super) arena: Arc<Arena>,
    /// Opens by this process itself.
    pub(super) own: Option<Arc<Ledger>>,
    /// Opens by other processes, each with its owner number.
    pub(super) importers: Vec<(u16, Arc<Ledger>)>,
}

impl Openers {
    /// Returns whether a process that lives has the record open.
    fn have_open(&self, record: u32) -> bool {
        let is_open = |ledger: &Ledger| open_count::is_open(ledger.count(record));
        self.own.as_deref().is_some_and(is_open)
            || self.importers.iter().any(|(owner, ledger)| {
                // The ledger of a process that was killed stays as it was. Its number goes to
                // another one only after it hung up.
                is_open(ledger)
                    && !ledger.has_hung_up()
                    && Owner::new(*owner).is_some_and(|owner| self.arena.is_alive(owner))
            })
    }
}

/// A retired record of a context that has ended.
pub(super) struct Deferred {
    record: u32,
    openers: Arc<Openers>,
    _keep: KeepAlive,
}

static DEFERRED: Mutex<VecDeque<Deferred>> = Mutex::new(VecDeque::new());
/// The number of deferred records, so that looking costs nothing while there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps `keep` as long as a process has the record open.
pub(super) fn add(record: u32, openers: &Arc<Openers>, keep: KeepAlive) {
    let mut deferred = DEFERRED.lock();
    deferred.push_back(Deferred {
        record,
        openers: Arc::clone(openers),
        _keep: keep,
    });
    COUNT.store(deferred.len(), Ordering::Relaxed);
}

/// Takes out the records that no process has open any more, out of the next `most` ones. The caller
/// drops them, which may call a driver.
#[must_use = "dropping the result may call a driver"]
pub(super) fn take_closed(most: usize) -> Vec<Deferred> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    let mut deferred = DEFERRED.lock();
    let closed = take_closed_among(&mut deferred, most);
    COUNT.store(deferred.len(), Ordering::Relaxed);
    closed
}

/// Takes out the records that no process has open, out of the first `most`; the others move to the
/// end.
fn take_closed_among(deferred: &mut VecDeque<Deferred>, most: usize) -> Vec<Deferred> {
    let mut closed = Vec::new();
    for _ in 0..deferred.len().min(most) {
        let Some(one) = deferred.pop_front() else {
            break;
        };
        if one.openers.have_open(one.record) {
            deferred.push_back(one);
        } else {
            closed.push(one);
        }
    }
    closed
}

#[cfg(test)]
mod tests {
    use super::super::liveness::LivenessLocks;
    use super::*;

    const RECORD: u32 = 3;
    const IMPORTER: u16 = 5;

    fn ledger() -> Arc<Ledger> {
        Arc::new(Ledger::create().unwrap().0)
    }

    #[test]
    fn a_number_that_somebody_else_has_now_holds_nothing() {
        let arena = Arena::create().unwrap();
        let ledger = ledger();
        let openers = Openers {
            arena: Arc::new(arena),
            own: None,
            importers: vec![(IMPORTER, Arc::clone(&ledger))],
        };
        open_count::try_open(ledger.count(RECORD), &0.into(), 0);
        assert!(!openers.have_open(RECORD), "it was killed");
        openers
            .arena
            .lock_liveness(Owner::new(IMPORTER).unwrap())
            .unwrap();
        if !LivenessLocks::get().unwrap().are_separate() {
            return;
        }
        assert!(openers.have_open(RECORD));
        ledger.mark_hung_up();
        assert!(
            !openers.have_open(RECORD),
            "it hung up, and the number is another one's"
        );
    }

    #[test]
    fn few_are_looked_at_at_a_time_but_all_in_turn() {
        let own = ledger();
        let openers = Arc::new(Openers {
            arena: Arc::new(Arena::create().unwrap()),
            own: Some(Arc::clone(&own)),
            importers: Vec::new(),
        });
        let one = |record| Deferred {
            record,
            openers: Arc::clone(&openers),
            _keep: None,
        };
        let mut all: VecDeque<_> = (0..10).map(one).collect();
        let mut closed = |most| {
            let closed = take_closed_among(&mut all, most).into_iter();
            closed.map(|one| one.record).collect::<Vec<_>>()
        };
        for open in [0, 1, 3] {
            own.count(open).store(1, Ordering::SeqCst);
        }
        assert_eq!(closed(4), [2]);
        assert_eq!(closed(4), [4, 5, 6, 7]);
        assert_eq!(closed(usize::MAX), [8, 9]);
        assert_eq!(closed(usize::MAX), [0; 0]);
        own.count(1).store(0, Ordering::SeqCst);
        assert_eq!(closed(usize::MAX), [1]);
    }
}
