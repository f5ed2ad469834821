//! Other libraries that share memory or signal. `benches/python/peers.py` has those for Python.

mod umf;
mod wake;

use std::collections::BTreeMap;

use crate::harness::scenario::Scenario;

/// The scenarios of peers, in the order of the table.
pub(crate) static SCENARIOS: &[&Scenario] = &[
    &wake::SEMAPHORE_IDLE,
    &wake::SEMAPHORE_SLEEP,
    &wake::SEMAPHORE_SHARED,
    #[cfg(feature = "iceoryx2")]
    &wake::ICEORYX_SLEEP,
    #[cfg(feature = "iceoryx2")]
    &wake::ICEORYX_SHARED,
    &umf::HANDLES,
    &umf::RECYCLE,
];

/// Returns the versions of the peers that this program loads or has built in.
pub(crate) fn versions() -> BTreeMap<String, String> {
    let mut versions = crate::report::record::iceoryx2();
    versions.extend(umf::version().map(|version| ("UMF".to_owned(), version)));
    versions
}
