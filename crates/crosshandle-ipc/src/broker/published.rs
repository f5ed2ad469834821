//! The contexts of this process that importers can reach.

use super::address::{self, PeerPolicy};
use super::exports::Exports;
use crate::channel;
use crosshandle_handle::Key;
use crosshandle_os::fork::PerProcess;
use crosshandle_os::process;
use crosshandle_types::report::ProcessReport;
use crosshandle_types::sync::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

/// Maximum number of objects of all contexts that a report lists. With many contexts, each lists
/// fewer. It bounds the longest report to about 10 MiB.
const MAX_LISTED_OF_ALL: usize = 8192;

/// Maximum number of contexts that a report describes.
const MAX_DESCRIBED_CONTEXTS: usize = 256;

/// A context that has exported an object.
struct Published {
    policy: PeerPolicy,
    exports: Weak<dyn Exports>,
}

/// All contexts of this process that have exported an object, by number.
static PUBLISHED: PerProcess<RwLock<HashMap<u32, Published>>> = PerProcess::new(RwLock::default);

/// The exports of records that other processes have handed over to this one, by the records' keys.
/// A key identifies its record, whatever its former context and process.
static HELD: PerProcess<RwLock<HashMap<[u8; 16], Published>>> = PerProcess::new(RwLock::default);

/// Time at which this process began to export, in nanoseconds since 1970.
static STARTED: PerProcess<OnceLock<u64>> = PerProcess::new(OnceLock::new);
/// Number of requests and connections that were refused before they belonged to a context.
pub(super) static REFUSALS: AtomicU64 = AtomicU64::new(0);

/// Makes a context reachable for importers.
pub fn publish(context: u32, policy: PeerPolicy, exports: Weak<dyn Exports>) {
    STARTED.get_or_init(process::time);
    let mut all = PUBLISHED.write().unwrap_or_else(PoisonError::into_inner);
    all.insert(context, Published { policy, exports });
}

/// Records that this process now replies to importers, although it exports nothing yet.
pub(super) fn note_start() {
    STARTED.get_or_init(process::time);
}

/// Serves a record that another process has handed over.
pub fn hold(key: Key, policy: PeerPolicy, exports: Weak<dyn Exports>) {
    STARTED.get_or_init(process::time);
    let mut all = HELD.write().unwrap_or_else(PoisonError::into_inner);
    all.insert(*key.as_bytes(), Published { policy, exports });
}

/// Stops serving a record of another exporter, given its key.
pub fn release_held(key: Key) {
    let mut all = HELD.write().unwrap_or_else(PoisonError::into_inner);
    all.remove(key.as_bytes());
}

/// Returns the exports that serve a credential, given its key and the number of its context.
pub(super) fn exports_for(context: u32, key: Key) -> Option<Arc<dyn Exports>> {
    let held = HELD.read().unwrap_or_else(PoisonError::into_inner);
    let held = held.get(key.as_bytes()).map(|held| held.exports.upgrade());
    held.unwrap_or_else(|| local_exports(context))
}

/// Makes a context unreachable for importers.
pub fn withdraw(context: u32) {
    let mut all = PUBLISHED.write().unwrap_or_else(PoisonError::into_inner);
    all.remove(&context);
}

/// Returns the context of this process with this number.
pub fn local_exports(context: u32) -> Option<Arc<dyn Exports>> {
    let all = PUBLISHED.read().unwrap_or_else(PoisonError::into_inner);
    all.get(&context)?.exports.upgrade()
}

/// Returns whether a user may open anything of this process. Other users are sent no descriptor,
/// and their descriptors are not received.
pub(super) fn is_admitted_anywhere(uid: u32) -> bool {
    // A holder that holds nothing yet has no context, and reports that to its own user.
    if PeerPolicy::SameUser.admits(uid) {
        return true;
    }
    let all = PUBLISHED.read().unwrap_or_else(PoisonError::into_inner);
    let is_admitted = all.values().any(|published| published.policy.admits(uid));
    drop(all);
    is_admitted || {
        let held = HELD.read().unwrap_or_else(PoisonError::into_inner);
        held.values().any(|held| held.policy.admits(uid))
    }
}

/// Calls `f` with exports, and then releases them, so that the exchange thread never drops them
/// itself.
pub(super) fn with<R>(
    exports: Option<Arc<dyn Exports>>,
    f: impl FnOnce(&dyn Exports) -> R,
) -> Option<R> {
    let exports = exports?;
    let result = f(&*exports);
    exports.release();
    Some(result)
}

/// Returns the exports of records from other processes, each once.
fn held_exports() -> Vec<(u32, Arc<dyn Exports>)> {
    let held = HELD.read().unwrap_or_else(PoisonError::into_inner);
    let mut found: Vec<_> = held
        .values()
        .filter_map(|of| of.exports.upgrade())
        .collect();
    drop(held);
    found.sort_by_key(|exports| Arc::as_ptr(exports).addr());
    found.dedup_by_key(|exports| Arc::as_ptr(exports).addr());
    found
        .into_iter()
        .map(|exports| (exports.number(), exports))
        .collect()
}

/// Describes what this process exports. May take milliseconds.
pub(super) fn describe() -> ProcessReport {
    let mut exports: Vec<_> = {
        let all = PUBLISHED.read().unwrap_or_else(PoisonError::into_inner);
        let all = all.iter();
        all.filter_map(|(number, of)| Some((*number, of.exports.upgrade()?)))
            .collect()
    };
    exports.extend(held_exports());
    exports.sort_by_key(|(number, _)| *number);
    let most = MAX_LISTED_OF_ALL / exports.len().clamp(1, MAX_DESCRIBED_CONTEXTS);
    let mut report = ProcessReport {
        pid: process::pid(),
        program: process::program(),
        exporter: address::exporter_id().map_or(String::new(), |id| format!("{id:016x}")),
        started_unix_s: STARTED.get().copied().unwrap_or(0) / 1_000_000_000,
        taken_ns: process::monotonic_nanoseconds(),
        refusals: REFUSALS.load(Ordering::Relaxed),
        ..ProcessReport::default()
    };
    for (_, exports) in exports {
        // The other contexts are only released.
        let is_described = report.contexts.len() < MAX_DESCRIBED_CONTEXTS;
        let described = with(Some(exports), |exports| {
            is_described.then(|| exports.describe(most))
        });
        report.contexts.extend(described.flatten());
    }
    report.channels = channel::reports();
    report
}
