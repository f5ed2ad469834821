//! Deferred reclaim of memory that contexts freed before they ended.
//!
//! Some drivers would reuse freed memory in this process although importers have it open. Such
//! memory is kept until they have closed it. Threads that create or free objects check a few
//! records at a time, in rotation. No thread checks on its own, because it could free the driver's
//! memory while the process ends, which crashes drivers. A process that no longer creates or frees
//! objects therefore keeps this memory until it ends.

use super::chunks::Ledger;
use super::records::KeepAlive;
use crosshandle_os::fork::PerProcess;
use crosshandle_types::observe;
use crosshandle_types::sync::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The open counts of a context's records at the end of the context.
pub(super) struct Openers {
    /// Opens by this process itself.
    pub(super) own: Option<Arc<Ledger>>,
    /// Opens by other processes.
    pub(super) importers: Vec<Arc<Ledger>>,
}

impl Openers {
    /// Returns whether a living process has the record open.
    fn have_open(&self, record: u32, segment: Option<u32>) -> bool {
        self.own.as_ref().is_some_and(|own| own.is_open(record))
            || self.importers.iter().any(|importer| {
                // The ledger of a killed process no longer changes.
                importer.has_open(record, segment)
                    && !importer.has_hung_up()
                    && importer.is_owner_alive()
            })
    }
}

/// A retired record of a context that has ended.
pub(super) struct Deferred {
    context: u32,
    record: u32,
    /// The memory's segment.
    segment: Option<u32>,
    openers: Arc<Openers>,
    _keep: KeepAlive,
}

static DEFERRED: PerProcess<Mutex<VecDeque<Deferred>>> = PerProcess::new(Mutex::default);
/// Number of deferred records, so that the check is free while there are none.
static COUNT: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);

/// Keeps the object `keep`, for memory in `segment`, while a process has the context's record open.
pub(super) fn add(
    context: u32,
    record: u32,
    segment: Option<u32>,
    openers: &Arc<Openers>,
    keep: KeepAlive,
) {
    let mut deferred = DEFERRED.lock();
    deferred.push_back(Deferred {
        context,
        record,
        segment,
        openers: Arc::clone(openers),
        _keep: keep,
    });
    COUNT.store(deferred.len(), Ordering::Relaxed);
}

/// Returns whether there are deferred records.
pub(super) fn has_some() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Checks the next `most` records. Removes and returns the records that no process has open any
/// more. The caller drops them, which may call a driver.
#[must_use = "dropping the result may call a driver"]
pub(super) fn take_closed(most: usize) -> Vec<Deferred> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    let mut deferred = DEFERRED.lock();
    let closed = take_closed_among(&mut deferred, most);
    COUNT.store(deferred.len(), Ordering::Relaxed);
    drop(deferred);
    // The lock is released first, because a subscriber may call this library.
    for one in &closed {
        observe::reclaimed(one.context, one.record);
    }
    closed
}

/// Checks the first `most` records. Removes and returns the records that no process has open. The
/// others move to the end.
fn take_closed_among(deferred: &mut VecDeque<Deferred>, most: usize) -> Vec<Deferred> {
    let mut closed = Vec::new();
    for _ in 0..deferred.len().min(most) {
        let Some(one) = deferred.pop_front() else {
            break;
        };
        if one.openers.have_open(one.record, one.segment) {
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
    use super::super::records::BackendObject;
    use super::*;
    use crosshandle_types::Access;
    use crosshandle_types::error::{Error, Result};
    use std::os::fd::OwnedFd;

    struct BareMemory;

    impl BackendObject for BareMemory {
        fn len(&self) -> usize {
            1
        }

        fn descriptor(&self, _: Access) -> Result<Arc<OwnedFd>> {
            Err(Error::Stale)
        }
    }

    const RECORD: u32 = 3;

    fn count(ledger: &Ledger, record: u32, opens: u32) {
        let count = ledger.count(record).expect("in the first chunk");
        count.store(opens, Ordering::SeqCst);
    }

    #[test]
    fn the_ledger_of_a_dead_process_holds_nothing() {
        let (ledger, file) = Ledger::create(true).unwrap();
        let ledger = Arc::new(ledger);
        let openers = Openers {
            own: None,
            importers: vec![Arc::clone(&ledger)],
        };
        count(&ledger, RECORD, 1);
        let is_open = || openers.have_open(RECORD, Some(7));
        assert!(!is_open(), "it was killed");
        let importer = Ledger::default();
        importer.lock_liveness(&file).unwrap();
        if !LivenessLocks::get().unwrap().are_separate() {
            return;
        }
        assert!(!is_open(), "it was never given the segment");
        let memory: Arc<dyn BackendObject> = Arc::new(BareMemory);
        ledger.note_given(7, &memory, || None);
        assert!(is_open());
        ledger.mark_hung_up();
        assert!(!is_open(), "it hung up");
    }

    /// A subscriber that records the fields of events as text.
    #[derive(Clone, Default)]
    struct Listener(Arc<Mutex<Vec<String>>>);

    impl tracing::Subscriber for Listener {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.name() == "reclaim"
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
            tracing::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            // A subscriber may use the library. This would deadlock if the caller held the lock.
            drop(DEFERRED.lock());
            let text = format!("{event:?}");
            self.0.lock().push(text);
        }
        fn enter(&self, _: &tracing::Id) {}
        fn exit(&self, _: &tracing::Id) {}
    }

    #[test]
    fn what_is_reclaimed_after_its_contexts_end_is_told_without_the_lock() {
        const CONTEXT: u32 = 4_242_424;
        let own = Arc::new(Ledger::create(false).unwrap().0);
        let openers = Arc::new(Openers {
            own: Some(Arc::clone(&own)),
            importers: Vec::new(),
        });
        let listener = Listener::default();
        let told = Arc::clone(&listener.0);
        let count_told = || {
            let told = told.lock();
            let ours = told.iter().filter(|text| text.contains("4242424"));
            ours.count()
        };
        tracing::subscriber::with_default(listener, || {
            count(&own, RECORD, 1);
            add(CONTEXT, RECORD, None, &openers, None);
            drop(take_closed(usize::MAX));
            assert_eq!(count_told(), 0, "it is open");
            count(&own, RECORD, 0);
            drop(take_closed(usize::MAX));
            assert_eq!(count_told(), 1);
        });
    }

    #[test]
    fn few_are_looked_at_at_a_time_but_all_in_turn() {
        let own = Arc::new(Ledger::create(false).unwrap().0);
        let openers = Arc::new(Openers {
            own: Some(Arc::clone(&own)),
            importers: Vec::new(),
        });
        let one = |record| Deferred {
            context: 1,
            record,
            segment: None,
            openers: Arc::clone(&openers),
            _keep: None,
        };
        let mut all: VecDeque<_> = (0..10).map(one).collect();
        let mut closed = |most| {
            let closed = take_closed_among(&mut all, most).into_iter();
            closed.map(|one| one.record).collect::<Vec<_>>()
        };
        for open in [0, 1, 3] {
            count(&own, open, 1);
        }
        assert_eq!(closed(4), [2]);
        assert_eq!(closed(4), [4, 5, 6, 7]);
        assert_eq!(closed(usize::MAX), [8, 9]);
        assert_eq!(closed(usize::MAX), [0; 0]);
        count(&own, 1, 0);
        assert_eq!(closed(usize::MAX), [1]);
    }
}
