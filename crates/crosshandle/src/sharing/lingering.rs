//! Freed memory of contexts that have ended, where the driver would give it to somebody else in this
//! process although importers have it open. It is kept until they don't.

use super::arena::Arena;
use super::holding;
use super::ledger::Ledger;
use super::record::Keep;
use crate::counter::Owner;
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
                // The ledger of a process that was killed stays as it was.
                has(ledger) && Owner::new(*owner).is_some_and(|owner| self.arena.is_alive(owner))
            })
    }
}

struct Lingering {
    record: u32,
    holders: Arc<Holders>,
    keep: Keep,
}

static ALL: Mutex<Vec<Lingering>> = Mutex::new(Vec::new());
/// How many they are, so that looking is free where there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Keeps what a retired record is about as long as somebody holds the record.
pub(super) fn add(record: u32, holders: &Arc<Holders>, keep: Keep) {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Lingering {
        record,
        holders: Arc::clone(holders),
        keep,
    });
    COUNT.store(all.len(), Ordering::Relaxed);
}

/// Lets go of what nobody holds any more. Called now and then.
pub(super) fn sweep() {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let (held, over): (Vec<_>, Vec<_>) = std::mem::take(&mut *all)
        .into_iter()
        .partition(|one| one.holders.hold(one.record));
    COUNT.store(held.len(), Ordering::Relaxed);
    *all = held;
    drop(all);
    // Without the lock: it is the driver's turn.
    drop(over.into_iter().map(|one| one.keep).collect::<Vec<_>>());
}
