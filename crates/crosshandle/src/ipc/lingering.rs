//! Freed memory of contexts that have ended, where the driver would give it to somebody else in this
//! process although importers have it open. It is kept until they don't.
//!
//! Whoever makes or frees something looks at a few, in turn. There is no thread for it: it would free
//! the driver's memory while the process ends, which drivers don't survive. So a process that does
//! nothing any more keeps until its end what importers closed in the meantime.

use super::arena::Arena;
use super::holding;
use super::ledger::Ledger;
use super::record::KeepAlive;
use crate::event_protocol::Owner;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Who may have a context's records open, as it was when the context ended.
pub(super) struct Holders {
    pub(super) arena: Arc<Arena>,
    /// Opens by this process itself.
    pub(super) own: Option<Arc<Ledger>>,
    pub(super) importers: Vec<(u16, Arc<Ledger>)>,
}

impl Holders {
    fn hold(&self, record: u32) -> bool {
        let has = |ledger: &Ledger| holding::is_held(ledger.count(record));
        self.own.as_deref().is_some_and(has)
            || self.importers.iter().any(|(owner, ledger)| {
                // The ledger of a process that was killed stays as it was. Its number goes to
                // somebody else only after it hung up.
                has(ledger)
                    && !ledger.is_over()
                    && Owner::new(*owner).is_some_and(|owner| self.arena.is_alive(owner))
            })
    }
}

struct Lingering {
    record: u32,
    holders: Arc<Holders>,
    _keep: KeepAlive,
}

static ALL: Mutex<VecDeque<Lingering>> = Mutex::new(VecDeque::new());
/// How many they are, so that looking is free where there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps what a retired record is about as long as somebody holds the record.
pub(super) fn add(record: u32, holders: &Arc<Holders>, keep: KeepAlive) {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.push_back(Lingering {
        record,
        holders: Arc::clone(holders),
        _keep: keep,
    });
    COUNT.store(all.len(), Ordering::Relaxed);
}

/// Lets go of what nobody holds any more, among at most so many, in turn. Called now and then.
pub(super) fn sweep(most: usize) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let over = take_over(&mut all, most);
    COUNT.store(all.len(), Ordering::Relaxed);
    drop(all);
    // Without the lock: it is the driver's turn.
    drop(over);
}

/// Takes out what nobody holds, among the first so many; the others come last.
fn take_over(all: &mut VecDeque<Lingering>, most: usize) -> Vec<Lingering> {
    let mut over = Vec::new();
    for _ in 0..all.len().min(most) {
        let Some(one) = all.pop_front() else {
            break;
        };
        if one.holders.hold(one.record) {
            all.push_back(one);
        } else {
            over.push(one);
        }
    }
    over
}

#[cfg(test)]
mod tests {
    use super::super::arena::keeper;
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
        let holders = Holders {
            arena: Arc::new(arena),
            own: None,
            importers: vec![(IMPORTER, Arc::clone(&ledger))],
        };
        holding::hold(ledger.count(RECORD), &0.into(), 0);
        assert!(!holders.hold(RECORD), "it was killed");
        holders
            .arena
            .lock_liveness(Owner::new(IMPORTER).unwrap())
            .unwrap();
        if !keeper().unwrap().is_apart() {
            return;
        }
        assert!(holders.hold(RECORD));
        ledger.end();
        assert!(
            !holders.hold(RECORD),
            "it hung up, and the number is another one's"
        );
    }

    #[test]
    fn few_are_looked_at_at_a_time_but_all_in_turn() {
        let own = ledger();
        let holders = Arc::new(Holders {
            arena: Arc::new(Arena::create().unwrap()),
            own: Some(Arc::clone(&own)),
            importers: Vec::new(),
        });
        let one = |record| Lingering {
            record,
            holders: Arc::clone(&holders),
            _keep: None,
        };
        let mut all: VecDeque<_> = (0..10).map(one).collect();
        let mut over = |most| {
            let over = take_over(&mut all, most).into_iter();
            over.map(|one| one.record).collect::<Vec<_>>()
        };
        for held in [0, 1, 3] {
            own.count(held).store(1, Ordering::SeqCst);
        }
        assert_eq!(over(4), [2]);
        assert_eq!(over(4), [4, 5, 6, 7]);
        assert_eq!(over(usize::MAX), [8, 9]);
        assert_eq!(over(usize::MAX), [0; 0]);
        own.count(1).store(0, Ordering::SeqCst);
        assert_eq!(over(usize::MAX), [1]);
    }
}
